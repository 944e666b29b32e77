"""A bound on a log that its process holds open: the oldest part is given back to the disk as a hole in the file.

Moving the file away, as others do, would need the process to open a new one; cutting it would lose lines that are
being written.
"""

import ctypes
import errno
import logging
import os
from pathlib import Path
from typing import BinaryIO

# The kubelet keeps five files of 10 MiB.
MOST_BYTES = 50 << 20
_KEPT_BYTES = 40 << 20
_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_BLOCK = 4096
_log = logging.getLogger(__name__)


def forget_beginning(log: Path, size: int, most: int = MOST_BYTES, kept: int = _KEPT_BYTES) -> None:
    """Where the file holds more than the most, leave what is to be kept at its end."""
    with log.open("r+b") as file:
        start = _first_data(file)
        end = (size - kept) // _BLOCK * _BLOCK
        if size - start <= most or end <= start:
            return
        library = ctypes.CDLL(None, use_errno=True)
        span = ctypes.c_int64(0), ctypes.c_int64(end)
        if library.fallocate(file.fileno(), _PUNCH_HOLE | _KEEP_SIZE, *span) != 0:
            _log.warning("%s grows without a bound: %s", log, os.strerror(ctypes.get_errno()))


def first_kept(file: BinaryIO) -> int:
    """Return where the first whole line that is still there begins."""
    start = _first_data(file)
    if start == 0:
        return 0
    file.seek(start)
    file.readline()
    return file.tell()


def _first_data(file: BinaryIO) -> int:
    try:
        return os.lseek(file.fileno(), 0, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:  # it is empty
            return 0
        raise
