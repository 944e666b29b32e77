"""What the engine sends for a choice, and a choice's text made of it."""

from collections.abc import Iterable, Sequence

from pagefleet_runtime.plan import TokenLogprob
from pagefleet_runtime.protocol import TokenOutput
from pagefleet_runtime.text.choice_text import ChoiceText, TextDelta


def outputs_of(ids: Sequence[int], finish_reason: str = "length", eos_id: int | None = None) -> list[TokenOutput]:
    """One output a token, the last with the reason; `eos_id` is one more token, which ends the text."""
    outputs = [TokenOutput("r", 0, token_id, logprob=TokenLogprob(token_id, -0.5)) for token_id in ids]
    if eos_id is not None:
        return [*outputs, TokenOutput("r", 0, eos_id, finish_reason="stop", ends_text=True)]
    if not outputs:
        return [TokenOutput("r", 0, None, finish_reason=finish_reason)]
    last = outputs.pop()
    return [*outputs, TokenOutput("r", 0, last.token_id, finish_reason=finish_reason, logprob=last.logprob)]


def pushed(choice: ChoiceText, outputs: Iterable[TokenOutput]) -> list[TextDelta]:
    """Return the deltas that a server would send."""
    return [delta for delta in map(choice.push, outputs) if delta]


def joined(deltas: Iterable[TextDelta]) -> str:
    return "".join(delta.text for delta in deltas)
