"""What the Triton kernels become on chips that aren't here: compiled ahead of time, measured, held to limits.

`python -m pagefleet_kernels.aot` compiles every shipped kernel and configuration and prints what it uses.
"""

from pagefleet_kernels.aot.compiling import compile_build
from pagefleet_kernels.aot.gates import violations
from pagefleet_kernels.aot.matrix import Build, shipped_builds
from pagefleet_kernels.aot.resources import Resources, load_baseline, save_baseline

__all__ = ["Build", "Resources", "compile_build", "load_baseline", "save_baseline", "shipped_builds", "violations"]
