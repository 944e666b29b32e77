"""What runs a plan, seen from the engine. `model_executor` runs the model; tests bring others."""

from typing import Protocol

from pagefleet_runtime.plan import StepPlan, StepResult
from pagefleet_runtime.request import GenerationRequest


class Executor(Protocol):
    def prepare(self, request: GenerationRequest) -> None:
        """Make ready what the request needs beyond its tokens (its grammar). Called once per request, in a thread of
        its own while others run, before the request is queued. Raises RequestRefused where it can't be."""
        ...

    def execute(self, plan: StepPlan) -> StepResult:
        """Make the plan's copies, run its rows, sample. Called by the engine thread only. A row that fails alone is
        reported in the result; an exception means that the whole step failed."""
        ...

    def forget(self, request_id: str) -> None:
        """Drop what `prepare` made. Called once the request has ended; unknown ids are ignored."""
        ...
