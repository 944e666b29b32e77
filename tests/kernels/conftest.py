"""What the kernels' tests share."""

from collections.abc import Generator

import pytest

from pagefleet_kernels.cpu import CpuLibrary
from pagefleet_kernels.jit import NumbaLibrary
from tests.kernels.cpu_libraries import load, tested_targets
from tests.kernels.interpreter import Interpreter
from tests.kernels.numba_code import numba_from


@pytest.fixture(scope="session")
def interpreter() -> Generator[Interpreter]:
    with Interpreter() as running:
        yield running


@pytest.fixture(scope="session", params=tested_targets(), ids=lambda target: target.name)
def library(request: pytest.FixtureRequest) -> CpuLibrary:
    """Each compilation that this machine can run, kept between runs beside pytest's own cache."""
    return load(request.param, request.config.cache.mkdir("pagefleet-kernels"))


@pytest.fixture(scope="session")
def numba_library(request: pytest.FixtureRequest) -> NumbaLibrary:
    """numba's kernels, kept beside the C++ ones."""
    return numba_from(request.config.cache.mkdir("pagefleet-kernels"))
