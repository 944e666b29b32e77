"""ConfigMaps: what replicas start with (immutable, named by its content), what they take over live, the router's."""

import json
from typing import Any

from pagefleet_contract.api_keys import digest_line
from pagefleet_contract.engine import EngineConfig
from pagefleet_contract.names import (
    COMPONENT_ENGINE,
    COMPONENT_ROUTER,
    FILE_ENGINE,
    FILE_LIVE,
    FILE_OPERATOR_KEYS,
    FILE_ROUTER,
)
from pagefleet_contract.policy import live_policy_json, without_live_values
from pagefleet_contract.router import RouterConfig
from pagefleet_operator.manifests.metadata import Manifest, Owner, child, content_hash


def engine_config_map(owner: Owner, config: EngineConfig, operator_key: str) -> Manifest:
    """Return the settings that a replica starts with. A replica of an older generation keeps its own."""
    data = {
        # Defaults are left out: an older image doesn't know the settings of a newer operator, and their coming
        # must not change the hash.
        FILE_ENGINE: _text(without_live_values(config).model_dump(mode="json", by_alias=True, exclude_defaults=True)),
        FILE_OPERATOR_KEYS: digest_line(operator_key) + "\n",
    }
    head = child(owner, "v1", "ConfigMap", owner.child(content_hash(data)), COMPONENT_ENGINE)
    return {**head, "immutable": True, "data": data}


def live_config_map(owner: Owner, config: EngineConfig) -> Manifest:
    """Return the settings that running replicas take over, and that one reads that starts later."""
    head = child(owner, "v1", "ConfigMap", owner.child("live"), COMPONENT_ENGINE)
    return {**head, "data": {FILE_LIVE: _text(live_policy_json(config))}}


def router_config_map(owner: Owner, config: RouterConfig) -> Manifest:
    head = child(owner, "v1", "ConfigMap", owner.child("router"), COMPONENT_ROUTER)
    return {**head, "data": {FILE_ROUTER: _text(config.model_dump(mode="json", by_alias=True, exclude_defaults=True))}}


def _text(content: Any) -> str:
    return json.dumps(content, indent=2, sort_keys=True) + "\n"
