"""Dead messages: each in a row of its own, so that it keeps nothing else in the log.

Row: `[attempts, reason, error, dead_ms, id, created_ms, fields, history]`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from sandq.partition import rows
from sandq.partition.groups.leases import History, load_history
from sandq.partition.log.pieces import Message
from sandq.partition.rows import Fields
from sandq.partition.view import View

NACKED, LEASE_EXPIRED, EXPIRED = "nacked", "lease_expired", "expired"
"""Why a message died: its last attempt was nacked, or ran out; or its ttl passed."""


class DeadMessage(NamedTuple):
    offset: bytes
    attempts: int
    reason: str
    error: str | None
    dead_ms: int
    id: bytes
    created_ms: int
    fields: Fields
    history: History

    def kept_row(self) -> bytes:
        """The message as a group keeps it in a row of its own, once it was redriven: its ttl is over, and forgotten."""
        return rows.kept_row(self.id, self.created_ms, self.fields, immortal=True)


def bury(
    group_id: int,
    messages: Iterable[Message],
    attempts: int,
    reason: str,
    error: str | None,
    history: History,
    now_ms: int,
    view: View,
) -> tuple[int, int]:
    """Put the rows of messages that died together. How many there were, and their bytes."""
    count = size = 0
    for message in messages:
        row = rows.pack(attempts, reason, error, now_ms, message.id, message.created_ms, message.fields, history)
        view.put(rows.of_group(rows.DEAD, group_id, message.offset), row)
        count += 1
        size += len(row)
    return count, size


def load(key: bytes, row: bytes) -> DeadMessage:
    *fields, history = rows.unpack(row)
    return DeadMessage._make([key[5:], *fields, load_history(history)])


def find(group_id: int, offset: bytes, view: View) -> DeadMessage | None:
    key = rows.of_group(rows.DEAD, group_id, offset)
    row = view.get(key)
    return None if row is None else load(key, row)


def scan(group_id: int, after: bytes | None, limit: int, max_bytes: int, view: View) -> list[DeadMessage]:
    """Dead messages of a group in the order of their offsets, behind `after`."""
    start, stop = rows.group_bounds(rows.DEAD, group_id)
    if after is not None:
        start = rows.after(rows.of_group(rows.DEAD, group_id, after))
    return [load(key, row) for key, row in view.scan(start, stop, limit=limit, max_bytes=max_bytes)]
