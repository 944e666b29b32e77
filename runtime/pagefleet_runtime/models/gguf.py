"""A GGUF file as a Hugging Face directory: converted once with transformers, then read from the cache in seconds."""

import hashlib
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

from pagefleet_runtime.errors import ModelRefused
from pagefleet_runtime.models.cache import make_once

# A change to what is written makes earlier conversions unused.
_FORMAT = 1


def converted_directory(path: Path, cache: Path) -> Path:
    """Return where the conversion of the file lies or will lie. A file that changes gets another one."""
    state = path.stat()
    identity = f"{path.resolve()}\n{state.st_size}\n{state.st_mtime_ns}\n{_FORMAT}\n{transformers.__version__}"
    return cache / "converted" / f"{path.stem}-{hashlib.sha256(identity.encode()).hexdigest()[:16]}"


def convert_gguf(path: Path, cache: Path) -> Path:
    """Return the directory with the model in float32 (other dtypes are made while it loads) and its tokenizer.

    It takes about half a minute for small models, and twice the weights in memory. Raises ModelRefused.
    """
    return make_once(converted_directory(path, cache), lambda directory: _convert(path, directory))


def _convert(path: Path, directory: Path) -> None:
    try:
        tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name, local_files_only=True)
        model: Any = AutoModelForCausalLM.from_pretrained(
            path.parent, gguf_file=path.name, local_files_only=True, dtype=torch.float32
        )
    except Exception as error:  # whatever a parser meets in a file that is damaged or of an unknown kind
        raise ModelRefused(f"{path}: transformers can't read this GGUF file: {error}") from error
    # The weights are plain now, but what is left of their origin would make the model refuse to be saved.
    model.hf_quantizer = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
