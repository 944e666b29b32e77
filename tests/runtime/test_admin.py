"""Health, metrics, state, policy and drain over HTTP, with an engine that the test plays."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import httpx2
from fastapi import FastAPI
from prometheus_client.parser import text_string_to_metric_families

from pagefleet_contract.engine import EngineConfig
from pagefleet_contract.names import PATH_DRAIN, PATH_LIVE, PATH_METRICS, PATH_POLICY, PATH_READY, PATH_STATE
from pagefleet_contract.openai_error import Refusal
from pagefleet_runtime.admin import Admin, admin_router
from pagefleet_runtime.auth import AccessKeys
from pagefleet_runtime.metrics import RequestFigures
from pagefleet_runtime.protocol import ChangePolicy, LoadProgress, PolicyChange, PolicyChanged
from pagefleet_runtime.server.errors import add_error_handlers
from tests.runtime.scripted_link import Scene, request, settle, token

OPERATOR = {"authorization": "Bearer boss"}
TENANT = {"authorization": "Bearer alice-key"}
Play = Callable[[Scene, httpx2.AsyncClient], Coroutine[Any, Any, None]]


def admin_test(tmp_path: Path, play: Play, *, ready: bool = True, operator: bool = True) -> None:
    (tmp_path / "operator").write_text("boss\n", "utf-8")
    (tmp_path / "keys").write_text("alice=alice-key\n", "utf-8")
    serving: dict[str, Any] = {"apiKeysFile": str(tmp_path / "keys")}
    if operator:
        serving["operatorKeyFile"] = str(tmp_path / "operator")
    config = EngineConfig.model_validate({"model": {"uri": "org/toy"}, "serving": serving})

    async def run() -> None:
        scene = Scene(config.serving)
        if ready:
            await scene.become_ready()
        app = FastAPI()
        add_error_handlers(app)
        admin = Admin(scene.client, config, RequestFigures(), AccessKeys.load(config.serving), "toy")
        app.include_router(admin_router(admin))
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://test") as http:
            await play(scene, http)

    asyncio.run(run())


def test_while_loading_it_is_alive_not_ready_and_shows_how_far_it_is(tmp_path: Path) -> None:
    async def play(scene: Scene, http: httpx2.AsyncClient) -> None:
        await scene.engine_says(LoadProgress("weights", 0.25, "3 of 12 files"))
        live, ready = await http.get(PATH_LIVE), await http.get(PATH_READY)
        assert (live.status_code, ready.status_code) == (200, 503)
        expected = {"stage": "weights", "fraction": 0.25, "detail": "3 of 12 files"}
        assert live.json()["load"] == ready.json()["load"] == expected

    admin_test(tmp_path, play, ready=False)


def test_a_stall_takes_readiness_and_then_life(tmp_path: Path) -> None:
    async def play(scene: Scene, http: httpx2.AsyncClient) -> None:
        async def probes() -> tuple[int, int]:
            return (await http.get(PATH_READY)).status_code, (await http.get(PATH_LIVE)).status_code

        scene.clock.seconds += 1000
        assert await probes() == (200, 200)
        waiting = asyncio.create_task(scene.client.open(request("a")))
        await settle()
        scene.clock.seconds += 20
        assert await probes() == (503, 200)
        scene.clock.seconds += 40
        assert await probes() == (503, 503)
        assert "60 s" in (await http.get(PATH_LIVE)).json()["reason"]
        await scene.step(running=1)
        assert await probes() == (200, 200)
        waiting.cancel()

    admin_test(tmp_path, play)


def test_metrics_are_open_and_parse(tmp_path: Path) -> None:
    async def play(scene: Scene, http: httpx2.AsyncClient) -> None:
        page = await http.get(PATH_METRICS)
        assert page.headers["content-type"].startswith("text/plain; version=0.0.4")
        names = {family.name for family in text_string_to_metric_families(page.text)}
        assert "pagefleet_last_step_age_seconds" in names

    admin_test(tmp_path, play)


def test_the_operators_paths_refuse_everybody_else_in_openais_shape(tmp_path: Path) -> None:
    async def play(scene: Scene, http: httpx2.AsyncClient) -> None:
        for path in (PATH_STATE, PATH_POLICY, PATH_DRAIN):
            for headers, status in ((TENANT, 403), ({}, 401), (OPERATOR, 200)):
                if path != PATH_POLICY or status != 200:
                    answer = await http.get(path, headers=headers)
                    assert answer.status_code == status, (path, status)
                    assert status == 200 or set(answer.json()["error"]) == {"message", "type", "param", "code"}
        assert (await http.post(PATH_DRAIN, headers=TENANT)).status_code == 403
        assert scene.client.state == "ready"

    admin_test(tmp_path, play)


def test_without_an_operators_key_the_paths_say_how_to_open_them(tmp_path: Path) -> None:
    async def play(scene: Scene, http: httpx2.AsyncClient) -> None:
        answer = await http.get(PATH_STATE, headers=OPERATOR)
        assert answer.status_code == 403
        assert "--serving-operator-key-file" in answer.json()["error"]["message"]

    admin_test(tmp_path, play, operator=False)


def test_the_state_page_is_the_engines_truth(tmp_path: Path) -> None:
    async def play(scene: Scene, http: httpx2.AsyncClient) -> None:
        await scene.step(running=2, waiting=1)
        page = (await http.get(PATH_STATE, headers=OPERATOR)).json()
        assert (page["state"], page["model"]) == ("ready", "toy")
        assert (page["snapshot"]["running"], page["snapshot"]["waiting"]) == (2, 1)
        assert page["info"]["maxLengthTokens"] == 64
        assert page["config"]["serving"]["drainTimeoutSeconds"] == 600
        assert {"pagefleet", "torch", "transformers"} == set(page["versions"])

    admin_test(tmp_path, play)


def test_a_policy_change_reaches_the_engine_and_returns_what_is_in_force(tmp_path: Path) -> None:
    async def play(scene: Scene, http: httpx2.AsyncClient) -> None:
        body = {"kvBlocks": 8, "resetPrefixCache": True}
        answering = asyncio.create_task(http.patch(PATH_POLICY, headers=OPERATOR, json=body))
        sent = await message_of(scene, ChangePolicy)
        assert sent.change == PolicyChange(kv_blocks=8, reset_prefix_cache=True)
        await scene.engine_says(PolicyChanged(sent.change_id, PolicyChange(kv_blocks=8, max_queue=5)))
        answer = (await answering).json()
        assert (answer["kvBlocks"], answer["maxQueue"]) == (8, 5)
        assert (await http.get(PATH_STATE, headers=OPERATOR)).json()["policy"] == answer

    admin_test(tmp_path, play)


def test_a_policy_that_the_engine_refuses_is_answered_with_its_words(tmp_path: Path) -> None:
    async def play(scene: Scene, http: httpx2.AsyncClient) -> None:
        answering = asyncio.create_task(http.post(PATH_POLICY, headers=OPERATOR, json={"kvBlocks": 99}))
        sent = await message_of(scene, ChangePolicy)
        await scene.engine_says(PolicyChanged(sent.change_id, None, Refusal(400, "invalid_value", "only 16 blocks")))
        answer = await answering
        assert (answer.status_code, answer.json()["error"]["message"]) == (400, "only 16 blocks")

    admin_test(tmp_path, play)


def test_a_wrong_policy_body_is_refused_by_the_fields_name(tmp_path: Path) -> None:
    async def play(scene: Scene, http: httpx2.AsyncClient) -> None:
        for body, param in (
            ('{"maxQueue": 0}', "maxQueue"),
            ('{"maxQueue": "8"}', "maxQueue"),
            ('{"watermarkPercent": 51}', "watermarkPercent"),
            ('{"colour": 1}', "colour"),
            ("[]", None),
            ("{", None),
        ):
            answer = await http.patch(PATH_POLICY, headers=OPERATOR, content=body)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), body
        assert not [message for message in scene.link.sent if isinstance(message, ChangePolicy)]

    admin_test(tmp_path, play)


def test_a_drain_is_started_and_reported(tmp_path: Path) -> None:
    async def play(scene: Scene, http: httpx2.AsyncClient) -> None:
        opening = asyncio.create_task(scene.client.open(request("a")))
        await settle()
        assert not (await http.get(PATH_DRAIN, headers=OPERATOR)).json()["draining"]
        started = await http.post(PATH_DRAIN, headers=OPERATOR)
        assert started.status_code == 202
        assert started.json() == {"draining": True, "drained": False, "inFlight": 1, "timeoutSeconds": 600}
        assert (await http.get(PATH_READY)).status_code == 503
        await scene.step(token("a", 1, 0, "stop"))
        assert (await http.get(PATH_DRAIN, headers=OPERATOR)).json()["drained"]
        await opening

    admin_test(tmp_path, play)


async def message_of(scene: Scene, kind: type[ChangePolicy]) -> ChangePolicy:
    """Let the loop run until the client has sent such a message."""
    async with asyncio.timeout(20):
        while not (found := [message for message in scene.link.sent if isinstance(message, kind)]):
            await settle()
    return found[-1]


def test_the_description_of_the_api_that_anybody_may_read_leaves_out_what_only_the_operator_may_do(
    tmp_path: Path,
) -> None:
    async def play(scene: Scene, http: httpx2.AsyncClient) -> None:
        paths = (await http.get("/openapi.json")).json()["paths"]
        assert PATH_READY in paths
        assert not [path for path in paths if path.startswith("/pagefleet/")]

    admin_test(tmp_path, play)
