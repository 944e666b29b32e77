"""Pings, figures and the description of the API; and that no body whatever makes the server fail."""

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from pagefleet_runtime.server.openai_requests import ChatRequest
from pagefleet_runtime.server.streaming import with_pings
from tests.runtime.api import CHAT_URL, USER, RawCall, api, error_of, until
from tests.runtime.parameter_trials import ENDPOINTS


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.anyio
async def test_a_stream_that_is_silent_for_long_carries_a_comment_and_loses_nothing() -> None:
    go_on = asyncio.Event()

    async def frames() -> AsyncGenerator[bytes, None]:
        await go_on.wait()
        yield b"data: 1\n\n"
        yield b"data: 2\n\n"

    stream = with_pings(frames(), patience_seconds=0.0)
    assert await anext(stream) == b": ping\n\n"
    go_on.set()
    assert [frame async for frame in stream] == [b"data: 1\n\n", b"data: 2\n\n"]


@pytest.mark.anyio
async def test_closing_a_stream_that_waits_closes_what_it_waits_for() -> None:
    closed = asyncio.Event()

    async def frames() -> AsyncGenerator[bytes, None]:
        try:
            await asyncio.Event().wait()
            yield b""
        finally:
            closed.set()

    stream = with_pings(frames(), patience_seconds=0.0)
    assert await anext(stream) == b": ping\n\n"
    await stream.aclose()
    assert closed.is_set()


@pytest.mark.anyio
async def test_each_answer_is_counted_once_with_its_times_and_tokens(tmp_path: Path) -> None:
    async with api(tmp_path) as a:
        prompt_tokens = (await a.chat(n=2)).json()["usage"]["prompt_tokens"]
        seen = a.figures()
        assert seen.pop("request_queue_seconds") == 0  # the engine's own; the scripted one tells none
        assert seen == {
            "time_to_first_token_seconds": 1,
            "inter_token_seconds": 10,
            "request_seconds": 1,
            "request_prompt_tokens": 1,
            "request_generation_tokens": 1,
        }
        assert a.figure_sum("request_prompt_tokens") == prompt_tokens
        assert a.figure_sum("request_generation_tokens") == 12


@pytest.mark.anyio
async def test_what_a_client_left_behind_is_no_finished_request_in_the_figures(tmp_path: Path) -> None:
    async with api(tmp_path) as a:
        a.engine.by_hand = True
        call = RawCall(a.app, CHAT_URL, {"messages": USER})
        await until(lambda: a.engine.requests)
        a.engine.step()
        await call.leave()
        assert a.figures().get("request_seconds", 0) == 0


@pytest.mark.anyio
async def test_the_api_describes_its_bodies_without_dangling_references(tmp_path: Path) -> None:
    async with api(tmp_path) as a:
        page = (await a.http.get("/openapi.json")).json()
    body = page["paths"][CHAT_URL]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert "$ref" not in json.dumps(body)
    Draft202012Validator.check_schema(body)
    assert set(body["properties"]) == set(ChatRequest.model_fields)


_scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
)
_values = st.recursive(
    _scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["type", "role", "content", "text", "function", "name"]), inner, max_size=3),
    ),
    max_leaves=6,
)
_names = st.sampled_from(sorted({name for endpoint in ENDPOINTS.values() for name in endpoint.names} - {"model"}))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(fields=st.dictionaries(_names, _values, min_size=1, max_size=3))
def test_no_value_of_any_parameter_is_a_500(tmp_path: Path, fields: dict[str, Any]) -> None:
    async def send() -> None:
        async with api(tmp_path) as a:
            for endpoint in ENDPOINTS.values():
                response = await a.post(endpoint.parameters.endpoint, endpoint.base | fields)
                if response.status_code != 200:
                    error_of(response, 400)

    asyncio.run(send())
