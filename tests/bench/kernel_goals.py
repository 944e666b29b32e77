"""What is expected of each CPU operation, and whether it came out: a row holds in all its variants or not at all.

Pure arithmetic; a row that could not be measured is a row that is not met.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any


class CannotMeasure(Exception):
    """Why a row has no figure on this machine, as a sentence for the report."""


@dataclass(frozen=True, slots=True)
class Goal:
    """A row of the table. `at_least` False: the ratio may be at most this."""

    key: str
    title: str
    must: float
    aim: float
    at_least: bool = True

    def reaches(self, ratio: float, bound: float) -> bool:
        return ratio >= bound if self.at_least else ratio <= bound


# In the order of the report. Each ratio is of variants that ran in turn in one process.
GOALS = (
    Goal("decode-float32-sdpa", "paged decode float32 / contiguous SDPA", 1.3, 2.0),
    Goal("decode-bfloat16-sdpa", "paged decode bfloat16 / contiguous SDPA", 1.8, 2.5),
    Goal("decode-float32-read", "paged decode float32 / streaming read", 0.4, 0.65),
    Goal("decode-bfloat16-read", "paged decode bfloat16 / streaming read", 0.3, 0.6),
    Goal("mixed", "mixed lengths / padded SDPA", 1.8, 2.5),
    Goal("order", "shuffled / ordered block table", 0.6, 0.85),
    Goal("numba", "numba decode / contiguous SDPA float32", 0.6, 1.0),
    Goal("int8-kv", "int8 KV time / bfloat16 KV time", 1.15, 1.0, at_least=False),
    Goal("prefill", "prefill / contiguous SDPA, same mask", 0.9, 0.97),
    Goal("swap", "swap gather and scatter / plain tensor copy", 1.0, 1.3),
    Goal("write", "KV write of 32 tokens, time / index_copy_", 0.5, 0.3, at_least=False),
    Goal("linear-float32", "float32 prepacked linear / F.linear", 1.4, 2.5),
    Goal("linear-bfloat16", "bfloat16 prepacked linear / F.linear float32", 2.2, 4.0),
    Goal("linear-int8", "int8 linear of up to 4 rows / F.linear float32", 5.0, 10.0),
    Goal("linear-int8-bfloat16", "int8 linear of 32 and 512 rows / bfloat16 prepacked", 1.4, 1.8),
)


@dataclass(frozen=True, slots=True)
class Variant:
    """One measured shape or type of a row, with the ratio of each round."""

    name: str
    ratios: tuple[float, ...]

    @property
    def median(self) -> float:
        return median(self.ratios)


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a goal. Without variants, `reason` says why."""

    goal: Goal
    variants: tuple[Variant, ...] = ()
    reason: str = ""

    @property
    def worst(self) -> float | None:
        medians = [variant.median for variant in self.variants]
        if not medians:
            return None
        return min(medians) if self.goal.at_least else max(medians)

    @property
    def met(self) -> bool:
        return self.worst is not None and self.goal.reaches(self.worst, self.goal.must)

    @property
    def verdict(self) -> str:
        if self.worst is None:
            return f"NOT MET: {self.reason}"
        if self.goal.reaches(self.worst, self.goal.aim):
            return "aim reached"
        return "met" if self.met else "NOT MET"

    def as_json(self) -> dict[str, Any]:
        variants = {variant.name: {"median": variant.median, "ratios": variant.ratios} for variant in self.variants}
        return {
            **{"key": self.goal.key, "title": self.goal.title, "must": self.goal.must, "aim": self.goal.aim},
            **{"atLeast": self.goal.at_least, "reached": self.worst, "met": self.met, "verdict": self.verdict},
            "variants": variants,
        }


def results_of(
    keys: Sequence[str] | None, found: dict[str, tuple[Variant, ...]], reasons: dict[str, str]
) -> list[Result]:
    """Return the results of the named goals (None: of all) in the report's order. Whatever nobody measured has no
    variants."""
    return [
        Result(goal, found.get(goal.key, ()), reasons.get(goal.key, "nothing measures it"))
        for goal in GOALS
        if keys is None or goal.key in keys
    ]


def table(results: Sequence[Result]) -> str:
    """Return the report as a markdown table: goal, what the worst variant reached, and all variants' range."""
    lines = [
        "| row | must | aim | reached | variants, worst to best | verdict |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for result in results:
        sign = ">=" if result.goal.at_least else "<="
        reached = "-" if result.worst is None else f"{result.worst:.2f}"
        goal = result.goal
        lines.append(
            f"| {goal.title} | {sign} {goal.must:g} | {goal.aim:g} | {reached} | {_range(result)} | {result.verdict} |"
        )
    return "\n".join(lines)


def _range(result: Result) -> str:
    ordered = sorted(result.variants, key=lambda variant: variant.median, reverse=not result.goal.at_least)
    if not ordered:
        return "-"
    if len(ordered) == 1:
        return ordered[0].name
    first, last = ordered[0], ordered[-1]
    return f"{first.name}: {first.median:.2f} to {last.name}: {last.median:.2f}"
