"""Recording a forward as a CUDA graph (on ROCm a HIP graph, which torch shows by the same name)."""

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

# mypy: disable-error-code="no-untyped-call"
import torch

Result = TypeVar("Result")


class CudaGraphs:
    """Records forwards. Their graphs share memory, so only one result is good at a time."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, forward: Callable[[], Result]) -> Callable[[], Result]:
        """Return what runs the forward again and returns the same result, whose tensors then hold other numbers.
        Raises RuntimeError where the forward does what no graph can hold."""
        torch.cuda.synchronize(self._stream.device)
        with torch.cuda.stream(self._stream):
            forward()  # compiles, and makes what a recording may not make
            torch.cuda.synchronize(self._stream.device)
            torch.cuda.empty_cache()
            graph = torch.cuda.CUDAGraph()
            # Other threads of the process may use the GPU meanwhile.
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                result = forward()
            except Exception:
                # The recording must end, which fails as well; what the forward raised says more.
                with suppress(RuntimeError):
                    graph.capture_end()
                raise
            graph.capture_end()

        def replay() -> Result:
            graph.replay()
            return result

        return replay
