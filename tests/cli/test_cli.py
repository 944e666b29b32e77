"""The command answers at once, without loading what serves models."""

import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = str(Path(sys.executable).parent / "pagefleet")


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([COMMAND, *arguments], capture_output=True, text=True, timeout=60, check=False)


def imports_of(code: str) -> set[str]:
    """Return the modules that are loaded after a piece of code ran in a new Python."""
    shown = f"{code}\nimport sys; print('MODULES', *sys.modules)"
    done = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, timeout=60, check=True)
    return set(done.stdout.rpartition("MODULES")[2].split())


@pytest.mark.parametrize("module", ["pagefleet_cli.main", "pagefleet_contract.flags", "pagefleet_runtime.main"])
def test_what_answers_help_loads_no_torch(module: str) -> None:
    assert not {"torch", "transformers", "fastapi", "uvicorn", "numpy"} & imports_of(f"import {module}")


def test_help_lists_the_commands() -> None:
    done = run("--help")
    assert done.returncode == 0
    assert "serve" in done.stdout and "version" in done.stdout


def test_help_of_serve_shows_the_flags_of_the_settings() -> None:
    done = run("serve", "--help")
    assert done.returncode == 0
    assert "--kv-cache-block-size" in done.stdout and "MODEL_URI" in done.stdout


def test_version_is_the_distributions() -> None:
    assert run("version").stdout.split()[0] == "pagefleet"
    assert run("--version").stdout == run("version").stdout


def test_wrong_settings_end_in_one_line_each_and_no_traceback() -> None:
    done = run("serve", "m", "--kv-cache-block-size", "24", "--port", "0")
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "pagefleet serve: kvCache.blockSize is 24; input should be 1, 2, 4, 8, 16, 32, 64 or 128"
    ]


def test_a_missing_key_file_ends_in_one_line(tmp_path: Path) -> None:
    done = run("serve", "simulated://smollm2-135m", "--port", "0", "--serving-api-keys-file", str(tmp_path / "none"))
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1 and "none" in done.stderr
