"""Writes every file that is generated from the contract: `python -m pagefleet_contract.render [--check]`.

With --check nothing is written; the program fails with a diff where a file is not what the contract says.
"""

import argparse
import difflib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from pagefleet_contract.generated_files import generated_files

# The checkout: generated files lie beside the packages that they come from.
_ROOT = Path(__file__).resolve().parents[2]


def differences(root: Path, files: Mapping[str, str]) -> list[str]:
    """Return a unified diff for each file under `root` that isn't as given."""
    found = []
    for path, wanted in files.items():
        place = root / path
        there = place.read_text("utf-8") if place.exists() else ""
        if there != wanted:
            lines = difflib.unified_diff(
                there.splitlines(keepends=True),
                wanted.splitlines(keepends=True),
                f"{path} (there)",
                f"{path} (contract)",
            )
            found.append("".join(lines))
    return found


def write(root: Path, files: Mapping[str, str]) -> list[str]:
    """Write the files under `root`. Return the paths of those that changed."""
    changed = []
    for path, text in files.items():
        place = root / path
        if not place.exists() or place.read_text("utf-8") != text:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text, "utf-8")
            changed.append(path)
    return changed


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m pagefleet_contract.render", description="Write generated files.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail with a diff where a file differs")
    options = parser.parse_args(arguments)
    files = generated_files(_ROOT)
    if not options.check:
        print("\n".join(write(_ROOT, files)) or "every generated file is as the contract says")
        return 0
    found = differences(_ROOT, files)
    if found:
        print("".join(found), end="")
        print("these files differ from the contract; run python -m pagefleet_contract.render", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
