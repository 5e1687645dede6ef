"""Messages that a group keeps in rows of its own, so that the log need not be kept for them."""

from __future__ import annotations

from sandq.model import offsets
from sandq.partition.base import rows
from sandq.partition.base.expiring_rows import ExpiringRows
from sandq.partition.base.rows import LogEntry, Range
from sandq.partition.base.step import Step
from sandq.partition.base.view import View
from sandq.partition.groups.group import Group
from sandq.partition.groups.group_table import GroupTable
from sandq.partition.groups.unique_keys import UniqueKeys
from sandq.partition.reader.pieces import Message
from sandq.partition.reader.reader import row_holding
from sandq.partition.shared_state import LogState, SharedState


class KeptMessages:
    """Deletes kept rows once a group is done with their messages."""

    def __init__(
        self,
        shared: SharedState,
        groups: GroupTable,
        log_state: LogState,
        expiring_rows: ExpiringRows,
        unique: UniqueKeys,
    ) -> None:
        self._shared = shared
        self._groups = groups
        self._log_state = log_state
        self._expiring_rows = expiring_rows
        self._unique = unique

    def size(self, group: Group, offset: bytes, view: View) -> int:
        """Return the size of a kept message's row, in bytes."""
        row = view.get(rows.of_group(rows.KEPT, group.group_id, offset))
        return 1 if row is None else len(row)

    def entry(self, group: Group, offset: bytes, view: View) -> LogEntry:
        """Return the log entry of a kept message, as if it were in the log."""
        row = view.get(rows.of_group(rows.KEPT, group.group_id, offset))
        assert row is not None, "a message that a group keeps has a row"
        return rows.kept_entry(offset, row)

    def any_row(self, offset: bytes, view: View) -> bytes | None:
        """Return the row of a message in any group that keeps it. None if no group does."""
        found = (view.get(rows.of_group(rows.KEPT, group_id, offset)) for group_id in self._groups.by_id)
        return next((row for row in found if row is not None), None)

    def put(self, step: Step, group: Group, message: Message) -> int:
        """Copy a message of the log into a row of the group. Return the bytes of the row."""
        wanted_ms, is_delay = message.wanted if message.wanted is not None else (None, None)
        row = rows.kept_row(message.id, message.created_ms, message.fields, wanted_ms=wanted_ms, is_delay=is_delay)
        step.view.put(rows.of_group(rows.KEPT, group.group_id, message.offset), row)
        return len(row)

    def take(self, step: Step, group: Group, offset: bytes) -> None:
        """Delete a message's row. The caller updates all other data about the message."""
        step.view.delete(rows.of_group(rows.KEPT, group.group_id, offset))

    def finish(self, step: Step, group: Group, ranges: list[Range], kept: bool) -> None:
        """Note that messages are acked or dead: unblock the next messages of their keys, and delete their rows in the
        group."""
        if not kept and not self._shared.is_ordered:
            return
        for base, length in ranges:
            for offset in offsets.run(base, length):
                group.order.finish(offset)
                if kept:
                    self.drop(step, group, offset)

    def drop(self, step: Step, group: Group, offset: bytes) -> None:
        """Delete a message's row, if it has one."""
        key = rows.of_group(rows.KEPT, group.group_id, offset)
        row = step.view.get(key)
        if row is not None:
            step.view.delete(key)
            self.forget(step, offset, row)

    def forget(self, step: Step, offset: bytes, row: bytes) -> None:
        """Clean up after a group's row of a message was deleted. If the log no longer has the message, release its
        unique key."""
        kept = rows.load_kept(row)
        self.expire_move(step, offset, kept.id)
        if not self.is_in_log(offset, step.view):
            self._unique.release(step, rows.kept_extra(kept.id, kept.fields), offset)

    def expire_move(self, step: Step, offset: bytes, message_id: bytes) -> None:
        """Make the row about a message's move expire, if neither the log nor a group has the message. `offset`: where
        the message was until now."""
        view = step.view
        if message_id == offset or self.is_in_log(offset, view):
            return
        moved = view.get(rows.MOVED + message_id)
        if moved is not None and rows.load_moved(moved).offset != offset:
            return  # the message has moved on, and `offset` is where a deleted group had it
        for group_id, group in self._groups.by_id.items():
            if view.get(rows.of_group(rows.KEPT, group_id, offset)) is not None or group.is_dead(offset, view):
                return
        self._expiring_rows.expire_move(step, message_id)

    def is_in_log(self, offset: bytes, view: View) -> bool:
        """Return whether the log still has a message."""
        if offset <= self._log_state.trimmed:
            return False
        # Look for the row, because comparing offsets is not enough. Sweeps leave gaps, and after a clock reset the log
        # begins below offsets that were trimmed before.
        return row_holding(view, offset) is not None
