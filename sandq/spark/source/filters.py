"""Converts the filters that Spark pushes down into a `Narrowed`: bounds of the data that a batch reads.

Unsupported filters are ignored, because Spark applies all filters again to the rows that it gets.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from sandq.model import offsets as offset_model
from sandq.spark.source.narrowing import WHOLE, Narrowed

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)
_COMPARED: Final[Mapping[type[Filter], Callable[[Any, Any], bool]]] = {
    EqualTo: operator.eq,
    EqualNullSafe: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
}


def narrowed(filters: Iterable[Filter]) -> Narrowed:
    """Return the bounds of the rows for which all filters can be true."""
    found = WHOLE
    for one in filters:
        attribute: tuple[str, ...] = getattr(one, "attribute", ())
        values = _values(one)
        if len(attribute) != 1 or values is None:
            continue
        name = attribute[0]
        if name == "deliver_at":
            found = _in_time(found, one, values)
        elif name == "partition" and all(type(value) is int for value in values):
            kept = [p for p in found.partitions if any(_compared(one)(p, value) for value in values)]
            found = replace(found, partitions=frozenset(kept))
        elif name == "topic" and _is_equality(one) and all(isinstance(value, str) for value in values):
            topics = frozenset(values)
            found = replace(found, topics=topics & (topics if found.topics is None else found.topics))
        elif name == "key" and _is_equality(one) and all(isinstance(value, bytes | bytearray) for value in values):
            keys = frozenset(bytes(value) for value in values)
            found = replace(found, keys=keys & (keys if found.keys is None else found.keys))
    return found


def _values(one: Filter) -> list[Any] | None:
    """Return the values that a filter compares with; None if the filter is not supported."""
    if isinstance(one, In):
        values = [value for value in one.value if value is not None]
        return values or None
    if type(one) in _COMPARED:
        value = one.value
        return None if value is None else [value]
    return None


def _is_equality(one: Filter) -> bool:
    return isinstance(one, In | EqualTo | EqualNullSafe)


def _compared(one: Filter) -> Callable[[Any, Any], bool]:
    return _COMPARED.get(type(one), operator.eq)


def _in_time(found: Narrowed, one: Filter, values: list[Any]) -> Narrowed:
    if not all(isinstance(value, datetime) and value.tzinfo is not None for value in values):
        return found
    # Spark compares microseconds, offsets have milliseconds: round so that no matching message is left out.
    ceilings = [-((_EPOCH - value) // _MS) for value in values]
    floors = [(value - _EPOCH) // _MS for value in values]
    start, end = found.start_ms, found.end_ms
    if _is_equality(one):
        start, end = max(start, min(ceilings)), min(end, max(floors) + 1)
    elif isinstance(one, GreaterThan):
        start = max(start, floors[0] + 1)
    elif isinstance(one, GreaterThanOrEqual):
        start = max(start, ceilings[0])
    elif isinstance(one, LessThan):
        end = min(end, ceilings[0])
    else:
        end = min(end, floors[0] + 1)
    most = offset_model.U48_MAX
    return replace(found, start_ms=min(max(start, 0), most), end_ms=min(max(end, 0), most))
