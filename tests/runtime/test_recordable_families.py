"""Which families' decode steps can be recorded as a graph: on the meta device, where tensors hold no numbers, a forward
that reads one back, or whose shapes depend on one, fails as it would while it is recorded."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from pagefleet_kernels.choice import Kernels
from pagefleet_kernels.paged_attention.call import AttentionCall
from pagefleet_kernels.paged_attention.configs import Chip
from pagefleet_kernels.triton_pages import TritonPages
from pagefleet_runtime.model_executor.attention import ATTENTION_NAME, register_attention
from pagefleet_runtime.model_executor.bucketed_model import BucketedModel, Forward
from pagefleet_runtime.model_executor.kv_cache import KVCache
from pagefleet_runtime.model_executor.paged_model import PagedModel
from pagefleet_runtime.models.layer_shapes import observe_layers
from tests.runtime.tiny_models import RIGHT_FAMILIES, tiny_config

META = torch.device("meta")
# What runs their experts depends on the device, so that this one says nothing of a GPU.
WITH_EXPERTS = {"gpt_oss", "deepseek_v3", "mixtral"}


class NoWriter:
    def write(self, *_: Any) -> None:
        pass


class MetaPages(TritonPages):
    """Triton's kernels where none can be launched."""

    def writer(self, *_: Any) -> NoWriter:
        return NoWriter()

    def attend(self, call: AttentionCall) -> torch.Tensor:
        return call.new_output()


def run_once(forward: Forward) -> Forward:
    forward()
    return forward


def meta_model(family: str) -> Any:
    model: Any = AutoModelForCausalLM.from_config(tiny_config(family), dtype=torch.float32)  # type: ignore[no-untyped-call]
    return model.eval()


def record(model: Any) -> None:
    register_attention()
    layers = observe_layers(model)
    model.set_attn_implementation(ATTENTION_NAME)
    model.to(META)
    cache = KVCache(layers, 8, 16, torch.float32, META, Kernels(MetaPages(Chip("sm_90", 132))))
    BucketedModel(PagedModel(model), cache, 4, 64, run_once)


@pytest.mark.parametrize("family", sorted(RIGHT_FAMILIES.keys() - WITH_EXPERTS))
def test_a_familys_forward_reads_nothing_back(family: str) -> None:
    record(meta_model(family))


@pytest.mark.parametrize("read", [lambda x: x.sum().item(), lambda x: x[x > 0]], ids=["a number", "a shape"])
def test_a_forward_that_reads_something_back_is_found(read: Callable[[torch.Tensor], object]) -> None:
    model = meta_model("llama")

    def reading(module: torch.nn.Module, inputs: tuple[torch.Tensor]) -> None:
        read(inputs[0])

    model.lm_head.register_forward_pre_hook(reading)

    with pytest.raises((RuntimeError, NotImplementedError), match=r"[Mm]eta"):
        record(model)
