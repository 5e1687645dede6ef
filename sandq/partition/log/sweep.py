"""Sweeping, in topics that rank messages: deletes settled messages above a message that stays in its queue for long.

Such topics do not lease messages in log order. Without sweeps, a message that stays in its queue would keep all settled
messages above it in the log.

A sweep visits all messages that every group has passed, a bounded number at a time. The next sweep begins when the
number of newly settled messages reaches half of the messages that the last sweep left. So the cost is about three
visited messages per settled message, for any number of waiting messages.
"""

from __future__ import annotations

from typing import Any, Final

from sandq.model import offsets
from sandq.partition.base import rows
from sandq.partition.base.rows import LogEntry
from sandq.partition.base.step import Step
from sandq.partition.base.view import Row, View
from sandq.partition.groups.group import Group
from sandq.partition.groups.group_state import GroupState
from sandq.partition.groups.unique_keys import UniqueKeys
from sandq.partition.log.holds import Holds
from sandq.partition.log.message_log import MessageLog
from sandq.partition.reader.reader import FILL_TOMBSTONES, tombstones
from sandq.partition.ready import queue_keys
from sandq.partition.shared_state import SLICE_ITEMS, SharedState

LEAST_SETTLED: Final = 1000
SWEEP_ROWS: Final = 150
SWEEP_BYTES: Final = 8 << 20
SWEEP_MESSAGES: Final = 150
"""Maximum number of messages in the rows of a step, unless the first row alone has more. A step looks up each message
in every group."""
FEW_QUEUES: Final = 16
"""If a group has at most this many queues, the relevant part of each queue is read at once, instead of looking up each
message."""
_NO_LIMIT = 1 << 40


class Sweeper:
    def __init__(
        self, shared: SharedState, group_state: GroupState, log: MessageLog, holds: Holds, unique: UniqueKeys
    ) -> None:
        self._shared = shared
        self._groups = group_state.groups
        self._kept_messages = group_state.kept
        self._log = log
        self._holds = holds
        self._unique = unique
        self._position = b""
        """Position that the current sweep has reached. Empty if no sweep is in progress."""
        self._left = 0
        """Number of messages that the current sweep has left so far. Between sweeps: number that the last sweep
        left."""

    def state(self) -> tuple[Any, ...]:
        """Return the values to store in the state row."""
        return self._position, self._left, self._shared.settled

    def load(self, state: tuple[Any, ...]) -> None:
        """Restore the values that `state` returned."""
        self._position, self._left, self._shared.settled = state

    def set_back(self) -> None:
        """Start from the beginning after a clock reset, which has moved messages."""
        self._position = b""

    @property
    def is_due(self) -> bool:
        """Whether to begin or continue a sweep."""
        settings = self._shared.settings
        if self._shared.rank is None or not settings["delete_on_ack"] or settings["retention_ms"]:
            return False
        return bool(self._position) or self._shared.settled >= max(LEAST_SETTLED, self._left // 2)

    def sweep(self, step: Step) -> None:
        """Sweep a bounded number of rows."""
        view = step.view
        if not self._position:
            self._position, self._left, self._shared.settled = self._log.state.trimmed, 0, 0
        groups = list(self._groups.by_id.values())
        passed = min([group.cursor for group in groups if not group.is_expired], default=offsets.FIRST)
        start = rows.after(rows.log_key(max(self._position, self._log.state.trimmed)))
        stop = rows.after(rows.log_key(min(passed, self._holds.lowest)))
        found = view.scan(start, stop, limit=SWEEP_ROWS, max_bytes=SWEEP_BYTES) if start < stop else []
        if not found:
            self._position = b""
            return
        found = _cut(found)
        last = rows.last_of(rows.log_entry(*found[-1]))
        gone = set(tombstones(view, found[0][0][1:], last, FILL_TOMBSTONES)) if self._has_batch(found) else set()
        promoted = [self._promoted(group, found[0][0][1:], last, view) for group in groups]
        for key, value in self._shared.in_slices(found):
            entry = rows.log_entry(key, value)
            end = rows.last_of(entry)
            if end > min(passed, self._holds.lowest) or len(gone) == FILL_TOMBSTONES:
                self._left += entry.length
                continue
            live = [offset for offset in offsets.run(entry.first, entry.length) if offset not in gone]
            if entry.length > SLICE_ITEMS:
                self._shared.yield_now()
            if self._is_done(groups, promoted, value, entry.first, live, view):
                self._delete(step, key, value, entry, live)
            else:
                self._left += len(live)
        for group in groups:
            if group.is_expired:
                group.reader.drop_cache(found[-1][0][1:])  # the cache may hold deleted rows
            self._groups.store(step, group)
        self._position = found[-1][0][1:]

    def _has_batch(self, found: list[Row]) -> bool:
        """Return whether any of these rows is a batch row."""
        return any(value[0] == rows.KIND_BATCH for _, value in found)

    def _promoted(self, group: Group, first: bytes, last: bytes, view: View) -> set[bytes] | None:
        """Return the messages of a part of the log that are in the ready queues of a group. None if the group has many
        queues: the caller then looks up each message."""
        ready = group.ready
        assert ready is not None, "if messages are ranked, each group has ready queues"
        if not ready.messages:
            return set()
        return ready.between(first, last, view) if len(ready) <= FEW_QUEUES else None

    def _is_done(
        self,
        groups: list[Group],
        promoted: list[set[bytes] | None],
        value: bytes,
        first: bytes,
        live: list[bytes],
        view: View,
    ) -> bool:
        """Return whether every group is done with these messages of a row, or keeps them in its own rows."""
        queues: list[bytes] | None = None
        for group, waits in zip(groups, promoted, strict=True):
            for offset in live:
                # Spilled messages have no holder here: the group keeps each of them in its own rows.
                holder = group.held_in_memory(offset)
                if holder is not None:
                    if not holder.kept:
                        return False
                    continue
                if waits is not None:
                    if offset in waits:
                        return False
                    continue
                if queues is None:
                    queues = queue_keys.of_row(self._shared.rank or "", rows.log_key(first), value, view)
                behind = offsets.distance(first, offset)
                assert behind is not None and group.ready is not None
                if group.ready.holds(queues[behind], offset, view):
                    return False
        return True

    def _delete(self, step: Step, key: bytes, value: bytes, entry: LogEntry, live: list[bytes]) -> None:
        """Delete a row whose messages are all settled; `live`: its messages without a tombstone."""
        log, state = self._log, self._log.state
        log.delete_row(step, key, len(value), entry.length if value[0] == rows.KIND_BATCH else 0)
        state.messages -= len(live)
        state.bytes -= entry.size - entry.unit * (entry.length - len(live))
        log.uncount(entry.first, len(live))
        if len(live) < entry.length:
            for offset in sorted(set(offsets.run(entry.first, entry.length)) - set(live)):
                log.drop_tombstone(step, offset)
        if value[0] == rows.KIND_MESSAGE:
            message_id = rows.id_of(key, value)
            step.view.delete(rows.PAYLOAD + message_id)
            self._kept_messages.expire_move(step, entry.first, message_id)
        if entry.extra is not None:
            self._unique.release(step, entry.extra, entry.first)


def _cut(found: list[Row]) -> list[Row]:
    """Return the first rows, up to the row that brings them to `SWEEP_MESSAGES` messages."""
    messages = 0
    for at, (key, value) in enumerate(found):
        messages += rows.log_entry(key, value).length
        if messages >= SWEEP_MESSAGES:
            return found[: at + 1]
    return found
