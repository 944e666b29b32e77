"""What the kernels' tests share."""

from collections.abc import Generator

import pytest

from pagefleet_kernels.cpu import CpuLibrary
from tests.kernels.cpu_libraries import load, tested_targets
from tests.kernels.interpreter import Interpreter


@pytest.fixture(scope="session")
def interpreter() -> Generator[Interpreter]:
    with Interpreter() as running:
        yield running


@pytest.fixture(scope="session", params=tested_targets(), ids=lambda target: target.name)
def library(request: pytest.FixtureRequest) -> CpuLibrary:
    """Each compilation that this machine can run, kept between runs beside pytest's own cache."""
    return load(request.param, request.config.cache.mkdir("pagefleet-kernels"))
