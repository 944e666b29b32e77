"""What the kernels' tests share."""

from collections.abc import Generator

import pytest

from tests.kernels.interpreter import Interpreter


@pytest.fixture(scope="session")
def interpreter() -> Generator[Interpreter]:
    with Interpreter() as running:
        yield running
