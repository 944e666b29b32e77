"""What /metrics shows. Names, labels and buckets come from the contract's table."""

from collections import Counter
from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as MetricFamily
from prometheus_client.registry import Collector

from pagefleet_contract import metrics as table
from pagefleet_contract.metrics import Metric
from pagefleet_router.choice import REASONS
from pagefleet_router.fleet import Fleet

# The status of a request whose client left before it got one; the word is nginx's.
CLIENT_LEFT = 499

Values = Mapping[tuple[str, ...], float]


class RouterFigures:
    """Counts what the proxy tells."""

    def __init__(self, version: str, service_name: str, served_name: str) -> None:
        self.info = (version, service_name, served_name)
        self.requests: Counter[int] = Counter()
        self.retries: Counter[str] = Counter(dict.fromkeys(REASONS, 0))
        self.num_lost = 0
        metric = table.ROUTER_TIME_TO_FIRST_BYTE
        self._first_byte = Histogram(metric.name, metric.help, buckets=metric.buckets, registry=None)

    def ended(self, status: int | None, first_byte_seconds: float | None) -> None:
        """A request has ended: the status that was sent, None if none was, and when the answer began."""
        self.requests[CLIENT_LEFT if status is None else status] += 1
        if first_byte_seconds is not None:
            self._first_byte.observe(first_byte_seconds)

    def retried(self, reason: str) -> None:
        """A request goes to another replica."""
        self.retries[reason] += 1

    def lost(self) -> None:
        """An answer that had begun couldn't be brought to its end."""
        self.num_lost += 1

    def first_byte_family(self) -> HistogramMetricFamily:
        family = HistogramMetricFamily(table.ROUTER_TIME_TO_FIRST_BYTE.name, table.ROUTER_TIME_TO_FIRST_BYTE.help)
        for collected in self._first_byte.collect():
            # When it was created is a series nobody asks for; the table doesn't have it.
            family.samples = [sample for sample in collected.samples if not sample.name.endswith("_created")]
        return family


def metric_values(figures: RouterFigures, fleet: Fleet, in_flight: int) -> dict[Metric, Values]:
    """Return what every gauge and counter of the router shows."""
    age = fleet.watch_age_seconds
    return {
        table.ROUTER_REQUESTS: {(str(status),): number for status, number in sorted(figures.requests.items())},
        table.ROUTER_IN_FLIGHT: {(): in_flight},
        table.ROUTER_RETRIES: {(reason,): number for reason, number in figures.retries.items()},
        table.ROUTER_LOST: {(): figures.num_lost},
        table.ROUTER_REPLICAS: {(state,): number for state, number in fleet.count().items()},
        table.ROUTER_WATCH_AGE: {} if age is None else {(): age},
        table.ROUTER_BUILD_INFO: {figures.info: 1.0},
    }


class _RouterCollector(Collector):
    def __init__(self, figures: RouterFigures, fleet: Fleet, in_flight: int) -> None:
        self._figures, self._fleet, self._in_flight = figures, fleet, in_flight

    def collect(self) -> Iterator[MetricFamily]:
        for metric, values in metric_values(self._figures, self._fleet, self._in_flight).items():
            yield _family(metric, values)
        yield self._figures.first_byte_family()


def _family(metric: Metric, values: Values) -> MetricFamily:
    kinds = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}
    family: CounterMetricFamily | GaugeMetricFamily = kinds[metric.kind](
        metric.name, metric.help, labels=list(metric.labels)
    )
    for labels, value in values.items():
        family.add_metric(list(labels), value)
    return family


def exposition(figures: RouterFigures, fleet: Fleet, in_flight: int) -> bytes:
    """Return the page that /metrics answers, in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(_RouterCollector(figures, fleet, in_flight))
    return generate_latest(registry)
