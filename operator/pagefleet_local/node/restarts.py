"""When a container that has ended starts again. The kubelet's rule: at once, then after 10 s, doubled to 5 minutes."""

from dataclasses import dataclass

FIRST_BACKOFF_SECONDS = 10.0
LONGEST_BACKOFF_SECONDS = 300.0
FORGOTTEN_AFTER_SECONDS = 600.0


@dataclass(frozen=True)
class Finished:
    """The container stays as it is."""


@dataclass(frozen=True)
class Restart:
    """It starts again after the delay; `next_backoff_seconds` is what the next end of it waits."""

    delay_seconds: float
    next_backoff_seconds: float


def after_exit(policy: str, exit_code: int, ran_seconds: float, backoff_seconds: float) -> Finished | Restart:
    """Decide for a container that ran so long and whose last restart set this backoff (0: it never restarted)."""
    if policy == "Never" or (policy == "OnFailure" and exit_code == 0):
        return Finished()
    if backoff_seconds == 0 or ran_seconds > FORGOTTEN_AFTER_SECONDS:
        return Restart(0.0, FIRST_BACKOFF_SECONDS)
    return Restart(backoff_seconds, min(backoff_seconds * 2, LONGEST_BACKOFF_SECONDS))
