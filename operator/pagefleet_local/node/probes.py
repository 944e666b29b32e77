"""When probes run and what their answers add up to; asking is done elsewhere."""

from dataclasses import dataclass
from enum import Enum

from pagefleet_local.node.pods import Manifest

FIRST_TRY_SECONDS = 0.1
LONGEST_EARLY_WAIT_SECONDS = 1.0


class Verdict(Enum):
    UNDECIDED = "undecided"
    GOOD = "good"
    BAD = "bad"


@dataclass(frozen=True)
class ProbeRule:
    """When to ask, how long to wait for an answer, and how many equal answers in a row decide."""

    initial_delay_seconds: float
    period_seconds: float
    timeout_seconds: float
    success_threshold: int
    failure_threshold: int


def probe_rule(probe: Manifest) -> ProbeRule:
    return ProbeRule(
        initial_delay_seconds=float(probe.get("initialDelaySeconds") or 0),
        period_seconds=float(probe.get("periodSeconds") or 10),
        timeout_seconds=float(probe.get("timeoutSeconds") or 1),
        success_threshold=int(probe.get("successThreshold") or 1),
        failure_threshold=int(probe.get("failureThreshold") or 3),
    )


@dataclass(frozen=True)
class Answers:
    """The verdict so far, and the run of equal answers since."""

    verdict: Verdict
    last: bool | None = None
    run: int = 0


def after_answer(answers: Answers, good: bool, rule: ProbeRule) -> Answers:
    run = answers.run + 1 if answers.last is good else 1
    needed = rule.success_threshold if good else rule.failure_threshold
    verdict = (Verdict.GOOD if good else Verdict.BAD) if run >= needed else answers.verdict
    return Answers(verdict, good, run)


@dataclass(frozen=True)
class Try:
    """When to ask next, whether a failure then counts, and what to count from after it."""

    at: float
    counts_failure: bool
    next_regular: float
    early_wait: float


def first_try(started: float, rule: ProbeRule, eager: bool) -> Try:
    """Return the first try. The first that counts comes after the delay that the rule names, or after a period: a
    program that has just been started answers nothing yet."""
    at = started + (rule.initial_delay_seconds or rule.period_seconds)
    early = started + rule.initial_delay_seconds + FIRST_TRY_SECONDS
    return Try(early, False, at, FIRST_TRY_SECONDS) if eager and early < at else _regular(at, rule)


def next_try(last: Try, now: float, rule: ProbeRule, eager: bool) -> Try:
    """Return the try after the last one. `eager` is a probe that waits for its first success: it also asks between its
    regular times, after a tenth of a second and then ever later up to a second, so that a container which has come up
    is not left waiting for a period. Such an early try may succeed, but its failure doesn't count."""
    wait = min(last.early_wait * 2, LONGEST_EARLY_WAIT_SECONDS)
    if eager and now + wait < last.next_regular:
        return Try(now + wait, False, last.next_regular, wait)
    return _regular(max(last.next_regular, now), rule, wait)


def _regular(at: float, rule: ProbeRule, early_wait: float = FIRST_TRY_SECONDS) -> Try:
    return Try(at, True, at + rule.period_seconds, early_wait)
