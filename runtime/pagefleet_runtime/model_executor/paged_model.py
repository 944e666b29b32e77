"""A transformers model whose keys and values live in pages: one packed forward, and its head alone."""

from dataclasses import dataclass
from typing import Any, Protocol

import torch

from pagefleet_runtime.model_executor.attention import CURRENT_STEP, PagedStep
from pagefleet_runtime.model_executor.kv_cache import KVCache
from pagefleet_runtime.model_executor.packing import PackedStep


@dataclass(frozen=True, slots=True)
class ForwardResult:
    """Logits of the asked tokens, and the body's output for `PagedModel.head`."""

    logits: torch.Tensor  # [S, V]
    body_output: Any
    calls: dict[int, int]  # attention calls by layer


class StepModel(Protocol):
    """What runs packed steps."""

    def forward(self, packed: PackedStep, cache: KVCache, keep: torch.Tensor) -> ForwardResult:
        """Run the step and return the logits of the packed tokens whose indices are `keep` [S]. The result is good
        until the next step."""
        ...

    def head(self, result: ForwardResult, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits [S, V] of more packed tokens of a step that has run; the body does not run again."""
        ...


class PagedModel:
    """Runs packed steps. The model must use our attention, and is this object's from now on: its body's forward is
    wrapped. Owns no cache: each call names one."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self._body = model.base_model
        self._run_body = self._body.forward
        self._body_output: Any = None
        self._replayed: Any = None
        # The head and what follows it (soft-caps, scales) differ from class to class, so the class's own forward is
        # asked for logits of hidden states that are already there: its body then gives those back.
        self._body.forward = self._body_forward

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = self.model.dtype
        return dtype

    def forward(self, packed: PackedStep, cache: KVCache, keep: torch.Tensor) -> ForwardResult:
        step = PagedStep(packed.batch, packed.slots.to(cache.device), cache)
        token = CURRENT_STEP.set(step)
        try:
            inputs = (tensor.to(cache.device) for tensor in (packed.token_ids, packed.positions, keep))
            logits = self._logits(*inputs)
        finally:
            CURRENT_STEP.reset(token)
        body_output, self._body_output = self._body_output, None
        return ForwardResult(logits, body_output, step.calls)

    def head(self, result: ForwardResult, tokens: torch.Tensor) -> torch.Tensor:
        hidden = result.body_output.last_hidden_state[:, tokens]
        self._replayed = type(result.body_output)(**{**result.body_output, "last_hidden_state": hidden})
        try:
            positions = torch.arange(len(tokens), device=hidden.device)
            return self._logits(positions[None], positions[None], positions)
        finally:
            self._replayed = None

    def _logits(self, token_ids: torch.Tensor, positions: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            output = self.model(
                input_ids=token_ids, position_ids=positions, use_cache=False, logits_to_keep=keep, return_dict=True
            )
        logits: torch.Tensor = output.logits[0]
        return logits

    def _body_forward(self, *arguments: Any, **named: Any) -> Any:
        if self._replayed is not None:
            return self._replayed
        self._body_output = self._run_body(*arguments, **named)
        return self._body_output
