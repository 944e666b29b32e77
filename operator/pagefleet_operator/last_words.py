"""What a container said before it ended, told the same way each time it ends for the same cause. Pure."""

import re
from collections.abc import Sequence

_TIME = re.compile(r"\[?\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?")
_NO_ERROR = re.compile(r"\s*(?:DEBUG|INFO|WARNING)\b")
# What another start of the same program says otherwise, and what stands for it.
_CHANGING = (
    (_TIME, ""),
    (re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", re.IGNORECASE), "…"),
    (re.compile(r"\b0x[0-9a-f]+\b", re.IGNORECASE), "0x…"),
    (re.compile(r"\b(p?t?id)([ =:]+)\d+\b", re.IGNORECASE), r"\1\2…"),
    (re.compile(r"(?<=[\d\]]:)(?:3[3-9]|[45]\d|6[0-5])\d{3}\b"), "…"),  # a client's port
    (re.compile(r"\b\d+\.\d+(?= ?(?:ms|s|seconds)\b)"), "…"),
    (re.compile(r"/tmp/[^\s'\":,)]+"), "/tmp/…"),
)


def last_words(text: str) -> str:
    """Return the text in one line, without times, addresses and other things that are new at each start.

    A log's lines that tell of no error are left out, unless the log ends with nothing else.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    return error_words(text) or _steady(lines[-1:])


def error_words(text: str) -> str:
    """Return the same of the lines that tell of an error alone; nothing where none does."""
    return _steady([line for line in text.splitlines() if not _tells_of_no_error(line)])


def _steady(lines: Sequence[str]) -> str:
    words = "\n".join(lines)
    for changing, stands_for in _CHANGING:
        words = changing.sub(stands_for, words)
    return " ".join(words.split())


def _tells_of_no_error(line: str) -> bool:
    time = _TIME.match(line)
    return time is not None and _NO_ERROR.match(line, time.end()) is not None
