"""`python -m pagefleet_kernels.cpu`: compile the library for every target, as an image's build does."""

import argparse
from pathlib import Path

from pagefleet_kernels.cpu.library import INSTALLED, compile_library, library_name
from pagefleet_kernels.cpu.targets import NATIVE, X86_TARGETS, choose_target, this_machine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=INSTALLED, help="default: where libraries load from")
    folder = parser.parse_args().folder
    machine, _ = this_machine()
    if choose_target(machine, frozenset()) is NATIVE:
        print(f"nothing compiled: on {machine} a library fits the machine that compiled it, and no other")
        return
    for target in X86_TARGETS:
        path = folder / library_name(target)
        failure = None if path.exists() else compile_library(target, path)
        if failure is not None:
            raise SystemExit(failure)
        print(path)


if __name__ == "__main__":
    main()
