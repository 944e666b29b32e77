"""Probes: answers in, verdict out; and when the next question is due."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagefleet_local.node.probes import Answers, ProbeRule, Verdict, after_answer, first_try, next_try, probe_rule

RULE = ProbeRule(0, 10, 1, success_threshold=2, failure_threshold=3)


def verdict_after(answers: str, rule: ProbeRule = RULE, first: Verdict = Verdict.UNDECIDED) -> str:
    """`+` is a good answer, `-` a bad one."""
    state = Answers(first)
    for each in answers:
        state = after_answer(state, each == "+", rule)
    return state.verdict.value


@pytest.mark.parametrize(
    ("answers", "verdict"),
    [
        ("", "undecided"),
        ("+", "undecided"),
        ("++", "good"),
        ("--", "undecided"),
        ("---", "bad"),
        ("-+-+-+", "undecided"),
        ("++--", "good"),
        ("++---", "bad"),
        ("++---+", "bad"),
        ("++---++", "good"),
        ("--+--", "undecided"),
    ],
)
def test_only_equal_answers_in_a_row_change_the_verdict(answers: str, verdict: str) -> None:
    assert verdict_after(answers) == verdict


@given(st.text(alphabet="+-", max_size=30), st.integers(1, 5), st.integers(1, 5))
def test_the_verdict_is_that_of_the_last_run_that_was_long_enough(answers: str, success: int, failure: int) -> None:
    rule = ProbeRule(0, 1, 1, success, failure)
    expected, run = "undecided", ""
    for each in answers:
        run = run + each if run.endswith(each) else each
        if len(run) >= (success if each == "+" else failure):
            expected = "good" if each == "+" else "bad"
    assert verdict_after(answers, rule) == expected


def test_what_a_probe_leaves_out_is_the_kubelet_s_default() -> None:
    assert probe_rule({"httpGet": {"port": 1}}) == ProbeRule(0, 10, 1, 1, 3)
    given_all = {
        "initialDelaySeconds": 5,
        "periodSeconds": 2,
        "timeoutSeconds": 3,
        "successThreshold": 4,
        "failureThreshold": 6,
    }
    assert probe_rule(given_all) == ProbeRule(5, 2, 3, 4, 6)


def times(rule: ProbeRule, eager: bool, count: int) -> list[tuple[float, bool]]:
    """Return when questions that are answered at once are asked, and whether a bad answer counts."""
    attempt = first_try(0.0, rule, eager)
    found = [(round(attempt.at, 3), attempt.counts_failure)]
    for _ in range(count - 1):
        attempt = next_try(attempt, attempt.at, rule, eager)
        found.append((round(attempt.at, 3), attempt.counts_failure))
    return found


def test_a_settled_probe_asks_at_its_period_from_its_delay_on() -> None:
    assert times(ProbeRule(5, 10, 1, 1, 3), eager=False, count=3) == [(5, True), (15, True), (25, True)]
    assert times(ProbeRule(0, 10, 1, 1, 3), eager=False, count=3) == [(10, True), (20, True), (30, True)]


def test_a_probe_that_waits_for_its_first_success_asks_between_its_times_without_counting_failures() -> None:
    found = times(ProbeRule(0, 4, 1, 1, 3), eager=True, count=9)
    early = [(0.1, False), (0.3, False), (0.7, False), (1.5, False), (2.5, False), (3.5, False)]
    assert found == [*early, (4, True), (5, False), (6, False)]
    delayed = times(ProbeRule(2, 4, 1, 1, 3), eager=True, count=4)
    assert delayed == [(2, True), (2.2, False), (2.6, False), (3.4, False)]


@given(st.floats(0, 20), st.integers(1, 30), st.booleans())
def test_failures_count_once_a_period_at_most(delay: float, period: int, eager: bool) -> None:
    counted = [at for at, counts in times(ProbeRule(delay, period, 1, 1, 3), eager, 50) if counts]
    assert all(later - earlier >= period - 0.01 for earlier, later in itertools.pairwise(counted))


def test_a_slow_answer_delays_the_next_question_instead_of_piling_up() -> None:
    rule = ProbeRule(0, 2, 1, 1, 3)
    attempt = next_try(first_try(0.0, rule, eager=False), 7.0, rule, eager=False)
    assert (attempt.at, attempt.next_regular) == (7.0, 9.0)
