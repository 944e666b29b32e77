"""Who may come in: refusals with their numbers, and whether a waiting sequence's blocks can be had now."""

import math
from dataclasses import dataclass, replace
from enum import Enum

from pagefleet_contract.openai_error import CODE_QUEUE_FULL, Refusal
from pagefleet_runtime.block_cache import Match
from pagefleet_runtime.errors import RequestRefused, invalid
from pagefleet_runtime.lifecycle import Lifecycle
from pagefleet_runtime.protocol import PolicyChange
from pagefleet_runtime.request import GenerationRequest
from pagefleet_runtime.scheduler_settings import SchedulerSettings
from pagefleet_runtime.sequence import Sequence


class Verdict(Enum):
    ADMIT = "admit"
    NO_ROOM = "no room"
    WAIT_FOR_BLOCK = "wait for block"  # its next block is being computed for somebody else


@dataclass(frozen=True, slots=True)
class Decision:
    verdict: Verdict
    match: Match
    num_reserved: int = 0  # blocks to take ahead of need


# --- at the door


def refuse_if_impossible(lifecycle: Lifecycle, request: GenerationRequest) -> None:
    """Raise RequestRefused (400) where the request can never be served as the limits are."""
    prompt, asked, limit = len(request.prompt_ids), request.params.max_tokens, lifecycle.length_limit
    if request.request_id in lifecycle.requests:
        raise invalid(f"request id {request.request_id!r} is in use; ids must be unique", "request_id")
    if prompt == 0:
        raise invalid("the prompt has no tokens; give at least one", "prompt")
    if prompt + asked > limit:
        raise invalid(
            f"the longest request is {limit} tokens, but the prompt has {prompt} and max_tokens asks for {asked} more"
            f" ({prompt + asked} in all); shorten the prompt or lower max_tokens",
            "max_tokens",
            "context_length_exceeded",
        )
    if request.num_choices > lifecycle.settings.max_sequences:
        raise invalid(
            f"n is {request.num_choices}, but at most {lifecycle.settings.max_sequences} sequences run at a time", "n"
        )
    needed = blocks_at_most(lifecycle.settings, lifecycle.length_limit, request)
    if needed > lifecycle.pool.limit:
        raise invalid(
            f"n is {request.num_choices}, and each choice reserves room for {limit} tokens: {needed} blocks, but there"
            f" are {lifecycle.pool.limit}; lower n",
            "n",
        )


def refuse_if_full(lifecycle: Lifecycle, now_seconds: float) -> None:
    """Raise RequestRefused (429) where no more requests may wait."""
    waiting, most = lifecycle.queue.num_unstarted, lifecycle.settings.max_queue
    if waiting >= most:
        raise RequestRefused(
            Refusal(
                429,
                CODE_QUEUE_FULL,
                f"{waiting} requests are waiting, and at most {most} may; try again later",
                retry_after_seconds=retry_after(lifecycle, now_seconds),
            )
        )


def retry_after(lifecycle: Lifecycle, now_seconds: float) -> int:
    """How long the first in the queue has waited is the best guess of how long the queue is."""
    oldest = lifecycle.queue.oldest_unstarted()
    waited = now_seconds - oldest.state.submitted_seconds if oldest is not None else 0.0
    return max(1, min(math.ceil(waited), lifecycle.settings.queue_timeout_seconds))


def blocks_at_most(settings: SchedulerSettings, length_limit: int, request: GenerationRequest) -> int:
    """How many blocks the request must be able to have to come to its end."""
    if settings.reserving:
        return request.num_choices * math.ceil(length_limit / settings.block_size)
    return math.ceil((len(request.prompt_ids) + request.params.max_tokens) / settings.block_size)


# --- from the queue


def decide(lifecycle: Lifecycle, sequence: Sequence, free_slots: int, num_promised: int) -> Decision:
    """Say whether the sequence can start now. `num_promised` blocks belong to prompts that are being computed."""
    cache = lifecycle.cache
    match = cache.match(sequence)
    if _next_block_is_coming(lifecycle, sequence, match):
        return Decision(Verdict.WAIT_FOR_BLOCK, match)
    obtainable = cache.pool.num_obtainable - num_promised
    if sequence.num_choices > free_slots:
        return Decision(Verdict.NO_ROOM, match)
    if lifecycle.settings.reserving:
        return _decide_reserving(lifecycle, sequence, match, obtainable)
    total = math.ceil(sequence.total / lifecycle.settings.block_size)
    # The partly matched block is copied when it is written.
    needed = total - len(match.nodes)
    taken = sum(cache.pool.is_idle(block) for block in match.blocks)
    margin = watermark(lifecycle) if lifecycle.running else 0
    if needed + taken + margin <= obtainable:
        return Decision(Verdict.ADMIT, match)
    if match.partial is not None:
        # Or it is written in place, where it is nobody else's and no block is left for a copy.
        source = match.partial.node.block
        assert source is not None, "a match has a block"
        if cache.pool.is_idle(source) and needed - 1 + taken + margin <= obtainable:
            return Decision(Verdict.ADMIT, match)
    return Decision(Verdict.NO_ROOM, match)


def watermark(lifecycle: Lifecycle) -> int:
    """How many blocks admission leaves for running sequences to grow."""
    return max(1, math.ceil(lifecycle.settings.watermark_percent * lifecycle.pool.limit / 100))


def _decide_reserving(lifecycle: Lifecycle, sequence: Sequence, match: Match, obtainable: int) -> Decision:
    needed = blocks_at_most(lifecycle.settings, lifecycle.length_limit, sequence.state.request)
    # What is shared needn't be reserved; a partly matched block is copied into the reserve, or dropped to fit.
    for candidate in (match, replace(match, partial=None)):
        reserved = needed - len(candidate.nodes)
        taken = sum(lifecycle.pool.is_idle(block) for block in candidate.blocks)
        if reserved + taken <= obtainable:
            return Decision(Verdict.ADMIT, candidate, num_reserved=reserved)
    return Decision(Verdict.NO_ROOM, match)


def _next_block_is_coming(lifecycle: Lifecycle, sequence: Sequence, match: Match) -> bool:
    position = len(match.nodes)
    if sequence.state.namespace is None or (position + 1) * lifecycle.settings.block_size > sequence.reusable:
        return False
    return lifecycle.cache.digest(sequence, position) in lifecycle.computing


# --- live changes


def changed_settings(lifecycle: Lifecycle, change: PolicyChange) -> tuple[SchedulerSettings, int]:
    """Return the settings and the block limit after the change; raise RequestRefused (400) where it can't be."""
    limit = lifecycle.pool.limit if change.kv_blocks is None else change.kv_blocks
    _check_bounds(change)
    old = lifecycle.settings
    new = replace(
        old,
        max_sequences=_or(change.max_sequences, old.max_sequences),
        max_queue=_or(change.max_queue, old.max_queue),
        queue_timeout_seconds=_or(change.queue_timeout_seconds, old.queue_timeout_seconds),
        watermark_percent=_or(change.watermark_percent, old.watermark_percent),
        retention_ttl_seconds=change.retention_ttl_seconds or old.retention_ttl_seconds,
    )
    if limit > lifecycle.pool.capacity:
        raise invalid(
            f"kvBlocks is {limit}, but there is memory for {lifecycle.pool.capacity}; give at most that",
            "kvBlocks",
        )
    _check_open_requests(lifecycle, new, limit)
    return new, limit


def _check_bounds(change: PolicyChange) -> None:
    least = {
        "kv_blocks": 1,
        "max_sequences": 1,
        "max_queue": 1,
        "queue_timeout_seconds": 1,
        "watermark_percent": 0,
        "retention_ttl_seconds": 1,
    }
    for name, value in least.items():
        given = getattr(change, name)
        if given is not None and given < value:
            raise invalid(f"{name} is {given}; it must be at least {value}", name)
    if change.watermark_percent is not None and change.watermark_percent > 50:
        raise invalid(f"watermark_percent is {change.watermark_percent}; it must be at most 50", "watermark_percent")


def _check_open_requests(lifecycle: Lifecycle, new: SchedulerSettings, limit: int) -> None:
    length_limit = min(new.max_length_tokens, limit * new.block_size)
    for state in lifecycle.requests.values():
        needed = blocks_at_most(new, length_limit, state.request)
        tokens = state.prompt_length + state.request.params.max_tokens
        if needed > limit or tokens > length_limit:
            raise invalid(
                f"kvBlocks is {limit}, but request {state.request.request_id!r} was accepted and may need"
                f" {max(needed, math.ceil(tokens / new.block_size))} blocks; wait for it to end or abort it",
                "kvBlocks",
            )
        if state.request.num_choices > new.max_sequences:
            raise invalid(
                f"maxSequences is {new.max_sequences}, but request {state.request.request_id!r} was accepted with"
                f" {state.request.num_choices} choices; wait for it to end or abort it",
                "maxSequences",
            )


def _or(given: int | None, otherwise: int) -> int:
    return otherwise if given is None else given
