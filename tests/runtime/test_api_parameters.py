"""Every line of the README's table of parameters, tried. The table is written by
`python -m tests.runtime.parameter_table`, which runs these tests first."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.api import Api, api, error_of
from tests.runtime.parameter_table import README, with_table
from tests.runtime.parameter_trials import ENDPOINTS, FOREIGN, LINES, Endpoint, Seen, Trial
from tests.runtime.scripted_engine import says

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def _seen(a: Api, endpoint: Endpoint, fields: dict[str, Any]) -> Seen:
    a.engine.requests.clear()
    response = await a.post(endpoint.parameters.endpoint, endpoint.base | fields)
    return Seen(response, a.engine.requests[-1] if a.engine.requests else None)


def _without_chance(seen: Seen) -> Any:
    assert seen.request is not None
    return replace(seen.request, request_id="", arrival_seconds=0, params=replace(seen.params, seed=0))


@pytest.mark.parametrize(("key", "name"), LINES, ids=[f"{key} {name}" for key, name in LINES])
async def test_parameter(tmp_path: Path, key: str, name: str) -> None:
    endpoint = ENDPOINTS[key]
    treatment = endpoint.parameters.treatment(name)
    assert treatment is not None, f"OpenAI's client knows {name}, and treatment.py doesn't"
    trial: Trial = endpoint.trials[name]
    async with api(tmp_path) as a:
        a.engine.script = says(trial.says)
        without = await _seen(a, endpoint, trial.beside)
        assert without.response.status_code == 200, without.response.text
        seen = await _seen(a, endpoint, trial.beside | {name: trial.value})
        if treatment == "supported":
            assert trial.proof(seen), seen.response.text
            assert not trial.proof(without)
        elif treatment == "ignored":
            assert seen.response.status_code == 200
            assert _without_chance(seen) == _without_chance(without)
        else:
            error = error_of(seen.response, 400)
            assert error["code"] == "unsupported_parameter" and error["param"] == name
        null = await _seen(a, endpoint, trial.beside | {name: None})
        if name not in ("model", *endpoint.base):
            assert _without_chance(null) == _without_chance(without)


async def test_what_other_servers_know_and_would_change_the_answer_is_refused_unless_it_says_nothing(
    tmp_path: Path,
) -> None:
    assert ("chat", "guided_json") in FOREIGN
    async with api(tmp_path) as a:
        for key, name in FOREIGN:
            endpoint = ENDPOINTS[key]
            error = error_of((await _seen(a, endpoint, {name: "something"})).response, 400)
            assert (error["code"], error["param"]) == ("unsupported_parameter", name)
            for harmless in (None, *endpoint.parameters.rejected[name].harmless):
                assert (await _seen(a, endpoint, {name: harmless})).response.status_code == 200


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("max_token", "max_tokens"),
        ("temprature", "temperature"),
        ("maxTokens", "max_tokens"),
        ("tool_choise", "tool_choice"),
    ],
)
async def test_a_slip_of_the_pen_is_refused_with_what_is_meant(tmp_path: Path, name: str, meant: str) -> None:
    async with api(tmp_path) as a:
        error = error_of(await a.chat(**{name: 1}), 400)
        assert (error["code"], error["param"]) == ("unknown_parameter", name)
        assert error["message"].endswith(f"did you mean {meant}?")
        assert (await a.chat(**{name: None})).status_code == 200


@pytest.mark.parametrize("name", ["top_a", "models", "metadat", "temps", "x"])
async def test_a_name_near_none_that_counts_is_ignored(tmp_path: Path, name: str) -> None:
    async with api(tmp_path) as a:
        assert (await a.chat(**{name: 1})).status_code == 200


def test_the_readmes_table_is_the_one_that_was_tried() -> None:
    text = README.read_text("utf-8")
    assert with_table(text) == text, "run `python -m tests.runtime.parameter_table`"
