"""How long a step takes, predicted from what is in it: a linear model with coefficients that are never negative, and
a correction that follows what is measured while serving."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from pagefleet_runtime.plan import StepPlan

# One measurement counts as at most this many times its prediction, so that one slow step (a page fault, a neighbour)
# moves little.
_MOST_SURPRISE = 1.5
_FADING = 0.9  # of what earlier steps said, per step
_INERTIA = 1.0  # of the factors, in steps: what the last steps didn't contain keeps its factor
_FACTOR_BOUNDS = (0.02, 50.0)


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
class Correction:
    """What the machine does now over what it did when it was measured, for a step's fixed part (base and decodes) and
    for its prefill apart: a busy neighbour makes each launch dear and each token hardly dearer, and a budget that took
    the one for the other would cut prefill to nothing and gain no time.

    Both are a fading least-squares fit over the last steps; `moments` are its sums.
    """

    fixed: float = 1.0
    prefill: float = 1.0
    moments: tuple[float, float, float, float, float] = (0.0, 0.0, 0.0, 0.0, 0.0)

    def after(self, fixed_seconds: float, prefill_seconds: float, measured_seconds: float) -> "Correction":
        """Return the correction moved by a step whose uncorrected parts and whose measured time are given."""
        whole = fixed_seconds + prefill_seconds
        if not (whole > 0 and math.isfinite(measured_seconds) and measured_seconds > 0):
            return self
        a, b = fixed_seconds / whole, prefill_seconds / whole
        expected = self.fixed * a + self.prefill * b
        ratio = min(max(measured_seconds / whole, expected / _MOST_SURPRISE), expected * _MOST_SURPRISE)
        seen = (a * a, a * b, b * b, a * ratio, b * ratio)
        faded = [_FADING * old + new for old, new in zip(self.moments, seen, strict=True)]
        aa, ab, bb, ar, br = faded
        # The normal equations, held to the factors so far where the steps don't tell the parts apart.
        left, right = aa + _INERTIA, bb + _INERTIA
        top, bottom = ar + _INERTIA * self.fixed, br + _INERTIA * self.prefill
        determinant = left * right - ab * ab
        low, high = _FACTOR_BOUNDS
        fixed = min(max((top * right - ab * bottom) / determinant, low), high)
        prefill = min(max((bottom * left - ab * top) / determinant, low), high)
        return Correction(fixed, prefill, (aa, ab, bb, ar, br))


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds of a step: the sum over its load, corrected by what the last steps took."""

    base_seconds: float
    decode_row_seconds: float
    decode_context_seconds: float  # per token of context
    prefill_token_seconds: float
    prefill_pair_seconds: float
    correction: Correction = Correction()

    def seconds(self, load: StepLoad) -> float:
        fixed, prefill = self._parts(load)
        return self.correction.fixed * fixed + self.correction.prefill * prefill

    def row_seconds(self, context_tokens: int, num_tokens: int) -> float:
        """Return what one more row adds to a step."""
        if num_tokens == 1:
            row = self.decode_row_seconds + self.decode_context_seconds * (context_tokens + 1)
            return self.correction.fixed * row
        pairs = chunk_pairs(context_tokens, num_tokens)
        return self.correction.prefill * (self.prefill_token_seconds * num_tokens + self.prefill_pair_seconds * pairs)

    def learned(self, load: StepLoad, measured_seconds: float) -> "StepCost":
        """Return the model moved a little towards a measured step."""
        return replace(self, correction=self.correction.after(*self._parts(load), measured_seconds))

    def _parts(self, load: StepLoad) -> tuple[float, float]:
        """Return the uncorrected seconds of the fixed part and of the prefill."""
        return (
            self.base_seconds
            + self.decode_row_seconds * load.decode_rows
            + self.decode_context_seconds * load.decode_context_tokens,
            self.prefill_token_seconds * load.prefill_tokens + self.prefill_pair_seconds * load.prefill_pairs,
        )

    def prefill_tokens_within(self, seconds: float, context_tokens: int, most: int) -> int:
        """Return how many tokens of a chunk behind `context_tokens` fit into `seconds`, `most` at most."""
        budget = seconds / self.correction.prefill
        if budget <= 0:
            return 0
        # quadratic * t^2 + linear * t <= budget
        quadratic = self.prefill_pair_seconds / 2
        linear = self.prefill_token_seconds + self.prefill_pair_seconds * (context_tokens + 0.5)
        if linear * most + quadratic * most * most <= budget:
            return most
        # This form of the root stays exact where the quadratic term is tiny or zero.
        return int(2 * budget / (linear + math.sqrt(linear * linear + 4 * quadratic * budget)))


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
    base, row, context, token, pair = best[1]
    return StepCost(base, row, context, token, pair)


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
