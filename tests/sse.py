"""Reads server-sent events as they are defined: only a line feed ends a line, not all that Python takes for one."""

from collections.abc import Iterable, Iterator


def events(pieces: Iterable[str]) -> Iterator[str]:
    """Yield the data of each event as soon as it is there, from a text that comes in pieces."""
    rest = ""
    for piece in pieces:
        *lines, rest = (rest + piece).split("\n")
        yield from (line.removeprefix("data: ") for line in lines if line.startswith("data: "))
