"""Grammars as masks over the vocabulary, with llguidance. Runs in the engine process; knows no tensors."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from llguidance import LLExecutor, LLMatcher, LLParserLimits, LLTokenizer
from numpy.typing import NDArray

from pagefleet_runtime.errors import RuntimeFault, invalid
from pagefleet_runtime.grammar_cache import GrammarCache
from pagefleet_runtime.request import Grammar
from pagefleet_runtime.text.pretrained import load_pretrained

MAX_GRAMMAR_BYTES = 256 * 1024
CACHED_GRAMMARS = 64
CACHED_CHARACTERS = 1024 * 1024

# Between JSON's parts; a bound, since a small model may otherwise write white space until its tokens end.
_WHITE_SPACE = r"[\x20\x0A\x0D\x09]{0,32}"


class GrammarFault(RuntimeFault):
    """A choice's grammar can't go on: a token that it doesn't allow, or a limit met. That choice fails alone."""


class Matcher:
    """Where one choice stands in its grammar. Made by `GrammarCompiler.compile` or `fork`; for one thread at a time."""

    def __init__(self, matcher: LLMatcher, eos_token_ids: frozenset[int]) -> None:
        self.inner = matcher  # for GrammarCompiler.fill_masks only
        self._eos_token_ids = eos_token_ids

    def consume(self, token_id: int) -> None:
        """Go on by a sampled token, an EOS included. Raises GrammarFault where the grammar doesn't allow it."""
        if self.is_finished and token_id in self._eos_token_ids:
            return
        if self.is_finished or not self.inner.consume_token(token_id):
            raise GrammarFault(f"the grammar doesn't allow token {token_id} here: {self.error or 'it is complete'}")

    @property
    def is_finished(self) -> bool:
        """Whether the grammar is complete and allows nothing more than an EOS, or an EOS was consumed."""
        return self.inner.is_stopped() and not self.inner.is_error()

    @property
    def can_end(self) -> bool:
        """Whether the text so far satisfies the grammar, so that an EOS is allowed."""
        return self.inner.is_accepting() and not self.inner.is_error()

    @property
    def error(self) -> str | None:
        """Why the matcher can't go on. Look at it after `fill_masks`: a limit met there shows here, and the mask then
        allows an EOS only."""
        return _first_line(self.inner.get_error()) if self.inner.is_error() else None

    def fork(self) -> "Matcher":
        """Return an independent matcher at the same place."""
        return Matcher(self.inner.deep_copy(), self._eos_token_ids)


class GrammarCompiler:
    """One per engine. `compile` may be called from several threads at once, also during `fill_masks`."""

    def __init__(self, model_directory: Path | str, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        """`vocab_size` is the model's: ids that the tokenizer doesn't have are never allowed."""
        backend = load_pretrained(Path(model_directory)).backend_tokenizer
        backend.no_padding()
        backend.no_truncation()
        known = 1 + max(backend.get_vocab(with_added_tokens=True).values())
        self._tokenizer = LLTokenizer(backend.to_str(), n_vocab=max(vocab_size, known), eos_token=list(eos_token_ids))
        self._eos_token_ids = frozenset(eos_token_ids)
        self._vocab_size = vocab_size
        self._num_words = -(-max(vocab_size, known) // 32)
        self._executor = LLExecutor()
        self._limits = LLParserLimits(verbose_errors=False)
        self._cache: GrammarCache[Matcher] = GrammarCache(CACHED_GRAMMARS, CACHED_CHARACTERS)

    def compile(self, grammar: Grammar) -> Matcher:
        """Return a matcher at the grammar's beginning. Raises RequestRefused (400, code invalid_json_schema or
        invalid_grammar). It may take seconds for hard schemas: the caller runs it in a thread, with a time limit."""
        known = self._cache.find(grammar)
        if known is None:
            known = self._compiled(grammar)
            self._cache.keep(grammar, known)
        return known.fork()

    def fill_masks(self, matchers: Sequence[Matcher]) -> NDArray[np.uint8]:
        """Return [len(matchers), ceil(vocab_size / 8)]: bit i % 8 (least first) of byte i // 8 says whether token i is
        allowed. `unpack_masks` gives booleans, for `logits.masked_fill_(~torch.from_numpy(allowed), -inf)`.

        The matchers must be different ones. It runs in threads without the GIL, and fails for no matcher: see `error`.
        """
        words = np.zeros((len(matchers), self._num_words), dtype=np.uint32)
        if matchers:  # llguidance refuses to fill none
            rows = [(matcher.inner, row) for row, matcher in enumerate(matchers)]
            self._executor.unsafe_compute_mask_ptr(rows, words.ctypes.data, self._num_words * 4, len(matchers))
        return words.view(np.uint8)[:, : -(-self._vocab_size // 8)]

    def _compiled(self, grammar: Grammar) -> Matcher:
        code = "invalid_json_schema" if grammar.kind.startswith("json") else "invalid_grammar"
        size = len(grammar.text.encode("utf-8", errors="surrogatepass"))
        if size > MAX_GRAMMAR_BYTES:
            raise invalid(f"the grammar has {size} bytes; the most is {MAX_GRAMMAR_BYTES}; simplify it", code=code)
        try:
            matcher = LLMatcher(self._tokenizer, _definition(grammar), log_level=0, limits=self._limits)
        except ValueError as error:
            raise invalid(f"the {grammar.kind} can't be read: {_first_line(str(error))}", code=code) from error
        # Some faults, such as a schema that is nothing but a reference to itself, show at the first mask only.
        tried = matcher.deep_copy()
        if not tried.is_error():
            tried.compute_bitmask()
        if tried.is_error():
            raise invalid(
                f"the {grammar.kind} can't be used: {_first_line(tried.get_error())}; change or simplify it",
                code=code,
            )
        return Matcher(matcher, self._eos_token_ids)


def unpack_masks(masks: NDArray[np.uint8], vocab_size: int) -> NDArray[np.bool_]:
    """Return [rows, vocab_size] booleans: true where the token is allowed."""
    return np.unpackbits(masks, axis=1, count=vocab_size, bitorder="little").view(np.bool_)


def _definition(grammar: Grammar) -> str:
    """Return the grammar in llguidance's own form. Raises ValueError for text that is no JSON where it must be."""
    if grammar.kind == "lark":
        return LLMatcher.grammar_from_lark(grammar.text)
    if grammar.kind == "regex":
        return LLMatcher.grammar_from_regex(grammar.text)
    return LLMatcher.grammar_from_json_schema(grammar.text, overrides={"whitespace_pattern": _WHITE_SPACE})


def _first_line(message: str) -> str:
    """Return what a client should see of llguidance's message, which goes on with the parser's inner state."""
    return (message.partition("<state>")[0].strip().splitlines() or ["no reason given"])[0][:300]
