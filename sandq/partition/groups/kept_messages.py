"""Messages that a group keeps in rows of its own, for which the log need not be kept."""

from __future__ import annotations

from sandq.model import offsets
from sandq.partition import rows
from sandq.partition.dedup.expiring_rows import ExpiringRows
from sandq.partition.groups.group import Group
from sandq.partition.groups.group_table import GroupTable
from sandq.partition.log.log_state import LogState
from sandq.partition.rows import Range
from sandq.partition.shared_state import SharedState
from sandq.partition.view import View


class KeptMessages:
    """Deletes these rows once a group is done with their messages."""

    def __init__(
        self, shared: SharedState, groups: GroupTable, log_state: LogState, expiring_rows: ExpiringRows
    ) -> None:
        self._shared = shared
        self._groups = groups
        self._log_state = log_state
        self._expiring_rows = expiring_rows

    def size(self, group: Group, offset: bytes, view: View) -> int:
        """Return the size of a message's row, in bytes."""
        row = view.get(rows.of_group(rows.KEPT, group.group_id, offset))
        return 1 if row is None else len(row)

    def finish(self, group: Group, ranges: list[Range], kept: bool, now_ms: int, view: View) -> None:
        """Let go of messages that are acked or dead: the next of their keys may come, rows of the group's own go."""
        if not kept and not self._shared.is_ordered:
            return
        for base, length in ranges:
            for offset in offsets.run(base, length):
                group.order.finish(offset)
                if kept:
                    self.drop(group, offset, now_ms, view)

    def drop(self, group: Group, offset: bytes, now_ms: int, view: View) -> None:
        """Delete a message's row, if it has one."""
        key = rows.of_group(rows.KEPT, group.group_id, offset)
        row = view.get(key)
        if row is not None:
            view.delete(key)
            self.expire_move(offset, rows.unpack(row)[0], now_ms, view)

    def expire_move(self, offset: bytes, message_id: bytes, now_ms: int, view: View) -> None:
        """Remember only for a while where a message had been moved, once neither the log nor a group has it."""
        if message_id == offset or offset > self._log_state.trimmed:
            return
        for group_id in self._groups.by_id:
            for tag in (rows.KEPT, rows.DEAD):
                if view.get(rows.of_group(tag, group_id, offset)) is not None:
                    return
        self._expiring_rows.expire_move(message_id, now_ms, view)
