"""A running container's probes over time: when it has started, whether it is ready, whether it must be ended."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NoReturn

from pagefleet_local.node.pods import Manifest
from pagefleet_local.node.probes import Answers, Try, Verdict, after_answer, first_try, next_try, probe_rule
from pagefleet_local.node.probing import Answer

Ask = Callable[[Manifest, float], Awaitable[Answer]]
Post = Callable[[str, str, bool], Awaitable[None]]


@dataclass(frozen=True)
class Ending:
    """Why the container must be ended, and how long it may take (None: as long as its pod may)."""

    reason: str
    grace_seconds: float | None


async def never() -> NoReturn:
    """Wait until cancelled."""
    while True:
        await asyncio.Event().wait()


class Health:
    """`ready` and `started` are called on each change; they keep it."""

    def __init__(
        self, container: Manifest, ask: Ask, started: Callable[[], None], ready: Callable[[bool], None], post: Post
    ) -> None:
        self._container = container
        self._ask = ask
        self._started = started
        self._ready = ready
        self._post = post

    async def watch(self, has_started: bool, is_ready: bool) -> Ending:
        """Probe until the container must be ended. What it was before, as the node found it, is the beginning."""
        startup = self._container.get("startupProbe")
        if not has_started:
            if startup and (ending := await self._until_started(startup)):
                return ending
            self._started()
        async with asyncio.TaskGroup() as probes:
            readiness = probes.create_task(self._keep_ready(is_ready))
            ending = await self._until_dead()
            readiness.cancel()
        return ending

    async def _until_started(self, probe: Manifest) -> Ending | None:
        """Return nothing when it has started, or why it never will."""
        verdict, answer = await self._until(probe, Answers(Verdict.UNDECIDED), "Startup", eager=True)
        return self._ending(probe, "startup", answer) if verdict is Verdict.BAD else None

    async def _until_dead(self) -> Ending:
        probe = self._container.get("livenessProbe")
        if probe is None:
            return await never()
        _, answer = await self._until(probe, Answers(Verdict.GOOD), "Liveness", eager=False)
        return self._ending(probe, "liveness", answer)

    async def _keep_ready(self, is_ready: bool) -> None:
        probe = self._container.get("readinessProbe")
        if not probe:
            self._ready(True)
            return
        rule, answers = probe_rule(probe), Answers(Verdict.GOOD if is_ready else Verdict.BAD)
        eager = not is_ready
        attempt = first_try(time.monotonic(), rule, eager)
        while True:
            answer = await self._answer(probe, attempt, rule.timeout_seconds, "Readiness")
            before = answers.verdict
            if answer.good or attempt.counts_failure:
                answers = after_answer(answers, answer.good, rule)
            if answers.verdict is not before:
                self._ready(answers.verdict is Verdict.GOOD)
            eager = eager and answers.verdict is not Verdict.GOOD
            attempt = next_try(attempt, time.monotonic(), rule, eager)

    async def _until(self, probe: Manifest, answers: Answers, kind: str, eager: bool) -> tuple[Verdict, Answer]:
        """Ask until the verdict is another one."""
        rule, first = probe_rule(probe), answers.verdict
        attempt = first_try(time.monotonic(), rule, eager)
        while True:
            answer = await self._answer(probe, attempt, rule.timeout_seconds, kind)
            if answer.good or attempt.counts_failure:
                answers = after_answer(answers, answer.good, rule)
            if answers.verdict is not first:
                return answers.verdict, answer
            attempt = next_try(attempt, time.monotonic(), rule, eager)

    async def _answer(self, probe: Manifest, attempt: Try, timeout_seconds: float, kind: str) -> Answer:
        await asyncio.sleep(max(attempt.at - time.monotonic(), 0))
        answer = await self._ask(probe, timeout_seconds)
        if not answer.good and attempt.counts_failure:
            await self._post("Unhealthy", f"{kind} probe failed: {answer.message}", True)
        return answer

    def _ending(self, probe: Manifest, kind: str, answer: Answer) -> Ending:
        grace = probe.get("terminationGracePeriodSeconds")
        reason = f"Container {self._container['name']} failed {kind} probe, will be restarted: {answer.message}"
        return Ending(reason, None if grace is None else float(grace))
