"""B17: an operator that is newer than the installed definition says what that lacks, once."""

import asyncio
import copy
import logging
from collections.abc import Mapping
from typing import Any

import pytest

from pagefleet_contract import names
from pagefleet_contract.crd import resource_schema
from pagefleet_contract.installed_schema import OPENAPI_PATH
from pagefleet_operator.cluster_api import ClusterApi
from pagefleet_operator.discovery import Discovery
from pagefleet_operator.faults import AbsentFault, Fault, RefusedFault


class Answers(ClusterApi):
    """An API server that describes our kind in these ways, one after the other."""

    def __init__(self, *answers: dict[str, Any] | Fault) -> None:
        super().__init__(1)
        self._answers = list(answers)

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, Any]:
        assert (path, query) == (OPENAPI_PATH, None)
        answer = self._answers.pop(0)
        if isinstance(answer, Fault):
            raise answer
        return answer


def described(*missing: str) -> dict[str, Any]:
    schema = copy.deepcopy(resource_schema())
    for name in missing:
        del schema["properties"]["spec"]["properties"][name]
    kind = {"group": names.GROUP, "version": names.VERSION, "kind": names.KIND}
    return {"components": {"schemas": {"ours": {**schema, "x-kubernetes-group-version-kind": [kind]}}}}


def compared(*answers: dict[str, Any] | Fault) -> tuple[str, ...] | None:
    discovery = Discovery(Answers(*answers), lambda: None)

    async def run() -> None:
        for _ in answers:
            await discovery.compare_schema()

    asyncio.run(run())
    return discovery.missing_fields


def test_b17_fields_that_the_definition_lacks_are_named_once_with_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert compared(described("tenancy", "rollout"), described("tenancy", "rollout")) == (
            "spec.tenancy",
            "spec.rollout",
        )
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "lacks spec.tenancy, spec.rollout: the API server drops them" in record.message
    assert "crds.install=true" in record.message and "`kubectl apply`" in record.message


def test_b17_a_definition_that_was_brought_up_to_date_is_told_too(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert compared(described("tenancy"), described()) == ()
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


def test_b17_of_many_fields_the_first_are_named_and_the_rest_counted(caplog: pytest.LogCaptureFixture) -> None:
    compared(described(*resource_schema()["properties"]["spec"]["properties"]))
    (record,) = caplog.records
    assert "spec.accelerator" in record.message and " more: the API" in record.message


@pytest.mark.parametrize(
    ("answer", "num_warnings"),
    [(described(), 0), (AbsentFault("NotFound", "not there"), 0), ({}, 0), (RefusedFault("Forbidden", "no"), 1)],
)
def test_b17_what_is_not_known_is_not_called_missing(
    answer: dict[str, Any] | Fault, num_warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    assert not compared(answer)
    assert len(caplog.records) == num_warnings
