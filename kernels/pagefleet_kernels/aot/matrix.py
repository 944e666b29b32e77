"""Every shipped kernel and configuration, as launches on tensors without memory: what the code would launch."""

from dataclasses import dataclass
from typing import Literal, get_args

import torch

from pagefleet_kernels.kv_write.gpu import kv_write_launch
from pagefleet_kernels.launch import Launch
from pagefleet_kernels.page_copy.gpu import as_words, copies_launch
from pagefleet_kernels.paged_attention.batch import AttentionBatch, BatchRow
from pagefleet_kernels.paged_attention.call import AttentionCall
from pagefleet_kernels.paged_attention.configs import CacheKind, Chip, Family, Phase, shipped_configs
from pagefleet_kernels.paged_attention.gpu import attention_launch, merge_launch, plan_attention
from pagefleet_kernels.quantised_kv.scales import CacheScales, Fp8Scales, Int8Scales

_META = torch.device("meta")
_BLOCK_SIZE = 16
_GROUP = 4
_KV_HEADS = 8
_PAGES = 64
_STORED = {"half": torch.bfloat16, "float32": torch.float32, "int8": torch.int8, "fp8": torch.uint8}


MatrixUnits = Literal["none", "any", "newest"]


@dataclass(frozen=True, slots=True)
class Build:
    """One kernel in one configuration for one chip family. `matrix_units` says which it must use: the chip's newest
    (tiles of 64 rows and more), any, or none (exact float32 on NVIDIA, and kernels that move data)."""

    name: str
    family: Family
    launch: Launch
    matrix_units: MatrixUnits


def shipped_builds(family: Family) -> list[Build]:
    """Return the builds of a family: each attention configuration with its keys in splits and whole (a decode of few
    rows and one that fills the chip, a chunk behind a long context and a prompt), those of half precision also with
    all features at once, and the kernels that move data."""
    builds = []
    for kind, phase, size in shipped_configs(family):
        name = f"attention-{kind}-{phase}-{size}"
        units = _matrix_units(family, kind, phase)
        # Decode is commonest in splits, prefill without.
        rarer = "whole" if phase == "decode" else "split"
        builds.append(Build(name, family, _attention(family, kind, phase, size, phase == "decode"), units))
        builds.append(Build(f"{name}-{rarer}", family, _attention(family, kind, phase, size, phase != "decode"), units))
        if kind == "half":
            launch = _attention(family, kind, phase, size, in_splits=True, features=True)
            builds.append(Build(f"{name}-features", family, launch, units))
    for phase in get_args(Phase):
        # A size that is no power of two: a fifth of each tile is padding, and copies must stay whole.
        launch = _attention(family, "half", phase, 80, phase == "decode")
        builds.append(Build(f"attention-half-{phase}-80", family, launch, _matrix_units(family, "half", phase)))
    builds += [Build(f"merge-{size}", family, _merge(family, size), "none") for size in (64, 128, 256)]
    builds += [Build(f"kv-write-{kind}", family, _write(kind), "none") for kind in get_args(CacheKind)]
    builds += [Build(name, family, launch, "none") for name, launch in _copies().items()]
    return builds


def _matrix_units(family: Family, kind: CacheKind, phase: Phase) -> MatrixUnits:
    if kind == "float32" and family != "gfx942":
        return "none"
    return "newest" if phase == "prefill" else "any"


def _attention(
    family: Family, kind: CacheKind, phase: Phase, size: int, in_splits: bool, features: bool = False
) -> Launch:
    batch = AttentionBatch(
        rows=(BatchRow(1 if phase == "decode" else 128, start_position=2048, block_table=tuple(range(136))),),
        block_size=_BLOCK_SIZE,
    )
    plan = plan_attention(batch, _GROUP, size, kind, Chip(family, 100), _META)
    # A step's number of tokens is rarely a multiple of anything.
    query = _tensor(batch.num_tokens, _GROUP * _KV_HEADS, size, dtype=_query_dtype(kind))
    pages, scales = _cache(kind, size)
    output = torch.empty((2, *query.shape) if in_splits else query.shape, device=_META)
    call = AttentionCall(
        query,
        *pages,
        batch,
        scale=0.1,
        window=1024 if features else None,
        softcap=50.0 if features else None,
        sinks=_tensor(_GROUP * _KV_HEADS, dtype=torch.float32) if features else None,
        scales=scales,
    )
    return attention_launch(
        output if in_splits else output.to(query.dtype),
        _tensor(*output.shape[:-1], dtype=torch.float32) if in_splits else None,
        call,
        plan,
        2 if in_splits else 1,
    )


def _query_dtype(kind: CacheKind) -> torch.dtype:
    return torch.float32 if kind == "float32" else torch.bfloat16


def _cache(kind: CacheKind, size: int) -> tuple[tuple[torch.Tensor, torch.Tensor], CacheScales | None]:
    """Return a layer's pages out of block-major memory of four layers, and the scales that belong to them."""
    layers = _tensor(_PAGES, 8, _BLOCK_SIZE, _KV_HEADS, size, dtype=_STORED[kind])
    pages = (layers[:, 2], layers[:, 3])
    if kind == "int8":
        both = _tensor(_PAGES, 2, _KV_HEADS, _BLOCK_SIZE, dtype=torch.float32)
        return pages, Int8Scales(both[:, 0], both[:, 1])
    if kind == "fp8":
        return pages, Fp8Scales(0.5, 0.5)
    return pages, None


def _merge(family: Family, size: int) -> Launch:
    batch = AttentionBatch(rows=(BatchRow(1, start_position=2048, block_table=tuple(range(129))),), block_size=16)
    plan = plan_attention(batch, _GROUP, size, "half", Chip(family, 100), _META)
    output = _tensor(1, _GROUP * _KV_HEADS, size, dtype=torch.bfloat16)
    partial = _tensor(7, *output.shape, dtype=torch.float32)
    return merge_launch(output, partial, _tensor(*partial.shape[:-1], dtype=torch.float32), plan)


def _write(kind: CacheKind) -> Launch:
    new = _tensor(33, 3 * _KV_HEADS, 128, dtype=_query_dtype(kind))
    pages, scales = _cache(kind, 128)
    slots = _tensor(33, dtype=torch.int64)
    return kv_write_launch(new[:, :_KV_HEADS], new[:, _KV_HEADS : 2 * _KV_HEADS], *pages, slots, scales)


def _copies() -> dict[str, Launch]:
    words = as_words(_tensor(_PAGES, 1 << 20, dtype=torch.uint8))
    index = _tensor(7, dtype=torch.int32)
    return {
        "page-copy": copies_launch(words, words, index, index, 7),
        "page-gather": copies_launch(words, words, None, index, 7),
        "page-scatter": copies_launch(words, words, index, None, 7),
    }


def _tensor(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device=_META)
