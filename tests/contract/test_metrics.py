"""The table of metrics keeps Prometheus' rules, so that nobody has to look twice at a name."""

import re

import pytest

from pagefleet_contract.metrics import ROUTER_METRICS, RUNTIME_METRICS, Metric

_METRICS = (*RUNTIME_METRICS, *ROUTER_METRICS)

by_name = pytest.mark.parametrize("metric", _METRICS, ids=lambda metric: metric.name)


def test_names_are_unique_with_the_aliases() -> None:
    names = [metric.name for metric in _METRICS] + [a.name for m in _METRICS for a in m.vllm]
    assert len(names) == len(set(names))


@by_name
def test_a_name_says_its_kind(metric: Metric) -> None:
    assert re.fullmatch(r"pagefleet_[a-z_]+", metric.name)
    assert metric.name.endswith("_total") == (metric.kind == "counter")
    assert bool(metric.buckets) == (metric.kind == "histogram")
    assert list(metric.buckets) == sorted(set(metric.buckets))
    assert metric.unit != "seconds" or "_seconds" in metric.name


@by_name
def test_an_alias_keeps_the_kind_and_names_labels_that_exist(metric: Metric) -> None:
    for alias in metric.vllm:
        assert re.fullmatch(r"vllm:[a-z0-9_]+", alias.name)
        assert alias.name.endswith("_total") == (metric.kind == "counter")
        assert {ours for ours, _ in alias.labels} <= set(metric.labels)
        assert not alias.values or len(alias.labels) == 1
