"""A tokenizer that needs no files and no library: a token is a byte, and two control tokens frame a chat's turns."""

import re
import secrets
from collections.abc import Mapping
from typing import Any

from jinja2.sandbox import ImmutableSandboxedEnvironment

from pagefleet_runtime.text.tokenizer import AddedToken, ChatTemplates, Tokenizer

_NUM_BYTES = 256
TURN_BEGIN = AddedToken(_NUM_BYTES, "<|im_start|>", special=True)
TURN_END = AddedToken(_NUM_BYTES + 1, "<|im_end|>", special=True)
VOCAB_SIZE = _NUM_BYTES + 2

_TEMPLATE = (
    f"{{% for message in messages %}}{TURN_BEGIN.text}{{{{ message.role }}}}\n"
    f"{{{{ message.content }}}}{TURN_END.text}\n{{% endfor %}}"
    f"{{% if add_generation_prompt %}}{TURN_BEGIN.text}assistant\n{{% endif %}}"
)


class ByteVocabulary:
    """Implements `Vocabulary`: ids 0 to 255 are bytes, the control tokens come after."""

    size = VOCAB_SIZE

    def __init__(self, marks: Mapping[str, int]) -> None:
        self._marks = marks
        self._mark = re.compile("|".join(f"({re.escape(mark)})" for mark in marks))

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        ids: list[int] = []
        done = 0
        for found in self._mark.finditer(text):
            ids += text[done : found.start()].encode()
            ids.append(self._marks[found[0]])
            done = found.end()
        ids += text[done:].encode()
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if 0 <= token_id < _NUM_BYTES else b""


def byte_tokenizer() -> Tokenizer:
    secret = secrets.token_hex(16)
    added = (TURN_BEGIN, TURN_END)
    marks = {token.text: f"<{secret}:{token.token_id}>" for token in added}
    vocabulary = ByteVocabulary({marks[token.text]: token.token_id for token in added})
    templates = ChatTemplates(_TEMPLATE, _TEMPLATE, {}, _render)
    return Tokenizer(vocabulary, marks, added, (TURN_END.token_id,), templates)


def _render(template: str, variables: Mapping[str, Any]) -> str:
    return ImmutableSandboxedEnvironment().from_string(template).render(variables)
