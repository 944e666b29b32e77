"""What the environment says of OpenMP's threads, and what of it is followed."""

import os
import subprocess
import sys

from pagefleet_runtime.thread_settings import settle_threads

COUNT_CORES = """
import os
from pagefleet_runtime.thread_settings import settle_threads
settle_threads(os.environ)
import torch
torch.ones(8).sum()
print(len(os.sched_getaffinity(0)))
"""


def test_threads_sleep_soon_unless_the_environment_says_how_long_they_spin() -> None:
    silent: dict[str, str] = {}
    told = {"GOMP_SPINCOUNT": "infinity"}
    assert (settle_threads(silent), settle_threads(told)) == ((), ())
    assert (silent["GOMP_SPINCOUNT"], told["GOMP_SPINCOUNT"]) == ("1000", "infinity")


def test_a_setting_that_binds_threads_is_taken_out_and_named() -> None:
    environment = {"OMP_PROC_BIND": "close", "GOMP_CPU_AFFINITY": "0-3", "OMP_NUM_THREADS": "4"}
    first, second = settle_threads(environment)
    assert "OMP_PROC_BIND=close is not followed" in first
    assert "GOMP_CPU_AFFINITY=0-3 is not followed" in second
    assert environment == {"OMP_NUM_THREADS": "4", "GOMP_SPINCOUNT": "1000"}


def test_an_engine_whose_environment_binds_threads_still_counts_every_core() -> None:
    seen = subprocess.run(
        [sys.executable, "-c", COUNT_CORES],
        env=os.environ | {"OMP_PROC_BIND": "true"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert int(seen.stdout) == len(os.sched_getaffinity(0))
