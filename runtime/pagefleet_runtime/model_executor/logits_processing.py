"""What happens to a row of logits before a token is chosen: penalties, bias, grammar. Sparse where it can be."""

import numpy as np
import torch
from numpy.typing import NDArray

from pagefleet_runtime.plan import SampleSpec, TokenLogprob
from pagefleet_runtime.request import SamplingParams

# What minus infinity is reported as: JSON has no infinity.
_LOWEST_LOGPROB = -9999.0


def changes_logits(params: SamplingParams) -> bool:
    """Whether `process_logits` would do anything (the grammar aside)."""
    return bool(
        params.repetition_penalty != 1 or params.presence_penalty or params.frequency_penalty or params.logit_bias
    )


def process_logits(logits: torch.Tensor, spec: SampleSpec, allowed: NDArray[np.bool_] | None) -> None:
    """Apply the spec's penalties and bias and the grammar's mask to its row [V] of float32 logits, in place."""
    params = spec.params
    if params.repetition_penalty != 1:
        _penalise_repetition(logits, spec, params.repetition_penalty)
    if (params.presence_penalty or params.frequency_penalty) and spec.output_ids:
        ids, counts = np.unique(np.fromiter(spec.output_ids, dtype=np.int64), return_counts=True)
        penalties = params.presence_penalty + params.frequency_penalty * torch.from_numpy(counts)
        logits.index_add_(0, torch.from_numpy(ids), penalties.to(logits.dtype), alpha=-1)
    if params.logit_bias:
        biased, values = zip(*params.logit_bias, strict=True)
        logits.index_add_(0, torch.tensor(biased), torch.tensor(values, dtype=logits.dtype))
    if allowed is not None:
        logits.masked_fill_(~torch.from_numpy(allowed), float("-inf"))


def _penalise_repetition(logits: torch.Tensor, spec: SampleSpec, penalty: float) -> None:
    seen = np.unique(np.fromiter((*spec.prompt_ids, *spec.output_ids), dtype=np.int64))
    index = torch.from_numpy(seen)
    scores = logits[index]
    # A tiny penalty makes a score as great as it can be, not infinite: infinite ones have no order.
    lifted = (scores / penalty).clamp_(max=torch.finfo(scores.dtype).max)
    logits[index] = torch.where(scores > 0, lifted, scores * penalty)


def token_logprob(logprobs: torch.Tensor, token_id: int, num_top: int) -> TokenLogprob:
    """Return the token's logprob with the `num_top` best ones, from a row [V] of logprobs."""
    top: tuple[tuple[int, float], ...] = ()
    if num_top:
        values, ids = torch.topk(logprobs, min(num_top, len(logprobs)))
        top = tuple((i, _finite(v)) for i, v in zip(ids.tolist(), values.tolist(), strict=True))
    return TokenLogprob(token_id, _finite(float(logprobs[token_id])), top)


def _finite(logprob: float) -> float:
    return max(logprob, _LOWEST_LOGPROB)
