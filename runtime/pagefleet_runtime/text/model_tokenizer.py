"""A model's own tokenizer, from its files alone, with the tokenizers library. Remote code never runs."""

import json
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from pagefleet_runtime.text.pretrained import load_pretrained, render_template
from pagefleet_runtime.text.spelling import Spelling, spelling_of
from pagefleet_runtime.text.tokenizer import AddedToken, ChatTemplates, Tokenizer


class LibraryVocabulary:
    """Implements `Vocabulary` over the library's tokenizer."""

    def __init__(self, backend: tokenizers.Tokenizer, added: Sequence[AddedToken], spelling: Spelling) -> None:
        self._backend = backend
        self._added = {token.token_id: token.text for token in added}
        self._spelling = spelling
        self.size = 1 + max(backend.get_vocab(with_added_tokens=True).values())

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        ids: list[int] = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        added = self._added.get(token_id)
        if added is not None:
            return self._spelling.added_bytes(added)
        token = self._backend.id_to_token(token_id) if 0 <= token_id < self.size else None
        return b"" if token is None else self._spelling.token_bytes(token)


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
    spelling = spelling_of(definition["decoder"])
    return Tokenizer(
        LibraryVocabulary(tokenizers.Tokenizer.from_str(json.dumps(definition)), added, spelling),
        marks,
        added,
        _eos_token_ids(directory, pretrained),
        templates,
        strips_first_space=spelling.strips_first_space,
    )


def _chat_templates(pretrained: Any) -> ChatTemplates | None:
    template = pretrained.chat_template
    named = {"default": template} if isinstance(template, str) else dict(template or {})
    if "default" not in named:
        return None
    special = {name: str(text) for name, text in pretrained.special_tokens_map.items()}
    return ChatTemplates(named["default"], named.get("tool_use", named["default"]), special, render_template)


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
