"""The simulated model's text: words in an order that a seed decides. Each byte depends on its seed and place alone."""

import hashlib
import struct
from collections.abc import Sequence

from pagefleet_runtime.plan import SampleSpec

# Of equal length, so that any place of the text can be computed without what stands before it.
_WORD_LENGTH = 7
_WORDS = (
    *("address", "balance", "channel", "cluster", "compute", "context", "decoder", "density", "digital", "dynamic"),
    *("elastic", "forward", "gateway", "horizon", "indexed", "journey", "keeping", "kinetic", "lateral", "logical"),
    *("machine", "measure", "neutral", "nothing", "observe", "offline", "passage", "pattern", "process", "quantum"),
    *("quality", "replica", "request", "routine", "science", "section", "segment", "service", "session", "storage"),
    *("stretch", "surface", "balloon", "texture", "traffic", "uniform", "variety", "version", "virtual", "volumes"),
    *("weather", "welcome", "whisper", "witness", "working", "written"),
)
_CELL = _WORD_LENGTH + 1  # a word and what follows it
_SENTENCE_WORDS = 9
# How long an answer is that nothing cuts short, in tokens: uniformly between the two.
_SHORTEST, _LONGEST = 48, 320
_PROMPT_TAIL = 16


def text_seed(spec: SampleSpec, simulation_seed: int) -> bytes:
    """Return what a choice's text depends on: the simulation's seed, the prompt's length and end, and, unless it is
    greedy, the request's seed and the choice."""
    random = spec.params.temperature > 0
    drawn = (spec.params.seed % 2**64, spec.key.choice_index) if random else (0, 0)
    tail = list(spec.prompt_ids[-_PROMPT_TAIL:])
    packed = struct.pack(f"<QQQQ{len(tail)}I", simulation_seed, *drawn, len(spec.prompt_ids), *tail)
    return hashlib.blake2b(packed, digest_size=16).digest()


def made_up_byte(seed: bytes, position: int) -> int:
    """Return the byte at a place of the seed's endless text."""
    cell, within = divmod(position, _CELL)
    in_sentence = cell % _SENTENCE_WORDS
    if within == _WORD_LENGTH:
        return ord(" ")
    if within == _WORD_LENGTH - 1 and in_sentence == _SENTENCE_WORDS - 1:
        return ord(".")
    word = _WORDS[_number(seed, cell) % len(_WORDS)]
    return ord(word[within].upper() if within == 0 and in_sentence == 0 else word[within])


def answer_length(seed: bytes) -> int:
    """Return after how many tokens the answer ends by itself."""
    return _SHORTEST + _number(seed, -1) % (_LONGEST - _SHORTEST + 1)


def other_bytes(seed: bytes, position: int, count: int) -> Sequence[int]:
    """Return different printable bytes in an order of the place's own: what else might have stood there."""
    start = _number(seed, position) % _NUM_PRINTABLE
    return [_FIRST_PRINTABLE + (start + step) % _NUM_PRINTABLE for step in range(min(count, _NUM_PRINTABLE))]


_FIRST_PRINTABLE, _NUM_PRINTABLE = 0x21, 94


def _number(seed: bytes, index: int) -> int:
    return int.from_bytes(hashlib.blake2b(struct.pack("<q", index), key=seed, digest_size=8).digest(), "little")
