"""`make demo`: a fleet on this machine, from one file to streams that survive a roll, with the time of each step.

Every step is a command that works by itself; the demo only types it. Its fleet is its own and leaves nothing behind.
"""

import asyncio
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from openai import AsyncOpenAI, DefaultAsyncHttpx2Client, OpenAIError

ROOT = Path(__file__).parents[1]
QUICKSTART = "examples/quickstart.yaml"
NAME = "chat"
STATE = ROOT / "build" / "demo-fleet"
ENVIRONMENT = os.environ | {
    "PAGEFLEET_STATE": str(STATE),
    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
}
QUESTIONS = ("Where do penguins live?", "Why is the sky blue?", "What is a poem?", "Tell me a story about a map.")


@dataclass
class Times:
    """How long each step took, for the table at the end."""

    steps: list[tuple[str, float]] = field(default_factory=list)

    @contextmanager
    def step(self, name: str, text: str) -> Iterator[None]:
        print(f"\n\033[1m{text}\033[0m" if sys.stdout.isatty() else f"\n{text}", flush=True)
        began = time.monotonic()
        yield
        self.steps.append((name, time.monotonic() - began))


def typed(command: str) -> str:
    """Run a command line as a person would, show it and what it says, and return the latter."""
    print(f"$ {command}", flush=True)
    done = subprocess.run(
        shlex.split(command), cwd=ROOT, env=ENVIRONMENT, check=True, stdout=subprocess.PIPE, text=True
    )
    print(done.stdout, end="", flush=True)
    return done.stdout


async def show_answer(client: AsyncOpenAI) -> None:
    """Print one answer as it comes."""
    began, first = time.monotonic(), 0.0
    stream = await client.chat.completions.create(
        model=NAME, messages=[{"role": "user", "content": QUESTIONS[0]}], max_tokens=64, temperature=0, stream=True
    )
    print(f"> {QUESTIONS[0]}\n  ", end="")
    async for chunk in stream:
        piece = chunk.choices[0].delta.content if chunk.choices else None
        if piece:
            first = first or time.monotonic() - began
            print(piece, end="", flush=True)
    print(f"\n  first token after {first:.2f} s, the whole answer after {time.monotonic() - began:.1f} s")


@dataclass
class Traffic:
    """Streams that go on while the fleet changes; each must end as the server means it to."""

    client: AsyncOpenAI
    num_whole: int = 0
    broken: list[str] = field(default_factory=list)
    over: bool = False

    async def run(self, number: int) -> None:
        while not self.over:
            try:
                await self._one(QUESTIONS[number % len(QUESTIONS)])
            except OpenAIError as error:
                self.broken.append(str(error))

    async def _one(self, question: str) -> None:
        reason = None
        stream = await self.client.chat.completions.create(
            model=NAME, messages=[{"role": "user", "content": question}], max_tokens=96, temperature=0, stream=True
        )
        async for chunk in stream:
            if chunk.choices and chunk.choices[0].finish_reason:
                reason = chunk.choices[0].finish_reason
        if reason is None:
            self.broken.append("a stream ended without a reason")
        else:
            self.num_whole += 1


async def show_roll(client: AsyncOpenAI) -> None:
    traffic = Traffic(client)
    streams = [asyncio.create_task(traffic.run(number)) for number in range(2)]
    edit = """kubectl patch inferenceservice chat --type=merge --patch='{"spec": {"model": {"maxLength": 2048}}}'"""
    await asyncio.to_thread(typed, f"pagefleet {edit}")
    await asyncio.to_thread(typed, f"pagefleet wait {NAME}")
    traffic.over = True
    await asyncio.gather(*streams)
    print(f"  meanwhile {traffic.num_whole} streams ended well and {len(traffic.broken)} broke", *traffic.broken[:3])
    if traffic.broken:
        sys.exit("the roll broke streams; it must not")


async def main() -> None:
    times = Times()
    try:
        with times.step("up", "One file, one command: Kubernetes, the operator by its chart, a model that serves"):
            url = typed(f"pagefleet up {QUICKSTART}").split()[0]
        # The address is this machine's own: no proxy of the environment can reach it.
        direct = DefaultAsyncHttpx2Client(trust_env=False)
        client = AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, http_client=direct)
        with times.step("answer", "A streamed answer through the service's address"):
            await show_answer(client)
        with times.step("get", "It is Kubernetes: every client works"):
            typed("pagefleet kubectl get inferenceservices,deployments,pods,services")
        with times.step("scale", "A second replica"):
            typed(f"pagefleet scale {NAME} 2")
            typed(f"pagefleet wait {NAME}")
        with times.step("roll", "An edit that rolls, while two clients stream"):
            await show_roll(client)
            typed("pagefleet get --output wide")
        await client.close()
    finally:
        with times.step("down", "Down again, and gone"):
            typed("pagefleet down --purge")
    print("\n" + "  ".join(f"{name} {seconds:.1f} s" for name, seconds in times.steps))
    print(f"Your turn: .venv/bin/pagefleet up {QUICKSTART}")


if __name__ == "__main__":
    asyncio.run(main())
