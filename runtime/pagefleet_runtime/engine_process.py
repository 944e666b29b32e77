"""The engine's process: `python -m pagefleet_runtime.engine_process FD`, started by ProcessLink over a socket pair.

The first message is the settings as JSON; after that, pickled values of `protocol`. It ends when its parent ends.
"""

import gc
import logging
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from typing import NoReturn

from pagefleet_contract.engine import EngineConfig
from pagefleet_runtime.engine import Engine, EngineBroken, Inbox, Post
from pagefleet_runtime.errors import ModelRefused
from pagefleet_runtime.protocol import FromEngine, Loaded, LoadFailed, Shutdown
from pagefleet_runtime.thread_settings import settle_threads

_LOG_FORMAT = "%(asctime)s %(levelname)s engine %(name)s: %(message)s"

logger = logging.getLogger(__name__)


def main(arguments: list[str]) -> int:
    """Load the model, run the engine. Return the exit code where that ends by itself."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the parent decides when this process ends
    logging.basicConfig(level=logging.INFO, format=_LOG_FORMAT, stream=sys.stderr)
    for sentence in settle_threads(os.environ):  # torch is first imported later
        logger.warning("%s", sentence)
    connection = Connection(int(arguments[0]))
    config = EngineConfig.model_validate_json(connection.recv_bytes())
    inbox: Inbox = queue.SimpleQueue()
    threading.Thread(target=_read, args=(connection, inbox), name="engine-reader", daemon=True).start()
    post = _Post(connection)
    lost = partial(_lose_rank, post)
    try:
        engine = load_engine(config, inbox, post, lost)
    except ModelRefused as refused:
        post(LoadFailed(" ".join(str(refused).split())))
        return 1
    # What was loaded lives as long as the process; the collector needn't look at it between steps.
    gc.collect()
    gc.freeze()
    try:
        engine.run()
    except EngineBroken as broken:
        logger.error("%s", broken)
        return 1
    return 0


def load_engine(config: EngineConfig, inbox: Inbox, post: Post, lost: Callable[[str], NoReturn]) -> Engine:
    """Load the model and return the engine that runs it. `lost` is called, from any thread and at any time, where one
    of several ranks is gone. Raises ModelRefused."""
    from pagefleet_runtime.models.loading import load_model

    loaded = load_model(config, post, lost)
    engine = Engine(config, loaded, inbox, post)
    post(Loaded(loaded.info))
    return engine


def _lose_rank(post: Post, message: str) -> NoReturn:
    """No rank can go on without the others, and the engine's thread may wait for one that is gone."""
    logger.error("%s", message)
    post(LoadFailed(message))
    _end(1)


class _Post:
    """Sends to the parent, from any thread."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def __call__(self, message: FromEngine) -> None:
        with self._lock:
            try:
                self._connection.send(message)
            except OSError:
                _end(1)


def _read(connection: Connection, inbox: Inbox) -> None:
    """Hand the parent's messages to the engine. A Shutdown, or the parent's end, ends the process in mid-step: nothing
    in it is worth keeping."""
    try:
        while not isinstance(message := connection.recv(), Shutdown):
            inbox.put(message)
    except (EOFError, OSError):
        _end(1)
    _end(0)


def _end(code: int) -> NoReturn:
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _end(main(sys.argv[1:]))
