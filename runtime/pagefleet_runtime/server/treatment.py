"""What the API does with each parameter: honoured, ignored or refused. The README's table is made from this one.

`null` is the same as leaving a parameter out. A parameter that would change what the answer means, and that isn't
there, is refused; a harmless value of it passes. Names that are in no list are ignored, and logged once each, but for
those that are a letter away from one that would count: ignoring `max_token` would change the answer unseen.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pagefleet_contract.near_names import one_letter_off
from pagefleet_runtime.errors import invalid

logger = logging.getLogger(__name__)

Treatment = Literal["supported", "ignored", "rejected"]

UNKNOWN = "unknown_parameter"

# Of shorter names another one may well be a letter away (top_a, models) and mean something else.
_LEAST_LETTERS = 6


@dataclass(frozen=True, slots=True)
class Parameters:
    """The parameters of one endpoint. Keys of `rejected` are names, values the harmless values and a hint."""

    endpoint: str
    supported: frozenset[str]
    ignored: frozenset[str]
    rejected: Mapping[str, "Rejection"]

    def treatment(self, name: str) -> Treatment | None:
        if name in self.supported:
            return "supported"
        if name in self.ignored:
            return "ignored"
        return "rejected" if name in self.rejected else None

    def meant(self, name: str) -> str | None:
        """Return the name of consequence that this unknown one must be a slip of, if there is one."""
        names = sorted({*self.supported, *self.rejected})
        return one_letter_off(name, [known for known in names if len(known) >= _LEAST_LETTERS])


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a parameter is refused, and the values that mean the same as leaving it out."""

    reason: str
    harmless: tuple[Any, ...] = ()


@dataclass(slots=True)
class UnknownNames:
    """The unknown parameter names that were logged already; bounded, since clients choose them."""

    limit: int = 1000
    _seen: set[str] = field(default_factory=set)

    def note(self, endpoint: str, name: str) -> None:
        key = f"{endpoint} {name[:100]}"
        if key not in self._seen and len(self._seen) < self.limit:
            self._seen.add(key)
            logger.warning("%s: unknown parameter %r is ignored (said once)", endpoint, name[:100])


def honoured(parameters: Parameters, body: dict[str, Any], unknown: UnknownNames) -> dict[str, Any]:
    """Return the parameters of `body` that are to be honoured. Raises RequestRefused (400) for one that can't be, and
    for a slip of the pen."""
    kept = {}
    for name, value in body.items():
        treatment = parameters.treatment(name)
        if treatment is None:
            if value is not None and (meant := parameters.meant(name)):
                raise invalid(f"{name} is no parameter of this endpoint; did you mean {meant}?", name, UNKNOWN)
            unknown.note(parameters.endpoint, name)
        elif value is not None and treatment == "supported":
            kept[name] = value
        elif value is not None and treatment == "rejected":
            _refuse_unless_harmless(name, value, parameters.rejected[name])
    return kept


def _refuse_unless_harmless(name: str, value: Any, rejection: Rejection) -> None:
    # By type too: in Python 0 equals False.
    if not any(type(value) is type(harmless) and value == harmless for harmless in rejection.harmless):
        raise invalid(f"{name} isn't supported here: {rejection.reason}", name, "unsupported_parameter")


_SAMPLING = frozenset(
    "model temperature top_p seed presence_penalty frequency_penalty stop logit_bias stream stream_options n "
    "top_k min_p repetition_penalty stop_token_ids ignore_eos include_stop_str_in_output priority".split()
)

_IGNORED = frozenset(
    "user metadata store service_tier safety_identifier prompt_cache_key prompt_cache_options "
    "prompt_cache_retention".split()
)

_NOT_FROM_REQUESTS = Rejection("the chat template is the model's; a request can't bring code")
_USE_FORMAT = Rejection("use response_format with a json_schema")

# Names of other servers' extras that would change the answer.
_FOREIGN = {
    "chat_template": _NOT_FROM_REQUESTS,
    "guided_json": _USE_FORMAT,
    "guided_regex": _USE_FORMAT,
    "guided_choice": _USE_FORMAT,
    "guided_grammar": _USE_FORMAT,
    "structured_outputs": _USE_FORMAT,
    "min_tokens": Rejection("a lowest number of tokens can't be asked for; use ignore_eos", (0,)),
    "use_beam_search": Rejection("there is no beam search", (False,)),
    "bad_words": Rejection("use logit_bias", ([],)),
    "allowed_token_ids": Rejection("use logit_bias or response_format"),
    "logits_processors": Rejection("a request can't bring code", ([],)),
    "prompt_logprobs": Rejection("use /v1/completions with echo and logprobs"),
    "truncate_prompt_tokens": Rejection("prompts are never cut; shorten it"),
    "continue_final_message": Rejection("an answer always begins a new message", (False,)),
    "add_generation_prompt": Rejection("an answer always begins a new message", (True,)),
}

CHAT = Parameters(
    "/v1/chat/completions",
    _SAMPLING
    | set(
        "messages max_tokens max_completion_tokens logprobs top_logprobs response_format tools tool_choice "
        "parallel_tool_calls chat_template_kwargs".split()
    ),
    _IGNORED | {"reasoning_effort", "verbosity"},
    {
        **_FOREIGN,
        "audio": Rejection("answers are text only"),
        "modalities": Rejection("answers are text only", (["text"],)),
        "functions": Rejection("it is older than tools; use tools", ([],)),
        "function_call": Rejection("it is older than tool_choice; use tool_choice", ("none", "auto")),
        "prediction": Rejection("there is no speculation on a given text"),
        "web_search_options": Rejection("there are no built-in tools"),
        "moderation": Rejection("there is no moderation model"),
    },
)

COMPLETIONS = Parameters(
    "/v1/completions",
    _SAMPLING | set("prompt max_tokens logprobs echo best_of response_format".split()),
    _IGNORED,
    {**_FOREIGN, "suffix": Rejection("text is only continued, never filled in", ("",))},
)

RESPONSES = Parameters(
    "/v1/responses",
    (_SAMPLING - {"n"})
    | set(
        "input instructions max_output_tokens top_logprobs include text tools tool_choice parallel_tool_calls".split()
    ),
    _IGNORED | {"reasoning", "max_tool_calls", "image"},
    {
        **_FOREIGN,
        "previous_response_id": Rejection("nothing is stored; send the whole conversation as input"),
        "conversation": Rejection("nothing is stored; send the whole conversation as input"),
        "background": Rejection("nothing is stored; wait for the answer or stream it", (False,)),
        "background_options": Rejection("nothing is stored; wait for the answer or stream it"),
        "prompt": Rejection("there are no stored prompts; send instructions and input"),
        "truncation": Rejection("input is never cut; shorten it", ("disabled",)),
        "context_management": Rejection("input is never cut or compacted; shorten it", ([],)),
        "moderation": Rejection("there is no moderation model"),
        "access_programs": Rejection("there are no access programs"),
        "n": Rejection("a response is one answer", (1,)),
        "chat_template_kwargs": Rejection("use /v1/chat/completions", ({},)),
    },
)
