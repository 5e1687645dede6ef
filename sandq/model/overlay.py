"""Lay changes that are not written yet over rows that are."""

from __future__ import annotations

from collections.abc import Callable, Mapping

Row = tuple[bytes, bytes]
Change = tuple[bytes, bytes | None]
"""A row to put, or (value None) to delete."""
Changed = Mapping[bytes, bytes | None]
Scan = Callable[[bytes, bytes, int], list[Row]]
"""Rows with start <= key < stop, at most so many, by `scan_over`'s direction and bytes."""


def scan_over(
    scan: Scan, changed: Changed, start: bytes, stop: bytes, *, limit: int, max_bytes: int, reverse: bool
) -> list[Row]:
    """Rows with start <= key < stop in key order (`reverse`: backwards) as they are with `changed`, which are the
    changes of this range, laid over what `scan` finds. Ends after `limit` rows, or with the row that brings the values
    returned to `max_bytes`; `scan` must end there as well."""
    rows: list[Row] = []
    while True:
        # Deleted rows can hide at most len(changed) of what is written.
        wanted = limit + len(changed)
        found = scan(start, stop, wanted)
        complete = not found or (len(found) < wanted and sum([len(value) for _, value in found]) < max_bytes)
        merged: dict[bytes, bytes | None] = dict(found)
        if complete:
            merged.update(changed)
        elif reverse:
            merged.update((k, v) for k, v in changed.items() if k >= found[-1][0])
        else:
            merged.update((k, v) for k, v in changed.items() if k <= found[-1][0])
        rows += [(key, value) for key, value in sorted(merged.items(), reverse=reverse) if value is not None]
        # Not less than was asked for because some of it is deleted and not yet written: callers take less for the
        # end, and what is written must not show in what they see.
        if complete or len(rows) >= limit or (rows and sum([len(value) for _, value in rows]) >= max_bytes):
            return _cut(rows, limit, max_bytes)
        if reverse:
            stop = found[-1][0]
        else:
            start = found[-1][0] + b"\x00"
        changed = {key: value for key, value in changed.items() if start <= key < stop}


def _cut(rows: list[Row], limit: int, max_bytes: int) -> list[Row]:
    total = 0
    for at, (_, value) in enumerate(rows[:limit]):
        total += len(value)
        if total >= max_bytes:
            return rows[: at + 1]
    return rows[:limit]
