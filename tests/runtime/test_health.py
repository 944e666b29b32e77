"""Both probes, as a table: state and waiting time in, answers out."""

import pytest

from pagefleet_runtime.engine_client import EngineState
from pagefleet_runtime.health import judge


@pytest.mark.parametrize(
    ("state", "stalled_seconds", "live", "ready"),
    [
        ("loading", 0, True, False),
        ("loading", 1000, True, False),
        ("ready", 0, True, True),
        ("ready", 19, True, True),
        ("ready", 20, True, False),
        ("ready", 59, True, False),
        ("ready", 60, False, False),
        ("draining", 0, True, False),
        ("draining", 30, True, False),
        ("draining", 60, False, False),
        ("failed", 0, False, False),
    ],
)
def test_probes(state: EngineState, stalled_seconds: float, live: bool, ready: bool) -> None:
    health = judge(state, stalled_seconds, stall_limit_seconds=60)
    assert (health.live, health.ready) == (live, ready)


def test_a_stall_is_said_with_its_length() -> None:
    assert "61 s" in judge("ready", 61, 60).reason
