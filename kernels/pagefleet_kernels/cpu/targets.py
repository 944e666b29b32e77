"""Which instruction set to compile for: decided from the machine's name and the CPU's flags alone."""

import platform
from dataclasses import dataclass
from pathlib import Path

_V2 = frozenset({"cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3"})
_V3 = _V2 | {"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"}
_V4 = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}


@dataclass(frozen=True, slots=True)
class Target:
    """A compilation of the library. `needs` are flags as /proc/cpuinfo writes them."""

    name: str
    flags: tuple[str, ...]
    needs: frozenset[str] = frozenset()


# Best first.
X86_TARGETS = (
    Target(
        "x86-64-v4-bf16", ("-march=x86-64-v4", "-mavx512bf16", "-mavx512vnni"), _V4 | {"avx512_bf16", "avx512_vnni"}
    ),
    Target("x86-64-v4-vnni", ("-march=x86-64-v4", "-mavx512vnni"), _V4 | {"avx512_vnni"}),
    Target("x86-64-v4", ("-march=x86-64-v4",), _V4),
    Target("x86-64-v3", ("-march=x86-64-v3",), _V3),
    Target("x86-64-v2", ("-march=x86-64-v2",), _V2),
)
# Elsewhere the compiler of the machine knows best; such a library must not travel to another machine.
NATIVE = Target("native", ("-mcpu=native",))


def choose_target(machine: str, cpu_flags: frozenset[str]) -> Target | None:
    """Return the best target that the CPU can run; None for an x86 that is older than all of them."""
    if machine.lower() not in ("x86_64", "amd64"):
        return NATIVE
    return next((target for target in X86_TARGETS if target.needs <= cpu_flags), None)


def this_machine() -> tuple[str, frozenset[str]]:
    """Return the machine's name and the CPU's flags (none where the system doesn't list them)."""
    listing = Path("/proc/cpuinfo")
    text = listing.read_text() if listing.exists() else ""
    line = next((line for line in text.splitlines() if line.startswith("flags")), ":")
    return platform.machine(), frozenset(line.split(":", 1)[1].split())
