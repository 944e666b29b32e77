"""What memory, types and threads come out of settings, sizes and the machine."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pagefleet_contract.capacity import ModelShape, idle_process_bytes
from pagefleet_contract.engine import EngineConfig
from pagefleet_runtime.errors import ModelRefused
from pagefleet_runtime.models.budget import LoadedSizes, MemoryPlan, plan_memory, process_bytes
from pagefleet_runtime.models.dtypes import choose_dtypes
from pagefleet_runtime.models.machine import held_bytes, read_machine

MIB = 2**20
# A block of 16 tokens is 16 · 2 layers · 2 heads · 32 values · 4 bytes = 8 KiB.
SIZES = LoadedSizes(
    shape=ModelShape.uniform(2, 2, 16),
    kv_dtype="float32",
    weights_bytes=60 * MIB,
    workspace_bytes=20 * MIB,
    memory_bytes=100 * MIB,
    memory_source="the container's limit",
    model_length=512,
)


def config(budget: dict[str, Any] | None = None, **changes: Any) -> EngineConfig:
    cache = {"budget": budget} if budget else {}
    return EngineConfig.model_validate({"model": {"uri": "m"} | changes, "kv_cache": cache})


def plan(budget: dict[str, Any], sizes: LoadedSizes = SIZES, **changes: Any) -> MemoryPlan:
    return plan_memory(config(budget, **changes), sizes)


@pytest.mark.parametrize(
    ("budget", "blocks"),
    [
        ({"blocks": 40}, 40),
        ({"memory": "1Mi"}, 128),
        ({"memory": "100k"}, 12),
        # 90 MiB less 80 of weights and workspace, a block with half of it again for what attention copies.
        ({"memory_percent": 90}, 10 * MIB // (8192 + 4096)),
    ],
)
def test_each_kind_of_budget_gives_blocks(budget: dict[str, Any], blocks: int) -> None:
    made = plan(budget)

    assert (made.num_blocks, made.bytes_per_block, made.max_length_tokens) == (blocks, 8192, min(512, 16 * blocks))


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        ({"memory": "8191"}, r"budget.memory is 8191, but one block takes 8 KiB"),
        (
            {"memory_percent": 80},
            r"80 % of 100 MiB \(the container's limit\) is 80 MiB, but weights take 60 MiB and workspace 20 MiB.*"
            "--kv-cache-budget-memory-percent",
        ),
        ({"blocks": 10_000}, r"10000 KV blocks take 78.1 MiB;.* more than 100 MiB .*--kv-cache-budget-blocks"),
    ],
)
def test_a_budget_that_cannot_be_is_refused_with_the_numbers(budget: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelRefused, match=message):
        plan(budget)


def test_a_percentage_makes_no_more_blocks_than_sequences_can_hold() -> None:
    made = plan({"memory_percent": 90}, replace(SIZES, memory_bytes=20_000 * MIB))

    assert made.num_blocks == 256 * 32
    assert "8192 are made, which is what 256 sequences of 512 tokens take" in made.notes[0]


def test_a_longest_request_that_the_budget_cuts_is_told_with_the_reason() -> None:
    made = plan({"blocks": 3})

    assert made.max_length_tokens == 48
    assert "48 tokens, not 512: the KV budget holds 3 blocks of 16 tokens" in made.notes[0]


@pytest.mark.parametrize(
    ("own", "asked", "longest", "num_notes"),
    [(512, 100, 100, 0), (512, 600, 512, 1), (512, None, 512, 0), (None, 77, 77, 0)],
)
def test_the_longest_request_is_the_least_of_settings_and_model(
    own: int | None, asked: int | None, longest: int, num_notes: int
) -> None:
    made = plan({"blocks": 100}, replace(SIZES, model_length=own), max_length=asked)

    assert (made.max_length_tokens, len(made.notes)) == (longest, num_notes)


def test_a_model_without_a_length_needs_a_setting() -> None:
    with pytest.raises(ModelRefused, match="--model-max-length"):
        plan({"blocks": 100}, replace(SIZES, model_length=None))


@pytest.mark.parametrize(
    ("asked", "own", "has_bfloat16", "expected"),
    [
        ("auto", "bfloat16", True, "bfloat16"),
        ("auto", "bfloat16", False, "float32"),
        ("auto", "float32", True, "float32"),
        ("auto", "float16", True, "bfloat16"),
        ("auto", "float16", False, "float32"),
        ("auto", None, True, "bfloat16"),
        ("auto", None, False, "float32"),
        ("float16", "bfloat16", False, "float16"),
    ],
)
def test_the_type_of_weights_follows_the_model_and_the_cpu(
    asked: str, own: str | None, has_bfloat16: bool, expected: str
) -> None:
    made = choose_dtypes(config(dtype=asked), own, has_bfloat16)

    assert (made.weights, made.kv) == (expected, expected)
    assert bool(made.notes) == (asked == "auto" and expected != (own or "bfloat16"))


@pytest.mark.parametrize(
    ("own", "has_bfloat16", "expected"),
    [
        ("float16", True, "float16"),
        ("bfloat16", True, "bfloat16"),
        ("bfloat16", False, "float16"),
        ("float32", True, "float32"),
    ],
)
def test_a_gpu_keeps_the_models_half_precision(own: str, has_bfloat16: bool, expected: str) -> None:
    assert choose_dtypes(config(), own, has_bfloat16, on_cpu=False).weights == expected


def test_blocks_may_have_a_type_of_their_own() -> None:
    settings = EngineConfig.model_validate({"model": {"uri": "m"}, "kv_cache": {"dtype": "float16"}})

    assert choose_dtypes(settings, "float32", True).kv == "float16"


def machine_root(root: Path, cgroup: str, files: dict[str, str], flags: str = "fpu avx512_bf16") -> Path:
    content = {
        "proc/meminfo": "MemTotal:       1000 kB\nMemFree: 1 kB\nMemAvailable:    700 kB\n",
        "proc/cpuinfo": f"processor : 0\nflags\t\t: {flags}\n",
        "proc/self/cgroup": cgroup,
    }
    for name, text in (content | files).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("cgroup", "files", "memory", "source"),
    [
        ("0::/pod/x\n", {"sys/fs/cgroup/pod/x/memory.max": "max\n"}, 700 * 1024, "free memory"),
        ("0::/pod/x\n", {"sys/fs/cgroup/pod/memory.max": "5000\n"}, 5000, "container's limit"),
        ("0::/\n", {"sys/fs/cgroup/memory.max": "6000"}, 6000, "container's limit"),
        ("4:memory:/a\n", {"sys/fs/cgroup/memory/a/memory.limit_in_bytes": "7000\n"}, 7000, "container's limit"),
        # The path is the host's; below the mount there is only the container's own.
        ("4:memory:/docker/1\n", {"sys/fs/cgroup/memory/memory.limit_in_bytes": "8000\n"}, 8000, "container's limit"),
        ("4:memory:/\n", {"sys/fs/cgroup/memory/memory.limit_in_bytes": str(2**63)}, 700 * 1024, "free memory"),
    ],
)
def test_memory_is_the_containers_or_what_is_free(
    tmp_path: Path, cgroup: str, files: dict[str, str], memory: int, source: str
) -> None:
    machine = read_machine(machine_root(tmp_path, cgroup, files))

    assert machine.memory_bytes == memory
    assert source in machine.memory_source


def test_where_no_group_limits_memory_a_caller_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGEFLEET_MEMORY_LIMIT_BYTES", "4000")

    machine = read_machine(machine_root(tmp_path, "0::/\n", {}))

    assert (machine.memory_bytes, machine.memory_source) == (4000, "the container's limit")


@pytest.mark.parametrize(
    ("limit", "given_back", "planned_for"),
    [
        # 300 kB were missing from what was free already, and will be subtracted with what comes to them.
        ("max\n", 300 * 1024, 1000 * 1024),
        ("max\n", 0, 700 * 1024),
        ("5000\n", 300 * 1024, 5000),
    ],
)
def test_what_processes_held_is_given_back_to_free_memory_alone(
    tmp_path: Path, limit: str, given_back: int, planned_for: int
) -> None:
    machine = read_machine(machine_root(tmp_path, "0::/x\n", {"sys/fs/cgroup/x/memory.max": limit}))

    assert machine.giving_back(given_back).memory_bytes == planned_for


def test_what_processes_hold_beside_the_weights_is_not_given_to_blocks() -> None:
    # 90 MiB less 80 of weights and workspace, and 4 that the processes hold.
    assert (
        plan({"memory_percent": 90}, replace(SIZES, process_bytes=4 * MIB)).num_blocks
        < plan({"memory_percent": 90}).num_blocks
    )
    with pytest.raises(ModelRefused, match="workspace 20 MiB, the processes themselves 30 MiB"):
        plan({"memory_percent": 90}, replace(SIZES, process_bytes=30 * MIB))


def test_processes_that_have_yet_to_grow_are_planned_with_what_idle_ones_hold() -> None:
    assert process_bytes(0, 500 * MIB, 100 * MIB) == idle_process_bytes(2) == 768 * MIB
    assert process_bytes(1, 100 * MIB, 100 * MIB) == idle_process_bytes(1)
    assert process_bytes(0, 3000 * MIB, 2000 * MIB) == 1000 * MIB


def test_a_process_holds_what_its_end_would_free() -> None:
    before = held_bytes(os.getpid())
    block = bytearray(os.urandom(64 << 20))

    held = held_bytes(os.getpid())
    assert held - before >= 60 << 20
    del block
    assert held_bytes(os.getpid()) <= held - (60 << 20)


@pytest.mark.parametrize(
    ("cgroup", "files"),
    [
        ("0::/x\n", {"sys/fs/cgroup/x/cpu.max": "150000 100000\n"}),
        (
            "3:cpu,cpuacct:/x\n",
            {
                "sys/fs/cgroup/cpu/x/cpu.cfs_quota_us": "50000",
                "sys/fs/cgroup/cpu/x/cpu.cfs_period_us": "100000",
            },
        ),
    ],
)
def test_threads_keep_to_the_quota(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cgroup: str, files: dict[str, str]
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)

    assert read_machine(machine_root(tmp_path, cgroup, files)).num_threads == 1


def test_fewer_threads_may_be_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    assert read_machine(machine_root(tmp_path, "0::/\n", {})).num_threads == 1


@pytest.mark.parametrize(("flags", "expected"), [("fpu avx512_bf16", True), ("amx_bf16", True), ("fpu avx512f", False)])
def test_bfloat16_is_the_cpus(tmp_path: Path, flags: str, expected: bool) -> None:
    assert read_machine(machine_root(tmp_path, "0::/\n", {}, flags)).has_bfloat16 is expected
