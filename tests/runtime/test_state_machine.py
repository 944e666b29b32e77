"""The scheduler under anything that may happen: 20,000 steps, every invariant after each."""

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.runtime.machine import SchedulerMachine

NUM_STEPS = 20_000


def test_every_invariant_holds_after_each_of_20000_steps() -> None:
    taken = 0

    class Counting(SchedulerMachine):
        def teardown(self) -> None:
            nonlocal taken
            super().teardown()
            taken += self.world.num_steps

    run_state_machine_as_test(
        Counting,
        settings=settings(
            max_examples=420,
            stateful_step_count=40,
            derandomize=True,
            database=None,
            deadline=None,
            print_blob=False,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert taken >= NUM_STEPS, f"only {taken} steps were taken; give the machine more examples"
