"""The scheduler under anything that may happen: every invariant after each step."""

import pytest
from hypothesis.stateful import run_state_machine_as_test

from tests.runtime.machine import SchedulerMachine, machine_settings

NUM_STEPS = 20_000


def steps_taken(max_examples: int, *, derandomize: bool) -> int:
    taken = 0

    class Counting(SchedulerMachine):
        def teardown(self) -> None:
            nonlocal taken
            super().teardown()
            taken += self.world.num_steps

    run_state_machine_as_test(Counting, settings=machine_settings(max_examples, derandomize=derandomize))
    return taken


def test_every_invariant_holds_after_each_of_20000_steps() -> None:
    assert steps_taken(420, derandomize=True) >= NUM_STEPS, "too few steps were taken; give the machine more examples"


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_every_invariant_holds_over_new_seeds() -> None:
    assert steps_taken(5000, derandomize=False) >= 10 * NUM_STEPS
