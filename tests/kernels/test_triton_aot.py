"""Every shipped kernel and configuration compiles for every chip family, within limits and near its baseline."""

from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

import pytest
import triton

from pagefleet_kernels.aot import (
    Build,
    Resources,
    compile_build,
    load_baseline,
    shipped_builds,
    violations,
)
from pagefleet_kernels.paged_attention.configs import FAMILIES, Family, shipped_configs

GOOD = Resources(registers=90, spilled=0, shared_bytes=38912, wide_copies=38, matrix_products=32, newest_products=32)


@pytest.fixture
def cache_folder(pytestconfig: pytest.Config) -> Generator[Path]:
    """A cache of Triton's own, kept between runs: only kernels that changed are compiled again."""
    assert pytestconfig.cache is not None
    folder = pytestconfig.cache.mkdir("triton-aot")
    with triton.knobs.cache.scope():
        triton.knobs.cache.dir = str(folder)
        yield folder


@pytest.mark.long  # minutes where nothing is cached
@pytest.mark.parametrize("family", FAMILIES)
def test_every_shipped_kernel_compiles_within_its_limits(family: Family, cache_folder: Path) -> None:
    stored = load_baseline(triton.__version__)[family]
    builds = shipped_builds(family)
    problems = [
        problem for build in builds for problem in violations(build, compile_build(build), stored.get(build.name))
    ]
    assert problems == []
    assert sorted(stored) == sorted(build.name for build in builds)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_configuration_of_the_table_is_built_in_splits_and_whole(family: Family) -> None:
    used = {
        (build.launch.arguments["KIND"], build.launch.arguments["ROWS"], build.launch.arguments["KEYS"],
         build.launch.arguments["HEAD_PADDED"], build.launch.options["num_warps"], build.launch.options["num_stages"],
         build.launch.arguments["log_sums"] is not None)
        for build in shipped_builds(family)
        if build.name.startswith("attention")
    }  # fmt: skip
    shipped = {
        (kind, config.rows, config.keys, size, config.num_warps, config.num_stages, in_splits)
        for (kind, _, size), config in shipped_configs(family).items()
        for in_splits in (True, False)
    }
    assert used == shipped


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"spilled": 8}, "spills 8"),
        ({"shared_bytes": 240_000}, "240000 bytes of shared memory"),
        ({"registers": 256}, "256 registers of 255"),
        ({"wide_copies": 0}, "no 16-byte copy"),
        ({"matrix_products": 0, "newest_products": 0}, "doesn't use the matrix units"),
        ({"newest_products": 31}, "31 of 32 products"),
        ({"registers": 100}, "100 registers, 90 before"),
    ],
)
def test_a_limit_that_is_broken_is_named(change: dict[str, int], problem: str) -> None:
    build = next(build for build in shipped_builds("sm_90") if build.name == "attention-half-prefill-128")
    assert violations(build, GOOD, GOOD) == []
    found = violations(build, replace(GOOD, **change), GOOD)
    assert any(problem in sentence for sentence in found)


def test_a_build_without_baseline_is_named() -> None:
    build: Build = shipped_builds("sm_90")[0]
    assert "no baseline" in violations(build, GOOD, None)[0]


def test_a_tenth_more_registers_is_allowed() -> None:
    build = shipped_builds("sm_90")[0]
    assert violations(build, replace(GOOD, registers=99), GOOD) == []
