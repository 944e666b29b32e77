"""Waiting for several services: none hides another."""

import time
from typing import Any

import pytest

from pagefleet_cli.awaiting import Place, until_ready
from pagefleet_cli.console import Console
from pagefleet_cli.readiness import Readiness, readiness
from pagefleet_cli.services import running
from pagefleet_local.errors import FleetError
from tests.cli.test_showing import service

READY, REFUSED = Readiness(True, False, "Serving"), Readiness(False, True, "TooLarge: 80 GB")
LOADING = Readiness(False, False, "Loading: weights")


def names_until_ready(told: dict[str, list[Readiness]], seconds: float, names: list[str]) -> None:
    """Add the names of services as they become ready, each of which is told these things in turn."""
    left = {name: list(states) for name, states in told.items()}

    def look(namespace: str, name: str) -> dict[str, Any]:
        return {"metadata": {"namespace": namespace, "name": name}}

    def judge(found: dict[str, Any]) -> Readiness:
        states = left[found["metadata"]["name"]]
        return states.pop(0) if len(states) > 1 else states[0]

    places: list[Place] = [("default", name) for name in told]
    names.extend(each["metadata"]["name"] for each in until_ready(places, look, judge, seconds, Console()))


def test_each_service_is_handed_out_when_it_is_ready() -> None:
    ready: list[str] = []
    names_until_ready({"slow": [LOADING, READY], "quick": [READY]}, 60, ready)
    assert ready == ["quick", "slow"]


def test_all_that_can_not_become_ready_are_named_as_soon_as_nothing_else_is_waited_for() -> None:
    began = time.monotonic()
    with pytest.raises(FleetError) as said:
        names_until_ready({"a": [REFUSED], "b": [LOADING, READY], "c": [LOADING, REFUSED]}, 60, [])
    assert str(said.value).splitlines() == [
        "a can't become ready: TooLarge: 80 GB",
        "c can't become ready: TooLarge: 80 GB",
    ]
    assert time.monotonic() - began < 10


def test_when_time_is_up_each_that_is_not_ready_is_named_with_what_it_waits_for() -> None:
    with pytest.raises(FleetError) as said:
        names_until_ready({"a": [LOADING], "b": [READY], "c": [REFUSED]}, 0.1, [])
    assert str(said.value).splitlines() == [
        "a is not ready after 0 s: Loading: weights; see `pagefleet logs a -n default`",
        "c can't become ready: TooLarge: 80 GB",
    ]


def test_the_services_that_a_fleet_goes_on_with_are_those_with_replicas() -> None:
    leaving = service()
    leaving["metadata"]["deletionTimestamp"] = "2026-11-30T00:00:00Z"
    wanted = service()
    assert running({"items": [service(replicas=0), leaving, wanted]}) == [wanted]
    assert not readiness(wanted).is_ready
