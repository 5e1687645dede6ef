"""Granting leases: what waited and is due, what its key no longer blocks, then what comes next in the log."""

from __future__ import annotations

from sandq.model import offsets
from sandq.model.limits import FIXED

from . import commands as c
from . import rows
from .book import GroupBook
from .dead import EXPIRED
from .groups import Group
from .holdings import Lease, split
from .rows import LogEntry, Range
from .view import View

MAX_LEASE_AHEAD_MS = 50
LEASE_BYTES = 8 << 20
"""Of all grants of one lease command: it is read and sent as a whole."""


class Granter:
    def __init__(self, book: GroupBook) -> None:
        self._book = book

    def grant(
        self, index: int, place: int, command: c.Lease, now_ms: int, average_bytes: int, view: View
    ) -> list[Lease]:
        """Grant what is due, in order. `place` is the entry's next free place for a token. Raises UnknownGroup."""
        group = self._book.group(command.group)
        group.touched_ms = now_ms
        self._book.put_group(group, view)
        if group.seeking:
            return []
        horizon_ms = min(command.horizon_ms, now_ms + MAX_LEASE_AHEAD_MS)
        granted: list[Lease] = []
        left_bytes = LEASE_BYTES
        for grant in command.grants:
            limit = min(grant.limit, FIXED.grant_messages)
            while limit > 0 and left_bytes > 0 and place + len(granted) < FIXED.entry_grants:
                if self._book.held(group, grant.consumer) >= FIXED.leases_per_consumer:
                    break
                token = offsets.token(index, place + len(granted))
                lease = Lease(token, group.group_id, grant.consumer, 1, now_ms + grant.lease_ms, 0, [], now_ms, now_ms)
                # How large waiting messages are is not known here: as large as all are on average.
                fitting = min(limit, 1 + left_bytes // max(average_bytes, 1))
                size = self._take_waiting(group, lease, horizon_ms, fitting, view) * average_bytes
                if not lease.ranges and group.paused() is None:
                    size = self._take_free(group, lease, fitting, view) * average_bytes
                if not lease.ranges and group.stalled() is None:
                    size = self._take_log(group, lease, horizon_ms, limit, left_bytes, view)
                if not lease.ranges:
                    break
                lease.reindex()
                limit -= lease.total
                left_bytes -= size
                self._book.add_lease(group, lease)
                view.put(rows.token_key(rows.LEASE, token), lease.row())
                granted.append(lease)
        self._book.put_group(group, view)
        return granted

    def _take_waiting(self, group: Group, lease: Lease, horizon_ms: int, limit: int, view: View) -> int:
        """Into the lease: ranges whose back-off has passed, all with the same number of attempts. Messages taken."""
        left = limit
        while left > 0:
            entry = group.first_waiting()
            if entry is None or entry.due_ms > horizon_ms:
                break
            if entry.dies_waiting and entry.due_ms > lease.leased_ms:
                break  # not ahead of a time that does not come
            if lease.ranges and (entry.attempt + 1, entry.kept) != (lease.attempt, lease.kept):
                break
            if self._book.bury_expired(group, entry, lease.leased_ms, view):
                continue
            ranges, rest = split(entry.ranges, left)
            left -= sum([r.length for r in ranges])
            lease.attempt, lease.kept, lease.due_ms = entry.attempt + 1, entry.kept, entry.due_ms
            lease.since_ms = min(lease.since_ms, entry.since_ms)
            lease.ranges += ranges
            if entry.history:
                lease.past.append((ranges, entry.history))
            self._book.shrink(group, entry, rest, view)
        lease.ranges.sort()
        return limit - left

    def _take_free(self, group: Group, lease: Lease, limit: int, view: View) -> int:
        """Into the lease: messages that were blocked by their keys, whose turn has come. Messages taken."""
        taken: list[bytes] = []
        while len(taken) < limit and (offset := group.order.first_free()) is not None:
            entry = self._book.entry_at(offset, view)
            expires_ms = self._book.expires_ms(entry)
            view.delete(rows.of_group(rows.BLOCKED, group.group_id, offset))
            self._book.delivered(entry, lease.leased_ms, view)
            if expires_ms is not None and expires_ms <= lease.leased_ms:
                group.order.remove(offset)
                self._book.bury(group, 0, EXPIRED, None, [Range(offset, 1)], (), False, lease.leased_ms, view)
            else:
                group.order.take(offset)
                taken.append(offset)
        if taken:
            lease.ranges = [Range(offset, 1) for offset in taken]
            lease.due_ms = offsets.deliver_ms(taken[-1])
        return len(taken)

    def _take_log(self, group: Group, lease: Lease, horizon_ms: int, limit: int, max_bytes: int, view: View) -> int:
        """Into the lease: what comes next in the log. Bytes taken."""

        def judge(entry: LogEntry) -> bool:
            expires_ms = self._book.expires_ms(entry)
            if expires_ms is not None and expires_ms <= lease.leased_ms:
                self._book.delivered(entry, lease.leased_ms, view)
                messages = [Range(entry.first, entry.length)]
                self._book.bury(group, 0, EXPIRED, None, messages, (), False, lease.leased_ms, view)
                return False
            key = entry.extra.order if entry.extra is not None else None
            if key is not None:
                if group.order.is_busy(key):
                    group.order.block(entry.first, key)
                    view.put(rows.of_group(rows.BLOCKED, group.group_id, entry.first), rows.pack(key))
                    return False
                group.order.start(entry.first, key)
            self._book.delivered(entry, lease.leased_ms, view)
            return True

        topic_ttl = self._book.settings["ttl_ms"] is not None
        lease.ranges, size = group.reader.take(view, horizon_ms, limit, max_bytes, judge, judge_all=topic_ttl)
        if lease.ranges:
            lease.due_ms = offsets.deliver_ms(lease.ranges[-1].base)
        return size
