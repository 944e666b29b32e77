"""What carries messages between the server and the engine. It knows no meaning, only order, loss and end.

`ProcessLink` runs the engine in a child process over a socket pair; `ThreadLink` runs it in a thread of this process.
"""

from collections.abc import Callable
from typing import Protocol

from pagefleet_runtime.protocol import FromEngine, ToEngine

Deliver = Callable[[FromEngine], None]
Lost = Callable[[str], None]


class EngineLink(Protocol):
    def start(self, deliver: Deliver, lost: Lost) -> None:
        """Start the engine. `deliver` and `lost` are called from a thread of the link's own, in order; `lost` at most
        once, with what happened, when the engine ends without having been told to."""
        ...

    def send(self, message: ToEngine) -> None:
        """Queue a message. Never blocks and never fails: what is sent to a lost engine is dropped."""
        ...

    def stop(self) -> None:
        """End the engine, by force if it doesn't listen. Blocks for a few seconds at most. Idempotent."""
        ...
