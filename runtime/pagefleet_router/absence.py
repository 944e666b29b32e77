"""What the router answers itself when no replica can: the model is still known, and worth another try. Pure."""

import json
from collections.abc import Mapping

from pagefleet_contract.openai_error import Refusal, json_bytes
from pagefleet_contract.router import RouterConfig
from pagefleet_router.exchange import WholeAnswer, refusal_answer
from pagefleet_router.refusals import model_not_found, no_pods, no_replica
from pagefleet_router.replicas import ReplicaState

_MODELS = "/v1/models"


def answer_without_replica(
    method: str, path: str, body: bytes, config: RouterConfig, num_replicas: Mapping[ReplicaState, int]
) -> WholeAnswer:
    """Return the list of models, 404 for a model that isn't this service's, and else 503 with retry-after."""
    asked = path.removeprefix(_MODELS + "/") if path.startswith(_MODELS + "/") else named_model(body)
    served_name = config.served_name
    if asked is not None and asked != served_name:
        return refusal_answer(model_not_found(asked, served_name))
    if method == "GET" and path.startswith(_MODELS):
        return _models_page(path, served_name)
    return refusal_answer(_no_replica(config, num_replicas))


def _no_replica(config: RouterConfig, num_replicas: Mapping[ReplicaState, int]) -> Refusal:
    if not any(num_replicas.values()):
        return no_pods(config.served_name, config.service_name, config.namespace)
    return no_replica(config.served_name, num_replicas["unready"], num_replicas["draining"])


def named_model(body: bytes) -> str | None:
    """Return the model that a body asks for, or None where it names none; what is wrong with it a replica will say."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        return None
    name = content.get("model") if isinstance(content, dict) else None
    return name if isinstance(name, str) else None


def _models_page(path: str, served_name: str) -> WholeAnswer:
    model = {"id": served_name, "object": "model", "created": 0, "owned_by": "pagefleet"}
    page = {"object": "list", "data": [model]} if path == _MODELS else model
    return WholeAnswer(200, [(b"content-type", b"application/json")], json_bytes(page))
