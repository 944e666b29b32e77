"""A tokenizer by transformers, from local files, without remote code."""

from pathlib import Path
from typing import Any

from pagefleet_runtime.errors import ModelRefused


def load_pretrained(directory: Path) -> Any:
    """Return transformers' fast tokenizer of a model's directory. Raises ModelRefused where there is none."""
    from transformers import AutoTokenizer  # imports torch: only who loads a model pays for it

    if not directory.is_dir():
        raise ModelRefused(f"{directory} is no directory; a tokenizer is loaded from a model's directory")
    try:
        pretrained = AutoTokenizer.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # the libraries raise a dozen kinds, down to plain Exception, for files that are wrong
        raise ModelRefused(
            f"{directory} has no tokenizer that can be loaded without running the model's own code: {error}"
        ) from error
    if not pretrained.is_fast:
        raise ModelRefused(
            f"{directory} has a tokenizer of type {type(pretrained).__name__}, which has no tokenizer.json; "
            "convert it with transformers' save_pretrained"
        )
    return pretrained
