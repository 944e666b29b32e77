"""Which types weights and blocks have: what is asked, what the model has, what the machine can do. Pure."""

from dataclasses import dataclass

from pagefleet_contract.engine import EngineConfig


@dataclass(frozen=True, slots=True)
class Dtypes:
    weights: str
    kv: str
    notes: tuple[str, ...] = ()


def choose_dtypes(config: EngineConfig, own: str | None, has_bfloat16: bool, on_cpu: bool = True) -> Dtypes:
    """Return the types in force. `own` is the model's; None where it has no say, as in a quantised file."""
    asked = config.model.dtype
    weights, notes = (asked, ()) if asked != "auto" else _automatic(own or "bfloat16", has_bfloat16, on_cpu)
    kv = config.kv_cache.dtype
    return Dtypes(weights, weights if kv == "auto" else kv, notes)


def _automatic(own: str, has_bfloat16: bool, on_cpu: bool) -> tuple[str, tuple[str, ...]]:
    if own not in ("bfloat16", "float16"):
        return "float32", ()
    if not on_cpu:
        return ("bfloat16" if own == "bfloat16" and has_bfloat16 else "float16"), ()
    if not has_bfloat16:
        return "float32", (f"dtype is float32, not {own}: this CPU has no bfloat16 instructions",)
    if own == "float16":
        return "bfloat16", ("dtype is bfloat16, not float16: this CPU computes in bfloat16",)
    return "bfloat16", ()
