"""The engine on a real GPU: a model loads there, passes its gate there, and its tokens are the CPU's."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from pagefleet_contract.engine import EngineConfig
from pagefleet_runtime.models.loading import load_model
from pagefleet_runtime.plan import Row, SampleSpec, StepPlan
from pagefleet_runtime.request import SamplingParams, SequenceKey
from tests.runtime.tiny_models import tiny_llama_directory

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no GPU"),
]

PROMPT = tuple(range(5, 45))
NUM_TOKENS = 24


def test_a_model_on_a_gpu_gives_the_tokens_of_the_cpu(tmp_path: Path) -> None:
    directory = tiny_llama_directory(tmp_path)
    config = EngineConfig.model_validate({"model": {"uri": str(directory)}, "kv_cache": {"budget": {"blocks": 20}}})
    loaded = load_model(config, lambda progress: None)
    assert loaded.executor.cache.device.type == "cuda"
    key, params = SequenceKey("a", 0), SamplingParams(max_tokens=NUM_TOKENS, temperature=0.0, top_logprobs=2)
    outputs: list[int] = []
    for _ in range(NUM_TOKENS):
        tokens = PROMPT if not outputs else (outputs[-1],)
        start = 0 if not outputs else len(PROMPT) + len(outputs) - 1
        row = Row(key, tokens, start, tuple(range(9, 14)), (SampleSpec(key, params, PROMPT, tuple(outputs)),))
        (sampled,) = loaded.executor.execute(StepPlan(0, (), (row,))).sampled
        outputs.append(sampled.token_id)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    expected = model.generate(
        torch.tensor([PROMPT]), max_new_tokens=NUM_TOKENS, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    assert outputs == expected[0, len(PROMPT) :].tolist()
