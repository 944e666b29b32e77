"""Whether the server is alive and whether it should get requests, decided from values."""

from dataclasses import dataclass

from pagefleet_runtime.engine_client import EngineState

# Readiness goes first, so that a router looks elsewhere before anything restarts this replica.
READINESS_SHARE = 1 / 3


@dataclass(frozen=True, slots=True)
class Health:
    """The answers to both probes, and why."""

    live: bool
    ready: bool
    reason: str


def judge(state: EngineState, stalled_seconds: float, stall_limit_seconds: float) -> Health:
    """Return both answers for an engine in `state` that has owed a step for `stalled_seconds` (0: it owes nothing).

    State ready implies that a token has been produced. Loading takes as long as it takes: it is alive all the time.
    """
    if state == "failed":
        return Health(False, False, "the engine has failed")
    if state == "loading":
        return Health(True, False, "the model is loading")
    if stalled_seconds >= stall_limit_seconds:
        return Health(False, False, f"work has waited {stalled_seconds:.0f} s and no step has finished")
    if state == "draining":
        return Health(True, False, "draining: no new requests are taken")
    if stalled_seconds >= stall_limit_seconds * READINESS_SHARE:
        return Health(True, False, f"work has waited {stalled_seconds:.0f} s and no step has finished")
    return Health(True, True, "ready")
