"""Grammars, with llguidance: what compiles them, and where a choice stands in its own. Runs beside the engine; knows no
tensors and no model's files."""

from collections.abc import Sequence

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from pagefleet_runtime.errors import RuntimeFault, invalid
from pagefleet_runtime.grammar_cache import GrammarCache
from pagefleet_runtime.request import Grammar

MAX_GRAMMAR_BYTES = 256 * 1024
CACHED_GRAMMARS = 64
CACHED_CHARACTERS = 1024 * 1024

# Between JSON's parts; a bound, since a small model may otherwise write white space until its tokens end.
_WHITE_SPACE = r"[\x20\x0A\x0D\x09]{0,32}"
# What llguidance says of schemas that it can't follow, and what that means to somebody who has written one.
_MEANINGS = (
    ("NoExtensionBias", "a $ref leads back to itself with nothing in between; let it stand in a property or in items"),
    (
        "circular references with sibling keys",
        "a $ref to a schema that it is part of has other keys beside it; leave them out",
    ),
    ("oneOf constraints are not supported", "oneOf is followed only where its parts can't overlap; write anyOf"),
)


class GrammarFault(RuntimeFault):
    """A choice's grammar can't go on: a token that it doesn't allow, or a limit met. That choice fails alone."""


class Matcher:
    """Where one choice stands in its grammar. Made by `GrammarCompiler.compile` or `fork`; for one thread at a time."""

    def __init__(self, matcher: LLMatcher, eos_token_ids: frozenset[int]) -> None:
        self.inner = matcher  # for MaskFiller only
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
        """Why the matcher can't go on. Look at it after a mask was computed: a limit met there shows here, and the mask
        then allows an EOS only."""
        return _first_line(self.inner.get_error()) if self.inner.is_error() else None

    def allowed_bits(self) -> bytes:
        """Return the mask: bit i % 8 (least first) of byte i // 8 says whether token i is allowed. MaskFiller does the
        same for many matchers at once."""
        return self.inner.compute_bitmask()

    def fork(self) -> "Matcher":
        """Return an independent matcher at the same place."""
        return Matcher(self.inner.deep_copy(), self._eos_token_ids)


class GrammarCompiler:
    """One per engine. `compile` may be called from several threads at once, also while masks are filled."""

    def __init__(self, tokenizer: LLTokenizer, eos_token_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._eos_token_ids = frozenset(eos_token_ids)
        self.tokenizer_size = tokenizer.vocab_size
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
            told = _meaning(_first_line(tried.get_error()))
            raise invalid(f"the {grammar.kind} can't be used: {told}", code=code)
        return Matcher(matcher, self._eos_token_ids)


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


def _meaning(message: str) -> str:
    known = (meaning for words, meaning in _MEANINGS if words in message)
    return next(known, f"{message}; change or simplify it")
