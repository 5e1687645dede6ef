"""Changes the value and headers of pending messages. Ids, offsets, positions in queues, times, ttls, keys and attempts
stay the same.

A message with a log row of its own gets a new row, a message of a batch row gets an overlay (`overlays.py`). The rows
of groups that keep the message are changed, too. A reader of the log without a group sees the message once, with the
fields that it has at that time.
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
        """Change a message that no group has leased, acked or made dead. All later leases of the message contain the
        change."""
        view = step.view
        if isinstance(found, Found):
            self._update_groups(step, found, self._write(step, found, change))
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
        """Write the changed message into its row, or into an overlay, and return its entry."""
        log = self._log
        if found.alone:
            return log.rewrite(step, found, change)
        fields = change.apply(log.load(found, step.view).fields)
        size, more = overlays.put_fields(step, found.offset, fields)
        log.state.bytes += more
        self._shared.note_copied(size)
        return LogEntry(found.offset, 1, size, None, size)

    def _update_groups(self, step: Step, found: Found, entry: LogEntry) -> None:
        """Update the size of the message for groups in which it is pending."""
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
