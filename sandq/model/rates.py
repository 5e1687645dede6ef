"""Rates as users write them, and as records store them: the microseconds between two messages."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any, Final

_PER_US: Final = {"s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}
_RATE: Final = re.compile(r"(?P<number>[0-9]{1,12}(\.[0-9]{1,12})?)(/(?P<unit>[smhd]))?", re.ASCII)
_MOST_PER_S: Final = 100_000
_DIGITS: Final = 10**12
"""Scale of the decimal places of a rate's number."""


def interval_us(value: object) -> int:
    """Return the time between two messages at a rate, in microseconds, rounded up so that the rate is never exceeded.

    `value`: a number per second, or text such as "5/s", "100/h". Raise ValueError for anything else.
    """
    found = _RATE.fullmatch(value) if isinstance(value, str) else None
    unit = found["unit"] or "s" if found else "s"
    number: Any = found["number"] if found else value
    is_number = found is not None or type(number) is int or (type(number) is float and math.isfinite(number))
    count = Fraction(str(number) if type(number) is float else number) if is_number else Fraction(0)
    if count <= 0:
        raise ValueError('a rate is expected: messages a second, or text such as "5/s", "100/m", "1000/h", "10/d"')
    if not Fraction(1_000_000, _MOST_PER_S) <= _PER_US[unit] / count <= _PER_US["d"]:
        raise ValueError(f"a rate is between 1/d and {_MOST_PER_S}/s")
    return math.ceil(_PER_US[unit] / count)


def rate_text(interval_us: int) -> str:
    """Return the text of a rate. `interval_us` of this text gives the same interval again."""
    for unit, per_us in _PER_US.items():
        count = -(-per_us // interval_us)
        if -(-per_us // count) == interval_us:
            return f"{count}/{unit}"
    whole, parts = divmod(-(-_PER_US["d"] * _DIGITS // interval_us), _DIGITS)
    return f"{whole}.{parts:012}/d"


def as_mapping(rows: Iterable[Sequence[Any]]) -> dict[str, dict[str, Any]]:
    """Return the tenants of a topic as a user would write them. `rows`: the rows of tenants in the topic's record."""
    found: dict[str, dict[str, Any]] = {}
    for pattern, weight, most, *pace in rows:
        found[pattern] = {"weight": weight, "max_in_flight": most, "rate": None, "burst": None}
        if pace:
            found[pattern] |= {"rate": rate_text(pace[0]), "burst": pace[1]}
    return found
