"""A02, A11 and A13 on every kernel path: what is shared, evicted and copied must be read and written by each of them.

The cases of the live server run on the kernels that it chooses; here they run in this process, with fewer tokens where
the suite must be fast, and with very few in Triton's interpreter.
"""

from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any, get_args

import pytest

from pagefleet_kernels.choice import Mode
from tests.kernels.interpreter import Interpreter
from tests.kernels.paths import PATHS, KernelPath
from tests.runtime.cases.kernel_engine import (
    InterpretedCase,
    KernelCase,
    check_a02,
    check_a11,
    check_a13,
    run_interpreted,
)
from tests.runtime.cases.reference import Reference

SHORT = [
    *(KernelCase(check_a02, (length, 5)) for length in (1, 15, 16, 17, 33)),
    KernelCase(check_a11, (11, 25), num_blocks=16),
    KernelCase(check_a13, (8,)),
]
WHOLE = [
    *(KernelCase(check_a02, (length, 24)) for length in (1, 15, 16, 17, 31, 32, 33, 47, 48, 49)),
    *(KernelCase(check_a11, (seed, 300), num_blocks=24) for seed in range(5)),
    *(KernelCase(check_a13, (24,), hash_key=key) for key in (b"one key", b"another key")),
]
INTERPRETED = [KernelCase(check_a02, (16, 2)), KernelCase(check_a13, (2,))]
INTERPRETED_LONG = [
    *(KernelCase(check_a02, (length, 2)) for length in (1, 15, 17, 33)),
    KernelCase(check_a11, (11, 6), num_blocks=8),
]


def on_every_path(computed: Iterable[KernelCase], interpreted: Iterable[KernelCase]) -> pytest.MarkDecorator:
    parameters: list[Any] = [
        pytest.param(path, case, id=f"{path}-{case}", marks=[pytest.mark.long] if path.extra else [])
        for path in PATHS
        for case in (interpreted if path.interpreted else computed)
    ]
    return pytest.mark.parametrize(("path", "case"), parameters)


@pytest.fixture(scope="module")
def interpreter() -> Generator[Interpreter]:
    with Interpreter() as running:
        yield running


def run(path: KernelPath, case: KernelCase, model_folder: Path, reference: Reference, request: Any) -> None:
    if path.interpreted:
        request.getfixturevalue("interpreter").run(run_interpreted, InterpretedCase(case, model_folder, path.load))
    else:
        case.run(model_folder, path.load(request.config.cache.mkdir("pagefleet-kernels")), reference)


def test_every_mode_of_kernels_has_a_path() -> None:
    assert {path.mode for path in PATHS} == set(get_args(Mode)) - {"auto"}


@on_every_path(SHORT, INTERPRETED)
def test_answers_are_the_models_own(
    path: KernelPath, case: KernelCase, model_folder: Path, reference: Reference, request: pytest.FixtureRequest
) -> None:
    run(path, case, model_folder, reference, request)


@pytest.mark.long
@on_every_path(WHOLE, INTERPRETED_LONG)
def test_the_whole_cases_answers_are_the_models_own(
    path: KernelPath, case: KernelCase, model_folder: Path, reference: Reference, request: pytest.FixtureRequest
) -> None:
    run(path, case, model_folder, reference, request)
