"""The work queue over many interleavings, with a clock of the test's own."""

from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pagefleet_operator.work_queue import Pace, WorkQueue

PACE = Pace(debounce=0.1, retry_first=1.0, retry_longest=300.0)
Key = tuple[str, int]  # name and generation of the object: the lane is the name


def _queue() -> WorkQueue[Key]:
    return WorkQueue(PACE, lane=lambda key: key[0])


A, B = ("a", 1), ("b", 1)


def test_a_burst_of_changes_is_one_piece_of_work() -> None:
    queue = _queue()
    for moment in (0.0, 0.02, 0.04, 0.06):
        queue.add(A, moment)
    assert queue.take(0.09) is None
    assert queue.take(0.1) == A
    queue.done(A)
    assert queue.take(1000) is None


def test_steady_changes_do_not_put_the_work_off() -> None:
    queue = _queue()
    moments = [index * 0.05 for index in range(40)]
    taken = 0
    for moment in moments:
        queue.add(A, moment)
        if queue.take(moment) is not None:
            taken += 1
            queue.done(A)
    assert taken >= 10


def test_a_change_during_the_work_is_looked_at_after_it() -> None:
    queue = _queue()
    queue.add(A, 0.0)
    assert queue.take(0.1) == A
    queue.add(A, 0.15)
    assert queue.take(5.0) is None
    queue.done(A)
    assert queue.take(5.0) == A


def test_two_objects_of_one_name_are_never_worked_on_at_the_same_time() -> None:
    queue = _queue()
    old, new = ("a", 1), ("a", 2)
    queue.add(old, 0.0)
    assert queue.take(0.1) == old
    queue.add(new, 0.2)
    queue.add(B, 0.25)
    assert queue.take(1.0) == B
    assert queue.take(1.0) is None
    queue.forget(old)
    queue.done(old)
    assert queue.take(1.0) == new


def test_failures_wait_longer_and_longer_up_to_the_longest() -> None:
    queue = _queue()
    waits, now = [], 0.0
    queue.add(A, now)
    for _ in range(12):
        now += 1000
        assert queue.take(now) == A
        waits.append(queue.failed(A, now, jitter=0.0))
    assert waits == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]


def test_an_event_brings_a_failed_key_forward_but_not_before_the_shortest_wait() -> None:
    queue = _queue()
    queue.add(A, 0.0)
    for moment in (1.0, 10.0, 20.0, 40.0):
        assert queue.take(moment) == A
        queue.failed(A, moment, jitter=0.0)
    queue.add(A, 40.2)
    assert queue.take(40.9) is None
    assert queue.take(41.0) == A


def test_what_the_other_side_asks_to_wait_is_waited_even_with_events() -> None:
    queue = _queue()
    queue.add(A, 0.0)
    assert queue.take(0.1) == A
    queue.failed(A, 0.1, jitter=0.0, at_least=30.0)
    queue.add(A, 1.0)
    assert queue.take(30.0) is None
    assert queue.take(30.1) == A


def test_success_ends_the_waiting() -> None:
    queue = _queue()
    queue.add(A, 0.0)
    queue.take(0.1)
    queue.failed(A, 0.1, jitter=0.0)
    assert queue.take(1.1) == A
    queue.done(A)
    queue.add(A, 2.0)
    assert queue.take(2.1) == A
    assert queue.failed(A, 2.1, jitter=0.0) == 1


def test_a_forgotten_key_is_not_looked_at_again() -> None:
    queue = _queue()
    queue.add_after(A, 60.0, 0.0)
    queue.forget(A)
    assert queue.seconds_until_due(0.0) is None
    assert queue.take(1000.0) is None
    assert queue.is_idle()


def test_jitter_takes_up_to_a_fifth_off() -> None:
    assert PACE.retry(3, 0.0) == 4.0
    assert PACE.retry(3, 1.0) == 3.2


@dataclass
class _Model:
    """What must hold, whatever happens in which order."""

    queue: WorkQueue[Key] = field(default_factory=_queue)
    now: float = 0.0
    busy: set[Key] = field(default_factory=set)
    owed: dict[Key, float] = field(default_factory=dict)  # since when a change has waited for a look
    gone: set[Key] = field(default_factory=set)

    def take(self) -> None:
        key = self.queue.take(self.now)
        if key is None:
            return
        assert key not in self.gone
        assert key[0] not in {busy[0] for busy in self.busy}, "two of one lane at once"
        self.busy.add(key)
        self.owed.pop(key, None)

    def finish(self, well: bool) -> None:
        if self.busy:
            key = min(self.busy)
            self.busy.discard(key)
            if well:
                self.queue.done(key)
            else:
                self.queue.failed(key, self.now, jitter=0.5)
                if key not in self.gone:
                    self.owed.setdefault(key, self.now)
                else:
                    self.queue.forget(key)


_KEYS = st.tuples(st.sampled_from("abc"), st.integers(1, 2))
_STEPS = st.one_of(
    st.tuples(st.just("add"), _KEYS),
    st.tuples(st.just("later"), _KEYS),
    st.tuples(st.just("forget"), _KEYS),
    st.tuples(st.sampled_from(("take", "done", "failed"))),
    st.tuples(st.just("wait"), st.floats(0.0, 2.0)),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(_STEPS, max_size=60))
def test_every_change_is_looked_at_and_lanes_stay_single(steps: list[tuple[Any, ...]]) -> None:
    model = _Model()
    for step in steps:
        match step:
            case ("add", tuple(key)) if key not in model.gone:
                model.queue.add(key, model.now)
                model.owed.setdefault(key, model.now)
            case ("later", tuple(key)) if key not in model.gone:
                model.queue.add_after(key, 1.0, model.now)
            case ("forget", tuple(key)):
                model.queue.forget(key)
                model.gone.add(key)
                model.owed.pop(key, None)
            case ("take",):
                model.take()
            case ("done",):
                model.finish(well=True)
            case ("failed",):
                model.finish(well=False)
            case ("wait", float(seconds)):
                model.now += seconds
    _drain(model)


def _drain(model: _Model) -> None:
    """With workers that succeed and time that passes, nothing that is owed is left, and nothing spins."""
    for _ in range(100):
        while model.busy:
            model.finish(well=True)
        wait = model.queue.seconds_until_due(model.now)
        if wait is None:
            break
        model.now += wait
        before = len(model.busy)
        model.take()
        assert len(model.busy) == before + 1, "said to be due, and nothing was"
    assert model.owed == {}
    assert model.queue.is_idle()
