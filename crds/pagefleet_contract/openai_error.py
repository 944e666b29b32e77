"""How a request is refused: OpenAI's error object, and the codes that one program writes and another one reads."""

import json
from dataclasses import dataclass
from typing import Any

# Answers of a replica that another replica may give otherwise: the router asks one.
CODE_DRAINING = "draining"
CODE_MODEL_LOADING = "model_loading"
CODE_ENGINE_FAILED = "engine_failed"
CODE_TOO_MANY_CONNECTIONS = "too_many_connections"
CODE_QUEUE_FULL = "queue_full"

CODE_MODEL_NOT_FOUND = "model_not_found"
CODE_INVALID_API_KEY = "invalid_api_key"
CODE_BODY_TOO_LARGE = "body_too_large"
CODE_UNKNOWN_URL = "unknown_url"
CODE_METHOD_NOT_ALLOWED = "method_not_allowed"

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    408: "timeout_error",
    429: "rate_limit_error",
}


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is refused."""

    status: int
    code: str
    message: str
    param: str | None = None
    retry_after_seconds: int | None = None


def error_object(refusal: Refusal) -> dict[str, Any]:
    """Return OpenAI's error object, the same in an answer and in an event of a stream."""
    kind = _TYPES.get(refusal.status) or ("server_error" if refusal.status >= 500 else "invalid_request_error")
    error = {"message": refusal.message, "type": kind, "param": refusal.param, "code": refusal.code}
    return {"error": error}


# Readers of lines in common HTTP clients (httpx's, Python's) break a text at these, and so would get half an event.
_LINE_BREAKS = {character: f"\\u{ord(character):04x}" for character in "\x85\u2028\u2029"}
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def json_bytes(content: Any) -> bytes:
    """Return the compact JSON of `content`, one line in UTF-8. Infinity and NaN are a bug of ours: they raise."""
    text = _ENCODER.encode(content)
    for character, escaped in _LINE_BREAKS.items():
        text = text.replace(character, escaped)
    return text.encode("utf-8", "replace")
