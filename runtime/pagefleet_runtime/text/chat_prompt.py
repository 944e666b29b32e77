"""Chat messages to token ids by the model's own template. Text that a client typed never becomes a control token."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError

from pagefleet_runtime.errors import ModelRefused, invalid
from pagefleet_runtime.text.control import ControlTexts
from pagefleet_runtime.text.messages import template_message
from pagefleet_runtime.text.template_variables import PARAM, checked_variables
from pagefleet_runtime.text.tokenizer import ChatTemplates, Tokenizer
from pagefleet_runtime.text.tool_instructions import with_calls_as_text, with_tools
from pagefleet_runtime.text.typed_text import TypedText

# Objects below these keys are the client's own, down to their keys.
_FREE_OBJECTS = frozenset({"arguments", "parameters"})

# What a template raises over messages it can't take: its own refusals, and its mistakes with unforeseen shapes.
_TEMPLATE_FAULTS = (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)

_Chat = list[dict[str, object]]


class ChatPrompt:
    """One per model; safe to use from several threads."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Raise ModelRefused where the model's template is no template."""
        self._tokenizer = tokenizer
        self._templates = tokenizer.chat_templates
        if self._templates is not None:
            _check_syntax(self._templates)

    def ids(
        self,
        messages: Sequence[object],
        tools: Sequence[Mapping[str, object]] = (),
        variables: Mapping[str, object] | None = None,
    ) -> list[int]:
        """Return the prompt of a chat, the beginning of the assistant's turn included.

        `messages`, `tools` and `variables` (chat_template_kwargs) are as the client sent them (JSON); the tools are
        checked by `checked_tools`, all else here. Pass no tools where tool_choice is none. Text parts are joined by a
        newline, in order; an empty system message is shown to the template as such. Raises RequestRefused (400) that
        names the message's index, or the variable, and the reason, also for what the template refuses.
        """
        if self._templates is None:
            raise invalid(
                "this model has no chat template, so it can't take messages; send a text to /v1/completions, or serve "
                "a model with a chat_template in its files",
                "messages",
                "no_chat_template",
            )
        if not messages:
            raise invalid("messages is empty; it must have at least one message", "messages")
        shaped = [template_message(message, index) for index, message in enumerate(messages)]
        template = self._templates.with_tools if tools else self._templates.default
        typed = TypedText()
        given = checked_variables(variables or {}, self._templates.special_tokens)
        own_variables = {name: _hidden(value, typed, self._tokenizer.control_texts) for name, value in given.items()}
        chat = [self._hidden_message(message, typed) for message in _adapted(shaped, tools, template)]
        shown_tools = [_hidden(tool, typed, self._tokenizer.control_texts) for tool in tools]
        own_tools = shown_tools if "tools" in template else []
        renderer = _Renderer(self._templates, template, own_tools, own_variables)
        rendered = renderer.checked_text(chat, len(shaped))
        return self._tokenizer.encode_marked(typed.restore(self._tokenizer.mark(rendered)))

    def _hidden_message(self, message: dict[str, object], typed: TypedText) -> dict[str, object]:
        """Hide what a client typed. An assistant's text is the model's own, sent back: in it, tokens that aren't
        special (such as <think>) stay what they were, and templates see them."""
        control = self._tokenizer.control_texts
        special = self._tokenizer.special_texts
        hidden = {key: _hidden(value, typed, control, key) for key, value in message.items()}
        if message["role"] == "assistant":
            hidden["content"] = _hidden(message["content"], typed, special)
        return hidden | {"role": message["role"]}


@dataclass(frozen=True, slots=True)
class _Renderer:
    """A template with all that it is given but the messages."""

    templates: ChatTemplates
    template: str
    tools: list[object]
    variables: Mapping[str, object]

    def text(self, chat: _Chat) -> str:
        """Return the prompt as text. Raises one of _TEMPLATE_FAULTS."""
        fixed = {"messages": chat, "tools": self.tools or None, "add_generation_prompt": True}
        return _rendered(self.template, self.templates, **self.variables, **fixed)

    def checked_text(self, chat: _Chat, num_messages: int) -> str:
        """Return the prompt as text; `num_messages` of the chat are the client's. Raises RequestRefused (400) that
        names what the template can't take."""
        try:
            return self.text(chat)
        except _TEMPLATE_FAULTS as error:
            reason = " ".join(str(error).split())[:300] or type(error).__name__
            if self.variables and replace(self, variables={})._takes(chat):
                raise invalid(f"{PARAM}: the model's chat template can't take these here: {reason}", PARAM) from error
            index = max(0, self._num_accepted(chat) - (len(chat) - num_messages))
            raise invalid(
                f"messages[{index}]: the model's chat template can't take this message here: {reason}",
                f"messages[{index}]",
            ) from error

    def _num_accepted(self, chat: _Chat) -> int:
        """Return how many of the first messages the template takes, given that it doesn't take all."""
        accepted, refused = 0, len(chat)
        while refused - accepted > 1:
            middle = (accepted + refused) // 2
            if self._takes(chat[:middle]):
                accepted = middle
            else:
                refused = middle
        return accepted

    def _takes(self, chat: _Chat) -> bool:
        try:
            self.text(chat)
        except _TEMPLATE_FAULTS:
            return False
        return True


def _rendered(template: str, templates: ChatTemplates, **variables: Any) -> str:
    return templates.render(template, {**templates.special_tokens, **variables})


def _check_syntax(templates: ChatTemplates) -> None:
    for template in {templates.default, templates.with_tools}:
        try:
            _rendered(template, templates, messages=[])
        except TemplateSyntaxError as error:
            raise ModelRefused(f"the model's chat template is wrong in line {error.lineno}: {error.message}") from error
        except _TEMPLATE_FAULTS:
            continue  # it compiles; that an empty chat is refused says nothing


def _adapted(messages: _Chat, tools: Sequence[Mapping[str, object]], template: str) -> _Chat:
    """Return the messages in terms that the template knows: roles, tool calls and tools."""
    if "developer" not in template:
        messages = [one | {"role": "system"} if one["role"] == "developer" else one for one in messages]
    if "tool_calls" not in template:
        messages = [with_calls_as_text(one) for one in messages]
    return with_tools(messages, tools) if tools and "tools" not in template else messages


def _hidden(value: object, typed: TypedText, control: ControlTexts, key: str = "") -> object:
    """Return `value` with every string in it hidden; of keys, those of the client's own objects."""
    if isinstance(value, str):
        return typed.hide(value, control)
    if isinstance(value, list):
        return [_hidden(one, typed, control, key) for one in value]
    if isinstance(value, Mapping):
        free = key in _FREE_OBJECTS
        return {
            typed.hide_whole(name, control) if free else name: _hidden(
                inner, typed, control, key if free else str(name)
            )
            for name, inner in value.items()
        }
    return value
