"""The engine on a real GPU: a model loads there, passes its gate there, and its tokens are the CPU's and those of plain
PyTorch, with decode steps replayed from recorded graphs."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from pagefleet_contract.engine import EngineConfig
from pagefleet_runtime.model_executor.cuda_graphs import CudaGraphs
from pagefleet_runtime.models.loading import LoadedModel, load_model
from pagefleet_runtime.scheduler import Scheduler
from tests.runtime.builders import HASH_KEY, some_request, some_settings, step_limit
from tests.runtime.tiny_models import random_model, tiny_config, tiny_llama_directory

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no GPU"),
]

NUM_BLOCKS = 40
PROMPTS = {"long": tuple(range(5, 45)), "alike": (*range(5, 35), 99, 98), "short": (7, 3)}
NUM_TOKENS = {"long": 24, "alike": 17, "short": 40}


def load(directory: Path, kernels: str) -> LoadedModel:
    settings = {"uri": str(directory), "kernels": kernels, "dtype": "float32"}
    config = EngineConfig.model_validate({"model": settings, "kv_cache": {"budget": {"blocks": NUM_BLOCKS}}})
    return load_model(config, lambda progress: None)


def serve(loaded: LoadedModel) -> dict[str, list[int]]:
    """Serve requests that come one a step, so that chunks of prefill and decodes of one to three rows are run."""
    scheduler = Scheduler(
        some_settings(num_blocks=NUM_BLOCKS, block_size=16, eos_token_ids=loaded.info.eos_token_ids), HASH_KEY
    )
    waiting = [some_request(name, prompt, NUM_TOKENS[name]) for name, prompt in PROMPTS.items()]
    tokens: dict[str, list[int]] = {name: [] for name in PROMPTS}
    step = 0.0
    while waiting or scheduler.has_work():
        if waiting:
            scheduler.submit(waiting.pop(), step)
        plan = scheduler.plan(step, step_limit(48))
        assert plan is not None
        result = loaded.executor.execute(plan)
        assert not result.failures
        for output in scheduler.commit(plan, result, step):
            assert output.token_id is not None
            tokens[output.request_id].append(output.token_id)
        step += 1
    return tokens


def model_directory(family: str, folder: Path) -> Path:
    if family == "llama":
        return tiny_llama_directory(folder)
    random_model(tiny_config(family)).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_tokens_are_those_of_plain_pytorch_and_of_the_cpu(tmp_path: Path, family: str) -> None:
    directory = model_directory(family, tmp_path)
    loaded, plain = load(directory, "auto"), load(directory, "plain")
    table = dict(loaded.info.startup_table)
    assert loaded.executor.cache.device.type == "cuda"
    assert table["kernels"].startswith("Triton for") and "graphs" in table["kernels"], loaded.info.notes

    tokens = serve(loaded)

    assert tokens == serve(plain)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    for name, prompt in PROMPTS.items():
        expected = model.generate(
            torch.tensor([prompt]), max_new_tokens=NUM_TOKENS[name], do_sample=False, eos_token_id=None, pad_token_id=0
        )
        assert tokens[name] == expected[0, len(prompt) :].tolist()


def test_a_forward_that_waits_for_the_gpu_is_refused_and_the_gpu_goes_on() -> None:
    graphs = CudaGraphs(torch.device("cuda", 0))
    ones = torch.ones(3, device="cuda")

    def waits() -> torch.Tensor:
        return ones * float(ones.sum())

    with pytest.raises(RuntimeError):
        graphs.record(waits)
    assert ones.sum().item() == 3
    replay = graphs.record(lambda: ones * 2)
    ones.fill_(4)
    assert replay().tolist() == [8, 8, 8]
