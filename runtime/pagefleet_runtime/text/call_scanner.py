"""Reads one JSON object {"name": …, "arguments": …} as it streams, and gives the arguments' text as far as it came."""

import json
from enum import Enum, auto


class _At(Enum):
    BEGIN = auto()
    KEY = auto()  # before a key, a comma or the closing brace
    IN_KEY = auto()
    COLON = auto()
    VALUE = auto()
    IN_VALUE = auto()


_NAME = "name"
_ARGUMENTS = ("arguments", "parameters")
_OTHER = ("type", "id")


class CallScanner:
    """One per call. `push` takes characters until `done` or `broken`; `raw` is all that it took."""

    def __init__(self) -> None:
        self.raw: list[str] = []
        self.name: str | None = None
        self.has_arguments = False
        self.done = False
        self.broken = False  # no JSON object, or one without a name
        self.has_foreign_key = False  # one that no call has
        self._at = _At.BEGIN
        self._key = ""
        self._piece: list[str] = []  # of the key or the value that is being read; of arguments only their begin
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._arguments: list[str] = []

    def push(self, character: str) -> None:
        self.raw.append(character)
        if self._at is _At.IN_KEY:
            self._key_character(character)
        elif self._at is _At.IN_VALUE:
            self._value_character(character)
        elif self._at is _At.VALUE and not character.isspace():
            self._begin_value(character)
        elif not character.isspace():
            self._structure(character)

    def take_arguments(self) -> str:
        """Return the arguments' text since the last call."""
        taken, self._arguments = "".join(self._arguments), []
        return taken

    def _structure(self, character: str) -> None:
        if self._at is _At.BEGIN and character == "{":
            self._at = _At.KEY
        elif self._at is _At.KEY and character == '"':
            self._at, self._piece = _At.IN_KEY, [character]
        elif self._at is _At.KEY and character == ",":
            pass
        elif self._at is _At.KEY and character == "}":
            self._finish()
        elif self._at is _At.COLON and character == ":":
            self._at = _At.VALUE
        else:
            self.broken = True

    def _finish(self) -> None:
        self.done = self.name is not None
        self.broken = not self.done

    def _key_character(self, character: str) -> None:
        self._piece.append(character)
        if not self._ends_string(character):
            return
        self._key = str(_loaded("".join(self._piece)))
        self._at = _At.COLON
        self.has_foreign_key |= self._key not in (_NAME, *_ARGUMENTS, *_OTHER)

    def _begin_value(self, character: str) -> None:
        self._at, self._piece, self._depth, self._in_string = _At.IN_VALUE, [], 0, False
        self.has_arguments |= self._key in _ARGUMENTS
        self._value_character(character)

    def _value_character(self, character: str) -> None:
        plain = not self._in_string and not self._depth and bool(self._piece)
        if plain and (character in ",}" or character.isspace()):
            self._end_value()
            if character == "}":
                self._finish()
            return
        if not self._piece or not self._streams:
            self._piece.append(character)
        if self._streams:
            self._arguments.append(character)
        if self._value_ends(character):
            self._end_value()

    @property
    def _streams(self) -> bool:
        """Whether the value is the arguments' object, which is passed on as it comes."""
        return self._key in _ARGUMENTS and self._piece[0] == "{"

    def _value_ends(self, character: str) -> bool:
        """Follow strings and brackets; say whether a string, an object or a list ends here."""
        if self._in_string:
            self._in_string = not self._ends_string(character)
            return not self._in_string and self._depth == 0
        if character == '"':
            self._in_string = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1
            return self._depth == 0
        return False

    def _ends_string(self, character: str) -> bool:
        if self._escaped:
            self._escaped = False
            return False
        self._escaped = character == "\\"
        return character == '"'

    def _end_value(self) -> None:
        self._at = _At.KEY
        if self._key in _ARGUMENTS:
            if not self._streams:
                self._arguments.append(_unusual_arguments("".join(self._piece)))
        elif self._key == _NAME:
            name = _loaded("".join(self._piece))
            self.name = name if isinstance(name, str) else None
            self.broken = self.name is None


def _unusual_arguments(text: str) -> str:
    """Some models write the arguments' object as a string of JSON, or null for none."""
    value = _loaded(text)
    return value if isinstance(value, str) else "{}" if value is None else text


def _loaded(text: str) -> object:
    """Return the JSON value, or the text itself where it is none: wrong arguments are the client's to judge."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
