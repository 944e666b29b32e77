"""Reads a replica's state page, and writes addresses. Pure; knows the page's names and nothing of the network."""

import ipaddress
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from pagefleet_contract.names import HTTP_PORT
from pagefleet_contract.policy import LIVE_FIELDS
from pagefleet_operator.observed import Figures


class _Part(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, extra="ignore", frozen=True)


class _Load(_Part):
    stage: str | None = None
    fraction: float | None = None


class _Info(_Part):
    dtype: str | None = None
    quantization: str | None = None
    kv_dtype: str | None = None
    block_size: int | None = None
    num_blocks: int | None = None
    bytes_per_block: int | None = None
    max_length_tokens: int | None = None
    notes: tuple[str, ...] = ()


class _Snapshot(_Part):
    blocks_live: int | None = None
    blocks_total: int | None = None


class _Drain(_Part):
    in_flight: int = 0


class _Page(_Part):
    state: str
    load: _Load | None = None
    info: _Info | None = None
    snapshot: _Snapshot | None = None
    drain: _Drain = _Drain()
    policy: Mapping[str, Any] | None = None


class NoStatePage(Exception):
    """What came is no state page; the message says what was found."""


def figures_of(content: bytes) -> Figures:
    """Return what a state page says. Raises NoStatePage."""
    try:
        page = _Page.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise NoStatePage(f"its state page isn't one: {where or 'the body'}: {first['msg']}") from None
    info, load, snapshot = page.info or _Info(), page.load or _Load(), page.snapshot or _Snapshot()
    return Figures(
        state=page.state,
        in_flight=page.drain.in_flight,
        load_stage=load.stage,
        load_fraction=load.fraction,
        block_size=info.block_size,
        # What is in force may be less than what was reserved at start.
        num_blocks=(snapshot.blocks_total or info.num_blocks) if page.info else None,
        bytes_per_block=info.bytes_per_block,
        max_length_tokens=info.max_length_tokens,
        dtype=info.dtype,
        quantization=info.quantization,
        kv_dtype=info.kv_dtype,
        live_blocks=snapshot.blocks_live,
        notes=info.notes,
        policy=_policy(page.policy or {}),
    )


def _policy(values: Mapping[str, Any]) -> dict[str, int]:
    found = {name: values.get(to_camel(name)) for name in LIVE_FIELDS}
    return {name: value for name, value in found.items() if isinstance(value, int)}


def replica_url(ip: str, path: str) -> str:
    """Return the URL of a path of the replica with this address; an IPv6 one stands in brackets."""
    host = f"[{ip}]" if ipaddress.ip_address(ip).version == 6 else ip
    return f"http://{host}:{HTTP_PORT}{path}"
