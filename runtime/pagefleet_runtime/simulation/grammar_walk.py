"""Where simulated choices stand in their grammars, and which allowed token comes next: one that leads to the end."""

from functools import cached_property
from typing import TYPE_CHECKING

from pagefleet_runtime.errors import invalid
from pagefleet_runtime.plan import SampleSpec
from pagefleet_runtime.request import GenerationRequest, SequenceKey
from pagefleet_runtime.text.byte_tokenizer import TURN_END, VOCAB_SIZE

if TYPE_CHECKING:
    from pagefleet_runtime.grammar import GrammarCompiler, Matcher

# Outside of free text: what closes goes first, then what says little, then what opens.
_ORDER = b'}],:"0123456789tfn{[-.'
_NO_LIBRARY = (
    "this simulated server was installed without the package llguidance, which structured output and forced tool calls "
    "need; install it, or ask for text"
)


class GrammarWalks:
    """Owns the matchers: one per request at the grammar's beginning, and one per choice."""

    def __init__(self) -> None:
        self._beginnings: dict[str, Matcher] = {}
        self._walks: dict[SequenceKey, tuple[Matcher, int]] = {}  # with the number of tokens consumed

    @cached_property
    def _compiler(self) -> "GrammarCompiler":
        from llguidance import LLTokenizer, TokenizerWrapper

        from pagefleet_runtime.grammar import GrammarCompiler

        ends = (TURN_END.token_id,)
        tokenizer = LLTokenizer(TokenizerWrapper(_ByteTokens()), n_vocab=VOCAB_SIZE, eos_token=list(ends))
        return GrammarCompiler(tokenizer, ends)

    def prepare(self, request: GenerationRequest) -> None:
        """Compile the request's grammar, if it has one. Raises RequestRefused."""
        if request.params.grammar is None:
            return
        try:
            compiler = self._compiler
        except ModuleNotFoundError as error:
            raise invalid(_NO_LIBRARY, "response_format", "unsupported_value") from error
        self._beginnings[request.request_id] = compiler.compile(request.params.grammar)

    def forget(self, request_id: str) -> None:
        self._beginnings.pop(request_id, None)
        for key in [key for key in self._walks if key.request_id == request_id]:
            del self._walks[key]

    def next_token(self, spec: SampleSpec, own: int) -> tuple[int, bool]:
        """Take a step: return the token (`own` is what the text has there) and whether nothing may follow it."""
        matcher, num_consumed = self._walks.get(spec.key, (None, -1))
        if matcher is None or num_consumed != len(spec.output_ids):
            matcher = self._beginnings[spec.key.request_id].fork()
            for token_id in spec.output_ids:
                matcher.consume(token_id)
        token_id = choose_allowed(matcher.allowed_bits(), own)
        matcher.consume(token_id)
        self._walks[spec.key] = matcher, len(spec.output_ids) + 1
        return token_id, matcher.is_finished


def choose_allowed(bits: bytes, own: int) -> int:
    """Return an allowed token: the end where it is one; in free text the text's own, or a quote after a word."""

    def allows(token_id: int) -> bool:
        return bool(bits[token_id // 8] >> token_id % 8 & 1)

    if allows(TURN_END.token_id):
        return TURN_END.token_id
    free = allows(ord("a")) and allows(ord("b"))
    if free and own == ord(" ") and allows(ord('"')):
        return ord('"')
    if free and allows(own):
        return own
    ordered = (token_id for token_id in (*_ORDER, *range(VOCAB_SIZE)) if allows(token_id))
    return next(ordered, TURN_END.token_id)


class _ByteTokens:
    """The vocabulary as llguidance wants it."""

    eos_token_id = TURN_END.token_id
    bos_token_id = None
    tokens = tuple(bytes([byte]) for byte in range(256)) + tuple(b"" for _ in range(256, VOCAB_SIZE))
    special_token_ids = tuple(range(256, VOCAB_SIZE))

    def __call__(self, text: bytes) -> list[int]:
        return list(text)
