"""Programs that outlive the command: found again, ended with grace and then without, never mistaken for others."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from pagefleet_local.errors import FleetError
from pagefleet_local.processes import Processes, Program
from pagefleet_local.waiting import wait_for

SLEEPS = "import time; print('begun', flush=True); time.sleep(600)"
IGNORES = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('begun', flush=True); time.sleep(600)"
)


def python(code: str, name: str = "program", **environment: str) -> Program:
    return Program(name, [sys.executable, "-c", code], environment)


def has_begun(processes: Processes) -> bool:
    return wait_for(lambda: "begun" in processes.tail_of("program"), 20)


def test_a_started_program_is_found_by_another_command_and_started_once(tmp_path: Path) -> None:
    started = Processes(tmp_path).start(python(SLEEPS))
    other = Processes(tmp_path)
    try:
        assert other.find("program") == started
        assert other.start(python(SLEEPS)) == started
    finally:
        other.stop("program", 5)
    assert other.find("program") is None


def test_it_has_a_session_of_its_own_and_inherits_nothing(tmp_path: Path) -> None:
    processes = Processes(tmp_path)
    code = "import os; print(os.getsid(0) == os.getpid(), sorted(os.environ), sorted(os.listdir('/proc/self/fd')))"
    with (tmp_path / "open").open("w") as inheritable:
        os.set_inheritable(inheritable.fileno(), True)
        processes.start(python(code, ONE="1", LC_ALL="C"))
    assert wait_for(lambda: "True" in processes.tail_of("program"), 20), processes.tail_of("program")
    assert processes.tail_of("program", 1).startswith("True ['LC_ALL', 'ONE'] ['0', '1', '2', '3']")
    processes.stop("program", 5)


def test_a_program_that_ignores_the_signal_is_killed_after_its_grace(tmp_path: Path) -> None:
    processes = Processes(tmp_path)
    running = processes.start(python(IGNORES))
    assert has_begun(processes)
    began = time.monotonic()
    processes.stop("program", 0.3)
    assert 0.3 <= time.monotonic() - began < 5
    assert not Path(f"/proc/{running.pid}").exists()


def test_a_process_that_got_the_id_of_ours_is_left_alone(tmp_path: Path) -> None:
    processes = Processes(tmp_path)
    processes.start(python(SLEEPS, "stranger"))
    record = tmp_path / "run" / "stranger.json"
    stranger = json.loads(record.read_text())
    (tmp_path / "run" / "program.json").write_text(json.dumps(stranger | {"name": "program", "born": "earlier"}))
    try:
        assert processes.find("program") is None
        processes.stop("program", 1)
        assert processes.find("stranger") is not None
    finally:
        processes.stop("stranger", 5)


def test_a_program_that_has_ended_is_not_found_and_its_last_words_are(tmp_path: Path) -> None:
    processes = Processes(tmp_path)
    running = processes.start(python("print('two', flush=True); raise SystemExit('no port')"))
    assert wait_for(lambda: processes.find("program") is None, 20)
    assert processes.tail_of("program", 1) == "no port"
    os.waitpid(running.pid, 0)


def test_stopping_what_does_not_run_is_done_at_once(tmp_path: Path) -> None:
    Processes(tmp_path).stop("program", 60)


def test_a_killed_program_is_started_anew_and_its_log_goes_on(tmp_path: Path) -> None:
    processes = Processes(tmp_path)
    first = processes.start(python(SLEEPS))
    assert has_begun(processes)
    os.kill(first.pid, signal.SIGKILL)
    os.waitpid(first.pid, 0)
    second = processes.start(python(SLEEPS))
    assert second.pid != first.pid
    assert wait_for(lambda: processes.tail_of("program").count("begun") == 2, 20)
    processes.stop("program", 5)


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FleetError, match="/no/such/program does not start: No such file"):
        Processes(tmp_path).start(Program("program", ["/no/such/program"], {}))
