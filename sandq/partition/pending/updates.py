"""Give pending messages another value, and other headers, where they stand: their ids, their places in the log and in
queues, their times, ttls, keys and attempts stay.

A message with a log row of its own is written there anew, one of a batch beside it (`overlays.py`); and so is each row
that a group keeps of it. Who reads the log without a group meets it once, as it is by then.
"""

from __future__ import annotations

from sandq.partition.base import rows
from sandq.partition.base.rows import LogEntry
from sandq.partition.base.step import Step
from sandq.partition.groups.group_table import GroupTable
from sandq.partition.groups.renewal import Change
from sandq.partition.log.message_log import Found, Kept, MessageLog
from sandq.partition.reader import overlays
from sandq.partition.ready import queue_keys
from sandq.partition.shared_state import SharedState


class Updates:
    def __init__(self, shared: SharedState, groups: GroupTable, log: MessageLog) -> None:
        self._shared = shared
        self._groups = groups
        self._log = log

    def update(self, step: Step, found: Found | Kept, change: Change) -> None:
        """Change a message that no group holds, or has acked or killed: every lease from then on has it so."""
        view = step.view
        if isinstance(found, Found):
            self._tell_groups(step, found, self._write(step, found, change))
        for group in self._groups.by_id.values():
            key = rows.of_group(rows.KEPT, group.group_id, found.offset)
            kept = view.get(key)
            if kept is not None:
                message_id, created_ms, fields, *others = rows.unpack(kept)
                row = rows.pack(message_id, created_ms, change.apply(fields), *others)
                view.put(key, row)
                self._shared.note_copied(len(row))
        self._shared.totals.updated += 1

    def _write(self, step: Step, found: Found, change: Change) -> LogEntry:
        """Write what a message is now into its row, or beside that which it shares. Its entry."""
        log = self._log
        if found.alone:
            return log.rewrite(step, found, change)
        fields = change.apply(log.load(found, step.view).fields)
        size, more = overlays.put_fields(step, found.offset, fields)
        log.state.bytes += more
        self._shared.note_copied(size)
        return LogEntry(found.offset, 1, size, None, size)

    def _tell_groups(self, step: Step, found: Found, entry: LogEntry) -> None:
        """Have groups that have yet to take a message know how large it is."""
        view = step.view
        offset, rank = found.offset, self._shared.rank
        queue = None if rank is None else queue_keys.of_message(rank, view, offset)
        for group in self._groups.by_id.values():
            if offset > group.cursor:
                group.reader.replace_part(entry)
                group.note_log_change(offset)
                continue
            if queue is not None and group.ready is not None and group.is_promoted(offset, view):
                group.ready.remove(step, queue, offset)
                group.ready.insert(step, queue, [entry])
            group.note_change()
