"""The model's tokenizer, and what a single token is in bytes. Only local files are read, remote code never runs."""

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers

from pagefleet_runtime.errors import invalid
from pagefleet_runtime.text.control import ControlTexts
from pagefleet_runtime.text.pretrained import load_pretrained
from pagefleet_runtime.text.spelling import Spelling, spelling_of


@dataclass(frozen=True, slots=True)
class ChatTemplates:
    """What the model's files say about chat: its template (one for chats with tools, if that differs), and the texts of
    its special tokens by their names in templates, such as bos_token."""

    default: str
    with_tools: str
    special_tokens: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class AddedToken:
    token_id: int
    text: str
    special: bool


class Tokenizer:
    """Made by `load_tokenizer`. Safe to use from several threads.

    The backend knows control tokens not by their text but by secret marks, so that text alone can't make one; `mark`
    puts the marks where the texts stand. Control tokens are the special ones and those that a chat template writes.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        marks: Mapping[str, str],
        added: Sequence[AddedToken],
        spelling: Spelling,
        eos_token_ids: tuple[int, ...],
        chat_templates: ChatTemplates | None,
    ) -> None:
        self._backend = backend
        self._marks = marks
        self._spelling = spelling
        self._added = {token.token_id: token for token in added}
        self.control_texts = ControlTexts(marks)
        self.special_texts = ControlTexts(token.text for token in added if token.special)
        self.eos_token_ids = eos_token_ids
        self.chat_templates = chat_templates
        self.vocab_size = 1 + max(backend.get_vocab(with_added_tokens=True).values())  # the model's may be larger
        self.strips_first_space = spelling.strips_first_space

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
        ids: list[int] = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of `ids`, without special tokens; what a Detokenizer gives for the same ids, joined.

        Bytes that are no UTF-8 are shown as U+FFFD, one for each cut or impossible sequence.
        """
        shown = b"".join(self.token_bytes(token_id) for token_id in ids if not self.is_special(token_id))
        text = shown.decode("utf-8", errors="replace")
        return text.removeprefix(" ") if self.strips_first_space else text

    def token_bytes(self, token_id: int) -> bytes:
        """Return the token's own bytes; a special token's are its text's, an unknown id has none."""
        added = self._added.get(token_id)
        if added is not None:
            return added.text.encode() if added.special else self._spelling.added_bytes(added.text)
        token = self._backend.id_to_token(token_id) if 0 <= token_id < self.vocab_size else None
        return b"" if token is None else self._spelling.token_bytes(token)

    def token_text(self, token_id: int) -> str:
        """Return how logprobs show the token: its text, or `bytes:\\xf0\\x9f` where its bytes are no whole text."""
        own = self.token_bytes(token_id)
        try:
            return own.decode("utf-8")
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in own)

    def is_special(self, token_id: int) -> bool:
        """Say whether the token is a special one, which is not shown in text."""
        added = self._added.get(token_id)
        return added is not None and added.special


def load_tokenizer(model_directory: Path | str) -> Tokenizer:
    """Load from the directory's files alone. Raises ModelRefused where they hold no tokenizer that we can decode."""
    directory = Path(model_directory)
    pretrained = load_pretrained(directory)
    definition: dict[str, Any] = json.loads(pretrained.backend_tokenizer.to_str())
    definition |= {"padding": None, "truncation": None}
    added = [AddedToken(one["id"], one["content"], one["special"]) for one in definition["added_tokens"]]
    templates = _chat_templates(pretrained)
    marks = _marks(added, templates)
    _rename(definition, marks)
    return Tokenizer(
        tokenizers.Tokenizer.from_str(json.dumps(definition)),
        marks,
        added,
        spelling_of(definition["decoder"]),
        _eos_token_ids(directory, pretrained),
        templates,
    )


def _chat_templates(pretrained: Any) -> ChatTemplates | None:
    template = pretrained.chat_template
    named = {"default": template} if isinstance(template, str) else dict(template or {})
    if "default" not in named:
        return None
    special = {name: str(text) for name, text in pretrained.special_tokens_map.items()}
    return ChatTemplates(named["default"], named.get("tool_use", named["default"]), special)


def _marks(added: Sequence[AddedToken], templates: ChatTemplates | None) -> dict[str, str]:
    """Return each control token's text and its mark. Whitespace that a template writes is no control token."""
    written = "" if templates is None else templates.default + templates.with_tools
    secret = secrets.token_hex(16)
    return {
        token.text: f"<{secret}:{token.token_id}>"
        for token in added
        if token.special or (not token.text.isspace() and token.text in written)
    }


def _rename(definition: dict[str, Any], marks: Mapping[str, str]) -> None:
    """Give the control tokens of a tokenizer.json their marks as texts; ids stay."""
    for token in definition["added_tokens"]:
        if token["content"] in marks:
            token |= {"content": marks[token["content"]], "normalized": False}
    model = definition["model"]
    if isinstance(model["vocab"], dict):
        model["vocab"] = {marks.get(token, token): token_id for token, token_id in model["vocab"].items()}
    else:
        model["vocab"] = [[marks.get(token, token), score] for token, score in model["vocab"]]
    if model.get("unk_token") in marks:
        model["unk_token"] = marks[model["unk_token"]]
    if "merges" in model:
        # A merge into a token that has another name now can't be; text must not give that token anyway.
        model["merges"] = [pair for pair in model["merges"] if _merged(pair) not in marks]


def _merged(pair: str | list[str]) -> str:
    return pair.replace(" ", "") if isinstance(pair, str) else "".join(pair)


def _eos_token_ids(directory: Path, pretrained: Any) -> tuple[int, ...]:
    own = [] if pretrained.eos_token_id is None else [pretrained.eos_token_id]
    path = directory / "generation_config.json"
    configured = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id") if path.is_file() else None
    listed = configured if isinstance(configured, list) else [] if configured is None else [configured]
    return tuple(dict.fromkeys([*own, *listed]))
