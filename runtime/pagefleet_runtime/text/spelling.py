"""How a vocabulary spells bytes: byte-level BPE's letters, or sentencepiece's U+2581 and <0xNN>."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from pagefleet_runtime.errors import ModelRefused

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE_LETTER = "\u2581"


def _byte_of_letter() -> dict[str, int]:
    """Return GPT-2's alphabet: printable Latin-1 stands for itself, every other byte for a letter from U+0100 on."""
    shown = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    moved = [byte for byte in range(256) if byte not in shown]
    return {chr(byte): byte for byte in shown} | {chr(256 + place): byte for place, byte in enumerate(moved)}


@dataclass(frozen=True, slots=True)
class ByteLevel:
    """Each letter of a token is a byte."""

    byte_of_letter: Mapping[str, int]
    strips_first_space: bool = False

    def token_bytes(self, token: str) -> bytes:
        values = [self.byte_of_letter.get(letter) for letter in token]
        known = [value for value in values if value is not None]
        return bytes(known) if len(known) == len(values) else token.encode()

    def added_bytes(self, text: str) -> bytes:
        return text.encode()


@dataclass(frozen=True, slots=True)
class Sentencepiece:
    """A token is text with U+2581 for a space, or one byte as <0xNN>. Text may begin with a space that isn't shown."""

    strips_first_space: bool

    def token_bytes(self, token: str) -> bytes:
        byte = _BYTE_TOKEN.fullmatch(token)
        return bytes([int(byte[1], 16)]) if byte else self.added_bytes(token)

    def added_bytes(self, text: str) -> bytes:
        return text.replace(_SPACE_LETTER, " ").encode()


Spelling = ByteLevel | Sentencepiece


def spelling_of(decoder: Mapping[str, object] | None) -> Spelling:
    """Return the spelling that the `decoder` section of a tokenizer.json tells of. Raises ModelRefused for others."""
    parts = _flat(decoder)
    kinds = [str(part.get("type")) for part in parts]
    if "ByteLevel" in kinds:
        return ByteLevel(_byte_of_letter())
    if "Metaspace" in kinds:
        scheme = parts[kinds.index("Metaspace")].get("prepend_scheme", "always")
        return Sentencepiece(strips_first_space=scheme != "never")
    if "ByteFallback" in kinds or any(_SPACE_LETTER in str(part.get("pattern")) for part in parts):
        return Sentencepiece(strips_first_space="Strip" in kinds)
    raise ModelRefused(
        f"the tokenizer's decoder is {' + '.join(kinds) or 'absent'}; supported are byte-level BPE (ByteLevel) and "
        "sentencepiece (Metaspace, or Replace with ByteFallback); use a model with one of these"
    )


def _flat(decoder: Mapping[str, object] | None) -> list[Mapping[str, object]]:
    if decoder is None:
        return []
    inner = decoder.get("decoders")
    if isinstance(inner, list):
        return [part for one in inner for part in _flat(one)]
    return [decoder]
