"""Copies that are given in order, as groups whose copies may run at the same time. Pure arithmetic."""

from collections.abc import Sequence

PageIndexes = tuple[int, int]  # source, target


def copy_waves(copies: Sequence[PageIndexes]) -> list[list[PageIndexes]]:
    """Cut `copies` so that within a group no copy touches a page that another one writes."""
    waves: list[list[PageIndexes]] = []
    read: set[int] = set()
    written: set[int] = set()
    for source, target in copies:
        if not waves or source in written or target in written or target in read:
            waves.append([])
            read, written = set(), set()
        waves[-1].append((source, target))
        read.add(source)
        written.add(target)
    return waves
