"""Accelerators by name: bandwidth and arithmetic (dense, 16-bit) as their vendors state them, memory as their drivers
report it. Nothing of it was measured here."""

import re
from dataclasses import dataclass

_MANY = re.compile(r"(?:(?P<count>[1-9][0-9]{0,2})x)?(?P<name>[a-z0-9][a-z0-9-]*)")
_GIB = 2**30
_TERA = 10**12


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One device, or `count` of them that hold one model together."""

    name: str
    memory_bytes: int  # of all
    bytes_per_second: int  # from their memory, of all
    operations_per_second: int  # multiplications and additions in bfloat16 or float16, of all
    count: int = 1


def _device(name: str, gibibytes: int, terabytes_per_second: float, teraflops: float) -> Accelerator:
    return Accelerator(name, gibibytes * _GIB, round(terabytes_per_second * _TERA), round(teraflops * _TERA))


ACCELERATORS: tuple[Accelerator, ...] = (
    _device("a100-40gb", 40, 1.555, 312),
    _device("a100-80gb", 80, 2.039, 312),
    _device("h100", 79, 3.35, 989.5),
    _device("h200", 140, 4.8, 989.5),
    _device("b200", 178, 8.0, 2250),
    _device("l4", 22, 0.3, 121),
    _device("l40s", 44, 0.864, 362),
    _device("a10", 22, 0.6, 125),
    _device("t4", 15, 0.32, 65),
    _device("mi300x", 191, 5.3, 1307),
)


def find_accelerator(text: str) -> Accelerator | None:
    """Return what `NAME` or `COUNTxNAME` (such as 4xh100) means; None where the name isn't known."""
    match = _MANY.fullmatch(text.lower())
    found = next((one for one in ACCELERATORS if match and one.name == match["name"]), None)
    if found is None or match is None:
        return None
    count = int(match["count"] or 1)
    return Accelerator(
        found.name,
        found.memory_bytes * count,
        found.bytes_per_second * count,
        found.operations_per_second * count,
        count,
    )
