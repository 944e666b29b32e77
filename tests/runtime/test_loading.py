"""A model from its directory to steps that run: stages, figures in force, and what is refused on the way."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from pagefleet_contract.engine import EngineConfig
from pagefleet_contract.names import ENV_CACHE, LOAD_STAGES
from pagefleet_runtime.errors import ModelRefused
from pagefleet_runtime.models.loading import LoadedModel, load_model
from pagefleet_runtime.plan import Row, SampleSpec, StepPlan
from pagefleet_runtime.protocol import LoadProgress
from pagefleet_runtime.request import SamplingParams, SequenceKey
from pagefleet_runtime.step_cost import StepLoad
from tests.kernels.numba_code import numba_alone
from tests.runtime.tiny_models import tiny_llama_directory


def load(uri: Path, progress: list[LoadProgress] | None = None, **sections: Any) -> LoadedModel:
    settings = {"model": {"uri": str(uri)}, "kv_cache": {"budget": {"blocks": 20}}} | sections
    return load_model(EngineConfig.model_validate(settings), (progress if progress is not None else []).append)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama_directory(tmp_path_factory.mktemp("llama"))


def test_a_model_loads_in_stages_and_runs(directory: Path) -> None:
    progress: list[LoadProgress] = []

    loaded = load(directory, progress)

    stages = list(dict.fromkeys(step.stage for step in progress))
    assert stages == [stage for stage in LOAD_STAGES if stage != "convert"]  # nothing to convert
    assert progress[-1] == LoadProgress("warmup", 1.0)
    key = SequenceKey("a", 0)
    spec = SampleSpec(key, SamplingParams(max_tokens=1, temperature=0.0), (1, 2, 3), ())
    result = loaded.executor.execute(StepPlan(0, (), (Row(key, (1, 2, 3), 0, (5,), (spec,)),)))
    assert len(result.sampled) == 1


def test_without_a_compiler_a_model_is_proven_and_run_by_numba(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    (tmp_path / "kernels").mkdir()
    numba_alone(request.config.cache.mkdir("pagefleet-kernels"), tmp_path / "kernels")
    monkeypatch.setenv(ENV_CACHE, str(tmp_path))
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)

    loaded = load(directory)

    assert dict(loaded.info.startup_table)["kernels"].startswith("numba, ")
    assert any("kernels are numba's" in note and "no C++ compiler" in note for note in loaded.info.notes)


def test_a_model_of_int8_weights_is_proven_told_and_run(directory: Path) -> None:
    loaded = load(directory, model={"uri": str(directory), "dtype": "bfloat16", "quantization": "int8"})

    table = dict(loaded.info.startup_table)
    assert loaded.info.quantization == "int8"
    assert table["weights"].endswith(", linear layers in int8")
    assert "int8 weights packed for it, fused layers" in table["kernels"]
    key = SequenceKey("a", 0)
    spec = SampleSpec(key, SamplingParams(max_tokens=1, temperature=0.0), (1, 2, 3), ())
    result = loaded.executor.execute(StepPlan(0, (), (Row(key, (1, 2, 3), 0, (5,), (spec,)),)))
    assert len(result.sampled) == 1


def test_int8_weights_without_a_compiler_are_refused(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENV_CACHE, str(tmp_path))
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)

    with pytest.raises(ModelRefused, match=r"model.quantization is int8.*no C\+\+ compiler.*quantization to none"):
        load(directory, model={"uri": str(directory), "quantization": "int8"})


def test_what_is_in_force_is_told(directory: Path) -> None:
    info = load(directory).info

    assert (info.model_type, info.dtype, info.kv_dtype) == ("llama", "float32", "float32")
    assert info.quantization == "none"
    assert (info.block_size, info.num_blocks, info.bytes_per_block) == (16, 20, 16 * 2 * 2 * 32 * 4)
    assert (info.vocab_size, info.eos_token_ids, info.step_milliseconds) == (260, (258,), 100)
    assert info.max_length_tokens == 320
    assert "320 tokens, not 512" in info.notes[0]
    table = dict(info.startup_table)
    assert table["KV blocks"] == "20 of 16 tokens"
    assert table["KV tokens"] == "320"
    assert table["longest request"] == "320 tokens"
    assert {"model", "dtype", "weights", "KV cache", "workspace", "memory", "threads"} <= set(table)


def test_speed_is_measured(directory: Path) -> None:
    cost = load(directory).step_cost

    assert cost.seconds(StepLoad(decode_rows=1, decode_context_tokens=10)) > 0


def test_types_of_weights_and_blocks_may_differ(directory: Path) -> None:
    info = load(
        directory,
        model={"uri": str(directory), "dtype": "float32"},
        kv_cache={"dtype": "bfloat16", "budget": {"blocks": 9}},
    ).info

    assert (info.dtype, info.kv_dtype, info.bytes_per_block) == ("float32", "bfloat16", 16 * 2 * 2 * 32 * 2)


@pytest.mark.parametrize("kernels", ["auto", "plain"])
@pytest.mark.parametrize(("stored", "bytes_of_a_token"), [("int8", 2 * (2 * 32 + 4 * 4)), ("fp8", 2 * 2 * 32)])
def test_a_cache_in_eight_bits_passes_the_gate_and_answers(
    directory: Path, stored: str, bytes_of_a_token: int, kernels: str
) -> None:
    loaded = load(
        directory,
        model={"uri": str(directory), "kernels": kernels},
        kv_cache={"dtype": stored, "budget": {"blocks": 9}},
    )

    info = loaded.info
    assert (info.dtype, info.kv_dtype, info.bytes_per_block) == ("float32", stored, 16 * bytes_of_a_token)
    assert f"of {stored}, {bytes_of_a_token} B a token" in dict(info.startup_table)["KV cache"]
    assert not any("kernels" in note for note in info.notes)
    key = SequenceKey("a", 0)
    spec = SampleSpec(key, SamplingParams(max_tokens=1, temperature=0.0), (1, 2, 3), ())
    assert loaded.executor.execute(StepPlan(0, (), (Row(key, (1, 2, 3), 0, (5,), (spec,)),))).sampled


@pytest.mark.parametrize(
    ("kernels", "cost"),
    [
        ("numba", "kernels are plain PyTorch, many times slower at decoding: numba's kernels read pages"),
        ("cpp", "attention is plain PyTorch's in 2 of 2 layers, many times slower at decoding: the C++ kernels"),
    ],
)
def test_pages_that_the_kernels_do_not_read_are_a_note(tmp_path: Path, kernels: str, cost: str) -> None:
    loaded = load(
        tiny_llama_directory(tmp_path, head_dim=18),
        model={"uri": str(tmp_path), "kernels": kernels},
        kv_cache={"dtype": "int8", "budget": {"blocks": 9}},
    )

    assert [note for note in loaded.info.notes if note.startswith(cost)]


def changed_copy(directory: Path, target: Path, **changes: Any) -> Path:
    """Return a copy of the directory whose config.json says something else."""
    target.mkdir()
    for path in directory.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    config = json.loads((target / "config.json").read_text()) | changes
    (target / "config.json").write_text(json.dumps(config))
    return target


def test_weights_that_lack_something_are_refused(directory: Path, tmp_path: Path) -> None:
    model = changed_copy(directory, tmp_path / "model")
    weights = load_file(model / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, model / "model.safetensors", {"format": "pt"})

    with pytest.raises(ModelRefused, match=r"missing_keys such as model\.layers\.1\.mlp\.up_proj\.weight"):
        load(model)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 32}, "can't be read|don't fit"),
        ({"model_type": "nobody_knows"}, "isn't a configuration that transformers knows"),
        ({"model_type": "t5"}, "doesn't generate text|encoder-decoder"),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused(
    directory: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelRefused, match=message):
        load(changed_copy(directory, tmp_path / "model", **changes))


def test_code_that_a_model_brings_is_never_run(directory: Path, tmp_path: Path) -> None:
    model = changed_copy(
        directory,
        tmp_path / "model",
        model_type="own",
        auto_map={"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"},
    )
    (model / "own.py").write_text("raise SystemExit('ran')")

    with pytest.raises(ModelRefused, match="models that bring their own code are not run"):
        load(model)


def test_a_pool_smaller_than_the_warm_up_would_like_still_loads(directory: Path) -> None:
    loaded = load(directory, kv_cache={"budget": {"blocks": 1}, "block_size": 1})

    assert replace(loaded.info, startup_table=(), notes=()).max_length_tokens == 1
