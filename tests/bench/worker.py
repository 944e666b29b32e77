"""A process that answers lines of JSON with lines of JSON: for what must not share our Python, packages or threads."""

import json
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Python finds `tests` where a program is started.
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Worker:
    process: "subprocess.Popen[str]"
    log: Path

    def ask(self, question: Any) -> Any:
        """Send a line and return the answer. Raises RuntimeError with the end of its log where the process ends."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(question) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError as error:
            raise self._ended() from error
        return self.answer()

    def answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise self._ended()
        return json.loads(line)

    def _ended(self) -> RuntimeError:
        command = " ".join(map(str, self.process.args))  # type: ignore[arg-type]
        return RuntimeError(f"{command} ended instead of answering; its log ends with:\n{self.log.read_text()[-2000:]}")


@contextmanager
def worker(command: Sequence[str | Path], environment: Mapping[str, str]) -> Iterator[Worker]:
    """Start a worker and wait until it says that it is ready; end it afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with log.open("wb") as sink:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=sink,
                text=True,
                cwd=ROOT,
                env=dict(environment),
            )
        started = Worker(process, log)
        try:
            started.answer()
            yield started
        finally:
            process.kill()
            process.communicate()
