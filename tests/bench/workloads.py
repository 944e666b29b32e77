"""What the benchmarks ask: token ids, so that every server gets the same work. All are seeded."""

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BenchRequest:
    prompt_ids: tuple[int, ...]
    num_output_tokens: int
    delay_seconds: float = 0.0


def _ids(generator: random.Random, count: int, vocab_size: int) -> tuple[int, ...]:
    # Ids from 1,000 on keep clear of control tokens in the models used here.
    return tuple(generator.randrange(1000, vocab_size) for _ in range(count))


def mixed(
    seed: int,
    vocab_size: int,
    num_requests: int = 32,
    prompt_range: tuple[int, int] = (64, 512),
    output_range: tuple[int, int] = (32, 256),
) -> list[BenchRequest]:
    """Requests that arrive at once, lengths uniform within the ranges, no common beginnings."""
    generator = random.Random(seed)
    return [
        BenchRequest(
            _ids(generator, generator.randint(*prompt_range), vocab_size),
            generator.randint(*output_range),
        )
        for _ in range(num_requests)
    ]


def shared_prefix(
    seed: int, vocab_size: int, num_requests: int, num_prefix_tokens: int, num_own_tokens: int, num_output_tokens: int
) -> list[BenchRequest]:
    """Requests that share their beginning and differ in their ends."""
    generator = random.Random(seed)
    prefix = _ids(generator, num_prefix_tokens, vocab_size)
    return [
        BenchRequest(prefix + _ids(generator, num_own_tokens, vocab_size), num_output_tokens)
        for _ in range(num_requests)
    ]


def one(seed: int, vocab_size: int, num_prompt_tokens: int, num_output_tokens: int) -> BenchRequest:
    return BenchRequest(_ids(random.Random(seed), num_prompt_tokens, vocab_size), num_output_tokens)
