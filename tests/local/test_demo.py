"""The demo shows the whole loop, on a real model: it is what a newcomer runs first."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.cluster
@pytest.mark.timeout(900)
def test_the_demo_shows_the_whole_loop_and_leaves_nothing_behind() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "examples.demo"], cwd=ROOT, env=os.environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for said in ("chat is ready", "/v1/chat/completions", "first token after", "streams ended well and 0 broke"):
        assert said in done.stdout, done.stdout
    assert "removed" in done.stdout and not (ROOT / "build" / "demo-fleet").exists()


def test_the_first_manifest_has_at_most_twelve_lines() -> None:
    assert len((ROOT / "examples" / "quickstart.yaml").read_text().splitlines()) <= 12
