"""Progress on stderr: one line that is written over on a terminal, few lines elsewhere. Data goes to stdout."""

import sys
import time

_SAID_EVERY_SECONDS = 15.0


def printable(text: str) -> str:
    """Return the text with control characters spelled out: a model's address or a container's last words are
    somebody else's, and must give the terminal no orders."""
    return "".join(each if each.isprintable() or each == "\n" else ascii(each)[1:-1] for each in text)


class Console:
    """Shows what a long step does; a log that isn't a terminal gets a line when the step changes, and every 15 s."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._open_line = False
        self._step = ""
        self._said = 0.0

    def doing(self, text: str) -> None:
        text = printable(text)
        if self._is_terminal:
            sys.stderr.write(f"\r\x1b[K{text} …")
            self._open_line = True
        else:
            step, now = text.partition(":")[0], time.monotonic()
            if step == self._step and now - self._said < _SAID_EVERY_SECONDS:
                return
            self._step, self._said = step, now
            sys.stderr.write(f"{text} …\n")
        sys.stderr.flush()

    def done(self, text: str) -> None:
        self.clear()
        sys.stderr.write(f"{printable(text)}\n")
        sys.stderr.flush()

    def clear(self) -> None:
        """Take back the line that is written over, before something else is printed."""
        if self._open_line:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._open_line = False
