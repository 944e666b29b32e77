"""Which kernels are chosen, and what is said of those that can't be had."""

from pathlib import Path

import pytest
import torch

from pagefleet_kernels.choice import PLAIN, Mode, choose_kernels
from pagefleet_kernels.jit.pages import NumbaPages
from pagefleet_kernels.pages import PLAIN_PAGES
from tests.kernels.numba_code import numba_alone

GPU = torch.device("cuda", 0)


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)


@pytest.fixture
def numba_cache(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return numba_alone(request.config.cache.mkdir("pagefleet-kernels"), tmp_path)


def test_without_a_compiler_numba_is_next_and_its_cost_is_said(no_compiler: None, numba_cache: Path) -> None:
    chosen = choose_kernels("auto", torch.bfloat16, numba_cache)

    assert isinstance(chosen.pages, NumbaPages) and chosen.library is None
    assert chosen.description.startswith("numba, weights packed for oneDNN")
    (note,) = chosen.notes
    assert "kernels are numba's" in note and "no C++ compiler" in note


def test_numba_is_taken_by_its_name_without_a_word_of_others(numba_cache: Path) -> None:
    chosen = choose_kernels("numba", torch.float32, numba_cache)

    assert isinstance(chosen.pages, NumbaPages) and chosen.notes == ()


@pytest.mark.parametrize(
    ("mode", "dtype", "reasons"),
    [
        ("cpp", torch.float32, ["no C++ compiler"]),
        ("auto", torch.float16, ["no C++ compiler", "read pages of float32 and bfloat16, not of float16"]),
        ("numba", torch.float16, ["not of float16"]),
    ],
)
def test_what_cannot_be_had_leaves_plain_pytorch_with_every_reason(
    no_compiler: None, numba_cache: Path, mode: Mode, dtype: torch.dtype, reasons: list[str]
) -> None:
    chosen = choose_kernels(mode, dtype, numba_cache)

    assert chosen.pages is PLAIN_PAGES
    assert chosen.notes[0].startswith("kernels are plain PyTorch, many times slower at decoding: ")
    assert all(reason in chosen.notes[0] for reason in reasons)


@pytest.mark.parametrize(
    ("dtype", "kv_dtype", "reason"),
    [
        (torch.bfloat16, torch.int8, "read pages of float32 and bfloat16, not of codes in eight bits"),
        (torch.float32, torch.float16, "not of float16"),
        (torch.float16, torch.bfloat16, None),
    ],
)
def test_whether_numba_can_serve_is_a_matter_of_what_pages_hold(
    numba_cache: Path, dtype: torch.dtype, kv_dtype: torch.dtype, reason: str | None
) -> None:
    chosen = choose_kernels("numba", dtype, numba_cache, kv_dtype=kv_dtype)

    if reason is None:
        assert isinstance(chosen.pages, NumbaPages)
    else:
        assert chosen.pages is PLAIN_PAGES and reason in chosen.notes[0]


def test_a_cache_that_cannot_be_written_leaves_plain_pytorch(tmp_path: Path) -> None:
    occupied = tmp_path / "file"
    occupied.write_text("")

    chosen = choose_kernels("auto", torch.float32, occupied)

    assert chosen.pages is PLAIN_PAGES
    assert "couldn't be compiled" in chosen.notes[0] and "can't be kept" in chosen.notes[0]


@pytest.mark.parametrize("device", [GPU, torch.device("cpu")], ids=str)
def test_plain_is_nothing_but_pytorch(device: torch.device) -> None:
    assert choose_kernels("plain", torch.float32, device=device) is PLAIN


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
@pytest.mark.parametrize(
    ("mode", "reason"),
    [("auto", "Triton can't be used"), ("triton", "Triton can't be used"), ("numba", "numba is for CPUs")],
)
def test_a_gpu_without_its_kernels_gets_plain_pytorch_and_a_sentence(mode: Mode, reason: str) -> None:
    chosen = choose_kernels(mode, torch.float32, device=GPU)

    assert chosen.pages is PLAIN_PAGES
    (note,) = chosen.notes
    assert note.startswith(f"kernels are plain PyTorch, which copies every context in every step: {reason}")


def test_triton_on_a_cpu_leaves_plain_pytorch_and_a_sentence() -> None:
    chosen = choose_kernels("triton", torch.float32)

    assert chosen.pages is PLAIN_PAGES
    assert chosen.notes[0].endswith("Triton's need a GPU")
