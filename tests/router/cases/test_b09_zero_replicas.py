"""B09: with no replica a known model is worth another try, an unknown one isn't; the front door stays."""

from typing import Any

import openai
import pytest

from pagefleet_router.replicas import Replica
from tests.router.door import door, replica_at

pytestmark = pytest.mark.anyio

USER: Any = [{"role": "user", "content": "x"}]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.parametrize(
    ("pods", "found"),
    [
        ((), "`kubectl scale inferenceservices chat -n prod --replicas 1` starts it"),
        ((replica_at("127.0.0.1", "unready"),), "1 starting"),
        ((replica_at("127.0.0.1", "unready"), replica_at("127.0.0.2", "draining")), "1 starting and 1 ending"),
    ],
)
async def test_b09_a_known_model_without_replicas_is_503_with_retry_after(
    pods: tuple[Replica, ...], found: str
) -> None:
    async with door(*pods) as d:
        for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses"):
            answer = await d.http.post(path, json={"model": "tiny", "stream": True})
            error = answer.json()["error"]
            assert (answer.status_code, error["code"], error["type"]) == (503, "no_replica", "server_error")
            assert found in error["message"]
            assert int(answer.headers["retry-after"]) >= 1
            assert answer.headers["x-request-id"]


@pytest.mark.parametrize("name", ["other", "TINY", "", "tiny "])
async def test_b09_an_unknown_model_without_replicas_is_404(name: str) -> None:
    async with door() as d:
        answer = await d.http.post("/v1/chat/completions", json={"model": name, "messages": USER})
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["param"]) == (404, "model_not_found", "model")
        assert answer.headers.get("retry-after") is None


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"model":5}', b'{"a":"tiny"}', b"[" * 100_000, b"\xff"])
async def test_b09_what_names_no_model_is_worth_another_try(body: bytes) -> None:
    async with door() as d:
        answer = await d.http.post("/v1/completions", content=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_replica")


async def test_b09_the_list_of_models_names_the_model_that_nobody_serves_now() -> None:
    async with door() as d, openai.AsyncOpenAI(base_url=d.api, api_key="x", max_retries=0) as client:
        assert [model.id for model in (await client.models.list()).data] == ["tiny"]
        assert (await client.models.retrieve("tiny")).id == "tiny"
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("other")


async def test_b09_the_router_without_replicas_is_ready() -> None:
    async with door() as d:
        page = await d.http.get("/health/ready")
        assert (page.status_code, page.json()["replicas"]) == (200, {"ready": 0, "draining": 0, "unready": 0})
