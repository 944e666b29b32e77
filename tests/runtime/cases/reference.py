"""What the model itself says, by transformers and without any cache: the reference of every greedy answer."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from transformers import AutoModelForCausalLM

# Where the best two logits are closer, the batch's size alone may decide between them.
TIE = 1e-3


@dataclass(frozen=True)
class Reference:
    model: Any

    @classmethod
    def load(cls, directory: Path) -> Self:
        model: Any = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
        return cls(model.eval())

    def logits(self, ids: Sequence[int]) -> torch.Tensor:
        """Return the logits that follow each token."""
        with torch.inference_mode():
            found: torch.Tensor = self.model(torch.tensor([list(ids)]), use_cache=False).logits[0]
        return found

    def check_greedy(self, prompt: Sequence[int], output: Sequence[int]) -> None:
        """Fail unless greedy decoding of the prompt gives the output: each token must be the best after all before."""
        logits = self.logits([*prompt, *output])[len(prompt) - 1 : -1]
        best = logits.max(dim=-1).values
        chosen = logits.gather(1, torch.tensor(list(output))[:, None])[:, 0]
        wrong = [place for place, gap in enumerate((best - chosen).tolist()) if gap > TIE]
        assert not wrong, f"after {len(prompt)} tokens, the outputs at {wrong} of {list(output)} aren't the best"

    def logprobs_of(self, ids: Sequence[int]) -> list[float]:
        """Return the logprob of each token but the first, given those before it."""
        logprobs = self.logits(ids)[:-1].log_softmax(dim=-1)
        found: list[float] = logprobs.gather(1, torch.tensor(list(ids[1:]))[:, None])[:, 0].tolist()
        return found
