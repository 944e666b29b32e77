"""Masks of many grammars at once, as arrays, and the vocabulary that a model's grammars are compiled for."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from llguidance import LLExecutor, LLTokenizer
from numpy.typing import NDArray

from pagefleet_runtime.grammar import Matcher
from pagefleet_runtime.text.pretrained import load_pretrained


def load_grammar_tokenizer(model_directory: Path | str, vocab_size: int, eos_token_ids: Sequence[int]) -> LLTokenizer:
    """`vocab_size` is the model's: ids that the tokenizer doesn't have are never allowed."""
    backend = load_pretrained(Path(model_directory)).backend_tokenizer
    backend.no_padding()
    backend.no_truncation()
    size = max(vocab_size, 1 + max(backend.get_vocab(with_added_tokens=True).values()))
    return LLTokenizer(backend.to_str(), n_vocab=size, eos_token=list(eos_token_ids))


class MaskFiller:
    def __init__(self, vocab_size: int) -> None:
        """`vocab_size` is the model's; a tokenizer's ids beyond it are cut off."""
        self._vocab_size = vocab_size
        self._executor = LLExecutor()

    def fill(self, matchers: Sequence[Matcher], tokenizer_size: int) -> NDArray[np.bool_]:
        """Return [len(matchers), vocab_size]: true where the token is allowed, for
        `logits.masked_fill_(~torch.from_numpy(allowed), -inf)`.

        The matchers must be different ones. It runs in threads without the GIL, and fails for no matcher: see `error`.
        """
        num_words = -(-tokenizer_size // 32)
        words = np.zeros((len(matchers), num_words), dtype=np.uint32)
        if matchers:  # llguidance refuses to fill none
            rows = [(matcher.inner, row) for row, matcher in enumerate(matchers)]
            self._executor.unsafe_compute_mask_ptr(rows, words.ctypes.data, num_words * 4, len(matchers))
        bits = words.view(np.uint8)
        return np.unpackbits(bits, axis=1, count=self._vocab_size, bitorder="little").view(np.bool_)
