"""What /metrics shows: the last snapshot as gauges and counters, and histograms that the API observes.

Names, labels and buckets come from the contract's table; a name that isn't there can't be shown.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as MetricFamily
from prometheus_client.registry import Collector

from pagefleet_contract import metrics as table
from pagefleet_contract.metrics import Metric, VllmAlias
from pagefleet_contract.names import LOAD_STAGES
from pagefleet_runtime.engine_client import EngineState
from pagefleet_runtime.protocol import EngineInfo, LoadProgress
from pagefleet_runtime.snapshot import EngineSnapshot

# The value of each combination of label values, in the order of the metric's labels.
Values = Mapping[tuple[str, ...], float]

ENGINE_STATES: tuple[EngineState, ...] = ("loading", "ready", "draining", "failed")
OUTCOMES = ("stop", "length", "cancelled", "error", "timeout", "refused")
PREEMPTION_CAUSES = ("blocks", "budget")


@dataclass(frozen=True, slots=True)
class Figures:
    """Everything that the gauges and counters show, at one moment."""

    snapshot: EngineSnapshot
    state: EngineState
    info: EngineInfo | None
    load: LoadProgress | None
    in_flight: int
    last_step_age_seconds: float
    stalled_seconds: float
    version: str
    model_name: str


class RequestFigures:
    """The histograms of requests. The API calls the observe methods; the times are in seconds."""

    def __init__(self) -> None:
        self._histograms = {
            metric.name: Histogram(metric.name, metric.help, buckets=metric.buckets, registry=None)
            for metric in table.RUNTIME_METRICS
            if metric.kind == "histogram"
        }

    def observe_first_token(self, seconds: float) -> None:
        """From the request's arrival to its first token (once a request)."""
        self._histograms[table.TIME_TO_FIRST_TOKEN.name].observe(seconds)

    def observe_inter_token(self, seconds: float) -> None:
        """Between two tokens of one choice."""
        self._histograms[table.INTER_TOKEN.name].observe(seconds)

    def observe_queue(self, seconds: float) -> None:
        """From the request's arrival to its first step. The engine client calls it, not the API."""
        self._histograms[table.REQUEST_QUEUE.name].observe(seconds)

    def observe_request(self, seconds: float, prompt_tokens: int, generation_tokens: int) -> None:
        """A request that came to its natural end: from arrival to the last token, its prompt's tokens and the sum of
        its choices' tokens (once a request)."""
        self._histograms[table.REQUEST_SECONDS.name].observe(seconds)
        self._histograms[table.REQUEST_PROMPT_TOKENS.name].observe(prompt_tokens)
        self._histograms[table.REQUEST_GENERATION_TOKENS.name].observe(generation_tokens)

    def families(self) -> Iterator[tuple[Metric, HistogramMetricFamily]]:
        for metric in table.RUNTIME_METRICS:
            if metric.kind != "histogram":
                continue
            family = HistogramMetricFamily(metric.name, metric.help)
            for collected in self._histograms[metric.name].collect():
                # When it was created is a series nobody asks for; the table doesn't have it.
                family.samples = [sample for sample in collected.samples if not sample.name.endswith("_created")]
            yield metric, family


def metric_values(figures: Figures) -> dict[Metric, Values]:
    """Return what every gauge and counter of the runtime shows."""
    return {
        **_cache_values(figures.snapshot),
        **_engine_values(figures),
        **_counter_values(figures.snapshot),
        **_info_values(figures),
    }


def _cache_values(snapshot: EngineSnapshot) -> dict[Metric, Values]:
    waste = 1 - snapshot.slots_live / snapshot.slots_allocated if snapshot.slots_allocated else 0.0
    usage = snapshot.blocks_live / snapshot.blocks_total if snapshot.blocks_total else 0.0
    return {
        table.KV_BLOCKS: {
            ("free",): snapshot.blocks_free,
            ("cached",): snapshot.blocks_cached,
            ("live",): snapshot.blocks_live,
        },
        table.KV_BLOCK_BUDGET: _plain(snapshot.blocks_total),
        table.KV_USAGE: _plain(usage),
        table.KV_SLOTS: {("filled",): snapshot.slots_live, ("allocated",): snapshot.slots_allocated},
        table.KV_WASTE: _plain(waste),
    }


def _engine_values(figures: Figures) -> dict[Metric, Values]:
    snapshot = figures.snapshot
    return {
        table.SEQUENCES_RUNNING: _plain(snapshot.running),
        table.REQUESTS_WAITING: _plain(snapshot.waiting),
        table.REQUESTS_IN_FLIGHT: _plain(figures.in_flight),
        table.QUEUED_TOKENS: _plain(snapshot.queued_tokens),
        table.TOKEN_BUDGET: _plain(snapshot.token_budget),
        table.LAST_STEP_AGE: _plain(figures.last_step_age_seconds),
        table.STALLED: _plain(figures.stalled_seconds),
        table.ENGINE_STATE: {(state,): float(state == figures.state) for state in ENGINE_STATES},
        table.LOAD_PROGRESS: {(stage,): _stage_progress(stage, figures) for stage in LOAD_STAGES},
    }


def _stage_progress(stage: str, figures: Figures) -> float:
    """Return how far a stage is: those before the current one are through, and all are once the model has loaded."""
    if figures.info is not None:
        return 1.0
    if figures.load is None or figures.load.stage not in LOAD_STAGES:
        return 0.0
    behind = LOAD_STAGES.index(figures.load.stage) - LOAD_STAGES.index(stage)
    return figures.load.fraction if behind == 0 else float(behind > 0)


def _counter_values(snapshot: EngineSnapshot) -> dict[Metric, Values]:
    return {
        table.STEPS: _plain(snapshot.steps),
        table.STEP_SECONDS: _plain(snapshot.step_seconds),
        table.PROMPT_TOKENS: _plain(snapshot.prompt_tokens),
        table.GENERATION_TOKENS: _plain(snapshot.generated_tokens),
        table.COMPUTED_TOKENS: _plain(snapshot.computed_tokens),
        table.PREFIX_QUERIED_TOKENS: _plain(snapshot.prefix_hit_tokens + snapshot.prefix_missed_tokens),
        table.PREFIX_HIT_TOKENS: _plain(snapshot.prefix_hit_tokens),
        table.COPIES_ON_WRITE: _plain(snapshot.copies_on_write),
        table.EVICTED_BLOCKS: _plain(snapshot.evicted_blocks),
        table.PREEMPTIONS: _by_label(PREEMPTION_CAUSES, snapshot.preemptions),
        table.RECOMPUTED_TOKENS: _by_label(PREEMPTION_CAUSES, snapshot.recomputed_tokens),
        table.REQUESTS: _by_label(OUTCOMES, snapshot.outcomes),
    }


def _info_values(figures: Figures) -> dict[Metric, Values]:
    info = figures.info
    if info is None:
        return {table.BUILD_INFO: {(figures.version, figures.model_name, "", ""): 1.0}, table.KV_CONFIG: {}}
    layout = (str(info.block_size), str(info.num_blocks), info.kv_dtype, str(info.bytes_per_block))
    return {
        table.BUILD_INFO: {(figures.version, figures.model_name, info.model_type, info.dtype): 1.0},
        table.KV_CONFIG: {layout: 1.0},
    }


def _plain(value: float) -> Values:
    return {(): value}


def _by_label(known: Iterable[str], found: Mapping[str, int]) -> Values:
    """Return a value for every known label value, so that a rate over it is right from the first event on."""
    return {(label,): found.get(label, 0) for label in {**dict.fromkeys(known), **dict.fromkeys(found)}}


def alias_values(metric: Metric, alias: VllmAlias, values: Values, model_name: str) -> Values:
    """Return a metric's values under the labels of vLLM's series: `model_name`, `engine`, and those of the alias."""
    kept = [metric.labels.index(ours) for ours, _ in alias.labels]
    words = dict(alias.values)
    found: defaultdict[tuple[str, ...], float] = defaultdict(float)
    for labels, value in values.items():
        shown = [labels[index] for index in kept]
        if words and shown[0] not in words:
            continue
        found[(model_name, "0", *(words.get(label, label) for label in shown))] += value
    return found


def _family(kind: str, name: str, text: str, labels: Iterable[str], values: Values) -> MetricFamily:
    family: CounterMetricFamily | GaugeMetricFamily
    if kind == "counter":
        family = CounterMetricFamily(name, text, labels=list(labels))
    else:
        family = GaugeMetricFamily(name, text, labels=list(labels))
    for label_values, value in values.items():
        family.add_metric(list(label_values), value)
    return family


def _aliased_histogram(alias: VllmAlias, family: HistogramMetricFamily, model_name: str) -> HistogramMetricFamily:
    renamed = HistogramMetricFamily(alias.name, family.documentation)
    for sample in family.samples:
        labels = {"model_name": model_name, "engine": "0", **sample.labels}
        renamed.add_sample(alias.name + sample.name.removeprefix(family.name), labels, sample.value)
    return renamed


class RuntimeCollector(Collector):
    """Everything that the runtime shows, as prometheus_client wants it."""

    def __init__(self, figures: Figures, requests: RequestFigures, vllm_names: bool) -> None:
        self._figures = figures
        self._requests = requests
        self._vllm_names = vllm_names

    def collect(self) -> Iterator[MetricFamily]:
        model_name = self._figures.model_name
        for metric, values in metric_values(self._figures).items():
            yield _family(metric.kind, metric.name, metric.help, metric.labels, values)
            for alias in metric.vllm if self._vllm_names else ():
                labels = ("model_name", "engine", *(theirs for _, theirs in alias.labels))
                shown = alias_values(metric, alias, values, model_name)
                yield _family(metric.kind, alias.name, metric.help, labels, shown)
        for metric, family in self._requests.families():
            yield family
            for alias in metric.vllm if self._vllm_names else ():
                yield _aliased_histogram(alias, family, model_name)


def exposition(figures: Figures, requests: RequestFigures, vllm_names: bool) -> bytes:
    """Return the page that /metrics answers, in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(RuntimeCollector(figures, requests, vllm_names))
    return generate_latest(registry)
