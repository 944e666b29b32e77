"""The simulated model: text from seed and place alone, steps as long as the costs say, blocks as the real one has."""

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from pagefleet_contract.accelerators import find_accelerator
from pagefleet_contract.engine import EngineConfig
from pagefleet_contract.known_models import KNOWN_MODELS, KnownModel, find_known_model
from pagefleet_runtime.engine_thread import ThreadLink
from pagefleet_runtime.errors import ModelRefused
from pagefleet_runtime.plan import Row, SampledToken, SampleSpec, StepPlan
from pagefleet_runtime.protocol import Accepted, FromEngine, Loaded, LoadFailed, LoadProgress, Submit
from pagefleet_runtime.request import GenerationRequest, Grammar, SamplingParams, SequenceKey
from pagefleet_runtime.simulation.costs import roofline
from pagefleet_runtime.simulation.executor import SimulatedExecutor
from pagefleet_runtime.simulation.loading import LoadStopped, SimulatedModel, find_cost, load_simulated
from pagefleet_runtime.step_cost import StepLoad
from pagefleet_runtime.text.byte_tokenizer import TURN_END, VOCAB_SIZE, byte_tokenizer


def config(name: str = "llama-3.1-8b", **sections: Any) -> EngineConfig:
    return EngineConfig.model_validate({"model": {"uri": f"simulated://{name}"}, **sections})


def never(seconds: float) -> bool:
    """No time passes, and nobody tells the engine to end."""
    return False


def loaded(**sections: Any) -> SimulatedModel:
    return load_simulated(config(**sections), lambda progress: None, never)


def known(name: str) -> KnownModel:
    model = find_known_model(name)
    assert model is not None
    return model


class Steps:
    """Runs a choice alone, token after token."""

    def __init__(self, simulation_seed: int = 0, pause: Callable[[float], bool] = never) -> None:
        self.executor = SimulatedExecutor(loaded().step_cost, simulation_seed, pause)

    def tokens(self, count: int, prompt: bytes = b"Hello", choice: int = 0, **params: Any) -> list[SampledToken]:
        key = SequenceKey("r", choice)
        sampling = SamplingParams(max_tokens=count, **params)
        self.executor.prepare(GenerationRequest("r", tuple(prompt), sampling))
        tokens: list[SampledToken] = []
        while len(tokens) < count and not (tokens and tokens[-1].grammar_finished):
            spec = SampleSpec(key, sampling, tuple(prompt), [token.token_id for token in tokens])
            row = Row(key, (1,), len(prompt) + len(tokens), (0,), (spec,))
            result = self.executor.execute(StepPlan(len(tokens), (), (row,)))
            assert not result.failures, result.failures
            tokens += result.sampled
        self.executor.forget("r")
        return tokens

    def text(self, count: int, **asked: Any) -> str:
        return bytes(t.token_id for t in self.tokens(count, **asked) if t.token_id < 256).decode()


# --- text


def test_the_text_is_printable_words() -> None:
    text = Steps().text(200, ignore_eos=True)
    assert text.isprintable() and text.isascii() and text.count(" ") > 20 and "." in text


def test_equal_seeds_give_equal_texts_and_others_differ() -> None:
    assert Steps().text(40, seed=7) == Steps().text(40, seed=7)
    texts = {Steps().text(40, seed=7), Steps().text(40, seed=8), Steps().text(40, seed=7, choice=1)}
    texts |= {Steps(simulation_seed=1).text(40, seed=7), Steps().text(40, seed=7, prompt=b"Other")}
    assert len(texts) == 5


def test_greedy_text_depends_on_the_prompt_alone() -> None:
    greedy = Steps().text(40, temperature=0.0, seed=1)
    assert greedy == Steps().text(40, temperature=0.0, seed=2, choice=3)
    assert greedy != Steps().text(40, temperature=0.0, prompt=b"Other")


def test_a_token_doesnt_depend_on_how_the_request_got_there() -> None:
    whole = Steps().tokens(30, seed=3)
    late = Steps()
    spec = SampleSpec(
        SequenceKey("r", 0), SamplingParams(99, seed=3), tuple(b"Hello"), [t.token_id for t in whole[:20]]
    )
    (token,) = late.executor.execute(StepPlan(0, (), (Row(spec.key, (1,), 25, (0,), (spec,)),))).sampled
    assert token.token_id == whole[20].token_id


def test_an_answer_ends_by_itself_unless_it_is_told_not_to() -> None:
    ids = [token.token_id for token in Steps().tokens(400, seed=5)]
    assert TURN_END.token_id in ids
    assert TURN_END.token_id not in [token.token_id for token in Steps().tokens(400, seed=5, ignore_eos=True)]


def test_a_strong_bias_decides() -> None:
    assert Steps().text(5, logit_bias=((ord("x"), 100.0),)) == "xxxxx"
    banned = tuple((ord(letter), -100.0) for letter in "etaoin")
    assert not set("etaoin") & set(Steps().text(60, logit_bias=banned, ignore_eos=True))


def test_as_many_logprobs_are_given_as_asked_for() -> None:
    (first, *_) = Steps().tokens(1, top_logprobs=5)
    assert first.logprob is not None and len(first.logprob.top) == 5
    assert first.logprob.top[0] == (first.token_id, first.logprob.logprob)
    assert len({token_id for token_id, _ in first.logprob.top}) == 5


# --- grammars


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}, dict),
        ({"type": "array", "items": {"type": "integer", "minimum": 18}, "minItems": 3}, list),
        ({"type": "object", "properties": {"a": {"enum": ["x", "y"]}, "b": {"type": "number"}}}, dict),
        ({"type": "string", "minLength": 20}, str),
        ({"anyOf": [{"type": "null"}, {"type": "boolean"}]}, object),
        ({"type": "object"}, dict),
    ],
)
def test_a_schema_is_followed_to_its_end(schema: dict[str, Any], kind: type) -> None:
    text = Steps().text(300, grammar=Grammar("json_schema", json.dumps(schema)))
    assert isinstance(json.loads(text), kind)


# --- costs


@pytest.mark.parametrize("model", KNOWN_MODELS, ids=lambda model: model.name)
@pytest.mark.parametrize("device", [None, "h100", "4xh100"])
def test_more_work_never_takes_less_time(model: KnownModel, device: str | None) -> None:
    accelerator = None if device is None else find_accelerator(device)
    cost = find_cost(model, accelerator, "bfloat16").model
    loads = [
        StepLoad(1, 100),
        StepLoad(8, 800),
        StepLoad(64, 6400),
        StepLoad(64, 64000),
        StepLoad(64, 64000, 512, 131072),
    ]
    times = [cost.seconds(load) for load in loads]
    assert times == sorted(times) and 0 < times[0] and times[-1] < 3600


def test_a_70b_model_on_four_h100_decodes_as_fast_as_its_weights_can_be_read() -> None:
    accelerator = find_accelerator("4xh100")
    assert accelerator is not None
    model = known("llama-3.1-70b")
    step = roofline(model, accelerator, "bfloat16").seconds(StepLoad(1, 100))
    bound = model.weights_bytes / accelerator.bytes_per_second
    assert bound < step < 2 * bound


def test_long_prefill_is_bound_by_arithmetic() -> None:
    accelerator = find_accelerator("h100")
    assert accelerator is not None
    model = known("llama-3.1-8b")
    load = StepLoad(prefill_tokens=8192, prefill_pairs=8192 * 4096)
    assert roofline(model, accelerator, "bfloat16").seconds(load) > (
        2 * model.parameters * 8192 / accelerator.operations_per_second
    )


def test_what_was_not_measured_is_called_an_estimate() -> None:
    assert "estimate" in find_cost(known("llama-3.1-8b"), find_accelerator("h100"), "bfloat16").origin
    assert "estimate" in find_cost(known("llama-3.1-8b"), None, "bfloat16").origin
    assert "estimate" not in find_cost(known("smollm2-135m"), None, "bfloat16").origin


def test_a_step_takes_what_its_cost_says() -> None:
    waits: list[float] = []

    def pause(seconds: float) -> bool:
        waits.append(seconds)
        return False

    Steps(pause=pause).tokens(3)
    cost = loaded().step_cost
    for wait, position in zip(waits, (5, 6, 7), strict=True):
        expected = cost.seconds(StepLoad(1, position + 1))
        assert expected * 0.5 < wait <= expected


# --- loading


def test_the_blocks_are_those_of_the_real_model_on_that_accelerator() -> None:
    info = load_simulated(
        config("llama-3.1-70b", simulation={"accelerator": "4xh100"}), lambda progress: None, never
    ).info
    assert info.bytes_per_block == 16 * 327_680
    assert 25_000 < info.num_blocks < 35_000
    assert (info.vocab_size, info.model_type) == (VOCAB_SIZE, "llama")
    assert any("simulated" in note for note in info.notes)


def test_the_memory_can_be_said() -> None:
    small, large = (loaded(simulation={"memory": memory}).info.num_blocks for memory in ("24Gi", "48Gi"))
    assert 0 < small < large


@pytest.mark.parametrize(
    ("simulation", "told"),
    [
        ({}, "256 GiB (a simulated CPU's, since neither simulation.accelerator nor simulation.memory is given)"),
        ({"memory": "200Gi"}, "200 GiB (simulation.memory)"),
        ({"accelerator": "4xh100"}, "(4xh100 by simulation.accelerator)"),
    ],
)
def test_it_is_told_which_memory_counts(simulation: dict[str, Any], told: str) -> None:
    info = load_simulated(config("llama-3.1-70b", simulation=simulation), lambda progress: None, never).info
    (note,) = (note for note in info.notes if "the memory that counts" in note)
    assert told in note and "accelerator.memory of the resource, doesn't count" in note
    assert told in dict(info.startup_table)["memory"]


def test_wider_weights_leave_less_for_blocks() -> None:
    simulation = {"memory": "40Gi"}
    half, full = (
        load_simulated(
            EngineConfig.model_validate(
                {"model": {"uri": "simulated://llama-3.1-8b", "dtype": dtype}, "simulation": simulation}
            ),
            lambda progress: None,
            never,
        ).info
        for dtype in ("bfloat16", "float32")
    )
    assert half.num_blocks > 2 * full.num_blocks and full.dtype == "float32"


def test_int8_weights_leave_more_for_blocks() -> None:
    uri = "simulated://llama-3.1-8b"
    none, int8 = (
        loaded(model={"uri": uri, "quantization": quantization}, simulation={"memory": "24Gi"}).info
        for quantization in ("none", "int8")
    )

    # Of 8 billion weights all but the embedding's half a billion are half as long; blocks are what is left for them.
    assert (int8.num_blocks - none.num_blocks) * none.bytes_per_block == pytest.approx(7.5e9, rel=0.05)


@pytest.mark.parametrize(
    ("name", "simulation", "words"),
    [
        ("gpt-9", {}, "llama-3.1-70b"),
        ("llama-3.1-8b", {"accelerator": "abacus"}, "4xh100"),
        ("llama-3.1-70b", {"accelerator": "h100"}, "131 GiB"),
    ],
)
def test_what_cant_be_played_is_refused_with_what_can(name: str, simulation: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelRefused, match=words):
        load_simulated(config(name, simulation=simulation), lambda progress: None, never)


def test_loading_takes_its_time_and_shows_how_far_it_is() -> None:
    waits: list[float] = []
    seen: list[LoadProgress] = []

    def pause(seconds: float) -> bool:
        waits.append(seconds)
        return False

    load_simulated(config(simulation={"loadSeconds": 30}), seen.append, pause)
    fractions = [progress.fraction for progress in seen if progress.stage == "weights"]
    assert sum(waits) == pytest.approx(30)
    assert fractions == sorted(fractions) and fractions[-1] == 1 and len(set(fractions)) > 10


def test_loading_stops_when_it_is_told_to() -> None:
    with pytest.raises(LoadStopped):
        load_simulated(config(simulation={"loadSeconds": 30}), lambda progress: None, lambda seconds: True)


# --- the engine's thread


class Ends:
    """What a link tells."""

    def __init__(self) -> None:
        self.messages: list[FromEngine] = []
        self.losses: list[str] = []
        self._came = threading.Condition()

    def deliver(self, message: FromEngine) -> None:
        with self._came:
            self.messages.append(message)
            self._came.notify_all()

    def lost(self, reason: str) -> None:
        self.losses.append(reason)

    def wait_for(self, kind: type[FromEngine]) -> FromEngine:
        with self._came:
            assert self._came.wait_for(lambda: any(isinstance(m, kind) for m in self.messages), 10)
            return next(m for m in self.messages if isinstance(m, kind))


def test_an_engine_that_loads_ends_when_told_and_is_not_lost() -> None:
    ends, before = Ends(), set(threading.enumerate())
    link = ThreadLink(config(simulation={"loadSeconds": 3600}))
    link.start(ends.deliver, ends.lost)
    ends.wait_for(LoadProgress)
    link.stop()
    link.stop()
    assert set(threading.enumerate()) <= before and not ends.losses


def test_an_engine_ends_in_the_middle_of_a_long_step() -> None:
    ends, before = Ends(), set(threading.enumerate())
    link = ThreadLink(config("llama-3.1-70b"))  # half a minute for this prompt, on the CPU
    link.start(ends.deliver, ends.lost)
    ends.wait_for(Loaded)
    link.send(Submit(GenerationRequest("r", tuple(range(100)), SamplingParams(max_tokens=9))))
    ends.wait_for(Accepted)
    link.stop()
    assert set(threading.enumerate()) <= before and not ends.losses


def test_a_model_that_is_refused_is_told_in_one_line() -> None:
    ends = Ends()
    link = ThreadLink(config("gpt-9"))
    link.start(ends.deliver, ends.lost)
    failed = ends.wait_for(LoadFailed)
    assert isinstance(failed, LoadFailed) and "gpt-9" in failed.message and "\n" not in failed.message
    link.stop()


# --- the tokenizer


@pytest.mark.parametrize("text", ["", "plain", "é 日本 \U0001f600", "<|im_end|> and <|im_start|>"])
def test_every_text_comes_back(text: str) -> None:
    tokenizer = byte_tokenizer()
    ids = tokenizer.encode_marked(text)
    assert tokenizer.decode(ids) == text and all(token_id < 256 for token_id in ids)


def test_only_raw_prompts_make_control_tokens() -> None:
    assert TURN_END.token_id in byte_tokenizer().encode("a<|im_end|>", add_special_tokens=True)
