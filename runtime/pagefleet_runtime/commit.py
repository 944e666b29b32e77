"""What a step's result changes: tokens are appended, choices end, and each token leaves as one output."""

from collections.abc import Iterable
from dataclasses import dataclass

from pagefleet_runtime.lifecycle import Lifecycle
from pagefleet_runtime.plan import SampledToken, StepResult, TokenLogprob
from pagefleet_runtime.planning import Draft
from pagefleet_runtime.protocol import TokenOutput
from pagefleet_runtime.request import SamplingParams, SequenceKey
from pagefleet_runtime.sequence import RequestState, Sequence, SequenceStatus


@dataclass(frozen=True, slots=True)
class Finish:
    """Whether a choice ends with its latest token."""

    reason: str | None
    ends_text: bool = False


def finish_of(params: SamplingParams, eos_token_ids: tuple[int, ...], token: SampledToken, num_outputs: int) -> Finish:
    """Say whether a choice ends with `token`, its `num_outputs`-th."""
    if token.token_id in params.stop_token_ids or (not params.ignore_eos and token.token_id in eos_token_ids):
        return Finish("stop", ends_text=True)
    if token.grammar_finished:
        return Finish("stop")
    return Finish("length" if num_outputs >= params.max_tokens else None)


class StepCommit:
    """One result while it is being applied. Sequences that ended while the step ran are left alone."""

    def __init__(self, lifecycle: Lifecycle, result: StepResult) -> None:
        self.outputs: list[TokenOutput] = []
        self._lifecycle = lifecycle
        self._sampled = {token.key: token for token in result.sampled}
        self._failed = {failure.key: failure.message for failure in result.failures}
        self._prompt_logprobs = dict(result.prompt_logprobs)

    def apply(self, drafts: Iterable[Draft]) -> None:
        for draft in drafts:
            draft.sequence.epoch = None
            if draft.sequence.status is SequenceStatus.RUNNING:
                self._apply_row(draft)

    def _apply_row(self, draft: Draft) -> None:
        sequence, state = draft.sequence, draft.sequence.state
        if draft.key in self._failed and not any(key in self._sampled for key in draft.samples):
            self.outputs.extend(fail_sequence(self._lifecycle, sequence, self._failed[draft.key]))
            return
        self._lifecycle.confirm(sequence, draft.end)
        if draft.key in self._prompt_logprobs:
            state.prompt_logprobs.extend(self._prompt_logprobs[draft.key])
        if draft.end < sequence.total:
            return
        if state.request.params.max_tokens == 0:
            self._end_without_token(state)
            return
        self._end_failed(state, draft.samples)
        alive = tuple(key.choice_index for key in draft.samples if key.choice_index in state.open_choices)
        if not alive:
            return
        for part in [sequence] if state.forked else self._lifecycle.fork(sequence, alive):
            self._append(part)

    def _end_failed(self, state: RequestState, keys: Iterable[SequenceKey]) -> None:
        for key in keys:
            if key in self._sampled or key.choice_index not in state.open_choices:
                continue
            message = self._failed.get(key, "the step gave no token for this choice")
            self.outputs.append(_error_output(state, key.choice_index, message))
            self._lifecycle.end_choice(state, key.choice_index, "error", keep_tail=False)

    def _append(self, sequence: Sequence) -> None:
        state, token = sequence.state, self._sampled[sequence.key]
        sequence.outputs.append(token.token_id)
        self._lifecycle.counters.generated_tokens += 1
        params, eos = state.request.params, self._lifecycle.settings.eos_token_ids
        finish = finish_of(params, eos, token, len(sequence.outputs))
        self.outputs.append(
            TokenOutput(
                request_id=sequence.key.request_id,
                choice_index=sequence.key.choice_index,
                token_id=token.token_id,
                finish_reason=finish.reason,
                logprob=token.logprob,
                cached_tokens=state.cached_tokens,
                ends_text=finish.ends_text,
                prompt_logprobs=_due_prompt_logprobs(state, sequence.key.choice_index),
            )
        )
        if finish.reason is not None:
            self._lifecycle.end_choice(state, sequence.key.choice_index, finish.reason)

    def _end_without_token(self, state: RequestState) -> None:
        for choice in tuple(state.open_choices):
            self.outputs.append(
                TokenOutput(
                    state.request.request_id,
                    choice,
                    None,
                    "length",
                    cached_tokens=state.cached_tokens,
                    prompt_logprobs=_due_prompt_logprobs(state, choice),
                )
            )
            self._lifecycle.end_choice(state, choice, "length")


def fail_sequence(lifecycle: Lifecycle, sequence: Sequence, message: str) -> list[TokenOutput]:
    """End every choice that the sequence stands for with an error. Its last block may be half written, and whatever it
    was computed from may be the cause: none of it is found again, so that a broken page fails no further request."""
    state = sequence.state
    lifecycle.distrust(sequence)
    choices = [choice for choice, owner in state.open_choices.items() if owner is sequence]
    for choice in choices:
        lifecycle.end_choice(state, choice, "error", keep_tail=False)
    return [_error_output(state, choice, message) for choice in choices]


def _error_output(state: RequestState, choice: int, message: str) -> TokenOutput:
    return TokenOutput(
        state.request.request_id, choice, None, "error", cached_tokens=state.cached_tokens, error=message
    )


def _due_prompt_logprobs(state: RequestState, choice: int) -> tuple[TokenLogprob, ...] | None:
    """Return the prompt's logprobs where choice 0 has its first output."""
    if state.request.params.prompt_logprobs is None or choice != 0 or state.prompt_logprobs_delivered:
        return None
    state.prompt_logprobs_delivered = True
    return tuple(state.prompt_logprobs)
