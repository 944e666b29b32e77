"""What a long step says while it goes on and when it is done; the command decides how that is shown."""

from typing import Protocol


class Reporter(Protocol):
    def doing(self, text: str) -> None:
        """Say what is going on; the next call takes its place."""

    def done(self, text: str) -> None:
        """Say what stays true."""
