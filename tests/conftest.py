"""Rules for every test: in CI a skip is a failure unless the test says why it may."""

import os
from collections.abc import Generator

import pytest

# Torch's threads would spin against whatever else runs here, and tests take ten times as long; set before its import.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

# A reason that begins so is a sentence about the machine (no GPU, no root), not a test that was given up.
_ALLOWED = "this machine "


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
