"""The arithmetic behind the report, against answers worked out by hand."""

import pytest

from tests.bench.client import Trace
from tests.bench.figures import RunFigures, goal, percentile
from tests.bench.workloads import mixed, shared_prefix


def test_percentile_is_the_nearest_rank() -> None:
    assert [percentile(range(1, 101), percent) for percent in (1, 50, 99, 100)] == [1, 50, 99, 100]
    assert percentile([7.0], 50) == 7.0


def test_a_percentile_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing"):
        percentile([], 50)


def test_figures_of_two_streams() -> None:
    traces = [Trace(sent=10.0, tokens=[11.0, 12.0, 14.0]), Trace(sent=10.5, tokens=[11.0])]
    figures = RunFigures.of(traces)
    assert figures.output_tokens_per_second == 1.0
    assert (figures.ttft_p50_seconds, figures.ttft_p99_seconds) == (0.5, 1.0)
    assert (figures.gap_p50_seconds, figures.gap_max_seconds) == (1.0, 2.0)


def test_a_goal_is_met_on_its_own_side_of_the_median() -> None:
    assert goal("speed", 2.0, [1.0, 2.5, 3.0]).met
    assert not goal("speed", 2.0, [1.0, 1.5, 3.0]).met
    assert goal("cost", 1.0, [0.2, 0.4, 9.0], at_least=False).met


def test_workloads_repeat_and_share_what_they_say() -> None:
    assert mixed(3, 5000) == mixed(3, 5000)
    first, second = shared_prefix(1, 5000, 2, num_prefix_tokens=20, num_own_tokens=5, num_output_tokens=1)
    assert first.prompt_ids[:20] == second.prompt_ids[:20]
    assert first.prompt_ids[20:] != second.prompt_ids[20:]
