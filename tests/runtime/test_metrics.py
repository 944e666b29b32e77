"""/metrics shows the table, the whole table and nothing but the table, with the snapshot's values."""

from collections.abc import Iterator
from dataclasses import replace

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from pagefleet_contract.metrics import RUNTIME_METRICS, Metric
from pagefleet_contract.names import LOAD_STAGES
from pagefleet_runtime.metrics import Figures, RequestFigures, exposition
from pagefleet_runtime.protocol import EngineInfo, LoadProgress
from pagefleet_runtime.snapshot import EngineSnapshot

INFO = EngineInfo(
    model_directory="/m",
    model_type="llama",
    dtype="float32",
    kv_dtype="float32",
    block_size=16,
    num_blocks=100,
    bytes_per_block=4096,
    max_length_tokens=512,
    allowed_length_tokens=512,
    vocab_size=64,
    eos_token_ids=(1,),
    step_milliseconds=100,
    startup_table=(),
)
SNAPSHOT = EngineSnapshot(
    blocks_total=100,
    blocks_free=50,
    blocks_cached=30,
    blocks_live=20,
    slots_live=240,
    slots_allocated=320,
    running=3,
    waiting=2,
    prompt_tokens=11,
    prefix_hit_tokens=5,
    prefix_missed_tokens=6,
    generated_tokens=7,
    preemptions={"blocks": 2, "budget": 1},
    outcomes={"stop": 4, "cancelled": 3, "timeout": 2},
)
FIGURES = Figures(SNAPSHOT, "ready", INFO, LoadProgress("warmup", 1.0), 5, 0.5, 0.25, "1.0", "tiny")


def samples(figures: Figures = FIGURES, vllm_names: bool = True) -> list[Sample]:
    requests = RequestFigures()
    requests.observe_first_token(0.02)
    requests.observe_request(1.0, 10, 20)
    page = exposition(figures, requests, vllm_names).decode()
    return [sample for family in text_string_to_metric_families(page) for sample in family.samples]


def value(name: str, figures: Figures = FIGURES, **labels: str) -> float:
    found = [sample.value for sample in samples(figures) if sample.name == name and sample.labels == labels]
    assert len(found) == 1, f"{name} {labels}: {found}"
    return float(found[0])


def series_names(metric: Metric) -> Iterator[str]:
    for name in (metric.name, *(alias.name for alias in metric.vllm)):
        if metric.kind == "histogram":
            yield from (f"{name}_bucket", f"{name}_sum", f"{name}_count")
        else:
            yield name


def test_every_metric_of_the_table_is_shown_and_no_other() -> None:
    assert {sample.name for sample in samples()} == {
        name for metric in RUNTIME_METRICS for name in series_names(metric)
    }


def test_vllm_names_are_shown_only_where_asked_for() -> None:
    assert not [sample for sample in samples(vllm_names=False) if sample.name.startswith("vllm:")]


def test_labels_are_those_of_the_table() -> None:
    table = {metric.name: set(metric.labels) for metric in RUNTIME_METRICS if metric.kind != "histogram"}
    assert {s.name: set(s.labels) for s in samples() if s.name in table} == table


def test_gauges_are_the_snapshots() -> None:
    assert value("pagefleet_kv_blocks", state="free") == 50
    assert value("pagefleet_kv_blocks", state="cached") == 30
    assert value("pagefleet_kv_blocks", state="live") == 20
    assert value("pagefleet_kv_usage_ratio") == 0.2
    assert value("pagefleet_kv_waste_ratio") == 0.25
    assert value("pagefleet_sequences_running") == 3
    assert value("pagefleet_requests_waiting") == 2
    assert value("pagefleet_requests_in_flight") == 5
    assert value("pagefleet_stalled_seconds") == 0.25


def test_counters_are_the_snapshots_and_known_reasons_start_at_zero() -> None:
    assert value("pagefleet_prefix_queried_tokens_total") == 11
    assert value("pagefleet_requests_total", reason="cancelled") == 3
    assert value("pagefleet_requests_total", reason="error") == 0


def test_nothing_is_divided_by_an_empty_cache() -> None:
    empty = replace(FIGURES, snapshot=EngineSnapshot())
    assert value("pagefleet_kv_waste_ratio", empty) == value("pagefleet_kv_usage_ratio", empty) == 0


def test_an_alias_sums_over_labels_that_vllm_does_not_have() -> None:
    assert value("vllm:num_preemptions_total", model_name="tiny", engine="0") == 3


def test_an_alias_uses_vllms_words_and_leaves_out_what_it_has_no_word_for() -> None:
    found = {s.labels["finished_reason"]: s.value for s in samples() if s.name == "vllm:request_success_total"}
    assert found == {"stop": 4, "length": 0, "abort": 3, "error": 0}


def test_an_aliased_histogram_has_the_same_counts() -> None:
    assert value("vllm:time_to_first_token_seconds_count", model_name="tiny", engine="0") == 1


def test_load_stages_before_the_current_one_are_through() -> None:
    loading = replace(FIGURES, info=None, state="loading", load=LoadProgress("weights", 0.5))
    shown = [value("pagefleet_load_progress_ratio", loading, stage=stage) for stage in LOAD_STAGES]
    assert shown == [1, 1, 0.5, 0, 0, 0]
