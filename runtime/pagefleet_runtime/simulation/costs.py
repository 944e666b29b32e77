"""How long a simulated step takes: as measured for the real engine, or an estimate from a GPU's data sheet.

What was measured stands in step_costs.json, which `python -m tests.bench.step_costs` writes.
"""

import json
from dataclasses import dataclass
from importlib.resources import files

from pagefleet_contract.accelerators import Accelerator
from pagefleet_contract.capacity import bytes_per_token
from pagefleet_contract.model_figures import KnownModel
from pagefleet_runtime.simulation.executor import StepSeconds
from pagefleet_runtime.step_cost import StepCost, StepLoad

# What of a data sheet's figure a good engine reaches, and what a step costs before anything is computed.
_BANDWIDTH_SHARE = 0.75
_OPERATIONS_SHARE = 0.5
_LAYER_SECONDS = 25e-6  # launching a layer's kernels
_LINK_SECONDS = 20e-6  # per layer, where several devices must agree twice


@dataclass(frozen=True, slots=True)
class Cost:
    """A cost model and, in words, where it comes from."""

    model: StepSeconds
    origin: str


@dataclass(frozen=True, slots=True)
class Roofline:
    """Weights are read once a step and KV once a row; arithmetic goes on meanwhile. The slower of the two counts."""

    weights_seconds: float
    token_seconds: float  # arithmetic of one token in all weights
    pair_seconds: float  # arithmetic of one (token, context token) pair
    context_token_seconds: float  # reading one token's keys and values
    fixed_seconds: float

    def seconds(self, load: StepLoad) -> float:
        tokens = load.decode_rows + load.prefill_tokens
        reading = self.weights_seconds + self.context_token_seconds * (load.decode_context_tokens + load.prefill_tokens)
        arithmetic = self.token_seconds * tokens + self.pair_seconds * (load.decode_context_tokens + load.prefill_pairs)
        return self.fixed_seconds + max(reading, arithmetic)


def roofline(model: KnownModel, accelerator: Accelerator, kv_dtype: str) -> Roofline:
    bandwidth = accelerator.bytes_per_second * _BANDWIDTH_SHARE
    operations = accelerator.operations_per_second * _OPERATIONS_SHARE
    between = _LINK_SECONDS if accelerator.count > 1 else 0.0
    return Roofline(
        # A mixture's step reads all experts as soon as a few tokens are in it.
        weights_seconds=model.weights_bytes / bandwidth,
        token_seconds=2 * model.active_parameters / operations,
        pair_seconds=4 * model.num_layers * model.num_heads * model.head_size / operations,
        context_token_seconds=bytes_per_token(model.shape, kv_dtype) / bandwidth,
        fixed_seconds=model.num_layers * (_LAYER_SECONDS + between),
    )


@dataclass(frozen=True, slots=True)
class MeasuredCosts:
    """The real engine's step times for one model on one machine."""

    model: str
    machine: str
    cost: StepCost


def measured_costs() -> MeasuredCosts:
    text = files("pagefleet_runtime.simulation").joinpath("step_costs.json").read_text("utf-8")
    table = json.loads(text)
    return MeasuredCosts(table["model"], table["machine"], StepCost(**table["cost"]))


def scaled(measured: MeasuredCosts, source: KnownModel, target: KnownModel) -> StepCost:
    """Return what another model's steps would take on the same machine: weights and pairs by their numbers."""
    weights = target.active_parameters / source.active_parameters
    layers = target.num_layers / source.num_layers
    pairs = layers * (target.num_heads * target.head_size) / (source.num_heads * source.head_size)
    stored = bytes_per_token(target.shape, "bfloat16") / bytes_per_token(source.shape, "bfloat16")
    cost = measured.cost
    return StepCost(
        base_seconds=cost.base_seconds * weights,
        decode_row_seconds=cost.decode_row_seconds * weights,
        decode_context_seconds=cost.decode_context_seconds * stored,
        prefill_token_seconds=cost.prefill_token_seconds * weights,
        prefill_pair_seconds=cost.prefill_pair_seconds * pairs,
    )
