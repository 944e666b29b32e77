"""A strict check of answers against OpenAI's published schema, as the openai package carries it.

The package's types are lenient when they parse; here a missing required key, a wrong type, an unknown enum value, an
unknown key and a wrong discriminator are all faults.
"""

import types
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from openai._models import BaseModel
from openai._utils import PropertyInfo
from openai.types import Completion, CompletionChoice, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk, ChatCompletionMessage
from openai.types.chat.chat_completion import Choice
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import Discriminator

# Keys that the published schema requires and that may be null; the package's types cannot say that.
_REQUIRED_NULLABLE: dict[type, tuple[str, ...]] = {
    ChatCompletionMessage: ("content", "refusal"),
    Choice: ("logprobs",),
    CompletionChoice: ("logprobs",),
    Response: ("error", "incomplete_details", "instructions", "metadata", "temperature", "top_p"),
}
# The types say float; the service itself sends null for the first prompt token.
_NULL_ALLOWED = {("Logprobs", "token_logprobs"), ("Logprobs", "top_logprobs")}


class SchemaFault(AssertionError):
    """The value doesn't follow the schema; the message names where and why."""


def check(value: Any, schema: Any, where: str = "$") -> None:
    """Raise SchemaFault unless `value` follows `schema`, a type of the openai package."""
    origin = get_origin(schema)
    if hasattr(schema, "__metadata__"):
        _check_annotated(value, schema, where)
    elif schema is Any or schema is object:
        return
    elif origin in (Union, types.UnionType):
        _check_any(value, get_args(schema), where)
    elif origin is Literal:
        _require(any(type(value) is type(x) and value == x for x in get_args(schema)), where, value, str(schema))
    elif origin is list:
        _require(isinstance(value, list), where, value, "a list")
        for index, item in enumerate(value):
            check(item, get_args(schema)[0], f"{where}[{index}]")
    elif origin is dict:
        _require(isinstance(value, dict), where, value, "an object")
        for key, item in value.items():
            check(item, get_args(schema)[1], f"{where}.{key}")
    elif isinstance(schema, TypeVar):
        return
    elif issubclass(origin or schema, BaseModel):
        _check_model(value, schema, where)
    else:
        _check_plain(value, schema, where)


def _require(holds: bool, where: str, value: Any, wanted: str) -> None:
    if not holds:
        raise SchemaFault(f"{where} is {value!r:.200}; the schema wants {wanted}")


def _check_plain(value: Any, schema: type, where: str) -> None:
    if schema is float:
        _require(isinstance(value, int | float) and not isinstance(value, bool), where, value, "a number")
    elif schema is int:
        _require(isinstance(value, int) and not isinstance(value, bool), where, value, "an integer")
    else:
        _require(isinstance(value, schema), where, value, schema.__name__)


def _check_annotated(value: Any, schema: Any, where: str) -> None:
    names = [item.discriminator for item in schema.__metadata__ if isinstance(item, PropertyInfo | Discriminator)]
    members = get_args(schema.__origin__)
    if not names or not isinstance(names[0], str) or not members or not isinstance(value, dict):
        check(value, schema.__origin__, where)
        return
    tag = value.get(names[0])
    for member in members:
        field = getattr(member, "model_fields", {}).get(names[0])
        if field is not None and tag in get_args(field.annotation):
            check(value, member, where)
            return
    raise SchemaFault(f"{where}.{names[0]} is {tag!r}, which the schema doesn't know")


def _check_any(value: Any, members: tuple[Any, ...], where: str) -> None:
    faults = []
    for member in members:
        try:
            check(value, member, where)
            return
        except SchemaFault as fault:
            faults.append(str(fault))
    raise SchemaFault("; or ".join(faults))


def _check_model(value: Any, schema: type[BaseModel], where: str) -> None:
    _require(isinstance(value, dict), where, value, schema.__name__)
    known = set()
    for name, field in schema.model_fields.items():
        key = field.alias or name
        known.add(key)
        if key not in value:
            required = field.is_required() or key in _REQUIRED_NULLABLE.get(schema, ())
            _require(not required, f"{where}.{key}", "missing", "it to be there")
        elif (schema.__name__, key) in _NULL_ALLOWED and isinstance(value[key], list):
            check([item for item in value[key] if item is not None], field.annotation, f"{where}.{key}")
        else:
            annotation: Any = field.annotation
            for item in field.metadata:
                if isinstance(item, PropertyInfo):
                    annotation = Annotated[annotation, item]
            check(value[key], annotation, f"{where}.{key}")
    _require(set(value) <= known, where, sorted(set(value) - known), "no such keys")


def check_stream_completion(chunk: Any) -> None:
    """Check a chunk of /v1/completions: a completion whose choices may lack a finish reason until their end."""
    ended = [choice | {"finish_reason": choice["finish_reason"] or "stop"} for choice in chunk["choices"]]
    check(chunk | {"choices": ended}, Completion)


CHAT: Any = ChatCompletion
CHAT_CHUNK: Any = ChatCompletionChunk
COMPLETION: Any = Completion
MODEL_OBJECT: Any = Model
RESPONSE: Any = Response
RESPONSE_EVENT: Any = ResponseStreamEvent
