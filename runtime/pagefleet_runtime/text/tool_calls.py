"""Tool calls in a model's text, as it streams: Hermes' <tool_call> blocks and plain JSON objects."""

from collections.abc import Sequence
from dataclasses import dataclass


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


class ToolCallParser:
    """One per choice of a request with tools. `forced`: a grammar of `tool_grammar` holds, so all text is calls."""

    num_calls: int  # a choice with any has finish_reason `tool_calls` where the text's is `stop`

    def __init__(self, tool_names: Sequence[str], *, forced: bool = False) -> None:
        raise NotImplementedError

    def push(self, text: str) -> ParsedText:
        raise NotImplementedError

    def finish(self) -> ParsedText:
        """Return what was held back; call it once, at the choice's end."""
        raise NotImplementedError
