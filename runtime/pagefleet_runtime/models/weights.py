"""Reads a Hugging Face directory into a model with its own eager attention. Only safetensors, only known classes."""

from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from pagefleet_kernels.prepacked_linear import PrepackedLinear
from pagefleet_runtime.errors import ModelRefused
from pagefleet_runtime.models.sharding import loading_arguments
from pagefleet_runtime.models.support import check_class, check_config


def read_config(directory: Path) -> Any:
    """Return the model's configuration, checked for support. Raises ModelRefused."""
    try:
        config = AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    except (ValueError, OSError, KeyError, TypeError) as error:
        raise ModelRefused(
            f"{directory / 'config.json'} isn't a configuration that transformers knows: {error}; models that bring "
            "their own code are not run"
        ) from error
    check_config(config)
    check_class(model_class(config))
    return config


def model_class(config: Any) -> type:
    """Return the class that generates text for this configuration. Raises ModelRefused."""
    mapping: Any = AutoModelForCausalLM._model_mapping
    if type(config) not in mapping:
        raise ModelRefused(f"model type {config.model_type!r} doesn't generate text; only causal language models do")
    found = mapping[type(config)]
    chosen: type = found[0] if isinstance(found, tuple) else found
    return chosen


def read_weights(directory: Path, dtype: torch.dtype, num_ranks: int = 1) -> Any:
    """Return the model in eval mode, or this rank's share of it.

    Raises ModelRefused where files don't fit the configuration.
    """
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            directory,
            dtype=dtype,
            attn_implementation="eager",
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
            **loading_arguments(num_ranks),
        )
    except (ValueError, OSError, KeyError, RuntimeError) as error:
        raise ModelRefused(f"the weights in {directory} can't be read: {error}") from error
    model, report = loaded
    # transformers would go on with random values.
    for problem in ("missing_keys", "mismatched_keys"):
        if report[problem]:
            names = ", ".join(sorted(str(key) for key in report[problem])[:5])
            raise ModelRefused(f"the weights in {directory} don't fit config.json: {problem} such as {names}")
    return model.eval()


def weights_bytes(model: torch.nn.Module) -> int:
    """Return the bytes of parameters, buffers and packed weights that this process holds, shared ones once."""
    packed = sum(module.num_bytes for module in model.modules() if isinstance(module, PrepackedLinear))
    return sum(_held(model).values()) + packed


def mapped_bytes(model: torch.nn.Module, maps: Path = Path("/proc/self/maps")) -> int:
    """Return how many of these bytes lie in the mapping of the weights' files still: no memory is taken for them that
    couldn't be read again."""
    lines = maps.read_text().splitlines() if maps.exists() else []
    spans = [line.split()[0].split("-") for line in lines if line.endswith(".safetensors")]
    ranges = [range(int(begin, 16), int(end, 16)) for begin, end in spans]
    return sum(size for address, size in _held(model).items() if any(address in span for span in ranges))


def uncoded_bytes(model: Any) -> int:
    """Return the bytes of matrices that no linear layer has packed, embeddings aside: int8 weights leave them as they
    are."""
    embedded = {id(parameter) for parameter in model.get_input_embeddings().parameters()}
    matrices = [p for p in model.parameters() if p.dim() >= 2 and id(p) not in embedded]
    return sum(matrix.numel() * matrix.itemsize for matrix in matrices)


def _held(model: torch.nn.Module) -> dict[int, int]:
    """Return the bytes of parameters and buffers by address."""
    held = (t.to_local() if isinstance(t, DTensor) else t for t in (*model.parameters(), *model.buffers()))
    return {t.data_ptr(): t.numel() * t.itemsize for t in held}


def end_token_ids(model: Any) -> tuple[int, ...]:
    """Return the tokens that end an answer: the generation settings' or else the configuration's."""
    for holder in (model.generation_config, model.config):
        ids = getattr(holder, "eos_token_id", None)
        if ids is not None:
            return tuple(ids) if isinstance(ids, list | tuple) else (ids,)
    return ()
