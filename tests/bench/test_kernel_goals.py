"""The kernels' report: when a row counts as met, and that every row is in it."""

import pytest

from pagefleet_kernels.cpu import CpuUnavailable
from tests.bench.kernel_bench import Bench, Findings, Measurement
from tests.bench.kernel_goals import GOALS, CannotMeasure, Goal, Result, Variant, results_of, table
from tests.bench.kernels import MEASUREMENTS, measured

FAST = Goal("fast", "ours / theirs", 1.5, 2.0)
CHEAP = Goal("cheap", "our time / theirs", 1.1, 1.0, at_least=False)


@pytest.mark.parametrize(
    ("goal", "medians", "verdict"),
    [
        (FAST, [2.5, 2.0], "aim reached"),
        (FAST, [2.5, 1.5], "met"),
        (FAST, [9.0, 1.4], "NOT MET"),
        (CHEAP, [0.2, 1.0], "aim reached"),
        (CHEAP, [0.2, 1.1], "met"),
        (CHEAP, [0.2, 1.2], "NOT MET"),
        (FAST, [], "NOT MET: no compiler"),
    ],
)
def test_a_row_is_as_good_as_its_worst_variant(goal: Goal, medians: list[float], verdict: str) -> None:
    variants = tuple(Variant(str(place), (0.0, median, 100.0)) for place, median in enumerate(medians))
    result = Result(goal, variants, "no compiler")

    assert result.verdict == verdict
    assert result.met == (not verdict.startswith("NOT MET"))


def test_every_goal_is_reported_measured_or_not() -> None:
    results = results_of(None, {"mixed": (Variant("one", (3.0,)),)}, {"swap": "no compiler"})

    assert [result.goal for result in results] == list(GOALS)
    assert [result.goal.key for result in results if result.met] == ["mixed"]
    assert table(results).count("NOT MET: no compiler") == 1
    assert len(table(results).splitlines()) == 2 + len(GOALS)


def test_a_measurement_that_cannot_run_leaves_its_rows_unmet() -> None:
    def unable(bench: Bench) -> Findings:
        raise CannotMeasure("there is no C++ compiler")

    def able(bench: Bench) -> Findings:
        return {"order": (Variant("one", (0.9,)),)}

    said: list[str] = []
    results = measured(
        Bench(CpuUnavailable("there is no C++ compiler"), 1, said.append),
        [Measurement("a", ("mixed",), unable), Measurement("b", ("order",), able)],
    )

    assert [(result.goal.key, result.verdict) for result in results] == [
        ("mixed", "NOT MET: there is no C++ compiler"),
        ("order", "aim reached"),
    ]


def test_measurements_name_goals_that_exist_and_each_once() -> None:
    named = [key for measurement in MEASUREMENTS for key in measurement.goals]

    assert len(named) == len(set(named))
    assert set(named) <= {goal.key for goal in GOALS}
