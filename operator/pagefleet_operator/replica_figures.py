"""What the replicas' own figures put into the status: what is in force, and the KV cache of one replica."""

from collections.abc import Mapping
from typing import Any

from pagefleet_contract.capacity import sequences_in
from pagefleet_contract.engine import Section
from pagefleet_contract.inferenceservice import InferenceServiceSpec
from pagefleet_contract.service_settings import effective_routing
from pagefleet_contract.status import Effective, KVStatus
from pagefleet_operator.generation import Generation
from pagefleet_operator.observed import Figures, Pod

_MAX_NOTES = 32
_NOTE_CHARACTERS = 2048


def effective(
    spec: InferenceServiceSpec,
    generation: Generation,
    pods: tuple[Pod, ...],
    further_notes: tuple[str, ...],
    old: Mapping[str, Any],
) -> Effective:
    """Return what is in force. `pods` are the ready ones of this generation, `old` is what the status said.

    Where none was read, what the status said of the same image stays: figures only go missing for a while.
    """
    config, figures = generation.config, _first(pods)
    if figures is None and pods and old.get("image") == generation.image:
        return known_effective({**old, "routingMode": effective_routing(spec)})
    kv_dtype = config.kv_cache.dtype
    return Effective(
        max_length=config.model.max_length if figures is None else figures.max_length_tokens,
        dtype=_named(config.model.dtype) if figures is None else figures.dtype,
        quantization=_quantization(config.model.quantization, figures),
        kv_dtype=_named(kv_dtype) if figures is None else figures.kv_dtype,
        block_size=config.kv_cache.block_size if figures is None else figures.block_size,
        swap_mode=config.kv_cache.swap.mode,
        routing_mode=effective_routing(spec),
        image=generation.image,
        notes=_notes(further_notes + generation.notes + (() if figures is None else figures.notes)),
    )


def kv_status(pods: tuple[Pod, ...], old: Mapping[str, Any]) -> KVStatus | None:
    """Return one replica's KV cache and the mean use, or None where no replica is ready.

    A replica that couldn't be read is counted; sizes that are known stay.
    """
    if not pods:
        return None
    unread = sum(1 for pod in pods if pod.figures is None and pod.figures_fault) or None
    figures = _first(pods)
    if figures is None:
        sizes = {name: value for name, value in old.items() if name not in ("usedPercent", "unreadReplicas")}
        return (
            KVStatus.model_validate(_known(KVStatus, {**sizes, "unreadReplicas": unread})) if sizes or unread else None
        )
    blocks, block_size, length = figures.num_blocks, figures.block_size, figures.max_length_tokens
    per_block = figures.bytes_per_block
    return KVStatus(
        bytes_per_token=per_block // block_size if per_block and block_size else None,
        blocks=blocks,
        tokens=blocks * block_size if blocks and block_size else None,
        sequences=sequences_in(blocks, length, block_size) if blocks and length and block_size else None,
        used_percent=_used_percent(pods),
        unread_replicas=unread,
    )


def known_effective(old: Mapping[str, Any]) -> Effective:
    """Return what a written status said is in force; what another version of the operator wrote is left out."""
    return Effective.model_validate(_known(Effective, old))


def _known(section: type[Section], values: Mapping[str, Any]) -> dict[str, Any]:
    names = {info.alias for info in section.model_fields.values()}
    return {name: value for name, value in values.items() if name in names}


def missing_apis(*, pod_monitor_wanted: bool, pod_monitor_there: bool) -> tuple[str, ...]:
    if pod_monitor_wanted and not pod_monitor_there:
        return ("the cluster has no PodMonitor, so nothing scrapes the replicas through one",)
    return ()


def _first(pods: tuple[Pod, ...]) -> Figures | None:
    return next((pod.figures for pod in pods if pod.figures is not None and pod.figures.num_blocks), None)


def _used_percent(pods: tuple[Pod, ...]) -> int | None:
    shares = [
        pod.figures.live_blocks / pod.figures.num_blocks
        for pod in pods
        if pod.figures is not None and pod.figures.live_blocks is not None and pod.figures.num_blocks
    ]
    return round(100 * sum(shares) / len(shares)) if shares else None


def _quantization(asked: str, figures: Figures | None) -> str | None:
    """Return what replicas say; those of older images don't."""
    found = asked if figures is None or figures.quantization is None else figures.quantization
    return None if found == "none" else found


def _named(dtype: str) -> str | None:
    """`auto` is nothing that is in force: what it means, a replica will say."""
    return None if dtype == "auto" else dtype


def _notes(notes: tuple[str, ...]) -> list[str]:
    return [note[:_NOTE_CHARACTERS] for note in dict.fromkeys(notes)][:_MAX_NOTES]
