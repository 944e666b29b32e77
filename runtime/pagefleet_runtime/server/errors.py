"""Every way a request can fail, as OpenAI's error object. Nothing of ours (class names, traces) gets into an answer."""

from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from pagefleet_contract.names import HEADER_RETRY_AFTER
from pagefleet_contract.openai_error import (
    CODE_METHOD_NOT_ALLOWED,
    CODE_UNKNOWN_URL,
    Refusal,
    error_object,
    json_bytes,
)
from pagefleet_runtime.errors import RequestRefused

INTERNAL = Refusal(
    500, "internal_error", "the server failed on this request; its log has the cause under the request id"
)


class JSONAnswer(Response):
    """JSON in UTF-8. Infinity and NaN are a bug of ours: they raise."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return json_bytes(content)


def error_response(refusal: Refusal) -> Response:
    """Return the HTTP answer to a refused request."""
    headers = {}
    if refusal.retry_after_seconds is not None:
        headers[HEADER_RETRY_AFTER] = str(refusal.retry_after_seconds)
    if refusal.status == 401:
        headers["www-authenticate"] = "Bearer"
    return JSONAnswer(error_object(refusal), status_code=refusal.status, headers=headers)


def _http_refusal(request: Request, error: HTTPException) -> Refusal:
    target = f"{request.method} {request.url.path[:200]}"
    if error.status_code == 404:
        return Refusal(404, CODE_UNKNOWN_URL, f"there is nothing at {target}; GET /openapi.json lists what there is")
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow") or "another method"
        return Refusal(405, CODE_METHOD_NOT_ALLOWED, f"{target} isn't served; use {allowed}")
    return Refusal(error.status_code, "http_error", str(error.detail))


async def _on_refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestRefused)
    return error_response(error.refusal)


async def _on_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    response = error_response(_http_refusal(request, error))
    for name, value in (error.headers or {}).items():
        response.headers[name] = value
    return response


async def _on_validation(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    param = ".".join(str(part) for part in first["loc"][1:]) or None
    return error_response(Refusal(400, "invalid_value", f"{param or 'the request'}: {first['msg']}", param))


def add_error_handlers(app: FastAPI) -> None:
    """Make the app answer every error that a route raises in OpenAI's shape. Bugs are RequestScope's."""
    app.add_exception_handler(RequestRefused, _on_refused)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(RequestValidationError, _on_validation)
