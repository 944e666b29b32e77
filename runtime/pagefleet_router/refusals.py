"""What the router itself refuses, in words."""

from pagefleet_contract.names import PLURAL
from pagefleet_contract.openai_error import (
    CODE_BODY_TOO_LARGE,
    CODE_DRAINING,
    CODE_INVALID_API_KEY,
    CODE_METHOD_NOT_ALLOWED,
    CODE_MODEL_NOT_FOUND,
    CODE_TOO_MANY_CONNECTIONS,
    CODE_UNKNOWN_URL,
    Refusal,
)


class Refused(Exception):
    """A request is refused by the router; `refusal` is its answer."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


INTERNAL = Refusal(
    500, "internal_error", "the router failed on this request; its log has the cause under the request id"
)
TOO_MANY_CONNECTIONS = Refusal(
    503,
    CODE_TOO_MANY_CONNECTIONS,
    "the router has as many connections as it may; try again soon",
    retry_after_seconds=1,
)
TOO_MUCH_BUFFERED = Refusal(
    503,
    "too_much_buffered",
    "the router holds as many request bodies as it may; try again soon",
    retry_after_seconds=1,
)
BAD_KEY = Refusal(401, CODE_INVALID_API_KEY, "no valid API key; send yours as `Authorization: Bearer KEY`")
BAD_HOST = Refusal(400, "invalid_host", "a request has exactly one Host header")
SLOW_BODY = Refusal(408, "slow_body", "the request's body stopped coming")
DRAIN_ENDED = Refusal(
    503,
    CODE_DRAINING,
    "the router is shutting down and can't wait longer; send the request again",
    retry_after_seconds=1,
)


def unknown_url(method: str, raw_path: bytes) -> Refusal:
    target = f"{method} {raw_path[:200].decode('latin-1')}"
    return Refusal(404, CODE_UNKNOWN_URL, f"there is nothing at {target}; the API is below /v1/")


def body_too_large(max_body_bytes: int) -> Refusal:
    return Refusal(413, CODE_BODY_TOO_LARGE, f"the body is larger than the {max_body_bytes} bytes allowed here")


def model_not_found(name: str, served_name: str) -> Refusal:
    shown = name if len(name) <= 200 else name[:200] + "…"
    message = f"the model '{shown}' isn't served here; the model is '{served_name}'"
    return Refusal(404, CODE_MODEL_NOT_FOUND, message, "model")


def no_replica(served_name: str, num_unready: int, num_draining: int) -> Refusal:
    """The model is known, and nobody is there to answer: it is worth another try."""
    known = [f"{number} {word}" for number, word in ((num_unready, "starting"), (num_draining, "ending")) if number]
    found = " and ".join(known) or "none"
    return Refusal(
        503,
        "no_replica",
        f"no replica of '{served_name}' is ready (of its pods: {found}); try again soon",
        retry_after_seconds=5,
    )


def no_pods(served_name: str, service: str, namespace: str) -> Refusal:
    """The router doesn't know how many replicas are asked for: none, or they are about to be made."""
    return Refusal(
        503,
        "no_replica",
        f"'{served_name}' has 0 replicas; if it is stopped, `kubectl scale {PLURAL} {service} -n {namespace}"
        " --replicas 1` starts it; if not, try again soon",
        retry_after_seconds=5,
    )


def unreachable(why: str) -> Refusal:
    return Refusal(503, "replica_unreachable", f"no replica could be reached ({why}); try again", retry_after_seconds=1)


def replica_lost(why: str) -> Refusal:
    return Refusal(502, "replica_lost", f"the replica that worked on this request is gone ({why}); send it again")


def method_not_allowed(method: str, raw_path: bytes) -> Refusal:
    target = f"{method} {raw_path.decode('latin-1')}"
    return Refusal(405, CODE_METHOD_NOT_ALLOWED, f"{target} isn't served; use GET")
