"""B17: what a definition that is older than this version lacks."""

import copy
from typing import Any

import pytest

from pagefleet_contract import names
from pagefleet_contract.crd import resource_schema
from pagefleet_contract.installed_schema import missing_fields

Schema = dict[str, Any]


def document(schema: Schema) -> dict[str, Any]:
    """Return it as the API server describes it, beside another kind."""
    kind = {"group": names.GROUP, "version": names.VERSION, "kind": names.KIND}
    ours = {**schema, "x-kubernetes-group-version-kind": [kind]}
    listed = {"type": "object", "x-kubernetes-group-version-kind": [{**kind, "kind": f"{names.KIND}List"}]}
    return {"components": {"schemas": {"theirs": {"type": "object"}, "list": listed, "ours": ours}}}


def without(*path: str) -> Schema:
    schema = copy.deepcopy(resource_schema())
    parent = schema
    for name in path[:-1]:
        parent = parent["items"] if name == "[]" else parent["properties"][name]
    del parent["properties"][path[-1]]
    return schema


def test_b17_nothing_is_missing_of_the_definition_of_this_version() -> None:
    assert missing_fields(document(resource_schema())) == ()


@pytest.mark.parametrize(
    ("path", "told"),
    [
        (("spec", "model", "kernels"), "spec.model.kernels"),
        (("spec", "kvCache"), "spec.kvCache"),
        (("status", "kv", "usedPercent"), "status.kv.usedPercent"),
        (("spec", "podTemplate", "env", "[]", "valueFrom"), "spec.podTemplate.env.valueFrom"),
    ],
)
def test_b17_a_field_that_an_older_definition_lacks_is_named(path: tuple[str, ...], told: str) -> None:
    assert missing_fields(document(without(*path))) == (told,)


def test_b17_what_a_newer_definition_has_beyond_this_version_is_no_loss() -> None:
    schema = copy.deepcopy(resource_schema())
    schema["properties"]["spec"]["properties"]["later"] = {"type": "string"}
    assert missing_fields(document(schema)) == ()


def test_b17_a_definition_that_keeps_unknown_fields_loses_none() -> None:
    schema = without("spec", "kvCache")
    schema["properties"]["spec"]["x-kubernetes-preserve-unknown-fields"] = True
    assert missing_fields(document(schema)) == ()


def test_b17_a_document_without_our_kind_is_not_taken_for_one_without_fields() -> None:
    with pytest.raises(LookupError, match=names.KIND):
        missing_fields({"components": {"schemas": {"theirs": {"type": "object"}}}})
