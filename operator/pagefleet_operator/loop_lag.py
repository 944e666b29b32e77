"""How late the event loop is: nothing in this program may hold it up."""

import asyncio
from collections import deque
from collections.abc import Callable

_EVERY_SECONDS = 0.05
_OVER_SECONDS = 10.0


async def measure_lag(report: Callable[[float], None]) -> None:
    """Report the longest lag of the last seconds, in seconds, until cancelled."""
    loop = asyncio.get_running_loop()
    lags: deque[float] = deque(maxlen=round(_OVER_SECONDS / _EVERY_SECONDS))
    while True:
        before = loop.time()
        await asyncio.sleep(_EVERY_SECONDS)
        lags.append(max(0.0, loop.time() - before - _EVERY_SECONDS))
        report(max(lags))
