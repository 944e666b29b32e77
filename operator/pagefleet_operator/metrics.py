"""The operator's own figures, by the contract's table."""

from collections import Counter as Tally
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from pagefleet_contract import operator_metrics as table
from pagefleet_contract.metrics import Metric
from pagefleet_contract.names import CONDITIONS
from pagefleet_operator.cache import ServiceKey


def _series(metric: Metric) -> tuple[str, ...]:
    endings = ("_bucket", "_count", "_sum") if metric.kind == "histogram" else ("",)
    return tuple(metric.name + ending for ending in endings)


# What the table says and no more: the library adds the time at which it made each counter.
_SERIES = tuple(name for metric in table.OPERATOR_METRICS for name in _series(metric))


class Metrics:
    """Owns the counters, and the conditions of each service as they were last seen."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.reconciles = self._counter(table.RECONCILES)
        self.reconcile_seconds = Histogram(
            table.RECONCILE_SECONDS.name,
            table.RECONCILE_SECONDS.help,
            buckets=table.RECONCILE_SECONDS.buckets,
            registry=self._registry,
        )
        self.queue_depth = self._gauge(table.QUEUE_DEPTH)
        self.queue_age = self._gauge(table.QUEUE_AGE)
        self.watch_age = self._gauge(table.WATCH_AGE)
        self.canary_age = self._gauge(table.CANARY_AGE)
        self.leading = self._gauge(table.LEADING)
        self.applies = self._counter(table.APPLIES)
        self.figures_reads = self._counter(table.FIGURES_READS)
        self.loop_lag = self._gauge(table.LOOP_LAG)
        self.crd_missing_fields = self._gauge(table.CRD_MISSING_FIELDS)
        self._services = self._gauge(table.SERVICES)
        self._gauge(table.OPERATOR_BUILD_INFO).labels(version("pagefleet")).set(1)
        self._conditions: dict[ServiceKey, tuple[tuple[str, str], ...]] = {}

    def take_status(self, key: ServiceKey, status: Mapping[str, Any]) -> None:
        conditions = status.get("conditions") or ()
        self._conditions[key] = tuple((condition["type"], condition["status"]) for condition in conditions)

    def forget(self, key: ServiceKey) -> None:
        self._conditions.pop(key, None)

    def page(self) -> bytes:
        """Return what /metrics shows."""
        tally = Tally(condition for conditions in self._conditions.values() for condition in conditions)
        for condition in CONDITIONS:
            for status in ("True", "False", "Unknown"):
                self._services.labels(condition, status).set(tally[condition, status])
        return generate_latest(self._registry.restricted_registry(_SERIES))

    def _gauge(self, metric: Metric) -> Gauge:
        return Gauge(metric.name, metric.help, metric.labels, registry=self._registry)

    def _counter(self, metric: Metric) -> Counter:
        # The library appends the ending itself.
        return Counter(metric.name.removesuffix("_total"), metric.help, metric.labels, registry=self._registry)
