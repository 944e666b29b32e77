"""Logprobs of a prompt's own tokens (echo): the head runs on a few of the row's tokens at a time."""

import torch

from pagefleet_runtime.model_executor.logits_processing import token_logprob
from pagefleet_runtime.model_executor.paged_model import ForwardResult, StepModel
from pagefleet_runtime.plan import Row, TokenLogprob

# 512 rows at once would be 100 MB of logits for a vocabulary of 49,152; the workspace estimate counts one slice.
SLICE_TOKENS = 64


def prompt_logprobs(model: StepModel, result: ForwardResult, row: Row, first_token: int) -> tuple[TokenLogprob, ...]:
    """Return the logprob of each of the row's `next_prompt_ids`. Raises ValueError where logits are NaN."""
    entries: list[TokenLogprob] = []
    for begin in range(0, len(row.next_prompt_ids), SLICE_TOKENS):
        following = row.next_prompt_ids[begin : begin + SLICE_TOKENS]
        tokens = first_token + begin + torch.arange(len(following), device=result.logits.device)
        logprobs = torch.log_softmax(model.head(result, tokens).float(), dim=-1).cpu()
        if bool(logprobs.isnan().any()):
            raise ValueError("the model gave logits that are not numbers (NaN) for this request's prompt")
        entries += [token_logprob(logprobs[i], t, row.prompt_logprobs or 0) for i, t in enumerate(following)]
    return tuple(entries)
