"""Granting leases: what waited and is due, what its key no longer blocks, then what comes next in the log."""

from __future__ import annotations

from collections.abc import Callable

from sandq.model import offsets
from sandq.model.limits import FIXED
from sandq.partition import commands as c
from sandq.partition.base import rows
from sandq.partition.base.rows import LogEntry, Range
from sandq.partition.base.view import View
from sandq.partition.groups.dead_letters import EXPIRED_UNREAD
from sandq.partition.groups.group import Group
from sandq.partition.groups.group_limits import GroupLimits
from sandq.partition.groups.group_state import GroupState
from sandq.partition.groups.unique_keys import UniqueKeys
from sandq.partition.leasing.fitting import LEASE_BYTES, fitting
from sandq.partition.leasing.ranked_grants import RankedGrants
from sandq.partition.reader.pieces import Message
from sandq.partition.reader.reader import single_row_entry
from sandq.partition.records.leases import Lease
from sandq.partition.shared_state import SharedState

MAX_LEASE_AHEAD_MS = 50


class LeaseGrants:
    def __init__(self, shared: SharedState, group_state: GroupState, unique: UniqueKeys, limits: GroupLimits) -> None:
        self._shared = shared
        self._groups = group_state.groups
        self._leases = group_state.leases
        self._waiting = group_state.waiting
        self._ttl = group_state.ttl
        self._kept = group_state.kept
        self._dead = group_state.dead
        self._unique = unique
        self._limits = limits
        self._reader = group_state.reader
        self.is_latest: Callable[[Message, View], bool] | None = None
        """Whether no later write of a message's key exists; None: the topic is not compacted."""
        self._ranked = RankedGrants(shared, group_state, unique)

    def grant(self, index: int, place: int, command: c.Lease, now_ms: int, view: View) -> list[Lease]:
        """Grant what is due, in order. `place` is the entry's next free place for a token. Raises UnknownGroup."""
        group = self._groups.named(command.group)
        group.use(now_ms)
        self._groups.store(group, view)
        if group.halts or group.paused:
            return []
        room = self._limits.room(group, sum([grant.limit for grant in command.grants]))
        if group.allowance is not None and room <= 0:
            return []
        if group.ready is not None:
            granted = self._ranked.grant(index, place, group, group.ready, command, room, now_ms, view)
        else:
            granted = self._grant(index, place, group, command, room, now_ms, view)
        self._limits.serve(group, sum([lease.total for lease in granted]), view)
        self._groups.store(group, view)
        return granted

    def _grant(
        self, index: int, place: int, group: Group, command: c.Lease, room: int, now_ms: int, view: View
    ) -> list[Lease]:
        """`room`: so many messages at most."""
        horizon_ms = min(command.horizon_ms, now_ms + MAX_LEASE_AHEAD_MS)
        granted: list[Lease] = []
        left_bytes, is_empty = LEASE_BYTES, False
        for grant in command.grants:
            if is_empty and not self._may_find_more(group, horizon_ms, view):
                break
            limit = min(grant.limit, FIXED.grant_messages, room)
            while limit > 0 and left_bytes > 0 and place + len(granted) < FIXED.entry_grants:
                if self._leases.live_count(group, grant.consumer) >= FIXED.leases_per_consumer:
                    break
                token = offsets.token(index, place + len(granted))
                lease = Lease(token, group.group_id, grant.consumer, 1, now_ms + grant.lease_ms, 0, [], now_ms, now_ms)
                lease.epoch, lease.handlers = grant.epoch, grant.handlers
                size = self._take_waiting(group, lease, horizon_ms, limit, left_bytes, view)
                if not lease.ranges and group.pause_reason() is None:
                    size = self._take_free(group, lease, horizon_ms, limit, left_bytes, view)
                if not lease.ranges and group.stall_reason() is None:
                    size = self._take_log(group, lease, horizon_ms, limit, left_bytes, view)
                if not lease.ranges:
                    is_empty = True
                    break
                lease.reindex()
                lease.note_last(group.setting("max_attempts", self._shared.settings))
                limit -= lease.total
                room -= lease.total
                left_bytes -= size
                self._leases.add(group, lease, view)
                granted.append(lease)
        return granted

    def _may_find_more(self, group: Group, horizon_ms: int, view: View) -> bool:
        """Whether another attempt may find something after one has found nothing: a bound may have ended that."""
        free = group.order.first_free()
        if free is not None and offsets.deliver_ms(free) <= horizon_ms:
            return True
        head = group.reader.head(view)
        return head is not None and offsets.deliver_ms(head.first) <= horizon_ms

    @property
    def _is_spent(self) -> bool:
        """Whether nothing more is to be buried by this entry."""
        return self._shared.is_budget_spent

    def _take_waiting(self, group: Group, lease: Lease, horizon_ms: int, limit: int, max_bytes: int, view: View) -> int:
        """Put ranges into the lease whose back-off has passed, all with the same number of attempts. Bytes taken."""
        left, taken_bytes, looked_at = limit, 0, 0
        while left > 0 and taken_bytes < max_bytes:
            entry = group.next_waiting()
            if entry is None or entry.due_ms > horizon_ms:
                break
            if entry.dies_waiting and entry.due_ms > lease.leased_ms:
                break  # not ahead of a time that does not come
            if lease.ranges and entry.alike != lease.alike:
                break
            if self._is_spent and entry.expires_ms is not None and entry.expires_ms <= lease.leased_ms:
                break
            if self._dead.bury_expired(group, entry, lease.leased_ms, view):
                continue
            count, size = fitting(self._kept, group, entry, left, max_bytes - taken_bytes, view)
            ranges = self._waiting.take(group, entry, count, view)
            taken_bytes += size
            if self.is_latest is not None:
                ranges = self._without_superseded(group, ranges, entry.kept, lease.leased_ms, view)
                looked_at += count
                count = sum([length for _, length in ranges])
                if not count and looked_at < FIXED.grant_messages:
                    continue
                if not count:
                    break
            left -= count
            lease.adopt(entry.alike)
            lease.due_ms = entry.due_ms
            lease.since_ms = min(lease.since_ms, entry.since_ms)
            lease.ranges += ranges
            if entry.history:
                lease.past.append((ranges, entry.history))
        lease.ranges.sort()
        return taken_bytes

    def _without_superseded(
        self, group: Group, ranges: list[Range], kept: bool, now_ms: int, view: View
    ) -> list[Range]:
        """Finish the messages that a later write of their key follows, and return the others.

        Delivered again they would come after that later write: a copy of the table would keep the older value.
        """
        assert self.is_latest is not None
        latest: list[Range] = []
        for message in self._reader.messages(view, ranges, group.group_id if kept else None):
            if self.is_latest(message, view):
                latest.append(Range(message.offset, 1))
            else:
                self._kept.finish(group, [Range(message.offset, 1)], kept, now_ms, view)
                self._shared.totals.superseded += 1
        return ranges if len(latest) == sum([length for _, length in ranges]) else latest

    def _take_free(self, group: Group, lease: Lease, horizon_ms: int, limit: int, max_bytes: int, view: View) -> int:
        """Put messages into the lease that their keys blocked, and whose turn has come. Bytes taken."""
        taken: list[bytes] = []
        size = 0
        while len(taken) < limit and size < max_bytes and (offset := group.order.first_free()) is not None:
            if offsets.deliver_ms(offset) > horizon_ms:
                break  # a lease that looked further ahead passed it
            kept = offset in group.order.kept
            if taken and kept != lease.kept:
                break
            entry = self._kept.entry(group, offset, view) if kept else single_row_entry(view, offset)
            expires_ms = self._ttl.entry_expires_ms(entry)
            if self._is_spent and expires_ms is not None and expires_ms <= lease.leased_ms:
                break
            view.delete(rows.of_group(rows.BLOCKED, group.group_id, offset))
            self._unique.mark_delivered(group, entry, lease.leased_ms, view)
            size += entry.size
            if expires_ms is not None and expires_ms <= lease.leased_ms:
                group.order.remove(offset)
                self._dead.bury(group, [Range(offset, 1)], kept, EXPIRED_UNREAD, lease.leased_ms, view)
            else:
                group.order.take(offset)
                lease.kept = kept
                taken.append(offset)
        if taken:
            lease.ranges = [Range(offset, 1) for offset in taken]
            lease.due_ms = offsets.deliver_ms(taken[-1])
        return size

    def _take_log(self, group: Group, lease: Lease, horizon_ms: int, limit: int, max_bytes: int, view: View) -> int:
        """Put into the lease what comes next in the log. Bytes taken."""

        def judge(entry: LogEntry) -> bool | None:
            if entry.first in group.gaps:
                return False
            expires_ms = self._ttl.entry_expires_ms(entry)
            if expires_ms is not None and expires_ms <= lease.leased_ms:
                if self._is_spent:
                    return None
                self._unique.mark_delivered(group, entry, lease.leased_ms, view)
                messages = [Range(entry.first, entry.length)]
                self._dead.bury(group, messages, False, EXPIRED_UNREAD, lease.leased_ms, view)
                return False
            key = entry.extra.order if entry.extra is not None else None
            if key is not None:
                if group.order.is_full(key):
                    group.order.block(entry.first, key)
                    view.put(rows.of_group(rows.BLOCKED, group.group_id, entry.first), rows.pack(key))
                    return False
                group.order.start(entry.first, key)
            self._unique.mark_delivered(group, entry, lease.leased_ms, view)
            return True

        judge_all = self._shared.settings["ttl_ms"] is not None or bool(group.gaps)
        lease.ranges, size, lease.plain = group.reader.take(
            view, horizon_ms, limit, max_bytes, judge, judge_all=judge_all
        )
        group.gaps.clear_passed(group.cursor, view)
        if lease.ranges:
            lease.due_ms = offsets.deliver_ms(lease.ranges[-1].base)
        return size
