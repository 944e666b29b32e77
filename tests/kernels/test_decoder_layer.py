"""A decoder layer in one call gives what its operations give one after the other, to the bit."""

from dataclasses import dataclass

import pytest
import torch

from pagefleet_kernels.cpu import CpuLibrary
from pagefleet_kernels.cpu.cache import PageWriter, Rotation
from pagefleet_kernels.decoder_layer import DecoderLayer, LayerMemory, LayerNorm, LayerStep, LayerWeights
from pagefleet_kernels.decoder_layer.memory import LayerWidths
from pagefleet_kernels.gated_activation import Activation
from pagefleet_kernels.paged_attention import AttentionBatch, BatchRow
from pagefleet_kernels.paged_attention.call import AttentionCall
from pagefleet_kernels.paged_attention.cpu import paged_attention_cpu
from pagefleet_kernels.prepacked_linear import LinearCall, PrepackedLinear
from pagefleet_kernels.rms_norm import rms_norm

HIDDEN, HEADS, KV_HEADS, SIZE, INNER, BLOCK_SIZE = 52, 6, 2, 12, 70, 8
EPSILON = 1e-5


@dataclass(frozen=True)
class Case:
    dtype: torch.dtype = torch.bfloat16
    window: int | None = None
    softcap: float | None = None
    head_norms: bool = False
    output_norms: bool = False
    int8: bool = False


CASES = (
    Case(),
    Case(dtype=torch.float32, window=9),
    Case(head_norms=True, output_norms=True, softcap=20.0),
    Case(int8=True),
)


class Parts:
    """A layer's weights and pages, and what its operations give when they are called one by one."""

    def __init__(self, library: CpuLibrary, case: Case) -> None:
        self.library, self.case = library, case
        generator = torch.Generator().manual_seed(3)

        def linear(outputs: int, inputs: int, gated: bool = False) -> PrepackedLinear:
            weight = (torch.randn(outputs, inputs, generator=generator) / inputs**0.5).to(case.dtype)
            bias = torch.randn(outputs, generator=generator).to(case.dtype)
            activation: Activation | None = "silu" if gated else None
            return PrepackedLinear([weight], [bias], library, None, activation, "int8" if case.int8 else "none")

        def norm(size: int = HIDDEN) -> LayerNorm:
            return LayerNorm(torch.rand(size, generator=generator) + 0.5, EPSILON)

        self.qkv, self.out = linear((HEADS + 2 * KV_HEADS) * SIZE, HIDDEN), linear(HIDDEN, HEADS * SIZE)
        self.gate, self.down = linear(2 * INNER, HIDDEN, gated=True), linear(HIDDEN, INNER)
        self.attention_norm, self.mlp_norm = norm(), norm()
        self.output_norms = (norm(), norm()) if case.output_norms else (None, None)
        self.head_norms = (norm(SIZE).weight, norm(SIZE).weight, EPSILON) if case.head_norms else (None, None, 0.0)

    def pages(self) -> tuple[torch.Tensor, torch.Tensor]:
        pages = torch.full((2, 9, BLOCK_SIZE, KV_HEADS, SIZE), float("nan"), dtype=self.case.dtype)
        return pages[0], pages[1]

    def as_one(self, memory: LayerMemory) -> DecoderLayer:
        def call(layer: PrepackedLinear) -> LinearCall:
            made = layer.library_call()
            assert made is not None
            return made

        weights = LayerWeights(
            attention_norm=self.attention_norm,
            mlp_norm=self.mlp_norm,
            attention_output_norm=self.output_norms[0],
            mlp_output_norm=self.output_norms[1],
            head_norms=self.head_norms,
            qkv=call(self.qkv),
            out=call(self.out),
            gate=call(self.gate),
            down=call(self.down),
        )
        return DecoderLayer(
            self.library, weights, memory, num_heads=HEADS, num_kv_heads=KV_HEADS, head_size=SIZE,
            scale=SIZE**-0.5, window=self.case.window, softcap=self.case.softcap,
        )  # fmt: skip

    def one_by_one(self, residual: torch.Tensor, unadded: torch.Tensor | None, step: LayerStep) -> torch.Tensor:
        x = residual if unadded is None else unadded
        heads = self.qkv(self._norm(self.attention_norm, x, residual if unadded is not None else None))
        query, key, value = heads.view(len(x), -1, SIZE).split((HEADS, KV_HEADS, KV_HEADS), dim=1)
        step.writer.write(key, value, step.slots, Rotation(query, step.cosine, step.sine, *self.head_norms))
        attended = paged_attention_cpu(
            self.library,
            AttentionCall(
                query,
                *step.writer.pages,
                step.batch,
                scale=SIZE**-0.5,
                window=self.case.window,
                softcap=self.case.softcap,
            ),
        )
        projected = self._norm(self.output_norms[0], self.out(attended.flatten(1)))
        normed = self._norm(self.mlp_norm, projected, residual)
        return self._norm(self.output_norms[1], self.down(self.gate(normed)))

    def _norm(self, norm: LayerNorm | None, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        if norm is None:
            return x
        return rms_norm(x, norm.weight, norm.epsilon, residual=residual, library=self.library)


def _step(case: Case, writer: PageWriter, rows: tuple[tuple[int, int, tuple[int, ...]], ...]) -> LayerStep:
    """A step of (tokens, first position, block table) rows."""
    batch = AttentionBatch(tuple(BatchRow(*row) for row in rows), BLOCK_SIZE)
    places = [(table, start + i) for count, start, table in rows for i in range(count)]
    slots = [table[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE for table, position in places]
    angles = torch.rand(2, len(slots), SIZE).to(case.dtype)
    return LayerStep(batch, torch.tensor(slots), angles[0], angles[1], writer)


@pytest.mark.parametrize("case", CASES)
def test_a_layer_in_one_call_gives_what_its_operations_give(library: CpuLibrary, case: Case) -> None:
    parts, memory = Parts(library, case), LayerMemory()
    writers = [PageWriter(library, *parts.pages()) for _ in range(2)]
    layer = parts.as_one(memory)
    residuals, left = [torch.empty(0)] * 2, [torch.empty(0)] * 2
    # Two prompts, then decodes of both, then a chunk beside a decode: the number of tokens changes and stays.
    for rows in (
        ((11, 0, (4, 1)), (3, 0, (2,))),
        ((1, 11, (4, 1)), (1, 3, (2,))),
        ((1, 12, (4, 1)), (1, 4, (2,))),
        ((9, 5, (2, 7)), (1, 13, (4, 1))),
    ):
        steps = [_step(case, writers[0], rows)]
        steps.append(LayerStep(steps[0].batch, steps[0].slots, steps[0].cosine, steps[0].sine, writers[1]))
        hidden = torch.randn(len(steps[0].slots), HIDDEN).to(case.dtype)
        residuals = [hidden.clone(), hidden.clone()]
        # Twice: as a first layer, and as one that finds what another left.
        left = [layer.run(residuals[0], None, steps[0]), parts.one_by_one(residuals[1], None, steps[1])]
        assert torch.equal(left[0], left[1])
        left = [layer.run(residuals[0], left[0], steps[0]), parts.one_by_one(residuals[1], left[1], steps[1])]

        assert torch.equal(left[0], left[1])
        assert torch.equal(residuals[0], residuals[1])
        assert not left[0].isnan().any()
        for ours, meant in zip(writers[0].pages, writers[1].pages, strict=True):
            assert torch.equal(ours.nan_to_num(7.0), meant.nan_to_num(7.0))


def test_a_slot_that_is_not_there_is_named_and_nothing_is_written(library: CpuLibrary) -> None:
    parts = Parts(library, Case())
    writer = PageWriter(library, *parts.pages())
    step = _step(Case(), writer, ((2, 0, (4,)),))
    wrong = LayerStep(step.batch, torch.tensor([32, 72]), step.cosine, step.sine, writer)

    with pytest.raises(ValueError, match="slot 72 of token 1 isn't there; the pages have slots 0 to 71"):
        parts.as_one(LayerMemory()).run(torch.zeros(2, HIDDEN).bfloat16(), None, wrong)
    assert writer.pages[0].isnan().all()


def test_layers_share_the_memory_of_a_step() -> None:
    memory, widths = LayerMemory(), LayerWidths(hidden=4, heads=12, attended=4, gated=6)

    first = memory.take(widths, 5, torch.float32)
    wider = memory.take(LayerWidths(hidden=4, heads=20, attended=8, gated=6), 5, torch.float32)

    assert memory.take(widths, 5, torch.float32) is first
    assert first.normed.data_ptr() == wider.normed.data_ptr()
    assert memory.take(widths, 3, torch.float32).heads.shape == (3, 12)
