"""Where the model runs: the first GPU that this process sees, or else the CPU."""

from dataclasses import dataclass

import torch

from pagefleet_runtime.errors import ModelRefused
from pagefleet_runtime.models.machine import Machine


@dataclass(frozen=True, slots=True)
class Device:
    """A device and what it gives. `memory_bytes` is all that weights, workspace and KV share."""

    torch_device: torch.device
    name: str
    memory_bytes: int
    memory_source: str
    has_bfloat16: bool
    step_milliseconds: int  # what a step may take where nothing is set

    @property
    def is_cpu(self) -> bool:
        return self.torch_device.type == "cpu"


def choose_device(machine: Machine, rank: int = 0) -> Device:
    """Return the rank's GPU where CUDA (or ROCm, which torch shows by the same name) finds one, the CPU otherwise.
    Raises ModelRefused."""
    if not torch.cuda.is_available():
        cpu = torch.device("cpu")
        return Device(cpu, "CPU", machine.memory_bytes, machine.memory_source, machine.has_bfloat16, 100)
    if rank >= torch.cuda.device_count():
        raise ModelRefused(
            f"each rank needs a GPU of its own, and {torch.cuda.device_count()} are there; set parallel.tensor to "
            "that or less, or give the pod more (accelerator.count)"
        )
    gpu = torch.device("cuda", rank)
    _, total = torch.cuda.mem_get_info(gpu)
    has_bfloat16 = torch.cuda.is_bf16_supported(including_emulation=False)
    return Device(gpu, torch.cuda.get_device_name(gpu), total, "the GPU's memory", has_bfloat16, 50)
