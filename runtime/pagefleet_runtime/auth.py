"""Who may do what: tenants' keys for the API, the operator's for /pagefleet/v1/…"""

from dataclasses import dataclass
from typing import Self

from pagefleet_contract.api_keys import ApiKeys, bearer_token
from pagefleet_contract.engine import ServingSettings
from pagefleet_contract.openai_error import Refusal
from pagefleet_runtime.errors import RequestRefused


@dataclass(frozen=True, slots=True)
class AccessKeys:
    """The two kinds of keys: the tenants' for the API, the operator's for /pagefleet/v1/…"""

    api: ApiKeys
    operator: ApiKeys

    @classmethod
    def load(cls, settings: ServingSettings) -> Self:
        """Read both files. Raises KeyFileRefused."""
        return cls(ApiKeys.load(settings.api_keys_file), ApiKeys.load(settings.operator_key_file))

    def check_operator(self, header: str | None) -> None:
        """Raise RequestRefused unless the Authorization header carries the operator's key."""
        if not self.operator.required:
            raise RequestRefused(Refusal(403, "no_operator_key", _NO_OPERATOR_KEY))
        if bearer_token(header) is None:
            raise RequestRefused(Refusal(401, "missing_key", "send the operator's key as `Authorization: Bearer KEY`"))
        if self.operator.tenant_of(header) is None:
            raise RequestRefused(
                Refusal(403, "not_the_operator", "this key is not the operator's; tenants' keys don't open this path")
            )


_NO_OPERATOR_KEY = (
    "this path is closed because the server has no operator key; "
    "start it with --serving-operator-key-file FILE (serving.operatorKeyFile)"
)
