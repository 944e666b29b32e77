"""Which kernels serve a model: chosen for the settings and the device, proven on the model's structure, and what is
said of those that something falls short of."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from pagefleet_contract.capacity import describe_bytes
from pagefleet_contract.engine import EngineConfig
from pagefleet_kernels.choice import PLAIN, Kernels, QuantizationUnavailable, choose_kernels, with_int8_weights
from pagefleet_kernels.pages import PageKernels
from pagefleet_runtime.errors import ModelRefused
from pagefleet_runtime.model_executor.kv_cache import stored_dtype
from pagefleet_runtime.models.cache import cache_directory
from pagefleet_runtime.models.device import Device
from pagefleet_runtime.models.dtypes import Dtypes
from pagefleet_runtime.models.gate import prove_structure
from pagefleet_runtime.models.layer_shapes import AttentionLayer
from pagefleet_runtime.models.ranks import Ranks
from pagefleet_runtime.models.weights import uncoded_bytes


def kernels_for(config: EngineConfig, dtypes: Dtypes, device: Device) -> Kernels:
    """Return what the settings and the device allow. Raises ModelRefused where there is none for int8 weights."""
    if not device.is_cpu:
        torch.cuda.set_device(device.torch_device)  # where Triton launches, whichever GPU a tensor is on
    dtype: torch.dtype = getattr(torch, dtypes.weights)
    folder = cache_directory() / "kernels"
    kernels = choose_kernels(config.model.kernels, dtype, folder, device.torch_device, stored_dtype(dtypes.kv))
    if config.model.quantization == "none":
        return kernels
    try:
        return with_int8_weights(kernels)
    except QuantizationUnavailable as reason:
        raise _quantization_refused(f"here {reason}") from reason


def proven_kernels(hf_config: Any, kernels: Kernels, ranks: Ranks, device: torch.device) -> Kernels:
    """Return the kernels if the structure is proven with them, or plain ones with a note that says why: they don't
    know something of the model, or the compiler fails on a chip that is like none that they were tried on.

    Raises ModelRefused where plain ones don't prove it either, and where weights are to be int8 codes, which those
    can't multiply.
    """
    refusal: Exception | None = None
    try:
        # Codes are no equal of what they stand for; how far they are from it is the weights' part of the gate.
        prove_structure(hf_config, kernels=kernels.unquantised, num_ranks=ranks.size, device=device)
    except Exception as error:
        if kernels == PLAIN:
            raise
        refusal = error
    if ranks.least(int(refusal is None)):
        return kernels
    # All ranks or none: each waits for the others in every layer.
    prove_structure(hf_config, num_ranks=ranks.size, device=device)
    why = refusal or "another rank can't use them"
    if kernels.linears == "int8":
        raise _quantization_refused(
            f"for models of type {hf_config.model_type!r} they can't be used: {why}"
        ) from refusal
    return Kernels(notes=(f"kernels are plain PyTorch, many times slower at decoding: {why}",))


def plain_notes(
    layers: Sequence[AttentionLayer], dtype: torch.dtype, kv_dtype: torch.dtype, kernels: PageKernels
) -> tuple[str, ...]:
    """Return a sentence for each reason why plain PyTorch attends in the kernels' place, in some layers or in all."""
    reasons = Counter(reason for layer in layers if (reason := kernels.why_plain(*layer.like(dtype, kv_dtype))))
    return tuple(
        f"attention is plain PyTorch's in {count} of {len(layers)} layers, many times slower at decoding: {reason}"
        for reason, count in reasons.items()
    )


def uncoded_notes(model: Any, kernels: Kernels, dtypes: Dtypes) -> tuple[str, ...]:
    """Return what int8 weights leave as it is, in a sentence."""
    left = uncoded_bytes(model) if kernels.linears == "int8" else 0
    if not left:
        return ()
    return (
        f"{describe_bytes(left)} of weights stay in {dtypes.weights}: model.quantization int8 knows linear layers, and "
        f"models of type {model.config.model_type!r} keep these elsewhere (experts, convolutions)",
    )


def _quantization_refused(why: str) -> ModelRefused:
    return ModelRefused(
        f"model.quantization is int8; only the C++ kernels multiply such weights, and {why}; set model.quantization to "
        "none"
    )
