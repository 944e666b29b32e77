"""The CustomResourceDefinition of InferenceService as a value."""

from typing import Any

from pagefleet_contract import names
from pagefleet_contract.crd_schema import Schema, structural_schema
from pagefleet_contract.inferenceservice import NAME_RULE, InferenceServiceSpec
from pagefleet_contract.status import InferenceServiceStatus
from pagefleet_contract.unhonoured import with_words

_SUMMARY = (
    "A language model that is served from a paged KV cache by a fleet of replicas: what it is, what it may use,"
    " and how it grows."
)
_API_VERSION = "Version of the API that this object is written in."
_KIND = "Kind of this object."


def custom_resource_definition() -> dict[str, Any]:
    """Return the CRD. Raises SchemaRefused where a model can't be written as a structural schema."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": names.CRD_NAME},
        "spec": {
            "group": names.GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": names.KIND,
                "listKind": f"{names.KIND}List",
                "plural": names.PLURAL,
                "singular": names.SINGULAR,
                "shortNames": [names.SHORT_NAME],
                "categories": [names.CATEGORY],
            },
            "versions": [
                {
                    "name": names.VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": _subresources(),
                    "additionalPrinterColumns": _columns(),
                    "schema": {"openAPIV3Schema": resource_schema()},
                }
            ],
        },
    }


def resource_schema() -> Schema:
    """Return the structural schema of the whole object."""
    return {
        "type": "object",
        "description": _SUMMARY,
        "required": ["spec"],
        "x-kubernetes-validations": [NAME_RULE.as_schema()],
        "properties": {
            "apiVersion": {"type": "string", "description": _API_VERSION},
            "kind": {"type": "string", "description": _KIND},
            "metadata": {"type": "object"},
            "spec": with_words(structural_schema(InferenceServiceSpec)),
            "status": structural_schema(InferenceServiceStatus),
        },
    }


def _subresources() -> dict[str, Any]:
    return {
        "status": {},
        "scale": {
            "specReplicasPath": ".spec.replicas",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        },
    }


def _columns() -> list[dict[str, Any]]:
    ready = f'.status.conditions[?(@.type=="{names.CONDITION_READY}")]'
    return [
        _column("Model", "string", ".spec.model.uri", "Where the model is."),
        _column("Ready", "string", ".status.ready", "Ready replicas of those that are asked for."),
        _column("Up-to-date", "integer", ".status.updatedReplicas", "Replicas that run the newest spec."),
        _column("Status", "string", f"{ready}.reason", "Serving, or why no replica with the newest spec answers."),
        _column("KV%", "integer", ".status.kv.usedPercent", "Share of the KV blocks that running requests hold."),
        _column("Age", "date", ".metadata.creationTimestamp", "Time since the service was created."),
        _column(names.COLUMN_URL, "string", ".status.url", "Where clients in the cluster reach the service.")
        | {"priority": 1},
    ]


def _column(name: str, kind: str, path: str, description: str) -> dict[str, Any]:
    return {"name": name, "type": kind, "jsonPath": path, "description": description}
