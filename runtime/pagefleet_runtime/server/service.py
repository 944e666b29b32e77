"""What the endpoints share: the engine's client, the model's text, the served name, who asks."""

import asyncio
import hashlib
import logging
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import BaseModel
from starlette.requests import Request

from pagefleet_contract.api_keys import ApiKeys
from pagefleet_contract.engine import EngineConfig, ModelSettings
from pagefleet_contract.openai_error import CODE_INVALID_API_KEY, CODE_MODEL_NOT_FOUND, Refusal
from pagefleet_runtime.engine_client import EngineClient
from pagefleet_runtime.errors import RequestRefused
from pagefleet_runtime.metrics import RequestFigures
from pagefleet_runtime.protocol import EngineInfo
from pagefleet_runtime.server.treatment import UnknownNames
from pagefleet_runtime.server.validation import LengthLimit
from pagefleet_runtime.text.chat_prompt import ChatPrompt
from pagefleet_runtime.text.tokenizer import LoadTokenizer, Tokenizer

logger = logging.getLogger(__name__)


def served_name(model: ModelSettings) -> str:
    """Return the name that clients send as `model`."""
    return model.served_name or model.uri.rstrip("/").rpartition("/")[2] or model.uri


@dataclass(frozen=True, slots=True)
class ModelText:
    """The loaded model as the API sees it: its figures, its tokenizer, its chat template."""

    info: EngineInfo
    tokenizer: Tokenizer
    chat_prompt: ChatPrompt
    max_length_tokens: int  # the longest request as things are
    longest_token_bytes: int

    @property
    def length_limit(self) -> LengthLimit:
        return LengthLimit(self.max_length_tokens, self.info.allowed_length_tokens)

    @property
    def fingerprint(self) -> str:
        """OpenAI's system_fingerprint: the same as long as equal seeds can be expected to give equal answers."""
        told = f"{self.info.model_directory} {self.info.dtype} {self.info.kv_dtype} {self.info.block_size}"
        return f"fp_{hashlib.sha256(told.encode()).hexdigest()[:12]}"


def _load_text(info: EngineInfo, load_tokenizer: LoadTokenizer) -> ModelText:
    tokenizer = load_tokenizer(info)
    longest = max(len(tokenizer.token_bytes(token_id)) for token_id in range(tokenizer.vocab_size))
    return ModelText(info, tokenizer, ChatPrompt(tokenizer), info.max_length_tokens, max(longest, 1))


class TextSource:
    """The text side of the model. The client isn't ready before it has been loaded."""

    def __init__(self, client: EngineClient, load_tokenizer: LoadTokenizer) -> None:
        self._client = client
        self._load_tokenizer = load_tokenizer
        self._text: ModelText | None = None
        client.preparations.append(self._prepare)

    async def _prepare(self, info: EngineInfo) -> None:
        self._text = await asyncio.to_thread(_load_text, info, self._load_tokenizer)

    def get(self) -> ModelText:
        """Return the model's text, with its limits as they are now. Raises RequestRefused (503) unless requests are
        taken."""
        self._client.check_accepts()
        longest = self._client.max_length_tokens
        assert self._text is not None and longest is not None, "a client that accepts has loaded the text"
        return self._text if longest == self._text.max_length_tokens else replace(self._text, max_length_tokens=longest)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, and since when."""

    tenant: str
    request_id: str
    arrival_seconds: float  # time.monotonic()

    def name_answer(self, prefix: str) -> str:
        """Return the answer's id, which is the engine's too; the log ties it to the client's x-request-id."""
        answer_id = new_id(prefix)
        logger.debug("request %s is %s", self.request_id, answer_id)
        return answer_id


@dataclass(frozen=True, slots=True)
class Service:
    """Handed to every endpoint."""

    client: EngineClient
    figures: RequestFigures
    keys: ApiKeys
    text: TextSource
    served_name: str
    patience_seconds: float
    unknown: UnknownNames = field(default_factory=UnknownNames)
    started_at: int = field(default_factory=lambda: int(time.time()))

    def caller(self, request: Request) -> Caller:
        """Return who sent the request. Raises RequestRefused (401) where it carries no valid key and must."""
        tenant = self.keys.tenant_of(request.headers.get("authorization"))
        if tenant is None:
            message = "the API key is missing or unknown; send it as Authorization: Bearer KEY"
            raise RequestRefused(Refusal(401, CODE_INVALID_API_KEY, message))
        return Caller(tenant, request.state.request_id, time.monotonic())

    def check_model(self, name: str) -> None:
        """Raise RequestRefused (404) for a model that isn't served here."""
        if name != self.served_name:
            message = f"the model '{name[:200]}' isn't served here; served: '{self.served_name}'"
            raise RequestRefused(Refusal(404, CODE_MODEL_NOT_FOUND, message, "model"))


def make_service(
    client: EngineClient, config: EngineConfig, figures: RequestFigures, keys: ApiKeys, load_tokenizer: LoadTokenizer
) -> Service:
    # Until then whatever can be refused has been: what takes longer is prefill.
    patience = config.scheduling.queue_timeout_seconds + config.serving.grammar_timeout_seconds + 5
    return Service(
        client, figures, keys, TextSource(client, load_tokenizer), served_name(config.model), float(patience)
    )


def new_id(prefix: str) -> str:
    """Return an id of ours. The client's x-request-id isn't used for it: clients may send the same one twice."""
    return f"{prefix}{uuid.uuid4().hex}"


def json_body(model: type[BaseModel]) -> dict[str, object]:
    """Return what /openapi.json says of a body that the endpoint parses itself."""
    schema = model.model_json_schema()
    content = {"application/json": {"schema": _inlined(schema, schema.pop("$defs", {}))}}
    return {"requestBody": {"required": True, "content": content}}


def _inlined(schema: Any, definitions: Mapping[str, Any]) -> Any:
    """Return the schema without references: inside a larger document they would lead nowhere."""
    if isinstance(schema, list):
        return [_inlined(part, definitions) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        named = definitions[schema["$ref"].rpartition("/")[2]]
        return _inlined({**named, **{key: value for key, value in schema.items() if key != "$ref"}}, definitions)
    return {key: _inlined(value, definitions) for key, value in schema.items()}
