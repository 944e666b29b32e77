"""The live servers that the cases share, one per set of flags, and the checks after every case."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from tests.runtime.cases.checks import check_settled
from tests.runtime.cases.reference import Reference
from tests.runtime.cases.rig import MODEL, Rig
from tests.runtime.live_server import live_server
from tests.runtime.tiny_models import tiny_llama_directory

# What cases change live, they change from here and back.
_ROOMY = ("--kv-cache-budget-blocks", "200", "--scheduling-max-batch-tokens", "512")


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama for up to 512 tokens, and the operator's key."""
    folder = tiny_llama_directory(tmp_path_factory.mktemp("cases"))
    (folder / "operator.key").write_text("boss\n", "utf-8")
    return folder


@pytest.fixture(scope="session")
def reference(model_folder: Path) -> Reference:
    return Reference.load(model_folder)


@contextmanager
def started_rig(folder: Path, reference: Reference, *flags: str, most_files: int | None = None) -> Iterator[Rig]:
    key = ("--serving-operator-key-file", str(folder / "operator.key"))
    with live_server(folder, "--served-name", MODEL, *key, *flags, most_files=most_files) as server:
        with httpx2.Client(base_url=server.url, timeout=120) as http:
            yield Rig(server, http, reference, folder)


@pytest.fixture(scope="session")
def roomy_server(model_folder: Path, reference: Reference) -> Iterator[Rig]:
    with started_rig(model_folder, reference, *_ROOMY, most_files=1024) as rig:
        yield rig


@pytest.fixture(scope="session")
def small_server(model_folder: Path, reference: Reference) -> Iterator[Rig]:
    with started_rig(model_folder, reference, "--kv-cache-budget-blocks", "10") as rig:
        yield rig


@pytest.fixture(scope="session")
def reserving_server(model_folder: Path, reference: Reference) -> Iterator[Rig]:
    flags = ("--kv-cache-budget-blocks", "12", "--kv-cache-swap-mode", "Disabled")
    with started_rig(model_folder, reference, *flags) as rig:
        yield rig


@pytest.fixture
def rig(roomy_server: Rig) -> Iterator[Rig]:
    """200 blocks of 16 tokens, prefix sharing on, steps of 512 tokens, and 1,024 files."""
    yield roomy_server
    check_settled(roomy_server)


@pytest.fixture
def small_rig(small_server: Rig) -> Iterator[Rig]:
    """10 blocks of 16 tokens for a model of 512 tokens."""
    yield small_server
    check_settled(small_server)


@pytest.fixture
def reserving_rig(reserving_server: Rig) -> Iterator[Rig]:
    """12 blocks of 16 tokens, swap off: each running request has room for its longest reserved."""
    yield reserving_server
    check_settled(reserving_server)
