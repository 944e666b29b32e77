"""The routes that aren't OpenAI's: health, metrics, and the operator's state, policy and drain."""

from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from pydantic.alias_generators import to_camel

from pagefleet_contract.engine import EngineConfig
from pagefleet_contract.names import PATH_DRAIN, PATH_LIVE, PATH_METRICS, PATH_POLICY, PATH_READY, PATH_STATE
from pagefleet_contract.policy import LIVE_FIELDS
from pagefleet_runtime.auth import AccessKeys
from pagefleet_runtime.engine_client import EngineClient
from pagefleet_runtime.errors import invalid
from pagefleet_runtime.health import Health, judge
from pagefleet_runtime.metrics import Figures, RequestFigures, exposition
from pagefleet_runtime.protocol import PolicyChange


def _policy_body() -> type[BaseModel]:
    settings: dict[str, Any] = {
        name: (Annotated[int, *info.metadata] | None, None) for name, info in LIVE_FIELDS.items()
    }
    config = ConfigDict(extra="forbid", alias_generator=to_camel, strict=True)
    return create_model("PolicyBody", __config__=config, reset_prefix_cache=(bool, False), **settings)


@dataclass(frozen=True, slots=True)
class Admin:
    """What the routes answer from. It changes nothing but through the engine client."""

    client: EngineClient
    config: EngineConfig
    figures: RequestFigures
    keys: AccessKeys
    model_name: str

    def health(self) -> Health:
        return judge(self.client.state, self.client.stalled_seconds, self.config.serving.stall_limit_seconds)

    def metrics_page(self) -> bytes:
        client = self.client
        figures = Figures(
            snapshot=client.snapshot,
            state=client.state,
            info=client.info,
            load=client.load,
            in_flight=client.in_flight,
            last_step_age_seconds=client.last_step_age_seconds,
            stalled_seconds=client.stalled_seconds,
            version=version("pagefleet"),
            model_name=self.model_name,
        )
        return exposition(figures, self.figures, self.config.serving.vllm_metric_names == "Enabled")

    def probe_page(self, healthy: bool) -> JSONResponse:
        page = {
            "status": "ok" if healthy else "failing",
            "reason": self.health().reason,
            "state": self.client.state,
            "load": camel(self.client.load),
            "stalledSeconds": round(self.client.stalled_seconds, 3),
        }
        return JSONResponse(page, 200 if healthy else 503)

    def drain_page(self) -> dict[str, Any]:
        draining = self.client.state == "draining"
        return {
            "draining": draining,
            "drained": draining and self.client.in_flight == 0,
            "inFlight": self.client.in_flight,
            "timeoutSeconds": self.config.serving.drain_timeout_seconds,
        }

    def state_page(self) -> dict[str, Any]:
        health = self.health()
        return {
            "versions": _versions(),
            "model": self.model_name,
            "state": self.client.state,
            "failure": self.client.failure,
            "health": camel(health),
            "load": camel(self.client.load),
            "info": camel(self.client.info),
            "policy": camel(self.client.policy),
            "snapshot": camel(self.client.snapshot),
            "lastStepAgeSeconds": round(self.client.last_step_age_seconds, 3),
            "stalledSeconds": round(self.client.stalled_seconds, 3),
            "drain": self.drain_page(),
            "config": self.config.model_dump(mode="json", by_alias=True),
        }


def _versions() -> dict[str, str]:
    """Return what runs here; a server of simulated models needs no more than itself."""
    found = {"pagefleet": version("pagefleet")}
    for name in ("torch", "transformers"):
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def camel(value: Any) -> Any:
    """Return a value as JSON has it, with the fields of dataclasses in camelCase. Keys of mappings stay as they are."""
    if is_dataclass(value):
        return {to_camel(field.name): camel(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {key: camel(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [camel(item) for item in value]
    return value


def parse_policy(body: bytes, model: type[BaseModel]) -> PolicyChange:
    """Return the change that a JSON body asks for. Raises RequestRefused (400) with the field's name."""
    try:
        return PolicyChange(**model.model_validate_json(body).model_dump())
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in fault["loc"]) or "the body"
        raise invalid(f"{where}: {fault['msg']}", where if fault["loc"] else None) from None


def admin_router(admin: Admin) -> APIRouter:
    """Return the routes of health, metrics, state, policy and drain."""
    router = APIRouter()
    router.include_router(_probe_router(admin))
    router.include_router(_operator_router(admin))
    return router


def _probe_router(admin: Admin) -> APIRouter:
    router = APIRouter()

    @router.get(PATH_LIVE, summary="Whether the process should go on")
    async def live() -> Response:
        return admin.probe_page(admin.health().live)

    @router.get(PATH_READY, summary="Whether requests should be sent here")
    async def ready() -> Response:
        return admin.probe_page(admin.health().ready)

    @router.get(PATH_METRICS, summary="Figures for Prometheus")
    async def metrics() -> Response:
        return Response(admin.metrics_page(), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    return router


def _operator_router(admin: Admin) -> APIRouter:
    async def operator_only(request: Request) -> None:
        admin.keys.check_operator(request.headers.get("authorization"))

    # Clients read /openapi.json, at the router too, which passes nothing of this on.
    router = APIRouter(dependencies=[Depends(operator_only)], include_in_schema=False)
    policy_body = _policy_body()

    @router.get(PATH_STATE, summary="The engine's truth on one page")
    async def state() -> Response:
        return JSONResponse(admin.state_page())

    @router.get(PATH_POLICY, summary="The live settings in force")
    async def policy() -> Response:
        return JSONResponse(camel(await admin.client.change_policy(PolicyChange())))

    @router.patch(PATH_POLICY, summary="Change live settings")
    @router.post(PATH_POLICY, summary="Change live settings")
    async def change_policy(request: Request) -> Response:
        change = parse_policy(await request.body(), policy_body)
        return JSONResponse(camel(await admin.client.change_policy(change)))

    @router.get(PATH_DRAIN, summary="How far a drain is")
    async def drain() -> Response:
        return JSONResponse(admin.drain_page())

    @router.post(PATH_DRAIN, summary="Take no new requests; those in flight go on")
    async def begin_drain() -> Response:
        admin.client.begin_drain()
        return JSONResponse(admin.drain_page(), 202)

    return router
