"""The model's tokenizer as the server uses it, and what a single token is in bytes. It doesn't know where it came from:
`model_tokenizer` reads a model's files, `byte_tokenizer` needs none."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pagefleet_runtime.errors import invalid
from pagefleet_runtime.protocol import EngineInfo
from pagefleet_runtime.text.control import ControlTexts


@dataclass(frozen=True, slots=True)
class ChatTemplates:
    """What the model's files say about chat: its template (one for chats with tools, if that differs), and the texts of
    its special tokens by their names in templates, such as bos_token. `render` takes a template and its variables."""

    default: str
    with_tools: str
    special_tokens: Mapping[str, str]
    render: Callable[[str, Mapping[str, Any]], str]


@dataclass(frozen=True, slots=True)
class AddedToken:
    token_id: int
    text: str
    special: bool


class Vocabulary(Protocol):
    """Text to ids and back, control tokens by their marks."""

    @property
    def size(self) -> int:
        """One more than the greatest id; the model's may be larger."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of a token that isn't special; an unknown id has none."""
        ...


class Tokenizer:
    """Safe to use from several threads.

    The vocabulary knows control tokens not by their text but by secret marks, so that text alone can't make one; `mark`
    puts the marks where the texts stand. Control tokens are the special ones and those that a chat template writes.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        marks: Mapping[str, str],
        added: Sequence[AddedToken],
        eos_token_ids: tuple[int, ...],
        chat_templates: ChatTemplates | None,
        *,
        strips_first_space: bool = False,
    ) -> None:
        self._vocabulary = vocabulary
        self._marks = marks
        self._specials = {token.token_id: token.text.encode() for token in added if token.special}
        self.control_texts = ControlTexts(marks)
        self.special_texts = ControlTexts(token.text for token in added if token.special)
        self.eos_token_ids = eos_token_ids
        self.chat_templates = chat_templates
        self.vocab_size = vocabulary.size
        self.strips_first_space = strips_first_space

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Return the ids of `text`. Control tokens written in `text` become control tokens: this is for raw prompts
        (/v1/completions) and for rendered templates, never for a message's text.

        `add_special_tokens` follows the tokenizer's own rule, such as a BOS in front.
        Raises RequestRefused (400) for text with half a surrogate pair.
        """
        return self.encode_marked(self.mark(text), add_special_tokens=add_special_tokens)

    def mark(self, text: str) -> str:
        """Return `text` with each control token's text replaced by its mark."""
        return self.control_texts.replace(text, self._marks.__getitem__)

    def encode_marked(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Return the ids of `text`, in which only marks become control tokens."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise invalid(
                f"the text has half of a surrogate pair ({text[error.start]!r}), which is no character; "
                "send whole characters"
            ) from error
        return self._vocabulary.encode(text, add_special_tokens=add_special_tokens)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of `ids`, without special tokens; what a Detokenizer gives for the same ids, joined.

        Bytes that are no UTF-8 are shown as U+FFFD, one for each cut or impossible sequence.
        """
        shown = b"".join(self.token_bytes(token_id) for token_id in ids if not self.is_special(token_id))
        text = shown.decode("utf-8", errors="replace")
        return text.removeprefix(" ") if self.strips_first_space else text

    def token_bytes(self, token_id: int) -> bytes:
        """Return the token's own bytes; a special token's are its text's, an unknown id has none."""
        special = self._specials.get(token_id)
        return self._vocabulary.token_bytes(token_id) if special is None else special

    def token_text(self, token_id: int) -> str:
        """Return how logprobs show the token: its text, or `bytes:\\xf0\\x9f` where its bytes are no whole text."""
        own = self.token_bytes(token_id)
        try:
            return own.decode("utf-8")
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in own)

    def is_special(self, token_id: int) -> bool:
        """Say whether the token is a special one, which is not shown in text."""
        return token_id in self._specials


# Returns the tokenizer of a model that has been loaded. Raises ModelRefused.
LoadTokenizer = Callable[[EngineInfo], Tokenizer]
