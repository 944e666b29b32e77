"""Which library is compiled, where it is kept, and what is said where there is none."""

from dataclasses import replace
from pathlib import Path

import pytest

from pagefleet_kernels.cpu import CpuLibrary, CpuUnavailable, load_library
from pagefleet_kernels.cpu.library import library_name
from pagefleet_kernels.cpu.targets import NATIVE, X86_TARGETS, choose_target

V4_BF16, V4_VNNI, V4, V3, V2 = X86_TARGETS


@pytest.mark.parametrize(
    ("flags", "target"),
    [
        (V4_BF16.needs | {"amx_bf16"}, V4_BF16),
        (V4_BF16.needs - {"avx512_bf16"}, V4_VNNI),
        (V4_BF16.needs - {"avx512_vnni"}, V4),
        (V4.needs - {"avx512bw"}, V3),
        (V3.needs - {"fma"}, V2),
        (V2.needs - {"sse4_2"}, None),
    ],
)
def test_the_cpus_flags_choose_the_best_target(flags: frozenset[str], target: object) -> None:
    assert choose_target("x86_64", flags) is target


def test_another_machine_compiles_for_itself() -> None:
    assert choose_target("aarch64", frozenset()) is NATIVE


def test_each_target_has_a_file_of_its_own() -> None:
    assert len({library_name(target) for target in X86_TARGETS}) == len(X86_TARGETS)


def test_what_lies_in_the_cache_needs_no_compiler(library: CpuLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    target = next((target for target in X86_TARGETS if target.name == library.target), NATIVE)

    again = load_library(library.path.parent, target)

    assert isinstance(again, CpuLibrary) and again.path == library.path


def test_no_compiler_is_a_reason_and_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)

    answer = load_library(tmp_path)

    assert isinstance(answer, CpuUnavailable) and "no C++ compiler" in answer.reason
    assert list(tmp_path.iterdir()) == []


def test_a_failed_compilation_is_a_reason_with_the_compilers_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = tmp_path / "broken"
    compiler.write_text("#!/bin/sh\necho 'no space left' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))

    answer = load_library(tmp_path / "cache")

    assert isinstance(answer, CpuUnavailable) and "no space left" in answer.reason
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_cache_that_cannot_be_written_is_a_reason(tmp_path: Path) -> None:
    occupied = tmp_path / "file"
    occupied.write_text("")

    answer = load_library(occupied)

    assert isinstance(answer, CpuUnavailable) and "couldn't be compiled into" in answer.reason


def test_a_file_that_is_no_library_is_a_reason(tmp_path: Path) -> None:
    target = choose_target("x86_64", V2.needs)
    assert target is not None
    (tmp_path / library_name(target)).write_text("")

    answer = load_library(tmp_path, target)

    assert isinstance(answer, CpuUnavailable)
    assert "can't be loaded" in answer.reason or "lacks" in answer.reason


def test_a_target_beyond_the_cpu_is_refused_by_the_flags_that_it_lacks(tmp_path: Path) -> None:
    answer = load_library(tmp_path, replace(V2, name="next-year", needs=V2.needs | {"avx4096"}))

    assert answer == CpuUnavailable("the CPU lacks avx4096, which next-year needs")
