"""Rules for every test: a skip in CI is a failure unless the test says why it may, and each test draws its own numbers,
the same on every machine."""

import os
import sys
import zlib
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pagefleet_local.control_plane import ControlPlane

# Torch's threads would spin against whatever else runs here, and tests take ten times as long; set before its import.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

# A reason that begins so is a sentence about the machine (no GPU, no root), not a test that was given up.
_ALLOWED = "this machine"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--draw", type=int, default=0, help="which random numbers torch's generator gives to the tests")


def pytest_configure(config: pytest.Config) -> None:
    """Examples are drawn everywhere as in CI: the same ones each time, and none fails because the machine is busy."""
    if config.pluginmanager.has_plugin("hypothesispytest") and not config.getoption("--hypothesis-profile"):
        from hypothesis import settings

        settings.load_profile("ci")


@pytest.fixture(autouse=True)
def _numbers_of_its_own(request: pytest.FixtureRequest) -> None:
    """Without this, a test's numbers depend on which tests ran before it, and those on the machine's instructions."""
    if torch := sys.modules.get("torch"):
        torch.manual_seed(zlib.crc32(request.node.nodeid.encode()) + request.config.getoption("--draw"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and os.environ.get("CI") == "true" and not hasattr(report, "wasxfail"):
        reason = call.excinfo.value.args[0] if call.excinfo and call.excinfo.value.args else ""
        if not str(reason).startswith(_ALLOWED):
            report.outcome = "failed"
            report.longrepr = f"skipped in CI: {reason!r}; a reason that may stand begins with {_ALLOWED!r}"
    return report


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[ControlPlane]":
    """A real control plane without nodes: `.kubeconfig` is the administrator's, `.kubeconfig_for(...)` others'.

    For tests that are marked `cluster`. It is one for the whole session: use a namespace of your own.
    """
    # Here and not above: a test of the engine or of a kernel needs nothing of it installed.
    from pagefleet_local.control_plane import running
    from tests.local.control_planes import throwaway

    with running(throwaway(tmp_path_factory.mktemp("control-plane") / "state")) as started:
        yield started
