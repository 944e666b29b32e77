"""The state machine: anything that clients, the operator, time and the device may do, in any order."""

from typing import Any, ClassVar

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from pagefleet_runtime.protocol import PolicyChange
from pagefleet_runtime.request import SequenceKey
from tests.runtime.builders import some_request, some_settings
from tests.runtime.world import World

HEADS = ((3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8), (2, 7, 1, 8, 2, 8, 1, 8, 2, 8, 4, 5))

settings_values = st.fixed_dictionaries(
    {
        "num_blocks": st.integers(3, 12),
        "block_size": st.sampled_from((1, 2, 4)),
        "max_sequences": st.integers(2, 6),
        "max_length_tokens": st.sampled_from((256, 12)),
        "policy": st.sampled_from(("FCFS", "FCFS", "Priority")),
        "prefix_sharing_mode": st.sampled_from(("Service", "Service", "Tenant", "Tenant", "Disabled")),
        "swap_mode": st.sampled_from(("Recompute", "Recompute", "Recompute", "Recompute", "Disabled")),
        "retention_ttl_seconds": st.sampled_from((None, 5)),
        "queue_timeout_seconds": st.just(20),
        "max_queue": st.sampled_from((3, 30, 30)),
        "watermark_percent": st.sampled_from((0, 1, 20)),
        "digest_bytes": st.sampled_from((16, 16, 1)),
    }
)

request_values = st.fixed_dictionaries(
    {
        "head": st.sampled_from(HEADS),
        "shared": st.integers(0, 12),
        "tail": st.lists(st.integers(0, 3), max_size=5),
        "max_tokens": st.sampled_from((0, 1, 2, 5, 8, 12, 16, 20, 24)),
        "num_choices": st.sampled_from((1, 1, 1, 2, 3)),
        "tenant": st.sampled_from(("a", "b")),
        "priority": st.integers(0, 2),
        "prompt_logprobs": st.sampled_from((None, None, None, None, 0)),
        "temperature": st.sampled_from((0.0, 0.0, 0.8)),
        "ignore_eos": st.sampled_from((True, True, True, False)),
        "stop_token_ids": st.sampled_from(((), (), (), (7,))),
    }
)


def machine_settings(max_examples: int, *, derandomize: bool = True, shrink: bool = True) -> settings:
    return settings(
        max_examples=max_examples,
        stateful_step_count=40,
        derandomize=derandomize,
        database=None,
        deadline=None,
        print_blob=False,
        report_multiple_bugs=False,
        phases=(Phase.generate, Phase.shrink) if shrink else (Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )


token_limits = st.sampled_from((None, None, 1, 2, 3, 5, 8))


class SchedulerMachine(RuleBasedStateMachine):
    """`world` checks itself after every move. Subclasses fix settings."""

    world: World
    fixed: ClassVar[dict[str, Any]] = {}

    @initialize(values=settings_values)
    def start(self, values: dict[str, Any]) -> None:
        self.world = World(some_settings(**{**values, **self.fixed}))
        self.names = 0

    @rule(requests=st.lists(request_values, min_size=1, max_size=4), fits=st.sampled_from((True, True, True, False)))
    def submit(self, requests: list[dict[str, Any]], fits: bool) -> None:
        for values in requests:
            self._submit(dict(values), fits)

    @rule(values=request_values, times=st.integers(2, 4))
    def submit_alike(self, values: dict[str, Any], times: int) -> None:
        for _ in range(times):
            self._submit(dict(values), fits=True)

    def _submit(self, values: dict[str, Any], fits: bool) -> None:
        prompt = values.pop("head")[: values.pop("shared")] + tuple(values.pop("tail"))
        if fits:
            limit = self.world.lifecycle.length_limit
            values["max_tokens"] = min(values["max_tokens"], limit - 1)
            prompt = prompt[: limit - values["max_tokens"]]
        self.names += 1
        self.world.submit(some_request(f"r{self.names}", prompt or (1,), **values))

    @precondition(lambda self: self.world.scheduler.has_work())
    @rule(limits=st.lists(token_limits, min_size=4, max_size=8), seconds=st.sampled_from((10.0, 10.0, 0.003)))
    def steps(self, limits: list[int | None], seconds: float) -> None:
        for limit in limits:
            self.world.step(limit, seconds)

    @precondition(lambda self: self.world.scheduler.has_work())
    @rule(limit=token_limits)
    def long_steps(self, limit: int | None) -> None:
        for _ in range(12):
            self.world.step(limit)

    @precondition(lambda self: len(self.world.outstanding) < 3)
    @rule(limit=st.sampled_from((None, 1, 2, 4)))
    def begin_step(self, limit: int | None) -> None:
        self.world.plan(limit)

    @precondition(lambda self: self.world.outstanding)
    @rule(pick=st.integers(0, 2), failure=st.sampled_from(("", "", "", "row", "row", "whole")))
    def end_step(self, pick: int, failure: str) -> None:
        plan = self.world.outstanding[pick % len(self.world.outstanding)]
        keys: frozenset[SequenceKey] = frozenset()
        if failure == "row":
            row = plan.rows[pick % len(plan.rows)]
            keys = frozenset({row.samples[pick % len(row.samples)].key if row.samples else row.key})
        self.world.finish(plan, keys, whole=failure == "whole")

    @precondition(lambda self: self.world.open_requests())
    @rule(pick=st.integers(0, 9))
    def abort(self, pick: int) -> None:
        names = self.world.open_requests()
        self.world.abort(names[pick % len(names)])

    @precondition(lambda self: self.world.open_requests())
    @rule(pick=st.integers(0, 9), choice=st.integers(0, 2))
    def stop_choice(self, pick: int, choice: int) -> None:
        names = self.world.open_requests()
        name = names[pick % len(names)]
        self.world.stop_choice(name, choice % len(self.world.records[name].given))

    @rule(blocks=st.one_of(st.just(12), st.integers(1, 12)))
    def change_budget(self, blocks: int) -> None:
        self.world.change(PolicyChange(kv_blocks=min(blocks, self.world.settings.num_blocks)))

    @rule()
    def reset_cache(self) -> None:
        self.world.change(PolicyChange(reset_prefix_cache=True))

    @rule(sequences=st.integers(1, 6), percent=st.sampled_from((0, 30)))
    def change_admission(self, sequences: int, percent: int) -> None:
        self.world.change(PolicyChange(max_sequences=sequences, watermark_percent=percent))

    @rule(seconds=st.sampled_from((1.0, 4.0, 4.0, 25.0)))
    def tick(self, seconds: float) -> None:
        self.world.tick(seconds)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.drain(self.names % 4 or None)
