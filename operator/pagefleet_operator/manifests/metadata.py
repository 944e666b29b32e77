"""What all children have in common: whose they are, by which labels they are found, and how content is hashed."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pagefleet_contract.names import (
    API_VERSION,
    KIND,
    LABEL_COMPONENT,
    LABEL_MANAGED_BY,
    LABEL_NAME,
    LABEL_SERVICE,
    MANAGED_BY_VALUE,
    NAME_VALUE,
    child_name,
)

Manifest = dict[str, Any]

HASH_LENGTH = 10


@dataclass(frozen=True, slots=True)
class Owner:
    """The resource whose child a manifest is."""

    name: str
    namespace: str
    uid: str

    def child(self, suffix: str) -> str:
        return child_name(self.name, suffix)


def labels(owner: Owner, component: str | None) -> dict[str, str]:
    """Return the labels of a child; `component` is None where it belongs to none."""
    found = {LABEL_NAME: NAME_VALUE, LABEL_MANAGED_BY: MANAGED_BY_VALUE, LABEL_SERVICE: owner.name}
    return found if component is None else {**found, LABEL_COMPONENT: component}


def child(
    owner: Owner,
    api_version: str,
    kind: str,
    name: str,
    component: str | None = None,
    annotations: Mapping[str, str] | None = None,
) -> Manifest:
    """Return the head of a child's manifest."""
    metadata: dict[str, Any] = {"name": name, "namespace": owner.namespace, "labels": labels(owner, component)}
    if annotations:
        metadata["annotations"] = dict(annotations)
    metadata["ownerReferences"] = [
        {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "name": owner.name,
            "uid": owner.uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata}


def content_hash(content: Any) -> str:
    """Return a short hash of a JSON value: the same for equal values, whatever the order of keys."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:HASH_LENGTH]


def without_absent(value: Any) -> Any:
    """Return the value without keys whose value is None: server-side apply takes null for something."""
    if isinstance(value, dict):
        return {key: without_absent(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_absent(item) for item in value]
    return value
