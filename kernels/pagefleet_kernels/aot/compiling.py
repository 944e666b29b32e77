"""Compile a launch for a chip that isn't here, and read what the result uses.

The types, constants and alignments are those that a launch on a GPU would infer from the same arguments.
"""

import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

# mypy: disable-error-code="no-untyped-call"
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from pagefleet_kernels.aot.matrix import Build
from pagefleet_kernels.aot.resources import Resources
from pagefleet_kernels.launch import Launch
from pagefleet_kernels.paged_attention.configs import Family

_TARGETS: dict[Family, GPUTarget] = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
_POINTERS = {
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.int8: "*i8",
    torch.uint8: "*u8",
    torch.int32: "*i32",
    torch.int64: "*i64",
}
_ALIGNED = ["tt.divisibility", 16]
# Whole vectors that move between memory and registers or shared memory.
_WIDE_NVIDIA = re.compile(r"cp\.async\.c[ag]\.shared\.global [^;]*0x10|(?:ld|st)\.global\S*\.v4\.b32")
_WIDE_AMD = re.compile(r"(?:buffer|global)_(?:load|store)_dwordx4")
_ANY_PRODUCT = re.compile(r"\bmma\.sync|\bwgmma\.mma_async|\btcgen05\.mma|\bv_mfma_")
_NEWEST_PRODUCT: dict[Family, re.Pattern[str]] = {
    "sm_80": re.compile(r"\bmma\.sync"),
    "sm_90": re.compile(r"\bwgmma\.mma_async"),
    "sm_100": re.compile(r"\btcgen05\.mma"),
    "gfx942": re.compile(r"\bv_mfma_"),
}


def compile_build(build: Build) -> Resources:
    """Compile and measure. Raises what Triton raises where the kernel doesn't compile for the chip."""
    compiled = triton.compile(_source(build.launch), target=_TARGETS[build.family], options=build.launch.options)
    if build.family == "gfx942":
        return _amd_resources(compiled)
    return _nvidia_resources(compiled, _NEWEST_PRODUCT[build.family])


def _source(launch: Launch) -> ASTSource:
    signature: dict[str, str] = {}
    constants: dict[str, Any] = {}
    attributes: dict[tuple[int], list[list[Any]]] = {}
    for index, parameter in enumerate(launch.kernel.params):
        value = launch.arguments[parameter.name]
        free = parameter.do_not_specialize
        if parameter.is_constexpr or value is None or (type(value) is int and value == 1 and not free):
            signature[parameter.name] = "constexpr"
            constants[parameter.name] = value
            continue
        signature[parameter.name] = _type_of(value)
        if isinstance(value, torch.Tensor) or (type(value) is int and value % 16 == 0 and not free):
            attributes[(index,)] = [_ALIGNED]
    return ASTSource(launch.kernel, signature, constexprs=constants, attrs=attributes)


def _type_of(value: torch.Tensor | int | float) -> str:
    if isinstance(value, torch.Tensor):
        return _POINTERS[value.dtype]
    if isinstance(value, float):
        return "fp32"
    return "i32" if -(2**31) <= value < 2**31 else "i64"


def _nvidia_resources(compiled: Any, newest: re.Pattern[str]) -> Resources:
    ptx = compiled.asm["ptx"]
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(compiled.asm["cubin"])
        report = subprocess.run(
            [triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", str(cubin)],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
    used = {name: int(number) for name, number in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", report)}
    return Resources(
        registers=used["REG"],
        # A spill shows as stack; local memory stays 0.
        spilled=used["STACK"] + used["LOCAL"],
        shared_bytes=compiled.metadata.shared,
        wide_copies=len(_WIDE_NVIDIA.findall(ptx)),
        matrix_products=len(_ANY_PRODUCT.findall(ptx)),
        newest_products=len(newest.findall(ptx)),
    )


def _amd_resources(compiled: Any) -> Resources:
    text = compiled.asm["amdgcn"]
    used = {name: int(number) for name, number in re.findall(r"\.(\w+_count):\s+(\d+)", text)}
    return Resources(
        registers=used["vgpr_count"],
        spilled=used["vgpr_spill_count"] + used["sgpr_spill_count"],
        shared_bytes=compiled.metadata.shared,
        wide_copies=len(_WIDE_AMD.findall(text)),
        matrix_products=len(_ANY_PRODUCT.findall(text)),
        newest_products=len(_NEWEST_PRODUCT["gfx942"].findall(text)),
    )
