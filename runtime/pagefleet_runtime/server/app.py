"""The application: routes, errors and middleware put together. Health, metrics and the operator's routes come from
`admin`; whoever calls `create_app` includes them and starts the engine's client."""

import importlib.metadata

from fastapi import FastAPI

from pagefleet_contract.api_keys import ApiKeys
from pagefleet_contract.engine import EngineConfig
from pagefleet_runtime.engine_client import EngineClient
from pagefleet_runtime.metrics import RequestFigures
from pagefleet_runtime.server.chat import chat_router
from pagefleet_runtime.server.completions import completions_router
from pagefleet_runtime.server.errors import add_error_handlers
from pagefleet_runtime.server.middleware import BodyLimit, RequestScope
from pagefleet_runtime.server.models import models_router
from pagefleet_runtime.server.pacing import Paced
from pagefleet_runtime.server.responses import responses_router
from pagefleet_runtime.server.service import make_service
from pagefleet_runtime.server.token_routes import tokenize_router
from pagefleet_runtime.text.tokenizer import LoadTokenizer


def create_app(
    client: EngineClient, config: EngineConfig, figures: RequestFigures, keys: ApiKeys, load_tokenizer: LoadTokenizer
) -> FastAPI:
    """Return the OpenAI API over an engine client that isn't ready yet: its readiness includes the API's own."""
    service = make_service(client, config, figures, keys, load_tokenizer)
    app = FastAPI(
        title="pagefleet",
        version=importlib.metadata.version("pagefleet"),
        docs_url=None,  # its page loads scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
    )
    for make_router in (chat_router, completions_router, responses_router, models_router, tokenize_router):
        app.include_router(make_router(service))
    add_error_handlers(app)
    # The last one added is the outermost.
    app.add_middleware(BodyLimit, max_body_bytes=config.serving.max_body_bytes)
    app.add_middleware(RequestScope)
    app.add_middleware(Paced)
    return app
