"""The engine in a thread of the server's process: `ThreadLink`, for models that are simulated and compute nothing."""

import logging
import queue
import threading

from pagefleet_contract.engine import EngineConfig
from pagefleet_runtime.engine import Engine, EngineBroken, Inbox
from pagefleet_runtime.engine_link import Deliver, Lost
from pagefleet_runtime.errors import ModelRefused
from pagefleet_runtime.protocol import Loaded, LoadFailed, Shutdown, ToEngine
from pagefleet_runtime.simulation.loading import LoadStopped, load_simulated

# Waits end when the engine is told to; a step's arithmetic is a few milliseconds.
_STOP_SECONDS = 2

logger = logging.getLogger(__name__)


class ThreadLink:
    """Implements `EngineLink`. The model is loaded and run in one thread, which can't outlive the process."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._inbox: Inbox = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, deliver: Deliver, lost: Lost) -> None:
        self._thread = threading.Thread(target=self._run, args=(deliver, lost), name="engine", daemon=True)
        self._thread.start()

    def send(self, message: ToEngine) -> None:
        self._inbox.put(message)

    def stop(self) -> None:
        self._stopping.set()
        self._inbox.put(Shutdown())
        if self._thread is not None:
            self._thread.join(_STOP_SECONDS)

    def _run(self, deliver: Deliver, lost: Lost) -> None:
        try:
            model = load_simulated(self._config, deliver, self._stopping.wait)
            engine = Engine(self._config, model, self._inbox, deliver)
            deliver(Loaded(model.info))
            engine.run()
        except ModelRefused as refused:
            deliver(LoadFailed(" ".join(str(refused).split())))
        except LoadStopped:
            logger.info("loading was given up")
        except EngineBroken as broken:
            lost(str(broken))
        except Exception:
            logger.exception("the engine's thread ended by a bug of ours")
            lost("the engine's thread ended by a bug of ours; its log says why")
