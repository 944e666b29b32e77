"""The sequences that wait for admission: in order of rank, with a limit on how often each is overtaken.

Every operation is O(log n): thousands wait on a busy day.
"""

import heapq
from collections import OrderedDict

from pagefleet_runtime.sequence import Rank, RequestState, Sequence

MOST_OVERTAKEN = 16


class WaitingQueue:
    """Waiting requests and preempted sequences. Being overtaken is being behind, by arrival, a sequence that is
    admitted; who was overtaken MOST_OVERTAKEN times is overdue, and goes before everybody else."""

    def __init__(self) -> None:
        self._heap: list[tuple[Rank, int, Sequence]] = []
        self._tickets = 0
        # Requests that were never admitted, by arrival.
        self._unstarted: OrderedDict[Sequence, None] = OrderedDict()
        self._preempted: dict[Sequence, None] = {}
        # Arrivals of the latest-arrived among all admitted, the earliest of them first: a waiting request was
        # overtaken as often as there are later arrivals in here.
        self._admitted: list[int] = []
        self.num_requests = 0
        self.prompt_tokens = 0

    def __len__(self) -> int:
        return len(self._unstarted) + len(self._preempted)

    @property
    def num_unstarted(self) -> int:
        return len(self._unstarted)

    def sequences(self) -> tuple[Sequence, ...]:
        return (*self._unstarted, *self._preempted)

    def oldest_unstarted(self) -> Sequence | None:
        return next(iter(self._unstarted), None)

    # --- coming and going

    def push(self, sequence: Sequence) -> None:
        if sequence.state.started:
            self._preempted[sequence] = None
            sequence.passed = 0
        else:
            self._unstarted[sequence] = None
        self._count(sequence.state, 1)
        self.put_back(sequence)

    def remove(self, sequence: Sequence) -> None:
        """The sequence no longer waits, for whatever reason; it may be popped at the time or not."""
        self._unstarted.pop(sequence, None)
        self._preempted.pop(sequence, None)
        sequence.ticket = 0
        sequence.waits_for_block = False
        self._count(sequence.state, -1)

    def note_admitted(self, admitted: Sequence) -> None:
        """Count that everybody who arrived before `admitted` and still waits was overtaken."""
        order = admitted.state.order
        if len(self._admitted) < MOST_OVERTAKEN:
            heapq.heappush(self._admitted, order)
        else:
            heapq.heappushpop(self._admitted, order)
        for sequence in self._preempted:
            if sequence.state.order < order:
                sequence.passed += 1

    def is_overdue(self, sequence: Sequence) -> bool:
        if sequence in self._preempted:
            return sequence.passed >= MOST_OVERTAKEN
        return len(self._admitted) == MOST_OVERTAKEN and self._admitted[0] > sequence.state.order

    # --- looking for the next

    def pop(self) -> Sequence | None:
        """Return who goes next: the earliest of the overdue, else the first by rank. It goes on waiting until it is
        removed, but isn't returned again before it is put back."""
        overdue = self._first_overdue()
        if overdue is not None:
            overdue.ticket = 0
            return overdue
        while self._heap:
            _, ticket, sequence = heapq.heappop(self._heap)
            if sequence.ticket == ticket:
                sequence.ticket = 0
                return sequence
        return None

    def put_back(self, sequence: Sequence) -> None:
        self._tickets += 1
        sequence.ticket = self._tickets
        heapq.heappush(self._heap, (sequence.rank, sequence.ticket, sequence))
        if len(self._heap) > 2 * len(self) + 64:
            # Entries of those who left, or were popped as overdue, stay behind in the heap.
            self._heap = [entry for entry in self._heap if entry[2].ticket == entry[1]]
            heapq.heapify(self._heap)

    def _first_overdue(self) -> Sequence | None:
        found = [s for s in self._preempted if s.ticket and self.is_overdue(s)]
        for sequence in self._unstarted:
            if not self.is_overdue(sequence):
                break
            if sequence.ticket:
                found.append(sequence)
                break
        return min(found, key=lambda sequence: (sequence.state.order, sequence.rank), default=None)

    def _count(self, state: RequestState, change: int) -> None:
        before = state.waiting_sequences
        state.waiting_sequences += change
        if (before > 0) != (state.waiting_sequences > 0):
            self.num_requests += change
            self.prompt_tokens += change * state.prompt_length
