"""A few small launches for compute-sanitizer, which slows a program down a hundredfold."""

import torch

from pagefleet_kernels.paged_attention.gpu import chip_of
from tests.gpu.workloads import Heads, Step, prepare

SMALL = Heads(query=8, kv=2, size=64)
STEPS = (
    Step("decode", ((1, 700), (1, 33)), SMALL),
    Step("mixed", ((1, 90), (37, 77)), SMALL),
    Step("int8", ((1, 90), (37, 77)), SMALL, torch.int8),
)


def main() -> None:
    device = torch.device("cuda", 0)
    for step in STEPS:
        prepare(step, chip_of(device), device).run()
    torch.cuda.synchronize()


if __name__ == "__main__":
    main()
