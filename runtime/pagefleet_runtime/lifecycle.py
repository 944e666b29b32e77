"""The scheduler's state, and the moves of a sequence through it: submitted, started, preempted, forked, ended.

Each move is complete in itself: blocks, queue, index and counters agree after it.
"""

from bisect import insort

from pagefleet_runtime.block_cache import BlockCache, Match
from pagefleet_runtime.block_pool import BlockPool
from pagefleet_runtime.counters import Counters
from pagefleet_runtime.plan import PageCopy
from pagefleet_runtime.prefix_index import PrefixIndex
from pagefleet_runtime.request import GenerationRequest, SequenceKey
from pagefleet_runtime.scheduler_settings import SchedulerSettings
from pagefleet_runtime.sequence import RequestState, Sequence, SequenceStatus
from pagefleet_runtime.waiting_queue import WaitingQueue

# Of several choices' ends, the one that the request is counted under.
_OUTCOME_ORDER = ("cancelled", "timeout", "error", "length", "stop")


class Lifecycle:
    def __init__(self, settings: SchedulerSettings, hash_key: bytes) -> None:
        self.settings = settings
        pool = BlockPool("device", settings.num_blocks)
        self.cache = BlockCache(pool, PrefixIndex(hash_key, settings.block_size, settings.digest_bytes))
        self.queue = WaitingQueue()
        self.running: list[Sequence] = []  # by rank
        self.requests: dict[str, RequestState] = {}
        self.counters = Counters()
        self.ended_requests: list[str] = []
        # Who computes a full block right now, by its digest.
        self.computing: dict[bytes, Sequence] = {}
        self._arrivals = 0

    @property
    def pool(self) -> BlockPool:
        return self.cache.pool

    @property
    def length_limit(self) -> int:
        """The longest request in tokens, prompt and answer together."""
        return min(self.settings.max_length_tokens, self.pool.limit * self.settings.block_size)

    @property
    def used_slots(self) -> int:
        """How many of max_sequences are taken."""
        return sum(sequence.num_choices for sequence in self.running)

    # --- moves

    def enqueue(self, request: GenerationRequest, now_seconds: float) -> None:
        self._arrivals += 1
        state = RequestState(request, self._arrivals, now_seconds, self._namespace(request))
        priority = request.priority if self.settings.policy == "Priority" else 0
        leader = Sequence(state, SequenceKey(request.request_id, 0), (priority, self._arrivals, 0))
        state.open_choices = dict.fromkeys(range(request.num_choices), leader)
        self.requests[request.request_id] = state
        self.queue.push(leader)

    def start(self, sequence: Sequence, match: Match, num_reserved: int) -> None:
        """Admit the sequence with the blocks that it shares, and take `num_reserved` ahead of need."""
        state = sequence.state
        self.queue.note_admitted(sequence)
        self.queue.remove(sequence)
        self.cache.adopt(sequence, match)
        for _ in range(num_reserved):
            block = self.cache.take()
            assert block is not None, "admission counted the blocks"
            state.reserve.append(block)
        if not state.started:
            state.started = True
            state.cached_tokens = sequence.computed
            self.counters.prompt_tokens += state.prompt_length
            self.counters.prefix_hit_tokens += sequence.computed
        sequence.status = SequenceStatus.RUNNING
        insort(self.running, sequence, key=lambda other: other.rank)
        for position in self._blocks_to_compute(sequence):
            self.computing.setdefault(self.cache.digest(sequence, position), sequence)

    def confirm(self, sequence: Sequence, computed: int) -> None:
        """Note that a step has computed the sequence's tokens up to `computed`."""
        self.counters.computed_tokens += computed - sequence.computed
        recomputed = min(computed, sequence.recompute_end) - sequence.computed
        if recomputed > 0:
            self.counters.recomputed_tokens[sequence.recompute_cause] += recomputed
        self._forget_computing(sequence, computed)
        self.cache.confirm(sequence, computed)

    def fork(self, leader: Sequence, choices: tuple[int, ...]) -> list[Sequence]:
        """Part the request into a sequence per choice; the first choice keeps the leader."""
        state = leader.state
        state.forked = True
        forked = []
        for choice in choices:
            key = SequenceKey(state.request.request_id, choice)
            rank = (*leader.rank[:2], choice)
            sequence = leader
            if choice == choices[0]:
                self.running.remove(leader)
                leader.key, leader.rank = key, rank
            else:
                sequence = Sequence(state, key, rank, status=SequenceStatus.RUNNING)
                self.cache.fork(leader, sequence)
            insort(self.running, sequence, key=lambda other: other.rank)
            state.open_choices[choice] = sequence
            forked.append(sequence)
        return forked

    def preempt(self, sequence: Sequence, cause: str) -> None:
        """Send a running sequence that is in no step back to its place in the queue."""
        self.counters.preemptions[cause] += 1
        if sequence.computed >= sequence.recompute_end:
            sequence.recompute_end, sequence.recompute_cause = sequence.computed, cause
        self._stop_running(sequence, keep_tail=True)
        sequence.computed = 0
        sequence.status = SequenceStatus.WAITING
        self.queue.push(sequence)

    def end_choice(self, state: RequestState, choice: int, reason: str, *, keep_tail: bool = True) -> None:
        """End one choice. Its blocks go back unless other choices still need them."""
        sequence = state.open_choices.pop(choice)
        state.reasons.add(reason)
        if sequence not in state.open_choices.values():
            self._end_sequence(sequence, keep_tail)
        elif sequence.key.choice_index == choice and sequence.epoch is None:
            sequence.key = SequenceKey(state.request.request_id, min(state.open_choices))
        if not state.open_choices:
            self._end_request(state)

    def end_all(self, state: RequestState, reason: str, *, keep_tail: bool = True) -> None:
        for choice in tuple(state.open_choices):
            self.end_choice(state, choice, reason, keep_tail=keep_tail)

    # --- blocks for a running sequence

    def take_block(self, sequence: Sequence) -> int | None:
        reserve = sequence.state.reserve
        return reserve.pop() if reserve else self.cache.take()

    def undo_growth(self, sequence: Sequence, copy: PageCopy | None) -> None:
        """Bring the table back to what is computed: the blocks of a row that will not run go back."""
        size, table = self.settings.block_size, sequence.table
        while len(table) > -(-sequence.computed // size):
            self.cache.release_block(table.pop(), None)
        if copy is not None:
            self.pool.acquire(copy.source)
            self.cache.unpin(copy.source)
            self.cache.release_block(table[-1], None)
            table[-1] = copy.source

    def distrust(self, sequence: Sequence) -> None:
        """Make nothing that the running sequence holds findable any more."""
        self._forget_computing(sequence, sequence.total)
        self.cache.distrust(sequence)

    def cut_chains(self) -> None:
        """Make nothing that is computed by now findable later."""
        for sequence in self.running:
            self._forget_computing(sequence, sequence.total)
            sequence.chain = None

    # --- inside

    def _namespace(self, request: GenerationRequest) -> str | None:
        match self.settings.prefix_sharing_mode:
            case "Disabled":
                return None
            case "Service":
                return ""
            case "Tenant":
                return request.tenant

    def _blocks_to_compute(self, sequence: Sequence) -> range:
        if sequence.chain is None:
            return range(0)
        size = self.settings.block_size
        return range(sequence.computed // size, sequence.total // size)

    def _forget_computing(self, sequence: Sequence, computed: int) -> None:
        size = self.settings.block_size
        if computed // size == sequence.computed // size or not self.computing:
            return
        for digest in sequence.digests[sequence.computed // size : computed // size]:
            if self.computing.get(digest) is sequence:
                del self.computing[digest]

    def _stop_running(self, sequence: Sequence, keep_tail: bool) -> None:
        self._forget_computing(sequence, sequence.total)
        self.running.remove(sequence)
        self.cache.release(sequence, keep_tail=keep_tail)

    def _end_sequence(self, sequence: Sequence, keep_tail: bool) -> None:
        if sequence.status is SequenceStatus.WAITING:
            self.queue.remove(sequence)
        else:
            self._stop_running(sequence, keep_tail)
        sequence.status = SequenceStatus.ENDED

    def _end_request(self, state: RequestState) -> None:
        for block in state.reserve:
            self.cache.release_block(block, None)
        state.reserve.clear()
        del self.requests[state.request.request_id]
        self.ended_requests.append(state.request.request_id)
        self.counters.outcomes[min(state.reasons, key=_OUTCOME_ORDER.index)] += 1
