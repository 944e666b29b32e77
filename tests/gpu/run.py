"""The one command for a card: `python -m tests.gpu.run`. Checks results first; figures of a wrong kernel say nothing.

Writes build/gpu/<card>.md. Takes under ten minutes, most of which is compiling.
"""

import re
import subprocess
import sys
from pathlib import Path

import torch

from pagefleet_kernels.paged_attention.gpu import chip_of
from pagefleet_runtime.model_executor.cuda_graphs import CudaGraphs
from tests.gpu.engine_steps import EngineSizes, engine_lines
from tests.gpu.measure import Sizes, as_markdown, measure
from tests.gpu.timing import GpuStopwatch


def main() -> int:
    if not torch.cuda.is_available():
        print("this machine has no GPU: nothing was checked and nothing measured")
        return 1
    checked = subprocess.run([sys.executable, "-m", "pytest", "-m", "gpu", "tests/gpu", "-q"], check=False)
    if checked.returncode:
        return checked.returncode
    device = torch.device("cuda", 0)
    card = torch.cuda.get_device_name(device)
    chip, clock = chip_of(device), GpuStopwatch(device)
    lines = measure(chip, device, clock, Sizes())
    lines += engine_lines(chip, device, clock, EngineSizes(), CudaGraphs(device).record)
    table = as_markdown(f"{card}, torch {torch.__version__}", lines)
    path = Path("build/gpu") / (re.sub(r"\W+", "-", card).strip("-").lower() + ".md")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(table)
    print(table, path, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
