"""Tile sizes per chip family, kind of cache, head size and phase, as data: nothing is tuned while serving.

Every entry is compiled ahead of time for its family by pagefleet_kernels.aot, which refuses spills and too much shared
memory. None has been timed on a card; the sizes follow the compiler's report and published kernels.
"""

from dataclasses import dataclass
from typing import Literal, get_args

Family = Literal["sm_80", "sm_90", "sm_100", "gfx942"]
CacheKind = Literal["half", "float32", "int8", "fp8"]
Phase = Literal["decode", "prefill"]

FAMILIES: tuple[Family, ...] = get_args(Family)
# Head sizes are padded to a power of two; the table holds one entry for each of these.
HEAD_SIZES = (64, 128, 256)
DECODE_ROWS = 16  # the smallest tile that the matrix units take


@dataclass(frozen=True, slots=True)
class TileConfig:
    """One program's share: `rows` queries times heads of a group, `keys` positions at a time."""

    rows: int
    keys: int
    num_warps: int
    num_stages: int


@dataclass(frozen=True, slots=True)
class Chip:
    """What the choice of tiles and splits depends on."""

    family: Family
    num_processors: int


def nvidia_family(major: int, minor: int) -> Family:
    """Return whose tiles a compute capability takes. Consumer Blackwell (12.x) has neither the matrix units nor the
    shared memory of the data centre's, so it takes Ampere's. Raises ValueError where there are none."""
    if major in (10, 11):
        return "sm_100"
    if major in (8, 12):
        return "sm_80"
    if major == 9:
        return "sm_90"
    raise ValueError(f"the GPU has compute capability {major}.{minor}; kernels are built for 8.0 and above")


def amd_family(architecture: str) -> Family:
    """Return whose tiles an architecture (`gfx942:sramecc+`) takes. Raises ValueError where there are none."""
    if architecture.split(":")[0] in ("gfx942", "gfx950"):
        return "gfx942"
    raise ValueError(f"the GPU is a {architecture}; kernels are built for gfx942")


def _c(rows: int, keys: int, num_warps: int, num_stages: int = 2) -> TileConfig:
    return TileConfig(rows, keys, num_warps, num_stages)


# For each family, kind and phase: head size 64, 128, 256.
_TABLE: dict[tuple[Family, CacheKind, Phase], tuple[TileConfig, TileConfig, TileConfig]] = {
    ("sm_80", "half", "decode"): (_c(16, 64, 4), _c(16, 64, 4), _c(16, 32, 4)),
    ("sm_80", "half", "prefill"): (_c(128, 64, 8), _c(128, 32, 8), _c(64, 32, 8)),
    ("sm_80", "float32", "decode"): (_c(16, 32, 4), _c(16, 16, 4), _c(16, 16, 4)),
    ("sm_80", "float32", "prefill"): (_c(32, 16, 4), _c(32, 16, 8), _c(32, 16, 8)),
    ("sm_80", "int8", "decode"): (_c(16, 64, 4), _c(16, 64, 8), _c(16, 32, 8)),
    ("sm_80", "int8", "prefill"): (_c(64, 64, 8), _c(64, 64, 8), _c(64, 32, 8)),
    ("sm_80", "fp8", "decode"): (_c(16, 64, 4), _c(16, 64, 8), _c(16, 32, 8)),
    ("sm_80", "fp8", "prefill"): (_c(64, 64, 8), _c(64, 64, 8), _c(64, 32, 8)),
    ("sm_90", "half", "decode"): (_c(16, 64, 4), _c(16, 64, 4), _c(16, 32, 4)),
    ("sm_90", "half", "prefill"): (_c(128, 64, 8), _c(128, 64, 8), _c(128, 32, 8)),
    ("sm_90", "float32", "decode"): (_c(16, 32, 4), _c(16, 16, 4), _c(16, 16, 4)),
    ("sm_90", "float32", "prefill"): (_c(32, 16, 4), _c(32, 16, 8), _c(32, 16, 8)),
    ("sm_90", "int8", "decode"): (_c(16, 64, 8), _c(16, 64, 8), _c(16, 32, 4)),
    ("sm_90", "int8", "prefill"): (_c(128, 64, 8), _c(128, 64, 8), _c(64, 32, 8)),
    ("sm_90", "fp8", "decode"): (_c(16, 64, 8), _c(16, 64, 8), _c(16, 32, 8)),
    ("sm_90", "fp8", "prefill"): (_c(128, 64, 8), _c(128, 64, 8), _c(64, 32, 8)),
    ("sm_100", "half", "decode"): (_c(16, 64, 4), _c(16, 64, 4), _c(16, 32, 4)),
    ("sm_100", "half", "prefill"): (_c(128, 128, 8), _c(128, 64, 8), _c(64, 32, 8)),
    ("sm_100", "float32", "decode"): (_c(16, 32, 4), _c(16, 16, 4), _c(16, 16, 4)),
    ("sm_100", "float32", "prefill"): (_c(32, 16, 4), _c(32, 16, 8), _c(32, 16, 8)),
    ("sm_100", "int8", "decode"): (_c(16, 64, 4), _c(16, 64, 8), _c(16, 32, 4)),
    ("sm_100", "int8", "prefill"): (_c(128, 64, 8), _c(128, 64, 8), _c(64, 32, 8)),
    ("sm_100", "fp8", "decode"): (_c(16, 64, 4), _c(16, 64, 8), _c(16, 32, 8)),
    ("sm_100", "fp8", "prefill"): (_c(64, 64, 4), _c(128, 64, 8), _c(64, 32, 8)),
    ("gfx942", "half", "decode"): (_c(16, 32, 4), _c(16, 32, 4), _c(16, 16, 4)),
    ("gfx942", "half", "prefill"): (_c(64, 32, 4), _c(64, 32, 4), _c(64, 16, 8)),
    ("gfx942", "float32", "decode"): (_c(16, 32, 4), _c(16, 32, 4), _c(16, 16, 4)),
    ("gfx942", "float32", "prefill"): (_c(32, 32, 4), _c(32, 32, 8), _c(32, 16, 8)),
    ("gfx942", "int8", "decode"): (_c(16, 32, 2), _c(16, 32, 4), _c(16, 16, 4)),
    ("gfx942", "int8", "prefill"): (_c(64, 32, 4), _c(64, 32, 8), _c(64, 16, 8)),
    ("gfx942", "fp8", "decode"): (_c(16, 32, 2), _c(16, 32, 4), _c(16, 16, 4)),
    ("gfx942", "fp8", "prefill"): (_c(64, 32, 4), _c(64, 32, 4), _c(64, 16, 8)),
}


def choose_config(family: Family, kind: CacheKind, head_size: int, group: int, longest_row: int) -> TileConfig:
    """Return the tiles for rows of up to `longest_row` queries: the decode tile as long as they fit into it.

    Raises ValueError where one token's group of query heads fits into no tile, or a head is too large.
    """
    if head_size > HEAD_SIZES[-1]:
        raise ValueError(f"head size {head_size} is larger than {HEAD_SIZES[-1]}, the largest that has tiles")
    phase: Phase = "decode" if longest_row * group <= DECODE_ROWS else "prefill"
    config = _entry(family, kind, phase, head_size)
    if group > config.rows:
        raise ValueError(f"{group} query heads share a key-value head; a tile for {head_size} holds {config.rows}")
    return config


def has_tiles(family: Family, kind: CacheKind, head_size: int, group: int) -> bool:
    """Whether `choose_config` knows tiles for rows of any length."""
    return head_size <= HEAD_SIZES[-1] and group <= _entry(family, kind, "prefill", head_size).rows


def _entry(family: Family, kind: CacheKind, phase: Phase, head_size: int) -> TileConfig:
    size = next(index for index, size in enumerate(HEAD_SIZES) if head_size <= size)
    return _TABLE[family, kind, phase][size]


def shipped_configs(family: Family) -> dict[tuple[CacheKind, Phase, int], TileConfig]:
    """Return every entry of a family by kind, phase and head size."""
    return {
        (kind, phase, size): config
        for (entry_family, kind, phase), configs in _TABLE.items()
        if entry_family == family
        for size, config in zip(HEAD_SIZES, configs, strict=True)
    }
