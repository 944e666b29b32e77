"""Kubernetes quantities as exact numbers: CPU, bytes, counts."""

import re
from decimal import ROUND_CEILING, Decimal

_SUFFIXES = {
    "": Decimal(1),
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    **{suffix: Decimal(1000) ** power for power, suffix in enumerate("kMGTPE", 1)},
    **{f"{suffix}i": Decimal(1024) ** power for power, suffix in enumerate("KMGTPE", 1)},
}
_FORM = re.compile(r"^([+-]?[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:([eE][+-]?[0-9]+)|([numkMGTPE]|[KMGTPE]i)?)$")


def quantity(text: str | int) -> Decimal:
    """Return the value of a quantity such as `500m`, `64Gi`, `1e3` or `2`."""
    match = _FORM.match(str(text))
    if not match:
        raise ValueError(f"{text!r} is no quantity; write a number with one of n, u, m, k, M, G, T, P, E, Ki to Ei")
    number, exponent, suffix = match.groups()
    return Decimal(number + (exponent or "")) * _SUFFIXES[suffix or ""]


def divided(value: Decimal, divisor: str) -> int:
    """Return the value in units of the divisor, rounded up, as the downward API shows it."""
    unit = quantity(divisor)
    if not unit:
        unit = Decimal(1)
    return int((value / unit).to_integral_value(rounding=ROUND_CEILING))
