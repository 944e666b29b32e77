"""Grammars as masks over the vocabulary, with llguidance. Runs in the engine process; knows no tensors."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pagefleet_runtime.errors import RuntimeFault
from pagefleet_runtime.request import Grammar


class GrammarFault(RuntimeFault):
    """A choice's grammar can't go on: a token that it doesn't allow, or a limit met. That choice fails alone."""


class Matcher:
    """Where one choice stands in its grammar. Made by `GrammarCompiler.compile` or `fork`; for one thread at a time."""

    def consume(self, token_id: int) -> None:
        """Go on by a sampled token, an EOS included. Raises GrammarFault where the grammar doesn't allow it."""
        raise NotImplementedError

    @property
    def is_finished(self) -> bool:
        """Whether the grammar is complete and allows nothing more than an EOS, or an EOS was consumed."""
        raise NotImplementedError

    @property
    def can_end(self) -> bool:
        """Whether the text so far satisfies the grammar, so that an EOS is allowed."""
        raise NotImplementedError

    @property
    def error(self) -> str | None:
        """Why the matcher can't go on. Look at it after `fill_masks`: a limit met there shows here."""
        raise NotImplementedError

    def fork(self) -> "Matcher":
        """Return an independent matcher at the same place."""
        raise NotImplementedError


class GrammarCompiler:
    """One per engine. `compile` may be called from several threads at once, also during `fill_masks`."""

    def __init__(self, model_directory: Path | str, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        """`vocab_size` is the model's: ids that the tokenizer doesn't have are never allowed."""
        raise NotImplementedError

    def compile(self, grammar: Grammar) -> Matcher:
        """Return a matcher at the grammar's beginning. Raises RequestRefused (400, code invalid_json_schema or
        invalid_grammar). It may take seconds for hard schemas: the caller runs it in a thread, with a time limit."""
        raise NotImplementedError

    def fill_masks(self, matchers: Sequence[Matcher]) -> NDArray[np.uint8]:
        """Return [len(matchers), ceil(vocab_size / 8)]: bit i % 8 (least first) of byte i // 8 says whether token i is
        allowed. `unpack_masks` gives booleans, for `logits.masked_fill_(~torch.from_numpy(allowed), -inf)`."""
        raise NotImplementedError


def unpack_masks(masks: NDArray[np.uint8], vocab_size: int) -> NDArray[np.bool_]:
    """Return [rows, vocab_size] booleans: true where the token is allowed."""
    raise NotImplementedError
