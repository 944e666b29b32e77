"""Tool calls in a model's text, as it streams: Hermes' <tool_call> blocks and plain JSON objects."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from pagefleet_runtime.text.call_scanner import CallScanner

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A piece of one call. `call_id` and `name` stand in the call's first piece only."""

    index: int
    call_id: str | None
    name: str | None
    arguments: str


@dataclass(frozen=True, slots=True)
class ParsedText:
    """What a piece of text holds: text outside calls, and pieces of calls. Falsy when there is neither."""

    text: str = ""
    calls: tuple[ToolCallDelta, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.text or self.calls)


class _In(Enum):
    START = auto()  # nothing but white space came yet: a plain object may begin
    TEXT = auto()
    BLOCK = auto()  # after <tool_call>
    PLAIN = auto()  # an object without tags
    AFTER_BLOCK = auto()
    AFTER_PLAIN = auto()
    GAP = auto()  # as TEXT, but nothing but white space came since a call


class ToolCallParser:
    """One per choice of a request with tools. `forced`: a grammar of `tool_grammar` holds, so all text is calls.

    A plain object is a call only where the text begins with it, its name is a tool's and it has arguments. White space
    beside calls is dropped; what turns out to be no call is text. A call that is cut short keeps what came of it.
    """

    def __init__(self, tool_names: Sequence[str], *, forced: bool = False) -> None:
        self.num_calls = 0  # a choice with any has finish_reason `tool_calls` where the text's is `stop`
        self._tool_names = frozenset(tool_names)
        self._forced = forced
        self._in = _In.AFTER_PLAIN if forced else _In.START
        self._scanner = CallScanner()
        self._announced = False
        self._held = ""  # may become a tag, or is white space that may stand beside one
        self._skipped = ""  # what stood before the call's object: white space, a tag, a comma
        self._text: list[str] = []
        self._calls: list[ToolCallDelta] = []

    def push(self, text: str) -> ParsedText:
        for character in text:
            self._push(character)
        self._emit_arguments()
        return self._taken()

    def finish(self) -> ParsedText:
        """Return what was held back; call it once, at the choice's end."""
        if self._in in (_In.BLOCK, _In.PLAIN) and not self._announced:
            self._give_up()
        if self._in in (_In.START, _In.TEXT) or (self._in is _In.GAP and not self._held.isspace()):
            self._text.append(self._held)
        return self._taken()

    def _push(self, character: str) -> None:
        if self._in in (_In.BLOCK, _In.PLAIN):
            self._in_call(character)
        elif self._in is _In.AFTER_PLAIN:
            self._after_plain(character)
        elif self._in is _In.AFTER_BLOCK:
            self._after_block(character)
        elif self._in is _In.START and character == "{" and not self._held.strip():
            self._begin(_In.PLAIN)
            self._in_call(character)
        else:
            self._in_text(character)

    def _in_text(self, character: str) -> None:
        """Hold white space with the tag that may follow it; pass on everything else."""
        self._held += character
        tag = self._held.lstrip()
        if tag == _OPEN:
            self._begin(_In.BLOCK)
        elif not _OPEN.startswith(tag):
            self._in = _In.TEXT
            kept = _begin_of_tag(self._held)
            self._text.append(self._held[: len(self._held) - kept])
            self._held = self._held[len(self._held) - kept :]

    def _after_block(self, character: str) -> None:
        """Skip the closing tag; a model that leaves it out goes on in its text or with its next call."""
        self._held += character
        tag = self._held.strip()
        if tag == _CLOSE:
            self._in, self._held = _In.GAP, ""
        elif tag and not _CLOSE.startswith(tag):
            held, self._held, self._in = self._held, "", _In.GAP
            for one in held:
                self._push(one)

    def _after_plain(self, character: str) -> None:
        if character == "{":
            self._begin(_In.PLAIN)
            self._in_call(character)
        elif character.isspace() or character in ("[],;" if self._forced else ",;"):
            self._held += character
        else:
            self._in, self._held = _In.GAP, ""
            self._in_text(character)

    def _begin(self, where: _In) -> None:
        self._in, self._skipped, self._held = where, self._held, ""
        self._scanner, self._announced = CallScanner(), False

    def _in_call(self, character: str) -> None:
        self._scanner.push(character)
        if not self._announced and self._is_call():
            self._announce()
        if not self._announced and self._is_no_call():
            self._give_up()
        elif self._announced and (self._scanner.broken or self._scanner.done):
            self._end_call()

    def _is_call(self) -> bool:
        scanner = self._scanner
        complete = scanner.has_arguments or (scanner.done and self._in is _In.BLOCK)
        return scanner.name is not None and complete and not self._is_foreign()

    def _is_no_call(self) -> bool:
        return self._scanner.broken or self._scanner.done or self._is_foreign()

    def _is_foreign(self) -> bool:
        """Whether a plain object is something else than a call of the request's tools."""
        if self._in is not _In.PLAIN or self._forced:
            return False
        name = self._scanner.name
        return self._scanner.has_foreign_key or (name is not None and name not in self._tool_names)

    def _announce(self) -> None:
        self._announced = True
        call_id = f"call_{secrets.token_hex(12)}"
        self._calls.append(ToolCallDelta(self.num_calls, call_id, self._scanner.name, ""))
        self.num_calls += 1

    def _emit_arguments(self) -> None:
        arguments = self._scanner.take_arguments() if self._announced else ""
        if arguments:
            self._calls.append(ToolCallDelta(self.num_calls - 1, None, None, arguments))

    def _end_call(self) -> None:
        if not self._scanner.has_arguments:
            self._calls.append(ToolCallDelta(self.num_calls - 1, None, None, "{}"))
        self._emit_arguments()
        self._announced = False
        self._in = _In.AFTER_BLOCK if self._in is _In.BLOCK else _In.AFTER_PLAIN

    def _give_up(self) -> None:
        """What was taken for a call is text."""
        self._text += (self._skipped, *self._scanner.raw)
        self._in = _In.TEXT

    def _taken(self) -> ParsedText:
        taken = ParsedText("".join(self._text), tuple(self._calls))
        self._text, self._calls = [], []
        return taken


def _begin_of_tag(text: str) -> int:
    """Return how long the end of `text` is that may belong to an opening tag: white space, then a part of the tag."""
    part = next((size for size in range(min(len(text), len(_OPEN) - 1), 0, -1) if _OPEN.startswith(text[-size:])), 0)
    before = text[: len(text) - part]
    return part + len(before) - len(before.rstrip())
