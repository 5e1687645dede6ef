"""Apply changes that are not written yet to stored rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping

Row = tuple[bytes, bytes]
Change = tuple[bytes, bytes | None]
"""A row to put, or (value None) to delete."""
Changed = Mapping[bytes, bytes | None]
Scan = Callable[[bytes, bytes, int], list[Row]]
"""Function that returns stored rows with start <= key < stop, up to a number of rows. The direction and the limit of
bytes are those of the `scan_over` call."""


def scan_over(
    scan: Scan, changed: Changed, start: bytes, stop: bytes, *, limit: int, max_bytes: int, reverse: bool
) -> list[Row]:
    """Return the rows with start <= key < stop in key order (`reverse`: backwards), as they are with `changed` applied
    to the rows that `scan` returns.

    `changed` must hold the changes of this range only. The result ends after `limit` rows, or with the row at which the
    total size of the values reaches `max_bytes`. `scan` must apply the same limits.
    """
    rows: list[Row] = []
    while True:
        # Deletions can hide at most len(changed) stored rows.
        wanted = limit + len(changed)
        found = scan(start, stop, wanted)
        # The range is exhausted if the scan stopped neither at `wanted` rows nor at `max_bytes`. Otherwise apply only
        # the changes within the part that was scanned: the next iteration continues after it.
        complete = not found or (len(found) < wanted and sum([len(value) for _, value in found]) < max_bytes)
        merged: dict[bytes, bytes | None] = dict(found)
        if complete:
            merged.update(changed)
        elif reverse:
            merged.update((k, v) for k, v in changed.items() if k >= found[-1][0])
        else:
            merged.update((k, v) for k, v in changed.items() if k <= found[-1][0])
        rows += [(key, value) for key, value in sorted(merged.items(), reverse=reverse) if value is not None]
        # If unwritten deletions hid some rows, scan on until the limit is reached or the range ends. Callers take a
        # short result for the end of the range, and must not notice whether changes are written.
        if complete or len(rows) >= limit or (rows and sum([len(value) for _, value in rows]) >= max_bytes):
            return _cut(rows, limit, max_bytes)
        if reverse:
            stop = found[-1][0]
        else:
            start = found[-1][0] + b"\x00"
        changed = {key: value for key, value in changed.items() if start <= key < stop}


def _cut(rows: list[Row], limit: int, max_bytes: int) -> list[Row]:
    """Return the first rows, at most `limit`, up to the row that brings the bytes of values to `max_bytes`."""
    total = 0
    for at, (_, value) in enumerate(rows[:limit]):
        total += len(value)
        if total >= max_bytes:
            return rows[: at + 1]
    return rows[:limit]
