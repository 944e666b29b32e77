"""Pages of tables for people: every metric, and every well-known model."""

from collections.abc import Iterable, Sequence

from pagefleet_contract.capacity import bytes_per_token
from pagefleet_contract.known_models import KNOWN_MODELS, KnownModel
from pagefleet_contract.metrics import ROUTER_METRICS, RUNTIME_METRICS, Metric
from pagefleet_contract.names import HTTP_PORT, OPERATOR_PORT, PATH_METRICS
from pagefleet_contract.operator_metrics import OPERATOR_METRICS

_METRIC_HEAD = ("metric", "type", "unit", "labels", "")
_VLLM_HEAD = ("metric", "vLLM's name", "labels besides `model_name` and `engine`")
_MODEL_HEAD = (
    "name", "as hf://", "parameters", "weights", "KV of a token", "layers", "heads (KV)", "longest request",
)  # fmt: skip


def metrics_reference() -> str:
    """Return docs/metrics.md."""
    pages = (
        ("Runtime", f"Each replica, at `{PATH_METRICS}` of port {HTTP_PORT}.", RUNTIME_METRICS),
        ("Router", f"Each router pod, at `{PATH_METRICS}` of port {HTTP_PORT}.", ROUTER_METRICS),
        ("Operator", f"Each operator pod, at `{PATH_METRICS}` of port {OPERATOR_PORT}.", OPERATOR_METRICS),
    )
    sections = "".join(
        f"\n## {title}\n\n{where}\n\n{_table(_METRIC_HEAD, map(_metric_row, metrics))}"
        for title, where, metrics in pages
    )
    aliases = [
        (f"`{metric.name}`", f"`{alias.name}`", _labels([theirs for _, theirs in alias.labels]))
        for metric in RUNTIME_METRICS
        for alias in metric.vllm
    ]
    return (
        "# Metrics\n\nEverything that the programs show to Prometheus. A histogram has the series"
        " `_bucket`, `_sum` and `_count`.\n"
        f"{sections}\n## vLLM's names\n\nWith `serving.vllmMetricNames: Enabled` a replica shows these figures under"
        f" vLLM's names, too.\n\n{_table(_VLLM_HEAD, aliases)}"
    )


def models_reference() -> str:
    """Return docs/models.md."""
    return (
        "# Well-known models\n\n`simulated://NAME` plays one of these; for its `hf://` names, too, whether it fits is"
        " known before anything is downloaded. A name may be written in capitals or not. Weights and keys and values"
        f" are of the type that the weights are stored in.\n\n{_table(_MODEL_HEAD, map(_model_row, KNOWN_MODELS))}"
    )


def _metric_row(metric: Metric) -> Sequence[str]:
    kind: str = metric.kind
    if metric.buckets:
        kind += f", {len(metric.buckets)} buckets up to {metric.buckets[-1]:,g}"
    return f"`{metric.name}`", kind, "" if metric.unit == "none" else metric.unit, _labels(metric.labels), metric.help


def _model_row(model: KnownModel) -> Sequence[str]:
    quantised = "" if model.quantization == "none" else f", {model.quantization}"
    return (
        f"`{model.name}`",
        ", ".join(f"`{hub_id}`" for hub_id in model.hub_ids),
        f"{model.parameters / 1e9:,.3g} G",
        f"{model.weights_bytes / 1e9:,.3g} GB ({model.dtype}{quantised})",
        f"{bytes_per_token(model.shape, model.dtype):,} bytes",
        str(model.num_layers),
        f"{model.num_heads} ({model.num_kv_heads})",
        f"{model.max_length:,} tokens",
    )


def _labels(labels: Iterable[str]) -> str:
    return ", ".join(f"`{label}`" for label in labels)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)
