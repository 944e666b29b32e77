"""B13: the user's environment against ours. Each name once, the user wins unless it is reserved, order is kept."""

from typing import Any

from pagefleet_operator.actions import Plan
from tests.operator.builders import REAL, all_live, applied, engine, observed, planned, spec

ENV: list[dict[str, Any]] = [
    {"name": "HF_HUB_DISABLE_TELEMETRY", "value": "0"},
    {"name": "ADDR", "value": "$(POD_IP):1"},
    {"name": "EMPTY", "value": ""},
    {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
    {"name": "B", "value": "2"},
    {"name": "A", "value": "$(B)"},
]


def environment(**template: Any) -> list[dict[str, Any]]:
    found = engine(applied(planned(observed(spec(REAL, podTemplate=template)))))
    variables: list[dict[str, Any]] = found["spec"]["template"]["spec"]["containers"][0]["env"]
    return variables


def test_b13_each_name_stands_once_and_the_user_wins() -> None:
    found = environment(env=ENV)
    names = [entry["name"] for entry in found]
    assert len(names) == len(set(names))
    by_name = {entry["name"]: entry for entry in found}
    assert by_name["HF_HUB_DISABLE_TELEMETRY"]["value"] == "0"
    assert by_name["TOKEN"] == ENV[3]
    assert by_name["EMPTY"]["value"] == ""
    assert {entry["name"]: entry for entry in environment()}["HF_HUB_DISABLE_TELEMETRY"]["value"] == "1"


def test_b13_the_users_order_is_kept_and_comes_after_what_it_may_refer_to() -> None:
    names = [entry["name"] for entry in environment(env=ENV)]
    assert names[-len(ENV) :] == [entry["name"] for entry in ENV]
    assert names.index("POD_IP") < names.index("ADDR")


def test_b13_the_defaults_take_the_same_place_whatever_the_user_adds() -> None:
    ours = [entry["name"] for entry in environment()]
    assert [entry["name"] for entry in environment(env=ENV[1:])][: len(ours)] == ours


def test_b13_ten_reconciles_change_nothing() -> None:
    wanted = spec(REAL, podTemplate={"env": ENV})
    world = observed(wanted)
    first = applied(planned(world))
    for _ in range(10):
        world = observed(wanted, all_live(first))
        found: Plan = planned(world)
        assert found.actions == ()


def test_b13_port_of_service_probes_and_container_agree() -> None:
    found = applied(planned(observed(spec(REAL, routing={"mode": "Service"}))))
    container = engine(found)["spec"]["template"]["spec"]["containers"][0]
    (port,) = container["ports"]
    (door,) = found["Service", "chat"]["spec"]["ports"]
    assert port["containerPort"] == door["port"] == 8000
    names = {container[probe]["httpGet"]["port"] for probe in ("livenessProbe", "readinessProbe")}
    assert names == {port["name"]} == {door["targetPort"]}
