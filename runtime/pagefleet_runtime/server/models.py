"""GET /v1/models and /version: they answer while the model loads."""

import importlib.metadata

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from pagefleet_runtime.server.errors import JSONAnswer
from pagefleet_runtime.server.openai_responses import Json
from pagefleet_runtime.server.service import Service


def models_router(service: Service) -> APIRouter:
    router = APIRouter()

    @router.get("/v1/models")
    async def list_models(request: Request) -> Response:
        """List the one model that is served here."""
        service.caller(request)
        return JSONAnswer({"object": "list", "data": [_model(service)]})

    @router.get("/v1/models/{model_id:path}")
    async def get_model(request: Request, model_id: str) -> Response:
        """Describe a model."""
        service.caller(request)
        service.check_model(model_id)
        return JSONAnswer(_model(service))

    @router.get("/version")
    async def get_version() -> Response:
        return JSONAnswer({"version": importlib.metadata.version("pagefleet")})

    return router


def _model(service: Service) -> Json:
    """Return OpenAI's model object, and the longest request as soon as it is known."""
    model: Json = {"id": service.served_name, "object": "model", "created": service.started_at, "owned_by": "pagefleet"}
    longest = service.client.max_length_tokens
    return model if longest is None else model | {"max_model_len": longest}
