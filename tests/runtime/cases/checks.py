"""What must be so after every case, once its traffic has ended."""

from tests.runtime.cases.rig import Rig, some_ids

_CONTROL_PROMPT = some_ids("control", 37)


def check_settled(rig: Rig) -> None:
    """Fail where a case has left something behind: blocks, requests, ill health, wrong answers, a trace in the log."""
    rig.server.wait_until(lambda: _busy(rig) == [])
    snapshot = rig.snapshot()
    assert snapshot["blocksFree"] + snapshot["blocksCached"] == snapshot["blocksTotal"], snapshot
    assert snapshot["slotsLive"] == snapshot["slotsAllocated"] == snapshot["queuedTokens"] == 0, snapshot
    assert rig.server.status("/health/live") == rig.server.status("/health/ready") == 200
    _check_control(rig)
    log = rig.server.log
    for bad in ("Traceback", "bug of ours", "books are wrong"):
        assert bad not in log, log


def _busy(rig: Rig) -> list[str]:
    """Return the gauges that must come to 0 and haven't."""
    figures = rig.figures()
    gauges = {
        "in flight": figures["pagefleet_requests_in_flight", ""],
        "waiting": figures["pagefleet_requests_waiting", ""],
        "running": figures["pagefleet_sequences_running", ""],
        "live": figures["pagefleet_kv_blocks", "live"],
        "usage": figures["pagefleet_kv_usage_ratio", ""],
    }
    return [name for name, value in gauges.items() if value != 0]


def _check_control(rig: Rig) -> None:
    answer = rig.complete(_CONTROL_PROMPT, 12)
    rig.check_greedy(_CONTROL_PROMPT, answer)
    assert answer.counts == (37, 12, 49)
    assert 0 <= answer.cached < 37
