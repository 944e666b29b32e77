"""Kubernetes quantities by value: `1000m` is `1`, `1024Mi` is `1Gi`."""

import re
from decimal import Decimal

_QUANTITY = re.compile(r"([+-]?[0-9]*\.?[0-9]+)(?:[eE]([+-]?[0-9]+)|([numkMGTPE]i?|Ki)?)?")
_EXPONENT_DIGITS = 4  # with its sign; Kubernetes refuses what is larger
_SUFFIXES = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "": Decimal(1),
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "G": Decimal(10**9),
    "T": Decimal(10**12),
    "P": Decimal(10**15),
    "E": Decimal(10**18),
    "Ki": Decimal(2**10),
    "Mi": Decimal(2**20),
    "Gi": Decimal(2**30),
    "Ti": Decimal(2**40),
    "Pi": Decimal(2**50),
    "Ei": Decimal(2**60),
}


def quantity_value(quantity: str | int | float) -> Decimal | None:
    """Return the number that a quantity means, or None where it is none."""
    match = _QUANTITY.fullmatch(str(quantity))
    if match is None:
        return None
    number, exponent, suffix = match.groups()
    if exponent is not None:
        return Decimal(number).scaleb(int(exponent)) if len(exponent) <= _EXPONENT_DIGITS else None
    factor = _SUFFIXES.get(suffix or "")
    return None if factor is None else Decimal(number) * factor


def same_quantity(one: str | int | float, other: str | int | float) -> bool:
    value = quantity_value(one)
    return value is not None and value == quantity_value(other)
