"""A kernel launch as a value: the functions that choose it run no kernel, so it can also be compiled without a GPU."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Launch:
    """`arguments` are the kernel's by name; `options` are the compiler's: num_warps and num_stages."""

    kernel: Any
    grid: tuple[int, ...]
    arguments: dict[str, Any]
    options: dict[str, int]

    def __post_init__(self) -> None:
        # Triton's default changes from version to version; a score's scale and offset are one operation.
        self.options.setdefault("enable_fp_fusion", True)

    def run(self) -> None:
        """Queue the kernel on the current stream; nothing is waited for."""
        self.kernel[self.grid](**self.arguments, **self.options)
