"""Well-known models by name: what `simulated://NAME` may name, and what a service's fit is decided from."""

from collections.abc import Mapping
from types import MappingProxyType

from pagefleet_contract.engine import SIMULATED_SCHEME
from pagefleet_contract.known_model_table import KNOWN_MODELS
from pagefleet_contract.model_figures import KnownModel
from pagefleet_contract.near_names import did_you_mean

__all__ = ["KNOWN_MODELS", "KnownModel", "find_known_model", "is_simulated", "names_of_known_models"]

_HUB_SCHEME = "hf://"

_BY_NAME: Mapping[str, KnownModel] = MappingProxyType(
    {name.lower(): model for model in KNOWN_MODELS for name in (model.name, *model.hub_ids)}
)


def is_simulated(uri: str) -> bool:
    return uri.startswith(SIMULATED_SCHEME)


def find_known_model(uri: str) -> KnownModel | None:
    """Return the model that `simulated://NAME`, `hf://OWNER/NAME`, a name or a hub id means; None for others."""
    for scheme in (SIMULATED_SCHEME, _HUB_SCHEME):
        uri = uri.removeprefix(scheme)
    return _BY_NAME.get(uri.lower())


def names_of_known_models(uri: str) -> str:
    """Return what models there are instead of the unknown one of this URI, and which comes near."""
    names = [model.name for model in KNOWN_MODELS]
    return ", ".join(names) + did_you_mean(uri.removeprefix(SIMULATED_SCHEME), names)
