"""Unique keys: a producer's own names for its pending messages.

Row of a key: `[state, id, sender | nil, forgotten at ms | nil]`. A key is *held* while its message is pending, in all
groups; with the first lease of the message it is *delivered*, and still refuses another one for `dedup_window`; one
whose message was cancelled is free, and is remembered so that a repeated cancel is answered as the first time.

The sender is `[producer id, epoch, sequence, position in the batch]`: a producer that sends a batch again because it
had no answer meets its own message, which is no conflict. What becomes of a message whose key is taken says
`resolve_conflict`.
"""

from __future__ import annotations

from typing import NamedTuple

from sandq.model import offsets
from sandq.partition import commands as c
from sandq.partition import rows
from sandq.partition.dedup.expiring_rows import CANCEL_MEMORY_MS, ExpiringRows
from sandq.partition.rows import Extra
from sandq.partition.view import View

HELD, DELIVERED, CANCELLED = 0, 1, 2
STORED, REPLACES, IGNORED, REFUSED = 0, 1, 2, 3
"""What becomes of a message whose key stands for another one: it is stored; so it is, and the other one is cancelled
if it is pending; it is not stored, and answered with the id of the other one; it is refused."""

Sender = tuple[int, int, int, int]


class Named(NamedTuple):
    """What a unique key stands for."""

    state: int
    id: bytes
    sender: Sender | None


def resolve_conflict(named: Named, is_pending: bool, on_conflict: int, sender: Sender | None) -> int:
    """Refuse, ignore or store a message whose unique key stands for another one: `STORED`, `REPLACES`, `IGNORED` or
    `REFUSED`. `on_conflict`: what its producer wants.

    `is_pending`: whether the other one is still in the log and no group made an attempt at it."""
    if named.state == CANCELLED:
        return STORED
    if named.state == HELD and not is_pending:
        return STORED  # no group leased it, but one passed it over (a seek, a start at the latest)
    if sender is not None and named.sender == sender:
        return IGNORED  # it is this very message, sent again
    if on_conflict == c.REPLACE:
        return REPLACES
    return REFUSED if on_conflict == c.REJECT else IGNORED


def state_of(offset: bytes | None, now_ms: int) -> str:
    """How the message is that keeps a unique key: it is pending at this offset, or None."""
    if offset is None:
        return "delivered"
    return "delayed" if offsets.deliver_ms(offset) > now_ms else "ready"


class UniqueKeys:
    def __init__(self, expiring_rows: ExpiringRows) -> None:
        self._expiring_rows = expiring_rows

    def find(self, key: bytes, now_ms: int, view: View) -> Named | None:
        row = view.get(rows.UNIQUE + key)
        if row is None:
            return None
        state, message_id, sender, forgotten_ms = rows.unpack(row)
        if forgotten_ms is not None and forgotten_ms <= now_ms:
            return None
        return Named(state, message_id, None if sender is None else tuple(sender))

    def hold(self, key: bytes, message_id: bytes, sender: Sender | None, view: View) -> None:
        """The message of this id is pending under the key."""
        view.put(rows.UNIQUE + key, rows.pack(HELD, message_id, sender, None))

    def mark_delivered(self, extra: Extra | None, now_ms: int, window_ms: int, view: View) -> None:
        """Refuse others for `window_ms` still: the message of a log entry is pending no longer, for a group leased it,
        or it died there."""
        if extra is not None:
            self._end(extra, DELIVERED, now_ms, window_ms, view)

    def mark_cancelled(self, extra: Extra, now_ms: int, view: View) -> None:
        """Free the key, and remember it so that a repeated cancel is answered likewise."""
        self._end(extra, CANCELLED, now_ms, CANCEL_MEMORY_MS, view)

    def release(self, extra: Extra | None, view: View) -> None:
        """Free the key of a message that leaves the log, if no group ever leased it (a seek passed it)."""
        if extra is not None:
            self._end(extra, DELIVERED, 0, 0, view)

    def _end(self, extra: Extra, state: int, now_ms: int, window_ms: int, view: View) -> None:
        if extra.unique_key is None:
            return
        key = rows.UNIQUE + extra.unique_key
        row = view.get(key)
        # Another group may have leased it before, and the key may be another message's by now.
        if row is None:
            return
        was, message_id, sender, _ = rows.unpack(row)
        if (was, message_id) != (HELD, extra.id):
            return
        if window_ms:
            self._expiring_rows.put(key, now_ms + window_ms, view, state, message_id, sender)
        else:
            view.delete(key)
