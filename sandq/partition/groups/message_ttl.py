"""Computes when messages expire: by their own ttl, or else by the topic's."""

from __future__ import annotations

from sandq.model import offsets
from sandq.model.batch import Column
from sandq.partition.base import rows
from sandq.partition.base.rows import LogEntry
from sandq.partition.base.view import View
from sandq.partition.groups.group import Group
from sandq.partition.reader.reader import single_row_entry
from sandq.partition.shared_state import SharedState


class MessageTtl:
    """Computes expiry times from the topic's settings, log entries and kept rows. Stores nothing."""

    def __init__(self, shared: SharedState) -> None:
        self.any_own = False
        """Whether any message ever had a ttl of its own."""
        self._shared = shared

    @property
    def any_expires(self) -> bool:
        """Whether any message may have a ttl."""
        return self.any_own or self._shared.settings["ttl_ms"] is not None

    @property
    def rules(self) -> tuple[bool, int | None]:
        """The settings on which expiry times depend. While these rules stay the same, the expiry time of each message
        does not change."""
        return self.any_own, self._shared.settings["ttl_ms"]

    def entry_expires_ms(self, entry: LogEntry) -> int | None:
        """Return when the messages of a log entry expire, in ms. None if they do not."""
        ttl_ms: int | None = entry.extra.ttl_ms if entry.extra is not None else None
        if ttl_ms is None:
            ttl_ms = self._shared.settings["ttl_ms"]
        return None if ttl_ms is None else offsets.deliver_ms(entry.first) + ttl_ms

    def range_expires_ms(self, group: Group, base: bytes, kept: bool, view: View) -> int | None:
        """Return when the messages of a range expire, in ms. None if they do not. A message with a ttl of its own is
        alone in its row and its range."""
        if kept:
            row = view.get(rows.of_group(rows.KEPT, group.group_id, base))
            assert row is not None
            message = rows.load_kept(row)
            extra = rows.Extra(base, message.fields.get(Column.TTL_MS), None, None)
            return None if message.is_immortal else self.entry_expires_ms(LogEntry(base, 1, 0, extra))
        if self.any_own:
            return self.entry_expires_ms(single_row_entry(view, base))
        ttl_ms = self._shared.settings["ttl_ms"]
        return None if ttl_ms is None else offsets.deliver_ms(base) + ttl_ms

    def next_expiry_ms(self, group: Group, view: View) -> int | None:
        """Return when the first message of a group expires, in ms. Checks the waiting messages, and the first message
        of the log or of the ready queues. None if none expires."""
        if group.halts:
            return None
        waiting, head = group.next_to_expire(), group.reader.head(view)
        if group.ready is not None and (lowest := group.ready.lowest_entry(view)) is not None:
            head = lowest
        times = [waiting.expires_ms] if waiting is not None and waiting.expires_ms is not None else []
        if self.any_expires and (spilled_ms := group.next_recall_ms) is not None:
            times.append(spilled_ms)
        if head is not None and (expires_ms := self.entry_expires_ms(head)) is not None:
            times.append(expires_ms)
        return min(times, default=None)
