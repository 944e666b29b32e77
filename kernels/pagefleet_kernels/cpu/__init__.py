"""The C++ side of the operations: compiled on first use, loaded without torch's headers, chosen by the CPU's flags."""

from pagefleet_kernels.cpu.library import CpuLibrary, CpuUnavailable, load_library

__all__ = ["CpuLibrary", "CpuUnavailable", "load_library"]
