"""Which kernels serve a model, and what is said where something is not theirs or can't be had."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from pagefleet_contract.capacity import LayerShape
from pagefleet_kernels.choice import Kernels, choose_kernels
from pagefleet_kernels.pages import PLAIN_PAGES, PlainPages
from pagefleet_runtime.errors import ModelRefused
from pagefleet_runtime.models.kernels import plain_notes, proven_kernels
from pagefleet_runtime.models.layer_shapes import AttentionLayer
from pagefleet_runtime.models.linears import LinearPacker
from pagefleet_runtime.models.ranks import Alone
from tests.runtime.tiny_models import tiny_config

CPU = torch.device("cpu")


class FailingPages(PlainPages):
    """Kernels on a chip that their compiler gets wrong."""

    name = "failing"

    def attend(self, *_: Any, **__: Any) -> torch.Tensor:
        raise RuntimeError("no such instruction")


class OtherRankFails(Alone):
    def least(self, value: int) -> int:
        return 0


def test_kernels_that_fail_on_the_structure_leave_plain_ones_and_a_sentence() -> None:
    proven = proven_kernels(tiny_config("llama"), Kernels(FailingPages()), Alone(), CPU)

    assert proven.pages is PLAIN_PAGES
    assert proven.notes == ("kernels are plain PyTorch, many times slower at decoding: no such instruction",)


@pytest.mark.parametrize(
    ("pages", "ranks", "reason"),
    [
        (FailingPages(), Alone(), "no such instruction"),
        (PLAIN_PAGES, OtherRankFails(), "another rank can't use them"),
    ],
)
def test_int8_weights_are_refused_with_what_to_do_where_the_kernels_fail(
    pages: PlainPages, ranks: Alone, reason: str
) -> None:
    with pytest.raises(ModelRefused, match=rf"quantization is int8.*'llama'.*{reason}; set model.quantization to none"):
        proven_kernels(tiny_config("llama"), Kernels(pages, "int8"), ranks, CPU)


def test_int8_weights_of_too_many_inputs_are_refused_with_what_to_do() -> None:
    layer = torch.nn.Linear(133_145, 1, device="meta")

    with pytest.raises(ModelRefused, match=r"133145 inputs.*for up to 133144; set model.quantization to none"):
        LinearPacker(Kernels(linears="int8")).join([layer])


@dataclass(frozen=True)
class Attends:
    """What a kernel is asked about."""

    size: int
    kv_dtype: torch.dtype

    def notes(self, kernels: Kernels) -> tuple[str, ...]:
        layers = [AttentionLayer(LayerShape(2, size, size), 4) for size in (64, self.size)]
        return plain_notes(layers, torch.bfloat16, self.kv_dtype, kernels.pages)


@pytest.mark.parametrize(
    ("attends", "costs"),
    [
        (Attends(64, torch.int8), False),
        (Attends(66, torch.bfloat16), False),
        (Attends(66, torch.int8), True),
        (Attends(65, torch.bfloat16), True),
        (Attends(320, torch.bfloat16), True),
    ],
    ids=str,
)
def test_heads_that_the_cpp_kernels_do_not_know_are_told_with_their_cost(
    attends: Attends, costs: bool, request: pytest.FixtureRequest
) -> None:
    kernels = choose_kernels("cpp", torch.bfloat16, request.config.cache.mkdir("pagefleet-kernels"))
    assert kernels.library is not None, kernels.notes

    notes = attends.notes(kernels)

    assert len(notes) == costs
    assert all(
        note.startswith("attention is plain PyTorch's in 1 of 2 layers, many times slower at decoding: the C++ kernels")
        for note in notes
    )


def test_plain_kernels_have_nothing_to_tell() -> None:
    assert Attends(65, torch.int8).notes(Kernels()) == ()
