"""The arithmetic behind the report, against answers worked out by hand."""

import pytest

from tests.bench.client import Trace, note_event
from tests.bench.figures import NotRun, RunFigures, decode_tokens_per_second, goal, percentile
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


def test_a_row_that_nobody_measured_is_not_met() -> None:
    row = NotRun("a peer", 1.0, "--peer not given")
    assert not row.met
    assert "NOT RUN [--peer not given]" in row.line()


def test_decode_speed_leaves_the_first_token_out() -> None:
    traces = [
        Trace(sent=0.0, tokens=[5.0, 6.0, 7.0]),
        Trace(sent=10.0, tokens=[19.0, 20.0], completion_tokens=5),  # some tokens had no text of their own
    ]
    assert decode_tokens_per_second(traces) == (2 + 4) / (2.0 + 1.0)


def test_without_logprobs_events_of_text_give_the_times_and_usage_the_count() -> None:
    trace = Trace(sent=0.0)
    for now, text in ((1.0, "a"), (2.0, ""), (3.0, "bc")):
        note_event(trace, {"choices": [{"text": text}], "usage": None}, now, each_token=False)
    note_event(trace, {"choices": [], "usage": {"completion_tokens": 4}}, 3.0, each_token=False)
    assert (trace.tokens, trace.num_tokens) == ([1.0, 3.0], 4)


def test_with_logprobs_every_token_has_its_time() -> None:
    trace = Trace(sent=0.0)
    note_event(trace, {"choices": [{"text": "", "logprobs": {"tokens": ["a", "b"]}}]}, 1.0, each_token=True)
    note_event(trace, {"choices": [], "usage": {"completion_tokens": 3}}, 1.0, each_token=True)
    assert (trace.tokens, trace.num_tokens) == ([1.0, 1.0], 2)
