"""The messages between the server process and the engine process. Both ends are ours and of one version; messages are
pickled frozen values, applied by the engine only between steps."""

from dataclasses import dataclass, fields
from operator import attrgetter

from pagefleet_contract.openai_error import Refusal
from pagefleet_runtime.plan import TokenLogprob
from pagefleet_runtime.request import GenerationRequest
from pagefleet_runtime.snapshot import EngineSnapshot

# --- server to engine


@dataclass(frozen=True, slots=True)
class Submit:
    request: GenerationRequest


@dataclass(frozen=True, slots=True)
class Abort:
    """The client left, or the server gave the request up. Unknown and finished ids are ignored."""

    request_id: str


@dataclass(frozen=True, slots=True)
class StopChoice:
    """The server found a stop string in this choice; its blocks go back, the other choices go on."""

    request_id: str
    choice_index: int


@dataclass(frozen=True, slots=True)
class PolicyChange:
    """Live settings; None leaves a value as it is."""

    kv_blocks: int | None = None
    max_sequences: int | None = None
    max_queue: int | None = None
    queue_timeout_seconds: int | None = None
    step_milliseconds: int | None = None
    max_batch_tokens: int | None = None
    watermark_percent: int | None = None
    retention_ttl_seconds: int | None = None
    reset_prefix_cache: bool = False


@dataclass(frozen=True, slots=True)
class ChangePolicy:
    change_id: int
    change: PolicyChange


@dataclass(frozen=True, slots=True)
class Shutdown:
    pass


# --- engine to server


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """`stage` is one of pagefleet_contract.names.LOAD_STAGES; `fraction` is of that stage, 0 to 1."""

    stage: str
    fraction: float
    detail: str = ""


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What is in force after loading; status.effective in the resource comes from here."""

    model_directory: str  # holds the tokenizer and the chat template
    model_type: str
    dtype: str
    kv_dtype: str
    block_size: int
    num_blocks: int
    bytes_per_block: int
    max_length_tokens: int  # the longest request: the model's, the setting's or the budget's, whichever is least
    allowed_length_tokens: int  # the same without the budget
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    step_milliseconds: int
    startup_table: tuple[tuple[str, str], ...]  # label, value: what the start-up table prints
    quantization: str = "none"  # of linear layers' weights; none is dtype
    notes: tuple[str, ...] = ()  # where something in force is not what was asked, and why


@dataclass(frozen=True, slots=True)
class Loaded:
    info: EngineInfo


@dataclass(frozen=True, slots=True)
class LoadFailed:
    message: str


@dataclass(frozen=True, slots=True)
class Accepted:
    """The request is in the queue; its grammar, if any, has compiled."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Rejected:
    """The request ends without a token: never queued, or timed out in the queue."""

    request_id: str
    refusal: Refusal


@dataclass(frozen=True, slots=True)
class TokenOutput:
    """One token of one choice, or its end, or both. `finish_reason` is stop, length or error; the token id of an end
    by EOS or by a stop token is not part of the text, but counts as sampled. `cached_tokens` is the prompt tokens
    reused at first admission. `prompt_logprobs` comes once, with choice 0's first token; its first entry (the first
    token has no probability) is left out."""

    request_id: str
    choice_index: int
    token_id: int | None
    finish_reason: str | None = None
    logprob: TokenLogprob | None = None
    cached_tokens: int = 0
    error: str | None = None
    ends_text: bool = False  # token_id is an EOS or stop token: don't show it
    prompt_logprobs: tuple[TokenLogprob, ...] | None = None
    queue_seconds: float | None = None  # with the request's first output: from its arrival to its first step

    def __reduce__(self) -> tuple[type["TokenOutput"], tuple[object, ...]]:
        # The engine pickles one for every token; what a dataclass does by itself takes more than twice as long.
        return TokenOutput, _token_output_fields(self)


_token_output_fields = attrgetter(*(field.name for field in fields(TokenOutput)))


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What one step gave, in one message, with the figures right after it."""

    outputs: tuple[TokenOutput, ...]
    snapshot: EngineSnapshot


@dataclass(frozen=True, slots=True)
class PolicyChanged:
    change_id: int
    policy: PolicyChange | None  # what is in force now; None when refused
    refusal: Refusal | None = None


ToEngine = Submit | Abort | StopChoice | ChangePolicy | Shutdown
FromEngine = LoadProgress | Loaded | LoadFailed | Accepted | Rejected | StepOutput | PolicyChanged
