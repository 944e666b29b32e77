"""Which grammar a request's response_format or tool_choice asks for."""

from collections.abc import Mapping, Sequence

from pagefleet_runtime.request import Grammar


def response_grammar(response_format: Mapping[str, object] | None) -> Grammar | None:
    """Return the grammar of `response_format` (text, json_object, json_schema), as JSON from the client.

    Raises RequestRefused (400, with param). Whether the schema can be compiled is found by the engine.
    """
    raise NotImplementedError


def checked_tools(tools: Sequence[Mapping[str, object]]) -> tuple[str, ...]:
    """Check a request's tools and return their names in order. Raises RequestRefused (400, with param)."""
    raise NotImplementedError


def tool_grammar(
    tools: Sequence[Mapping[str, object]], tool_choice: object = None, *, parallel: bool = True
) -> Grammar | None:
    """Return the grammar that makes the answer tool calls, or None where the model is free (auto, none).

    `tool_choice` is the client's: None, auto, none, required, or an object that names a function. With a grammar, use
    `ToolCallParser(forced=True)`. Raises RequestRefused (400, with param).
    """
    raise NotImplementedError
