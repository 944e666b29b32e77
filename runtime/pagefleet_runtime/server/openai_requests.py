"""The requests as models: types and bounds. What needs the model's figures is checked in validation.py.

Messages, tools and formats stay as they came: `text` knows their meaning and names what is wrong in them.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError

from pagefleet_runtime.errors import RequestRefused, invalid

MAX_CHOICES = 128
MAX_PROMPTS = 128
MAX_STOPS = 4
MAX_STOP_CHARACTERS = 1024
MAX_BIASES = 4096
MAX_LOGPROBS = 20

TokenId = Annotated[int, Field(ge=0, lt=2**31)]
Stop = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]
Item = TypeVar("Item")
# Of a body's million wrong items only the first is reported: making a report of each would stop the server for minutes.
Listed = Annotated[list[Item], Field(fail_fast=True)]


def _few_biases(value: Any) -> Any:
    """Refuse too many before each of them is looked at; the order of pydantic's own checks is the other way round."""
    if isinstance(value, dict) and len(value) > MAX_BIASES:
        raise PydanticCustomError("too_long", f"must have at most {MAX_BIASES} items, not {len(value)}")
    return value


class Body(BaseModel):
    # Strict, so that "5" is no number and true is no 1, as with OpenAI.
    model_config = ConfigDict(frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True)


class StreamOptions(Body):
    include_usage: bool | None = None
    """Send one last chunk without choices that carries the usage."""


class SamplingFields(Body):
    """What the three endpoints share."""

    model: str
    """The served name; see /v1/models."""

    temperature: float = Field(default=1.0, ge=0, le=2)
    """0 always takes the most probable token."""

    top_p: float = Field(default=1.0, ge=0, le=1)
    """Draw from the most probable tokens whose probabilities add up to this; 0 takes the most probable one."""

    top_k: int = Field(default=0, ge=-1, lt=2**31)
    """Draw from this many most probable tokens; 0 and -1 are off. (An extra of ours.)"""

    min_p: float = Field(default=0.0, ge=0, le=1)
    """Leave out tokens less probable than this share of the most probable one. (An extra of ours.)"""

    repetition_penalty: float = Field(default=1.0, gt=0, le=10)
    """Divide the positive logits of tokens of prompt and answer by this, multiply the negative. (An extra of ours.)"""

    presence_penalty: float = Field(default=0.0, ge=-2, le=2)
    """Taken once from the logit of each token that the answer holds already."""

    frequency_penalty: float = Field(default=0.0, ge=-2, le=2)
    """Taken from the logit of each token for every time that the answer holds it."""

    logit_bias: Annotated[
        dict[str, Annotated[float, Field(ge=-100, le=100)]], Field(max_length=MAX_BIASES), BeforeValidator(_few_biases)
    ] = {}
    """Added to the logits of these token ids (keys are decimal strings)."""

    seed: int | None = Field(default=None, ge=-(2**63), lt=2**64)
    """Makes the draws repeatable: they depend on seed, choice and position alone."""

    stop: Stop | Annotated[list[Stop], Field(max_length=MAX_STOPS)] = []
    """End the answer before the first of these texts."""

    stop_token_ids: list[TokenId] = Field(default=[], max_length=128)
    """End the answer at any of these tokens. (An extra of ours.)"""

    include_stop_str_in_output: bool = False
    """Keep the stop text in the answer. (An extra of ours.)"""

    ignore_eos: bool = False
    """Go on after the model's end token. (An extra of ours.)"""

    priority: int = Field(default=0, ge=-(2**31), lt=2**31)
    """Smaller is sooner, where the scheduling policy is Priority. (An extra of ours.)"""

    stream: bool = False
    """Send the answer while it is made, as server-sent events."""

    stream_options: StreamOptions | None = None
    """Only with stream."""

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)


class ChatRequest(SamplingFields):
    messages: Listed[dict[str, Any]] = Field(min_length=1)
    """The conversation so far."""

    n: int = Field(default=1, ge=1, le=MAX_CHOICES)
    """How many answers."""

    max_tokens: int | None = Field(default=None, ge=1)
    """Longest answer in tokens; without it, what is left of the model's length."""

    max_completion_tokens: int | None = Field(default=None, ge=1)
    """The same; it counts where both are there."""

    logprobs: bool = False
    """Return the probabilities of the answer's tokens."""

    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)
    """How many alternatives of each; only with logprobs."""

    response_format: dict[str, Any] | None = None
    """text, json_object or json_schema."""

    tools: list[dict[str, Any]] = Field(default=[], max_length=128)
    """Functions that the model may call."""

    tool_choice: Literal["none", "auto", "required"] | dict[str, Any] | None = None
    """Whether a function is called, and which."""

    parallel_tool_calls: bool = True
    """Whether one answer may call several."""

    chat_template_kwargs: dict[str, Any] = {}
    """Variables that the model's chat template reads, such as enable_thinking: an object of strings, numbers, true,
    false or null. (An extra of ours.)"""


class CompletionRequest(SamplingFields):
    prompt: str | Listed[str] | Listed[TokenId] | Listed[Listed[TokenId]]
    """One prompt or several, each as text or as token ids."""

    n: int = Field(default=1, ge=1, le=MAX_CHOICES)
    """How many answers to each prompt."""

    best_of: int | None = Field(default=None, ge=1, le=MAX_CHOICES)
    """Only the value of n."""

    max_tokens: int | None = Field(default=None, ge=0)
    """Longest answer in tokens; without it, what is left of the model's length. 0 only with echo."""

    logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)
    """Return the probabilities of the tokens and of this many alternatives."""

    echo: bool = False
    """Begin the answer with the prompt."""

    response_format: dict[str, Any] | None = None
    """text, json_object or json_schema. (An extra of ours.)"""


class ResponsesRequest(SamplingFields):
    input: str | Listed[dict[str, Any]] = Field(min_length=1)
    """A user's message, or the conversation as items."""

    instructions: str | None = None
    """A system message before everything else."""

    max_output_tokens: int | None = Field(default=None, ge=1)
    """Longest answer in tokens; without it, what is left of the model's length."""

    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)
    """How many alternatives of each token; shown where include has message.output_text.logprobs."""

    include: Listed[str] = []
    """message.output_text.logprobs; reasoning.encrypted_content is accepted, since there is none."""

    text: dict[str, Any] = {}
    """format: text, json_object or json_schema."""

    tools: list[dict[str, Any]] = Field(default=[], max_length=128)
    """Functions that the model may call."""

    tool_choice: Literal["none", "auto", "required"] | dict[str, Any] = "auto"
    """Whether a function is called, and which."""

    parallel_tool_calls: bool = True
    """Whether one answer may call several."""


class TokenizeRequest(Body):
    model: str | None = None
    prompt: str | None = None
    """Text to tokenise as /v1/completions does."""

    messages: Listed[dict[str, Any]] | None = Field(default=None, min_length=1)
    """A conversation to tokenise as /v1/chat/completions does; instead of prompt."""

    tools: list[dict[str, Any]] = Field(default=[], max_length=128)
    chat_template_kwargs: dict[str, Any] = {}
    """With messages: as in /v1/chat/completions."""

    add_special_tokens: bool = True
    """With prompt: whether the tokenizer adds what it adds to a text, such as a beginning token."""

    return_token_strs: bool = False


class DetokenizeRequest(Body):
    model: str | None = None
    tokens: Listed[TokenId]


Model = TypeVar("Model", bound=Body)


def validated(model: type[Model], values: Mapping[str, Any]) -> Model:
    """Return the request as a model. Raises RequestRefused (400) that names the parameter and what is wrong."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise _refused(error, values) from error


_SUBJECT = re.compile(r"^(Input|List|Dictionary|Value|String) should ")
_WORDS = {
    "missing": "is missing",
    "string_type": "must be a string",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "list_type": "must be an array",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "string_too_short": "must not be empty",
    "finite_number": "must be a finite number",
}


def _refused(error: ValidationError, values: Mapping[str, Any]) -> RequestRefused:
    """Name what is furthest inside the body: with alternatives (a string or an array) that is the one meant."""
    found = [(_path(details["loc"], values, details["type"]), details) for details in error.errors()]
    deepest = max(len(path) for path, _ in found)
    path = next(path for path, _ in found if len(path) == deepest)
    reasons = dict.fromkeys(_reason(details["type"], details["msg"]) for other, details in found if other == path)
    name = ".".join(map(str, path))
    code = "missing_required_parameter" if list(reasons) == ["is missing"] else "invalid_value"
    return invalid(f"{name} {' or '.join(list(reasons)[:4])}", name, code)


def _reason(kind: str, message: str) -> str:
    if kind in _WORDS:
        return _WORDS[kind]
    message = _SUBJECT.sub("must ", message).replace(" after validation", "")
    return message[:1].lower() + message[1:]


def _path(loc: tuple[int | str, ...], values: Any, kind: str) -> tuple[int | str, ...]:
    """Return the parts of pydantic's location that lead through the body; the others name alternatives."""
    path: list[int | str] = []
    for part in loc:
        if (isinstance(values, Mapping) and part in values) or (
            isinstance(values, list) and isinstance(part, int) and part < len(values)
        ):
            values = values[part]  # type: ignore[index]
            path.append(part)
    if kind == "missing":
        path.append(loc[-1])
    return tuple(path)
