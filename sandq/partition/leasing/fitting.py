"""Computes how many messages of a waiting entry fit into a lease."""

from __future__ import annotations

from sandq.model import offsets
from sandq.partition.base.rows import LogEntry
from sandq.partition.base.view import View
from sandq.partition.groups.group import Group
from sandq.partition.groups.kept_messages import KeptMessages
from sandq.partition.reader import overlays
from sandq.partition.reader.reader import whole_row_entry
from sandq.partition.records.leases import Waiting

LEASE_BYTES = 8 << 20
"""Maximum bytes of all grants of one lease command, because these are read and sent as a whole."""


def fitting(
    kept: KeptMessages, group: Group, entry: Waiting, limit: int, max_bytes: int, view: View
) -> tuple[int, int]:
    """Return (number of messages of a waiting entry that fit into the lease, their bytes). Count up to `limit`
    messages; stop after the message that brings the bytes to `max_bytes`."""
    count = size = 0
    row: LogEntry | None = None
    for base, length in entry.ranges:
        if entry.kept:
            for offset in offsets.run(base, min(length, limit - count)):
                count += 1
                size += kept.size(group, offset, view)
                if size >= max_bytes:
                    return count, size
        else:
            behind = offsets.distance(row.first, base) if row is not None else None
            if row is None or behind is None or not 0 <= behind < row.length:
                row = whole_row_entry(view, base)
            unit = row.unit or row.size
            others = overlays.between(view, base, length)
            if any([other.size for other in others.values()]):
                fits, its_size = _fitting_each(base, min(length, limit - count), max_bytes - size, unit, others)
            else:
                fits = min(length, limit - count, 1 + (max_bytes - size - 1) // unit)
                its_size = fits * unit
            count += fits
            size += its_size
        if count >= limit or size >= max_bytes:
            break
    return count, size


def _fitting_each(base: bytes, limit: int, max_bytes: int, unit: int, others: overlays.Overlays) -> tuple[int, int]:
    """Return the result of `fitting` for a range of a batch row in which some messages have overlays."""
    count = size = 0
    for offset in offsets.run(base, limit):
        other = others.get(offset)
        count += 1
        size += unit if other is None else other.size or unit
        if size >= max_bytes:
            break
    return count, size
