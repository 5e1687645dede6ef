"""Rates, as users write them and as records have them: the microseconds between two messages."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

_PER_US: Final = {"s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}
_RATE: Final = re.compile(r"(?P<number>[0-9]{1,12}(\.[0-9]{1,12})?)(/(?P<unit>[smhd]))?", re.ASCII)
_MOST_PER_S: Final = 100_000
_LEAST: Final = 1e-12


def interval_us(value: object) -> int:
    """Return the time between two messages at a rate: a number a second, or text such as "5/s", "100/h". Raises
    ValueError."""
    found = _RATE.fullmatch(value) if isinstance(value, str) else None
    unit = found["unit"] or "s" if found else "s"
    number: Any = found["number"] if found else value
    try:
        count = float(number) if found or type(number) in (int, float) else None
    except OverflowError:
        count = None
    if count is None or not math.isfinite(count) or count <= 0:
        raise ValueError('a rate is expected: messages a second, or text such as "5/s", "100/m", "1000/h", "10/d"')
    if not 1_000_000 / _MOST_PER_S <= _PER_US[unit] / max(count, _LEAST) <= _PER_US["d"]:
        raise ValueError(f"a rate is between 1/d and {_MOST_PER_S}/s")
    return round(_PER_US[unit] / count)


def rate_text(interval_us: int) -> str:
    """Return the rate at which so much time is between two messages."""
    for unit, per_us in _PER_US.items():
        if not per_us % interval_us:
            return f"{per_us // interval_us}/{unit}"
    return f"{_PER_US['d'] / interval_us:.12f}/d"


def as_mapping(rows: Iterable[Sequence[Any]]) -> dict[str, dict[str, Any]]:
    """Return what a user would write for what the record of a topic has of its tenants."""
    found: dict[str, dict[str, Any]] = {}
    for pattern, weight, most, *pace in rows:
        found[pattern] = {"weight": weight, "max_in_flight": most, "rate": None, "burst": None}
        if pace:
            found[pattern] |= {"rate": rate_text(pace[0]), "burst": pace[1]}
    return found
