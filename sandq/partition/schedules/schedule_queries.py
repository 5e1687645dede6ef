"""Reads the schedules of a partition: due schedules, schedules by name, pages of all schedules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from sandq.partition.base import rows
from sandq.partition.base.view import Row, View
from sandq.partition.schedules.schedule import Schedule, fire_key, fire_of, key_of, name_of

PAGE_BYTES: Final = 2 << 20

Stored = tuple[str, bytes]
"""(name, row) of a schedule."""


def due(
    view: View, until_ms: int, most: int, in_slices: Callable[[Sequence[Row]], Iterable[Row]] = iter
) -> list[Stored]:
    """Return the schedules that fire up to `until_ms`, in order. `in_slices`: as `SharedState.in_slices`."""
    found = view.scan(rows.FIRE, fire_key(until_ms + 1, ""), limit=most, max_bytes=PAGE_BYTES)
    stored: list[Stored] = []
    size = 0
    for key, _ in in_slices(found):
        _, name = fire_of(key)
        value = view.get(key_of(name))
        assert value is not None, "an index row points to a schedule that does not exist"
        stored.append((name, value))
        size += len(value)
        if size >= PAGE_BYTES:
            break
    return stored


def named(view: View, names: Iterable[str]) -> list[bytes | None]:
    """Return the row of each named schedule. None for a schedule that does not exist."""
    return [view.get(key_of(name)) for name in names]


def page(view: View, prefix: str, after: str | None, most: int) -> tuple[list[Stored], str | None]:
    """Return the schedules whose names begin with `prefix`, sorted by bytes, and the name after which the next page
    begins. None if there is no next page."""
    start, stop = key_of(prefix), _behind(key_of(prefix))
    if after is not None:
        start = max(start, rows.after(key_of(after)))
    found = view.scan(start, stop, limit=most, max_bytes=PAGE_BYTES)
    stored = [(name_of(key), value) for key, value in found]
    is_full = len(found) == most or sum([len(value) for _, value in found]) >= PAGE_BYTES
    return stored, stored[-1][0] if is_full else None


def made_later(name: str, row: bytes, now_ms: int) -> bytes | None:
    """Return the id of a message that was stored ahead of its time, if it is not due yet. None otherwise."""
    schedule = Schedule.load(name, row)
    is_later = schedule.fire_ms is not None and schedule.fire_ms > now_ms
    return schedule.made if is_later else None


def _behind(prefix: bytes) -> bytes:
    """Return the smallest key above all keys with this prefix. Its first byte is a tag, below 0xff."""
    bare = prefix.rstrip(b"\xff")
    return bare[:-1] + bytes([bare[-1] + 1])
