"""Real processes of this machine: started, adopted, ended with all that they left behind."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Coroutine
from pathlib import Path

import pytest

from pagefleet_local.node.folders import PodFolder, pod_folder
from pagefleet_local.node.leftovers import end_all, end_folder, end_strays
from pagefleet_local.node.memory import MemoryWatch
from pagefleet_local.node.process_spec import ProcessSpec
from pagefleet_local.node.processes import Process, StartError, birth, resident_bytes, run_command
from pagefleet_local.node.records import ContainerRecord, PodRecord, Running, Terminated
from tests.local.node.nodes import eventually

SLEEP = "import time; print('up', flush=True); time.sleep(600)"


def python(program: str, folder: Path, **environment: str) -> ProcessSpec:
    path = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    return ProcessSpec(("python", "-c", program), path | environment, str(folder))


def run(coroutine: Coroutine[object, object, None]) -> None:
    asyncio.run(coroutine, debug=False)


def is_there(pid: int) -> bool:
    return birth(pid) is not None


@pytest.mark.parametrize(
    ("program", "code"),
    [
        ("raise SystemExit(0)", 0),
        ("raise SystemExit(3)", 3),
        ("import os; os.kill(os.getpid(), 15)", 143),
        ("import os; os.kill(os.getpid(), 9)", 137),
    ],
)
def test_the_exit_code_is_told_as_containers_tell_it(program: str, code: int, tmp_path: Path) -> None:
    async def check() -> None:
        process = Process.start(python(program, tmp_path), tmp_path / "out")
        assert await process.ended(20)
        assert process.exit_code.result() == code

    run(check())


def test_output_goes_to_the_end_of_the_file_and_nothing_is_inherited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INHERITED", "1")
    (tmp_path / "out").write_text("before\n")

    async def check() -> None:
        program = "import os, sys; print(os.environ.get('INHERITED')); print(sys.stdin.read(), file=sys.stderr)"
        process = Process.start(python(program, tmp_path), tmp_path / "out")
        await process.ended()

    run(check())
    assert sorted((tmp_path / "out").read_text().split()) == ["None", "before"]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (ProcessSpec(("no-such-program",), {"PATH": "/usr/bin"}, "/"), 'exec: "no-such-program": executable file not'),
        (ProcessSpec(("true",), {"PATH": "/usr/bin:/bin"}, "/no/such"), "workingDir /no/such is no folder"),
    ],
)
def test_what_cannot_start_is_said_in_words(spec: ProcessSpec, message: str, tmp_path: Path) -> None:
    async def check() -> None:
        with pytest.raises(StartError, match=message):
            Process.start(spec, tmp_path / "out")

    run(check())


def test_what_a_process_leaves_in_its_session_ends_with_it(tmp_path: Path) -> None:
    program = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(child.pid, flush=True)\n"
    )

    async def check() -> None:
        process = Process.start(python(program, tmp_path), tmp_path / "out")
        await process.ended()

    run(check())
    child = int((tmp_path / "out").read_text())
    eventually("end of the child", lambda: not is_there(child))


def test_an_orphan_is_adopted_and_tells_its_exit_code(tmp_path: Path) -> None:
    program = (
        "import subprocess, sys\n"
        "code = \"import sys, pathlib, time\\nwhile not pathlib.Path('go').exists(): time.sleep(0.02)\\nsys.exit(7)\"\n"
        "null = subprocess.DEVNULL\n"
        "print(subprocess.Popen([sys.executable, '-c', code], stdout=null, stderr=null, start_new_session=True).pid)\n"
    )
    made = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    pid = int(made.stdout)

    async def check() -> None:
        born = birth(pid)
        assert born
        assert Process.adopt(pid, "another birth") is None
        process = Process.adopt(pid, born)
        assert process
        (tmp_path / "go").touch()
        assert await process.ended(20)
        # Before Linux 6.15 an orphan's code is lost once its new parent has reaped it.
        assert process.exit_code.result() in (7, None)
        assert Process.adopt(pid, born) is None

    run(check())


def test_a_process_that_is_let_go_goes_on(tmp_path: Path) -> None:
    async def start() -> int:
        process = Process.start(python(SLEEP, tmp_path), tmp_path / "out")
        process.let_go()
        return process.pid

    pid = asyncio.run(start())
    assert is_there(pid)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def test_a_command_has_its_time_and_tells_what_it_wrote(tmp_path: Path) -> None:
    async def check() -> None:
        code, text = await run_command(python("print('hi'); raise SystemExit(2)", tmp_path), tmp_path / "o", 20)
        assert (code, text) == (2, "hi")
        code, text = await run_command(python(SLEEP, tmp_path), tmp_path / "o", 0.2)
        assert code is None and "timed out after 0.2s" in text

    run(check())


def test_memory_that_only_an_end_would_free_is_counted_and_its_limit_called(tmp_path: Path) -> None:
    async def check() -> None:
        called = asyncio.Event()
        program = "import time; held = bytearray(64 << 20); print('up', flush=True); time.sleep(600)"
        process = Process.start(python(program, tmp_path), tmp_path / "out")
        eventually("all of it held", lambda: "up" in (tmp_path / "out").read_text())
        watch = MemoryWatch()
        watch.add(process.pid, 32 << 20, called.set)
        task = asyncio.create_task(watch.run())
        async with asyncio.timeout(20):
            await called.wait()
        assert resident_bytes(process.pid) > 64 << 20
        watch.remove(process.pid)
        task.cancel()
        process.kill()
        await process.ended()

    run(check())


# --- what no node cares for


def record_of(*running: subprocess.Popen[bytes]) -> PodRecord:
    containers = {}
    for index, process in enumerate(running):
        name = f"c{index}"
        containers[name] = ContainerRecord(
            name, Running(process.pid, birth(process.pid) or "", 5.0), None, 1, True, True
        )
    return PodRecord("u", "ns", "p", "127.1.0.1", 1, 0, containers=containers)


def started(program: str, state: Path) -> subprocess.Popen[bytes]:
    home = state / "pods" / "ns_p_u"
    home.mkdir(parents=True, exist_ok=True)
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        env={"HOME": str(home)},
        start_new_session=True,
        stdout=subprocess.PIPE,
    )
    assert process.stdout and process.stdout.readline() == b"up\n"
    return process


def reasons_of(folder: PodFolder) -> list[str]:
    """Return why the containers of a pod ended, as it is noted."""
    record = folder.load()
    assert record
    return [c.state.reason for c in record.containers.values() if isinstance(c.state, Terminated)]


def test_stopping_ends_everything_within_the_grace_and_notes_why(tmp_path: Path) -> None:
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SLEEP
    drains = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.1), sys.exit(5))); "
    folder = pod_folder(tmp_path, "ns", "p", "u")
    with started(drains + SLEEP, tmp_path) as polite:
        folder.save(record_of(polite))
        assert end_all(tmp_path, grace_seconds=30) == 1
        assert polite.wait(5) == 5
    assert reasons_of(folder) == ["NodeStopped"]
    with started(deaf, tmp_path) as rude, started(SLEEP, tmp_path) as stray:
        folder.save(record_of(rude))
        assert end_all(tmp_path, grace_seconds=0.5) == 1
        assert [process.wait(5) for process in (rude, stray)] == [-9, -9]
    assert reasons_of(folder) == ["NodeStopped"]
    assert end_all(tmp_path, grace_seconds=0.5) == 0


def test_a_pod_that_is_gone_is_ended_with_its_folder(tmp_path: Path) -> None:
    with started(SLEEP, tmp_path) as process:
        folder = pod_folder(tmp_path, "ns", "p", "u")
        folder.save(record_of(process))
        end_folder(folder)
        assert process.wait(5) == -15
    assert not folder.path.exists()


def test_only_strays_of_this_folder_are_ended(tmp_path: Path) -> None:
    with started(SLEEP, tmp_path / "one") as stray, started(SLEEP, tmp_path / "one") as kept:
        with started(SLEEP, tmp_path / "two") as other:
            assert end_strays(tmp_path / "one", frozenset([kept.pid])) == [stray.pid]
            assert stray.wait(5) == -9
            assert is_there(kept.pid) and is_there(other.pid)
            other.kill()
        kept.kill()
