"""Which replica gets a request, and whether another one is asked after a failure. Pure: values in, an answer out.

Prefix routing has its place here: a preference among the candidates, under a load cap.
"""

from collections.abc import Callable, Collection, Mapping, Sequence

from pagefleet_contract.openai_error import (
    CODE_DRAINING,
    CODE_ENGINE_FAILED,
    CODE_MODEL_LOADING,
    CODE_QUEUE_FULL,
    CODE_TOO_MANY_CONNECTIONS,
)
from pagefleet_router.replicas import Replica

# Why a replica didn't answer: it couldn't be connected to, or ended before its answer began. Else its refusal's code.
REASON_CONNECT = "connect"
REASON_RESET = "reset"

# Refusals that say "not I, not now", by status.
_RETRIED_CODES = {
    503: (CODE_DRAINING, CODE_MODEL_LOADING, CODE_ENGINE_FAILED, CODE_TOO_MANY_CONNECTIONS),
    429: (CODE_QUEUE_FULL,),
}
REASONS = (REASON_CONNECT, REASON_RESET, *(code for codes in _RETRIED_CODES.values() for code in codes))
RETRIED_STATUSES = frozenset(_RETRIED_CODES)
# The request itself may have been the cause: it isn't let loose on one replica after the other.
_PERHAPS_ITS_FAULT = (REASON_RESET, CODE_ENGINE_FAILED)
# The replica works and has enough to do; the count of its requests says so too.
_BUSY = (CODE_QUEUE_FULL, CODE_TOO_MANY_CONNECTIONS)

# How long others are preferred to a replica after a failure: doubled for each further one in a row, up to a limit.
_SHUN_SECONDS = 1.0
_SHUN_SECONDS_MOST = 30.0


def retry_reason(status: int, code: object) -> str | None:
    """Return why another replica should be asked after an answer with this status and code; None to pass it on."""
    return str(code) if code in _RETRIED_CODES.get(status, ()) else None


def may_retry(reasons: Sequence[str], max_retries: int) -> bool:
    """Whether to go on after these failures, the last one included.

    The second full queue is taken for an answer: when two replicas have no room, asking all of them makes it worse. So
    is the second replica that ended on this request.
    """
    num_ended = sum(reason in _PERHAPS_ITS_FAULT for reason in reasons)
    return len(reasons) <= max_retries and reasons.count(CODE_QUEUE_FULL) <= 1 and num_ended <= 1


def is_avoided(reason: str) -> bool:
    """Whether others are preferred to a replica for a while that didn't take a request for this reason."""
    return reason not in _BUSY


def shun_seconds(failures_in_a_row: int) -> float:
    """Return how long a replica is avoided after so many failures."""
    return min(_SHUN_SECONDS * 2.0 ** min(failures_in_a_row - 1, 10), _SHUN_SECONDS_MOST)


def pick(
    replicas: Sequence[Replica],
    in_flight: Mapping[str, int],
    shunned: Collection[str],
    tried: Collection[str],
    draw: Callable[[Sequence[Replica]], Replica],
) -> Replica | None:
    """Return the ready replica with the least requests in flight that wasn't tried, by lot among equals; None if there
    is none. Those that failed lately come last. `in_flight`, `shunned` and `tried` are by uid."""
    candidates = [replica for replica in replicas if replica.state == "ready" and replica.uid not in tried]
    if not candidates:
        return None
    preferred = [replica for replica in candidates if replica.uid not in shunned] or candidates
    least = min(in_flight.get(replica.uid, 0) for replica in preferred)
    return draw([replica for replica in preferred if in_flight.get(replica.uid, 0) == least])
