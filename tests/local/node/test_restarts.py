"""When a container starts again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagefleet_local.node.restarts import Finished, Restart, after_exit


@pytest.mark.parametrize(
    ("policy", "code", "again"),
    [
        ("Always", 0, True),
        ("Always", 1, True),
        ("OnFailure", 0, False),
        ("OnFailure", 137, True),
        ("Never", 0, False),
        ("Never", 1, False),
    ],
)
def test_the_policy_says_whether_it_starts_again(policy: str, code: int, again: bool) -> None:
    assert isinstance(after_exit(policy, code, 1.0, 0.0), Restart) is again


def test_the_first_restart_is_at_once_and_the_next_wait_ten_seconds_to_five_minutes() -> None:
    waits, backoff = [], 0.0
    for _ in range(8):
        decision = after_exit("Always", 1, 1.0, backoff)
        assert isinstance(decision, Restart)
        waits.append(decision.delay_seconds)
        backoff = decision.next_backoff_seconds
    assert waits == [0, 10, 20, 40, 80, 160, 300, 300]


def test_a_container_that_ran_long_enough_begins_anew() -> None:
    assert after_exit("Always", 1, 601, 300.0) == Restart(0.0, 10.0)


@given(st.sampled_from(["Always", "OnFailure", "Never"]), st.integers(0, 255), st.floats(0, 1e5), st.floats(0, 300))
def test_no_wait_is_longer_than_five_minutes(policy: str, code: int, ran: float, backoff: float) -> None:
    decision = after_exit(policy, code, ran, backoff)
    assert isinstance(decision, Finished) or 0 <= decision.delay_seconds <= 300 >= decision.next_backoff_seconds
