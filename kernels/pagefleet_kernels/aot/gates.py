"""The limits that every build is held to, and what breaks them, in words."""

from pagefleet_kernels.aot.matrix import Build
from pagefleet_kernels.aot.resources import Resources
from pagefleet_kernels.paged_attention.configs import Family

_KIB = 1024
# The sm_80 tiles also serve sm_86, sm_89 and sm_120, which have less shared memory than an A100.
_SHARED_LIMIT: dict[Family, int] = {"sm_80": 99 * _KIB, "sm_90": 227 * _KIB, "sm_100": 227 * _KIB, "gfx942": 64 * _KIB}
_REGISTER_LIMIT: dict[Family, int] = {"sm_80": 255, "sm_90": 255, "sm_100": 255, "gfx942": 256}
_REGISTER_GROWTH = 1.10


def violations(build: Build, found: Resources, stored: Resources | None) -> list[str]:
    """Return what is wrong with a build, each with its numbers; `stored` is its baseline."""
    problems = []
    if found.spilled:
        problems.append(f"spills {found.spilled}; take fewer rows or keys, or more warps")
    if found.shared_bytes > _SHARED_LIMIT[build.family]:
        problems.append(f"uses {found.shared_bytes} bytes of shared memory of {_SHARED_LIMIT[build.family]}")
    if found.registers > _REGISTER_LIMIT[build.family]:
        problems.append(f"uses {found.registers} registers of {_REGISTER_LIMIT[build.family]}")
    if not found.wide_copies:
        problems.append("has no 16-byte copy; are strides and pointers known to be multiples of 16?")
    if build.matrix_units != "none" and not found.matrix_products:
        problems.append("doesn't use the matrix units")
    if build.matrix_units == "newest" and found.newest_products < found.matrix_products:
        problems.append(f"uses the newest matrix units for {found.newest_products} of {found.matrix_products} products")
    if stored is None:
        problems.append("has no baseline; run python -m pagefleet_kernels.aot --write")
    elif found.registers > stored.registers * _REGISTER_GROWTH:
        problems.append(f"uses {found.registers} registers, {stored.registers} before")
    return [f"{build.family} {build.name} {problem}" for problem in problems]
