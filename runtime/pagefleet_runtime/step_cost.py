"""How long a step takes, predicted from what is in it: a linear model with coefficients that are never negative."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from pagefleet_runtime.plan import StepPlan

_MOST_CHANGE = math.log(1.25)  # of one measurement, so that one slow step (a page fault, a neighbour) moves little
_RATE = 0.1
_FACTOR_BOUNDS = (0.05, 20.0)


@dataclass(frozen=True, slots=True)
class StepLoad:
    """What a step's time depends on. `prefill_pairs`: for each prefill token, the tokens it attends to."""

    decode_rows: int = 0
    decode_context_tokens: int = 0
    prefill_tokens: int = 0
    prefill_pairs: int = 0

    def features(self) -> tuple[float, ...]:
        return (
            1.0,
            float(self.decode_rows),
            float(self.decode_context_tokens),
            float(self.prefill_tokens),
            float(self.prefill_pairs),
        )


def chunk_pairs(context_tokens: int, num_tokens: int) -> int:
    """Return how many (token, earlier or same token) pairs a chunk behind `context_tokens` tokens attends to."""
    return num_tokens * context_tokens + num_tokens * (num_tokens + 1) // 2


def load_of(plan: StepPlan) -> StepLoad:
    """Return a plan's load. A row of one token counts as a decode, which is how it is computed."""
    decodes = [row for row in plan.rows if len(row.token_ids) == 1]
    chunks = [row for row in plan.rows if len(row.token_ids) > 1]
    return StepLoad(
        decode_rows=len(decodes),
        decode_context_tokens=sum(row.start_position + 1 for row in decodes),
        prefill_tokens=sum(len(row.token_ids) for row in chunks),
        prefill_pairs=sum(chunk_pairs(row.start_position, len(row.token_ids)) for row in chunks),
    )


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds of a step: `factor` times the sum over its load. `factor` follows what is measured."""

    base_seconds: float
    decode_row_seconds: float
    decode_context_seconds: float  # per token of context
    prefill_token_seconds: float
    prefill_pair_seconds: float
    factor: float = 1.0

    def seconds(self, load: StepLoad) -> float:
        coefficients = (
            self.base_seconds,
            self.decode_row_seconds,
            self.decode_context_seconds,
            self.prefill_token_seconds,
            self.prefill_pair_seconds,
        )
        return self.factor * sum(a * b for a, b in zip(coefficients, load.features(), strict=True))

    def row_seconds(self, context_tokens: int, num_tokens: int) -> float:
        """Return what one more row adds to a step."""
        if num_tokens == 1:
            return self.factor * (self.decode_row_seconds + self.decode_context_seconds * (context_tokens + 1))
        pairs = chunk_pairs(context_tokens, num_tokens)
        return self.factor * (self.prefill_token_seconds * num_tokens + self.prefill_pair_seconds * pairs)

    def prefill_tokens_within(self, seconds: float, context_tokens: int, most: int) -> int:
        """Return how many tokens of a chunk behind `context_tokens` fit into `seconds`, `most` at most."""
        budget = seconds / self.factor
        if budget <= 0:
            return 0
        # quadratic * t^2 + linear * t <= budget
        quadratic = self.prefill_pair_seconds / 2
        linear = self.prefill_token_seconds + self.prefill_pair_seconds * (context_tokens + 0.5)
        if linear * most + quadratic * most * most <= budget:
            return most
        # This form of the root stays exact where the quadratic term is tiny or zero.
        return int(2 * budget / (linear + math.sqrt(linear * linear + 4 * quadratic * budget)))

    def scaled(self, ratio: float) -> "StepCost":
        """Return the model moved a little towards a measurement; `ratio` is measured over predicted seconds."""
        if not (math.isfinite(ratio) and ratio > 0):
            return self
        change = _RATE * min(max(math.log(ratio), -_MOST_CHANGE), _MOST_CHANGE)
        low, high = _FACTOR_BOUNDS
        return replace(self, factor=min(max(self.factor * math.exp(change), low), high))


def fit_step_cost(samples: Sequence[tuple[StepLoad, float]]) -> StepCost:
    """Return the model with the least squared relative error over (load, measured seconds).

    Raises ValueError without a sample of positive time.
    """
    weighted = [
        tuple(value / seconds for value in (*load.features(), seconds)) for load, seconds in samples if seconds > 0
    ]
    if not weighted:
        raise ValueError("no step was measured; give fit_step_cost at least one load with positive seconds")
    count = len(StepLoad().features())
    # Non-negative least squares, exactly: the best solution is the plain one of some subset of the coefficients,
    # and there are only 31 subsets.
    best: tuple[float, tuple[float, ...]] | None = None
    for size in range(1, count + 1):
        for chosen in combinations(range(count), size):
            solution = _solve(weighted, chosen)
            if solution is None or min(solution) < 0:
                continue
            coefficients = [0.0] * count
            for index, value in zip(chosen, solution, strict=True):
                coefficients[index] = value
            error = sum(
                (sum(a * b for a, b in zip(coefficients, row, strict=False)) - row[-1]) ** 2 for row in weighted
            )
            if best is None or error < best[0] * (1 - 1e-9):
                best = error, tuple(coefficients)
    assert best is not None, "the base alone always has a solution"
    return StepCost(*best[1])


def _solve(rows: Sequence[tuple[float, ...]], chosen: tuple[int, ...]) -> list[float] | None:
    """Solve the normal equations for the chosen columns; None where they depend on each other."""
    scales = [math.sqrt(sum(row[index] ** 2 for row in rows)) for index in chosen]
    if min(scales) == 0:
        return None
    matrix = [
        [sum(row[i] * row[j] for row in rows) / (si * sj) for j, sj in zip(chosen, scales, strict=True)]
        + [sum(row[i] * row[-1] for row in rows) / si]
        for i, si in zip(chosen, scales, strict=True)
    ]
    size = len(chosen)
    for column in range(size):
        pivot = max(range(column, size), key=lambda line: abs(matrix[line][column]))
        if abs(matrix[pivot][column]) < 1e-10:
            return None
        matrix[column], matrix[pivot] = matrix[pivot], matrix[column]
        for line in range(size):
            if line != column:
                ratio = matrix[line][column] / matrix[column][column]
                matrix[line] = [a - ratio * b for a, b in zip(matrix[line], matrix[column], strict=True)]
    return [matrix[i][size] / matrix[i][i] / scales[i] for i in range(size)]
