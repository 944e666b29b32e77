"""The model's tokenizer, and what a single token is in bytes. Only local files are read, remote code never runs."""

from collections.abc import Sequence
from pathlib import Path


class Tokenizer:
    """Made by `load_tokenizer`. Safe to use from several threads."""

    vocab_size: int  # of the tokenizer; the model's may be larger
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Return the ids of `text`. Control tokens written in `text` become control tokens: this is for raw prompts
        (/v1/completions) and for rendered templates, never for a message's text.

        `add_special_tokens` follows the tokenizer's own rule, such as a BOS in front.
        """
        raise NotImplementedError

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of `ids`, without special tokens; what a Detokenizer gives for the same ids, joined."""
        raise NotImplementedError

    def token_bytes(self, token_id: int) -> bytes:
        """Return the token's own bytes; a special token's are its text's, an unknown id has none."""
        raise NotImplementedError

    def token_text(self, token_id: int) -> str:
        """Return how logprobs show the token: its text, or `bytes:\\xf0\\x9f` where its bytes are no whole text."""
        raise NotImplementedError

    def is_special(self, token_id: int) -> bool:
        """Say whether the token is a special one, which is not shown in text."""
        raise NotImplementedError


def load_tokenizer(model_directory: Path | str) -> Tokenizer:
    """Load from the directory's files alone. Raises ModelRefused where they hold no tokenizer that we can decode."""
    raise NotImplementedError
