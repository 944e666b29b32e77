"""A process that runs decode steps when asked: `python -m tests.bench.step_worker auto|plain|first`.

It answers a line {"rows", "context", "repeats"} with {"seconds"}: the median. Like `steps`, it also runs on an older
commit's packages.
"""

import json
import sys
import time
from statistics import median

from tests.bench.steps import Step, load_executor


def main(kernels: str) -> None:
    assert kernels in ("auto", "plain", "first"), kernels
    executor = load_executor(kernels)  # type: ignore[arg-type]
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        plan = Step(asked["rows"], asked["context"]).plan()
        executor.execute(plan)  # wakes the threads
        seconds = []
        for _ in range(asked["repeats"]):
            started = time.perf_counter()
            executor.execute(plan)
            seconds.append(time.perf_counter() - started)
        print(json.dumps({"seconds": median(seconds)}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
