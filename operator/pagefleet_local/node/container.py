"""One container on this node: starts its process, watches it, starts it again as its restart policy says, ends it."""

import asyncio
import logging
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from typing import NoReturn

from pagefleet_contract.names import REASON_NODE_STOPPED
from pagefleet_local.node.environment import ConfigError
from pagefleet_local.node.health import Ending, Health, never
from pagefleet_local.node.logs import tail_message
from pagefleet_local.node.pod_state import PodState
from pagefleet_local.node.pods import Manifest, grace_seconds
from pagefleet_local.node.probing import Answer, Asked, ask
from pagefleet_local.node.process_spec import ProcessSpec, process_spec
from pagefleet_local.node.processes import EXEC_FAILED_CODE, Process, StartError
from pagefleet_local.node.quantities import quantity
from pagefleet_local.node.records import ContainerRecord, Running, Terminated, Waiting
from pagefleet_local.node.restarts import Finished, after_exit
from pagefleet_local.node.status import crash_message

_CONFIG_RETRY_SECONDS = 10.0
# After a preStop hook that used up the grace, a process still gets this long between SIGTERM and SIGKILL.
_LEAST_TERM_SECONDS = 2.0
_DEADLINE_LOOK_SECONDS = 0.5
_KILLED_CODE = 128 + signal.SIGKILL
_MESSAGE_BYTES = 4096
_log = logging.getLogger(__name__)


class Container:
    """`policy` is when it starts again: Always, OnFailure or Never."""

    def __init__(self, state: PodState, name: str, policy: str) -> None:
        self._state = state
        self._name = name
        self._policy = policy
        self._process: Process | None = None
        self._over_memory = False
        self._started = asyncio.Event()
        if self.record.started:
            self._started.set()

    async def has_started(self) -> None:
        """Wait until it has started for the first time."""
        await self._started.wait()

    @property
    def record(self) -> ContainerRecord:
        return self._state.record.container(self._name)

    @property
    def _manifest(self) -> Manifest:
        return self._state.manifest(self._name)

    async def supervise(self) -> Terminated:
        """Keep it running as its policy says; return how it ended for good. Cancelled, it lets the process go on."""
        while True:
            match self.record.state:
                case Running() as running:
                    await self._follow(running)
                case Terminated() as ended:
                    ran = ended.finished_at - ended.started_at
                    backoff = 0.0 if ended.reason == REASON_NODE_STOPPED else self.record.backoff_seconds
                    decision = after_exit(self._policy, ended.exit_code, ran, backoff)
                    if isinstance(decision, Finished):
                        return ended
                    self._wait_for_restart(ended, decision.delay_seconds, decision.next_backoff_seconds)
                case Waiting():
                    await asyncio.sleep(max(self.record.not_before - time.time(), 0))
                    await self._start()

    async def stop(self, seconds_left: Callable[[], float]) -> None:
        """End the process as its pod's deletion says: preStop, SIGTERM, and SIGKILL when no time is left."""
        running = self.record.state
        if not isinstance(running, Running):
            return
        process = self._process or Process.adopt(running.pid, running.born)
        if process:
            self._process = process
            await self._state.post("Killing", f"Stopping container {self._name}")
            await self._end(process, seconds_left)
        self._record_end(process, running)

    def let_go(self) -> None:
        """Leave the process to the next node."""
        if self._process:
            self._process.let_go()

    # --- starting

    async def _start(self) -> None:
        if self._manifest.get("image") not in self._state.tools.images:
            await self._refuse_image()
        spec = await self._spec()
        self._state.folder.make(self._name)
        record, now = self.record, time.time()
        log = self._state.folder.log(self._name, record.num_starts)
        try:
            process = Process.start(spec, log)
        except StartError as error:
            ended = Terminated(EXEC_FAILED_CODE, "StartError", str(error), now, now)
            self._save(record, state=ended, num_starts=record.num_starts + 1, started=False, ready=False)
            await self._state.post("Failed", f"Error: {error}", warning=True)
            return
        self._process = process
        running = Running(process.pid, process.born, now)
        self._save(record, state=running, num_starts=record.num_starts + 1, started=False, ready=False)
        self._state.folder.forget_logs(self._name, before=record.num_starts - 1)
        await self._state.post("Started", f"Started container {self._name} as process {process.pid}")

    async def _spec(self) -> ProcessSpec:
        """Return what to start, however long what it needs is missing."""
        while True:
            self._state.woken.clear()
            try:
                return self._current_spec()
            except ConfigError as error:
                self._save(self.record, state=Waiting("CreateContainerConfigError", str(error)))
                await self._state.post("Failed", f"Error: {error}", warning=True)
            try:
                async with asyncio.timeout(_CONFIG_RETRY_SECONDS):
                    await self._state.woken.wait()
            except TimeoutError:
                continue

    def _current_spec(self) -> ProcessSpec:
        state = self._state
        return process_spec(self._manifest, state.pod, state.grounds(self._name), state.sources())

    async def _refuse_image(self) -> NoReturn:
        """Say that the image is not to be had, and wait for ever: what the node has it knows from its start on."""
        image, known = self._manifest.get("image"), ", ".join(sorted(self._state.tools.images))
        message = f'image "{image}" is not one that this node stands for; it has {known or "none"}'
        self._save(self.record, state=Waiting("ErrImagePull", message))
        await self._state.post("Failed", f'Failed to pull image "{image}": {message}', warning=True)
        await asyncio.sleep(1)
        back_off = f'Back-off pulling image "{image}"'
        self._save(self.record, state=Waiting("ImagePullBackOff", f"{back_off}: ErrImagePull: {message}"))
        await self._state.post("BackOff", back_off, warning=True)
        await never()

    def _wait_for_restart(self, ended: Terminated, delay: float, next_backoff: float) -> None:
        message = crash_message(self._name, self._state.pod, delay)
        waiting = Waiting("CrashLoopBackOff", message) if delay else Waiting("ContainerCreating")
        due = ended.finished_at + delay
        self._save(self.record, state=waiting, last=ended, backoff_seconds=next_backoff, not_before=due)

    # --- running

    async def _follow(self, running: Running) -> None:
        """Watch the process, ours or an earlier node's, until it has ended; end it where its probes say so."""
        process = self._process if self._process and self._process.pid == running.pid else None
        process = process or Process.adopt(running.pid, running.born)
        self._process = process
        if process is None:
            self._record_end(None, running)
            return
        log = self._state.folder.log(self._name, self.record.num_starts - 1)
        self._state.tools.log_keeper.add(log)
        self._limit_memory(process)
        health = asyncio.create_task(self._health(process))
        try:
            await process.ended_or(health)
            if not process.exit_code.done():
                ending = health.result()
                await self._state.post("Killing", ending.reason)
                deadline = time.monotonic() + self._grace(ending)
                await self._end(process, lambda: deadline - time.monotonic())
            self._record_end(process, running)
        finally:
            health.cancel()
            self._state.tools.memory.remove(process.pid)
            self._state.tools.log_keeper.remove(log)

    async def _health(self, process: Process) -> Ending:
        """Return when the process must be ended. Until its environment can be made out again after the node's restart,
        it isn't asked."""
        spec = await self._spec_of_running()
        record = self.record

        async def asks(action: Manifest, seconds: float) -> Answer:
            return await ask(action, self._asked(spec), seconds)

        hook = (self._manifest.get("lifecycle") or {}).get("postStart")
        if hook and not record.started:
            answer = await asks(hook, grace_seconds(self._state.pod))
            if not answer.good:
                return Ending(f"FailedPostStartHook: {answer.message}", None)
        health = Health(self._manifest, asks, self._mark_started, self._mark_ready, self._state.post)
        return await health.watch(record.started, record.ready)

    async def _spec_of_running(self) -> ProcessSpec:
        while True:
            self._state.woken.clear()
            try:
                return self._current_spec()
            except ConfigError as error:
                _log.info("%s: probes of %s wait: %s", self._state.record.name, self._name, error)
                await self._state.woken.wait()

    def _asked(self, spec: ProcessSpec) -> Asked:
        return Asked(self._manifest, spec, self._state.grounds(self._name), self._state.folder.container(self._name))

    def _mark_started(self) -> None:
        self._save(self.record, started=True)
        self._started.set()

    def _mark_ready(self, ready: bool) -> None:
        if self.record.ready is not ready:
            self._save(self.record, ready=ready)

    def _limit_memory(self, process: Process) -> None:
        limit = ((self._manifest.get("resources") or {}).get("limits") or {}).get("memory")
        self._over_memory = False
        if limit:
            self._state.tools.memory.add(process.pid, int(quantity(limit)), self._end_over_memory)

    def _end_over_memory(self) -> None:
        if self._process:
            self._over_memory = True
            self._process.kill()

    # --- ending

    def _grace(self, ending: Ending) -> float:
        return grace_seconds(self._state.pod) if ending.grace_seconds is None else ending.grace_seconds

    async def _end(self, process: Process, seconds_left: Callable[[], float]) -> None:
        hook = (self._manifest.get("lifecycle") or {}).get("preStop")
        least = 0.0
        if hook and seconds_left() > 0:
            least = _LEAST_TERM_SECONDS
            await self._run_pre_stop(hook, process, seconds_left)
        process.send(signal.SIGTERM)
        term_until = time.monotonic() + least
        # In short waits: a second deletion may have shortened the time.
        while (left := max(seconds_left(), term_until - time.monotonic())) > 0:
            if await process.ended(min(left, _DEADLINE_LOOK_SECONDS)):
                return
        process.kill()
        await process.ended()

    async def _run_pre_stop(self, hook: Manifest, process: Process, seconds_left: Callable[[], float]) -> None:
        async def run() -> Answer:
            return await ask(hook, self._asked(self._current_spec()), max(seconds_left(), 0.1))

        task = asyncio.create_task(run())
        await process.ended_or(task)
        if not task.done():
            task.cancel()
        elif task.exception():
            await self._state.post("FailedPreStopHook", f"PreStopHook failed: {task.exception()}", warning=True)
        elif not task.result().good:
            await self._state.post("FailedPreStopHook", f"PreStopHook failed: {task.result().message}", warning=True)

    def _record_end(self, process: Process | None, running: Running) -> None:
        now = time.time()
        code = process.exit_code.result() if process else None
        if process is None or code is None:
            message = "The process ended while no node watched it; its exit code is not known."
            ended = Terminated(_KILLED_CODE, "ContainerStatusUnknown", message, running.started_at, now)
        else:
            reason = "OOMKilled" if self._over_memory else "Error" if code else "Completed"
            ended = Terminated(code, reason, self._message(code), running.started_at, now)
        self._process = None
        self._save(self.record, state=ended, started=False, ready=False)

    def _message(self, code: int) -> str:
        """Return the termination message: what the container wrote for it, or the log's end where it asks for that."""
        file = self._state.grounds(self._name).termination_log
        written = file.read_bytes()[:_MESSAGE_BYTES].decode(errors="replace") if file.is_file() else ""
        if not written and code and self._manifest.get("terminationMessagePolicy") == "FallbackToLogsOnError":
            return tail_message(self._state.folder.log(self._name, self.record.num_starts - 1))
        return written

    def _save(self, record: ContainerRecord, **changes: object) -> None:
        self._state.save(replace(record, **changes))  # type: ignore[arg-type]
