"""What transformers does for text: tokenizers from local files without remote code, and chat templates."""

from collections.abc import Mapping
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


def render_template(template: str, variables: Mapping[str, Any]) -> str:
    """Return a chat template's text for `messages` and its other variables."""
    from transformers.utils.chat_template_utils import render_jinja_template  # imports torch: paid with a model only

    rest = dict(variables)
    chat = rest.pop("messages")
    # Its annotation says str; it returns the texts of the chats, and where the assistants' parts stand in them.
    result: Any = render_jinja_template([chat], chat_template=template, **rest)
    return str(result[0][0])
