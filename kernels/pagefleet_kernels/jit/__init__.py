"""The numba side of the operations, for CPUs without a C++ compiler. Nothing here imports numba before it is chosen."""

from pagefleet_kernels.jit.library import NumbaLibrary, NumbaUnavailable, load_numba

__all__ = ["NumbaLibrary", "NumbaUnavailable", "load_numba"]
