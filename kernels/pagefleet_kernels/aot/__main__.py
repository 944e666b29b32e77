"""Compile the whole matrix, print it, and say what breaks a limit; --write stores the numbers as the new baseline."""

import argparse
import sys
import tempfile
import time

import triton

from pagefleet_kernels.aot import compile_build, load_baseline, save_baseline, shipped_builds, violations
from pagefleet_kernels.aot.resources import Baseline, Resources
from pagefleet_kernels.paged_attention.configs import FAMILIES, Family


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m pagefleet_kernels.aot", description=__doc__)
    parser.add_argument("--write", action="store_true", help="store the numbers for this Triton version")
    parser.add_argument("--family", choices=FAMILIES, action="append", help="compile for this one alone (repeatable)")
    parser.add_argument("--only", default="", help="compile builds whose name contains this")
    options = parser.parse_args()
    try:
        stored = load_baseline(triton.__version__)
    except FileNotFoundError:
        stored = {}
    found: Baseline = {}
    with tempfile.TemporaryDirectory() as folder, triton.knobs.cache.scope():
        triton.knobs.cache.dir = folder
        for family in options.family or FAMILIES:
            found[family] = _compile_family(family, options.only)
    if options.write:
        # What wasn't compiled this time keeps its numbers; what is no longer shipped loses them.
        stored = {
            family: {
                build.name: numbers
                for build in shipped_builds(family)
                if (numbers := (stored.get(family, {}) | found.get(family, {})).get(build.name))
            }
            for family in FAMILIES
        }
        print(save_baseline(triton.__version__, stored))
    problems = [
        problem
        for family, resources in found.items()
        for build in shipped_builds(family)
        if build.name in resources
        for problem in violations(build, resources[build.name], stored.get(family, {}).get(build.name))
    ]
    print(*problems, sep="\n")
    return 1 if problems else 0


def _compile_family(family: Family, only: str) -> dict[str, Resources]:
    found = {}
    for build in shipped_builds(family):
        if only not in build.name:
            continue
        begin = time.monotonic()
        resources = found[build.name] = compile_build(build)
        print(
            f"{family:7} {build.name:36} registers {resources.registers:4} spilled {resources.spilled:4} "
            f"shared {resources.shared_bytes:6} wide {resources.wide_copies:4} matrix {resources.matrix_products:4} "
            f"{time.monotonic() - begin:5.1f} s",
            flush=True,
        )
    return found


if __name__ == "__main__":
    sys.exit(main())
