"""Computes how many messages of a waiting entry fit into a lease."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from sandq.model import offsets
from sandq.partition.base.rows import LogEntry
from sandq.partition.base.view import View
from sandq.partition.groups.group import Group
from sandq.partition.groups.kept_messages import KeptMessages
from sandq.partition.limits.cost_budget import CostBudget
from sandq.partition.reader import overlays
from sandq.partition.reader.reader import whole_row_entry
from sandq.partition.records.leases import Waiting

LEASE_BYTES = 8 << 20
"""Maximum bytes of all grants of one lease command, because these are read and sent as a whole."""


class Fitting(NamedTuple):
    """The first messages of a waiting entry that fit into a lease."""

    messages: int
    size: int
    """Total size of the messages, in bytes."""
    cost: int
    """Total cost of the messages; 0 if there is no budget."""


def fitting(
    kept: KeptMessages,
    group: Group,
    entry: Waiting,
    limit: int,
    max_bytes: int,
    view: View,
    budget: CostBudget | None = None,
) -> Fitting:
    """Return the messages of a waiting entry that fit into the lease. Count up to `limit` messages; stop after the
    message that brings the bytes to `max_bytes`, and before a message that does not fit into the budget."""
    count = size = 0
    row: LogEntry | None = None
    left = None if budget is None else budget.copy()
    for base, length in entry.ranges:
        fits = min(length, limit - count)
        if entry.kept:
            fits, its_size = _fitting_kept(kept, group, offsets.run(base, fits), max_bytes - size, view, left)
        else:
            behind = offsets.distance(row.first, base) if row is not None else None
            if row is None or behind is None or not 0 <= behind < row.length:
                row = whole_row_entry(view, base)
            unit = row.unit or row.size
            if left is not None:
                fits = min(fits, left.most(row.cost))
                if not fits:
                    break
            others = overlays.between(view, base, length)
            if any([other.size for other in others.values()]):
                fits, its_size = _fitting_each(base, fits, max_bytes - size, unit, others)
            else:
                fits = min(fits, 1 + (max_bytes - size - 1) // unit)
                its_size = fits * unit
            if left is not None:
                left.spend(fits * row.cost)
        count += fits
        size += its_size
        if fits < length or count >= limit or size >= max_bytes:
            break
    if budget is None or left is None:
        return Fitting(count, size, 0)
    budget.needed = left.needed
    return Fitting(count, size, left.spent)


def _fitting_kept(
    kept: KeptMessages, group: Group, column: Iterable[bytes], max_bytes: int, view: View, budget: CostBudget | None
) -> tuple[int, int]:
    """Return (number of messages that fit, their bytes) for messages that the group keeps. Spend their costs."""
    count = size = 0
    for offset in column:
        if budget is not None:
            cost = kept.entry(group, offset, view).cost
            if not budget.most(cost):
                break
            budget.spend(cost)
        count += 1
        size += kept.size(group, offset, view)
        if size >= max_bytes:
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
