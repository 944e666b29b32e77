"""What a compiled kernel uses, and the file that remembers it per Triton version."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from pagefleet_kernels.paged_attention.configs import Family


@dataclass(frozen=True, slots=True)
class Resources:
    """`spilled`: bytes of a thread's stack on NVIDIA, spilled registers (vector and scalar) on AMD. `shared_bytes` of a
    program. Counts are instructions in the text: 16-byte copies to or from memory, matrix products, and those among
    them of the chip's newest units."""

    registers: int
    spilled: int
    shared_bytes: int
    wide_copies: int
    matrix_products: int
    newest_products: int


Baseline = dict[Family, dict[str, Resources]]


def load_baseline(triton_version: str) -> Baseline:
    """Return what was stored for a Triton version. Raises FileNotFoundError where nothing was."""
    stored = json.loads(_path(triton_version).read_text())
    return {
        family: {name: Resources(**numbers) for name, numbers in builds.items()} for family, builds in stored.items()
    }


def save_baseline(triton_version: str, baseline: Baseline) -> Path:
    path = _path(triton_version)
    plain = {
        family: {name: asdict(resources) for name, resources in builds.items()} for family, builds in baseline.items()
    }
    path.write_text(json.dumps(plain, indent=1) + "\n")
    return path


def _path(triton_version: str) -> Path:
    return Path(__file__).parent / f"baseline-{triton_version}.json"
