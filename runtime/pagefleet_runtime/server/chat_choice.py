"""One chat choice as it grows: what of its text is message, what is a tool call. Chat and responses share it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pagefleet_runtime.request import Grammar
from pagefleet_runtime.server.generation import Piece
from pagefleet_runtime.text.choice_text import TextToken
from pagefleet_runtime.text.constraints import checked_tools, response_grammar, tool_grammar
from pagefleet_runtime.text.tool_calls import ToolCallDelta, ToolCallParser


@dataclass(frozen=True, slots=True)
class ToolRules:
    """Which functions may be called, as the text edge wants it."""

    shown: tuple[Mapping[str, object], ...] = ()  # what the chat template sees
    names: tuple[str, ...] = ()
    forced: bool = False
    parallel: bool = True


@dataclass(frozen=True, slots=True)
class Constraint:
    """What the answer may be: tools to call, and the grammar that it must follow."""

    tools: ToolRules
    grammar: Grammar | None


def constraint(
    tools: Sequence[Mapping[str, object]],
    tool_choice: object,
    parallel: bool,
    response_format: Mapping[str, object] | None,
) -> Constraint:
    """Return what tools and response_format ask for together. Raises RequestRefused (400).

    A forced call wins over the format. With tool_choice auto the format holds for the whole answer, so no call is made.
    """
    names = checked_tools(tools)
    format_grammar = response_grammar(response_format)
    forced = tool_grammar(tools, tool_choice, parallel=parallel)
    if not names or tool_choice == "none":
        return Constraint(ToolRules(), format_grammar)
    rules = ToolRules(tuple(tools), names, forced is not None, parallel)
    return Constraint(rules, forced or format_grammar)


@dataclass(frozen=True, slots=True)
class ChatPiece:
    """The next piece of a chat choice: text of the message, pieces of calls, the tokens of both, the end."""

    text: str
    calls: tuple[ToolCallDelta, ...]
    tokens: tuple[TextToken, ...]
    finish_reason: str | None


class ChatChoice:
    def __init__(self, rules: ToolRules) -> None:
        self._rules = rules
        self._parser = ToolCallParser(rules.names, forced=rules.forced) if rules.names else None

    def push(self, piece: Piece) -> ChatPiece:
        delta = piece.delta
        if self._parser is None:
            return ChatPiece(delta.text, (), delta.tokens, delta.finish_reason)
        parsed = [self._parser.push(delta.text)]
        if delta.finish_reason is not None:
            parsed.append(self._parser.finish())
        calls = tuple(call for part in parsed for call in part.calls if self._rules.parallel or call.index == 0)
        finish_reason = delta.finish_reason
        if finish_reason == "stop" and self._parser.num_calls:
            finish_reason = "tool_calls"
        return ChatPiece("".join(part.text for part in parsed), calls, delta.tokens, finish_reason)
