"""A16: logprobs of prompts and answers on the real path, cached or not, with masks and without."""

import math
from typing import Any

import pytest

from tests.runtime.cases.rig import Rig, some_ids, token_id

# Batches differ in their last bits only.
TOLERANCE = 1e-3


def echoed(rig: Rig, prompt: list[int], **fields: Any) -> dict[str, Any]:
    response = rig.post(rig.body(prompt, 4, echo=True, logprobs=1, **fields))
    assert response.status_code == 200, response.text
    assert "Infinity" not in response.text and "NaN" not in response.text
    logprobs: dict[str, Any] = response.json()["choices"][0]["logprobs"]
    return logprobs


@pytest.mark.parametrize("fields", [{"top_k": 1, "temperature": 1}, {"logit_bias": {"65": 100}}, {"top_p": 0.0}])
def test_a16_a_mask_leaves_numbers_in_the_body(rig: Rig, fields: dict[str, Any]) -> None:
    shown = echoed(rig, some_ids("a16 mask", 20), **fields)
    assert len(shown["token_logprobs"]) == 24
    assert all(math.isfinite(value) and value <= 0 for value in shown["token_logprobs"][1:])


@pytest.mark.parametrize("length", [15, 16, 17, 33, 64])
def test_a16_a_prompts_logprobs_are_the_models_own_cached_or_not(rig: Rig, length: int) -> None:
    prompt = some_ids(f"a16 {length}", length)
    rig.complete(prompt, 4)  # now its beginning is cached
    with rig.settings(maxBatchTokens=20):
        first, second = echoed(rig, prompt), echoed(rig, prompt)
    assert [token_id(token) for token in first["tokens"][:length]] == prompt
    ids = [token_id(token) for token in first["tokens"]]
    expected = rig.reference.logprobs_of(ids)
    for shown in (first, second):
        assert shown["token_logprobs"][0] is None and len(shown["token_logprobs"]) == length + 4
        assert shown["token_logprobs"][1:] == pytest.approx(expected, abs=TOLERANCE)
    assert first["tokens"] == second["tokens"]
