"""What of the settings can change while a server runs, and how it travels: as the body of /pagefleet/v1/policy and as
the file that `--live` names. A change of nothing else than these values needs no roll."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, create_model
from pydantic.alias_generators import to_camel
from pydantic.fields import FieldInfo

from pagefleet_contract.engine import Budget, EngineConfig, KVCacheSettings, Retention, SchedulingSettings

# Name in the policy: the field that bounds and describes it.
LIVE_FIELDS: dict[str, FieldInfo] = {
    "kv_blocks": Budget.model_fields["blocks"],
    "max_sequences": SchedulingSettings.model_fields["max_sequences"],
    "max_queue": SchedulingSettings.model_fields["max_queue"],
    "queue_timeout_seconds": SchedulingSettings.model_fields["queue_timeout_seconds"],
    "step_milliseconds": SchedulingSettings.model_fields["step_milliseconds"],
    "max_batch_tokens": SchedulingSettings.model_fields["max_batch_tokens"],
    "watermark_percent": KVCacheSettings.model_fields["watermark_percent"],
    "retention_ttl_seconds": Retention.model_fields["ttl_seconds"],
}

# Name in the policy: where it stands in EngineConfig. `kv_blocks` is not among them: a server reserves the memory of
# its blocks at start, so a resource that asks for more rolls.
LIVE_PATHS: dict[str, tuple[str, ...]] = {
    "max_sequences": ("scheduling", "max_sequences"),
    "max_queue": ("scheduling", "max_queue"),
    "queue_timeout_seconds": ("scheduling", "queue_timeout_seconds"),
    "step_milliseconds": ("scheduling", "step_milliseconds"),
    "max_batch_tokens": ("scheduling", "max_batch_tokens"),
    "watermark_percent": ("kv_cache", "watermark_percent"),
    "retention_ttl_seconds": ("kv_cache", "prefix_sharing", "retention", "ttl_seconds"),
}


class _LiveValues(BaseModel):
    """Live values; one that is absent leaves what is in force."""

    model_config = ConfigDict(extra="forbid", alias_generator=to_camel, populate_by_name=True, strict=True, frozen=True)


def _live_values(names: tuple[str, ...]) -> type[_LiveValues]:
    settings: dict[str, Any] = {name: (Annotated[int, *LIVE_FIELDS[name].metadata] | None, None) for name in names}
    return create_model("LivePolicy", __base__=_LiveValues, **settings)


# What a file with live settings, or the operator, may say.
LivePolicy = _live_values(tuple(LIVE_PATHS))


def live_policy(config: EngineConfig) -> dict[str, int]:
    """Return the live values of the settings by their names in the policy; what isn't set is left out."""
    values = {name: _value_at(config, path) for name, path in LIVE_PATHS.items()}
    return {name: value for name, value in values.items() if value is not None}


def live_policy_json(config: EngineConfig) -> dict[str, int]:
    """Return `live_policy` as files and bodies spell it."""
    return {to_camel(name): value for name, value in live_policy(config).items()}


def without_live_values(config: EngineConfig) -> EngineConfig:
    """Return the settings with every live value that is set replaced by one that is always the same.

    Two results differ exactly where going from one to the other needs a restart: a value that is set can become
    another live, but an absent one (the server decides) can't come or go.
    """
    return with_policy(config, dict.fromkeys(live_policy(config), _PLACEHOLDER))


def with_policy(config: EngineConfig, policy: dict[str, int]) -> EngineConfig:
    """Return the settings with live values, by their names in the policy, laid over. Raises ValidationError."""
    document = config.model_dump(mode="json", by_alias=False, exclude_none=True)
    for name, value in policy.items():
        section = document
        *parents, last = LIVE_PATHS[name]
        for parent in parents:
            section = section.setdefault(parent, {})
        section[last] = value
    return EngineConfig.model_validate(document)


def _value_at(config: EngineConfig, path: tuple[str, ...]) -> int | None:
    value: Any = config
    for name in path:
        value = getattr(value, name)
    return None if value is None else int(value)


# Within the bounds of every live field.
_PLACEHOLDER = 10
