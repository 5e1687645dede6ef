"""Keep what the groups of a partition hold: leases, messages that wait for another attempt, dead messages.

`lease_grants.py` and `settlement.py` change it. Each change is put into rows at once, so that a state loaded from rows
goes on exactly as the one that wrote them.
"""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any

from sandq.model import offsets
from sandq.model.batch import Column
from sandq.model.errors import UnknownGroup
from sandq.partition import rows
from sandq.partition.dedup.expiring_rows import ExpiringRows
from sandq.partition.dedup.unique_keys import UniqueKeys
from sandq.partition.groups.dead_letters import EXPIRED, NACKED, bury
from sandq.partition.groups.group import Group
from sandq.partition.groups.leases import History, Lease, Waiting, contains
from sandq.partition.log.pieces import Reader
from sandq.partition.log.reader import row_holding
from sandq.partition.metrics import Totals
from sandq.partition.rows import LogEntry, Range
from sandq.partition.view import View

ENDED_LEASES = 1024
ENDED_RANGES = 65_536


class GroupState:
    """Groups, live leases, leases that ended lately (to answer repeated acks), deadlines."""

    def __init__(self, settings: dict[str, Any], unique: UniqueKeys, expiring_rows: ExpiringRows) -> None:
        self.settings = settings
        self.groups: dict[int, Group] = {}
        self.next_group = 1
        self.next_seq = 1
        self.own_ttl = False
        """Whether any message ever had a ttl of its own."""
        self.reader = Reader()
        self.totals = Totals()
        self.buried_bytes = 0
        """Of all that was buried by this process: what a step adds to it bounds the step."""
        self.is_trimmed: Callable[[bytes], bool] = lambda offset: False
        """Whether the log is trimmed beyond an offset; set by the log."""
        self._unique = unique
        self._expiring_rows = expiring_rows
        self._by_name: dict[str, Group] = {}
        self.leases: dict[int, Lease] = {}
        """Live and ended ones."""
        self._held: Counter[tuple[int, str]] = Counter()
        """Live leases by (group, consumer)."""
        self._ended: OrderedDict[int, Lease] = OrderedDict()
        self._ended_ranges = 0
        self.deadlines: list[tuple[int, int]] = []
        """Heap of (deadline_ms, token); stale entries are skipped when met."""

    # -- loading and looking --------------------------------------------------------------------------------------

    def load(self, view: View) -> None:
        for key, value in rows.all_rows(view, rows.GROUP):
            self.add_group(Group.load(key, value))
        progress = {key[1:]: value for key, value in rows.all_rows(view, rows.PROGRESS)}
        ended: list[Lease] = []
        for key, value in rows.all_rows(view, rows.LEASE):
            lease = Lease.load(int.from_bytes(key[1:], "big"), value, progress.get(key[1:]))
            if lease.ended:
                self.leases[lease.token] = lease
                ended.append(lease)
            else:
                self.add_lease(self.groups[lease.group_id], lease)
        for lease in sorted(ended, key=lambda lease: lease.ended):
            self._ended[lease.token] = lease
            self._ended_ranges += len(lease.ranges)
        # In the order in which they came, as they are kept in memory.
        for key, value in sorted(rows.all_rows(view, rows.WAITING), key=lambda row: row[0][11:]):
            group = self.groups.get(int.from_bytes(key[1:5], "big"))
            if group is not None:  # else it is being dropped
                group.queue(Waiting.load(key, value))
        if self.ordered:
            self._load_order(view)

    def _load_order(self, view: View) -> None:
        for group in self.groups.values():
            for lease in group.leases.values():
                self.start_keys(group, lease.select(lease.live), lease.kept, view)
            for entry in group.waiting.values():
                self.start_keys(group, entry.ranges, entry.kept, view)
        for key, value in rows.all_rows(view, rows.BLOCKED):
            blocked_in = self.groups.get(int.from_bytes(key[1:5], "big"))
            if blocked_in is not None:
                blocked_in.order.load(key[5:], rows.unpack(value)[0])

    @property
    def ordered(self) -> bool:
        return bool(self.settings["ordering"] == "key")

    def group(self, name: str) -> Group:
        group = self._by_name.get(name)
        if group is None:
            raise UnknownGroup(f"there is no group {name!r} in this partition")
        return group

    def find_group(self, name: str) -> Group | None:
        return self._by_name.get(name)

    def leases_of(self, group_name: str, consumer: str) -> list[Lease]:
        """Live leases of a consumer, in the order of their tokens; none when the group is not there."""
        group = self._by_name.get(group_name)
        held = group.leases.values() if group else ()
        return sorted((lease for lease in held if lease.consumer == consumer), key=lambda lease: lease.token)

    def held(self, group: Group, consumer: str) -> int:
        """How many live leases the consumer has."""
        return self._held[group.group_id, consumer]

    def ended_lease_of(self, group: Group, offset: bytes) -> Lease | None:
        """The lease under which a message was acked, if that is still known."""
        for lease in reversed(self._ended.values()):
            if lease.group_id == group.group_id and contains(lease.select(lease.acked), offset):
                return lease
        return None

    def next_expiry_ms(self, view: View) -> int | None:
        while self.deadlines and self.stale(*self.deadlines[0]):
            heapq.heappop(self.deadlines)
        times = [self.deadlines[0][0]] if self.deadlines else []
        if self.mortal:
            times += [at for group in self.groups.values() if (at := self.next_death_ms(group, view)) is not None]
        return min(times, default=None)

    def done_below(self) -> bytes | None:
        """Every group is done with everything below this offset; None without groups."""
        return min((group.done_below() for group in self.groups.values()), default=None)

    def setting(self, group: Group, name: str) -> Any:
        """A setting of the topic, as the group overrides it."""
        return group.settings[name] if name in group.settings else self.settings[name]

    def expires_ms(self, entry: LogEntry) -> int | None:
        """When the ttl of its messages has passed."""
        ttl_ms: int | None = entry.extra.ttl_ms if entry.extra is not None else None
        if ttl_ms is None:
            ttl_ms = self.settings["ttl_ms"]
        return None if ttl_ms is None else offsets.deliver_ms(entry.first) + ttl_ms

    # -- messages and groups -----------------------------------------------------------------------------------------

    def revoke(self, lease: Lease, view: View) -> None:
        """End a lease; the caller says what becomes of its messages."""
        lease.left |= lease.live
        lease.revoked = True
        self.progress(lease, view)

    # -- what is leased -------------------------------------------------------------------------------------------

    def delivered(self, entry: LogEntry, now_ms: int, view: View) -> None:
        if entry.extra is not None:
            self._unique.delivered(entry.extra, now_ms, self.settings["dedup_window_ms"], view)

    def forget_key(self, entry: LogEntry, view: View) -> None:
        """A message leaves the log; if no group ever leased it (a seek passed it), its unique key is free."""
        if entry.extra is not None:
            self._unique.delivered(entry.extra, 0, 0, view)

    def entry_at(self, offset: bytes, view: View) -> LogEntry:
        """The entry of a message that has a log row of its own."""
        row = view.get(rows.log_key(offset))
        return LogEntry(offset, 1, 0) if row is None else rows.log_entry(rows.log_key(offset), row)

    def row_entry(self, offset: bytes, view: View) -> LogEntry:
        """The log row that holds a message, whole."""
        row = row_holding(view, offset)
        return rows.log_entry(*row) if row is not None else LogEntry(offset, 1, 1)

    def kept_bytes(self, group: Group, offset: bytes, view: View) -> int:
        """The size of a message that a group keeps."""
        row = view.get(rows.of_group(rows.KEPT, group.group_id, offset))
        return 1 if row is None else len(row)

    def shrink(self, group: Group, entry: Waiting, rest: list[Range], view: View) -> None:
        """Only `rest` of a waiting entry still waits."""
        group.gaps += len(rest) - len(entry.ranges)
        key = rows.waiting_key(group.group_id, entry.due_ms, entry.seq)
        entry.ranges = rest
        group.metrics.see_waiting(entry)
        group.changed()
        if rest:
            view.put(key, entry.row())
        else:
            view.delete(key)
            del group.waiting[entry.seq]

    # -- what comes back ------------------------------------------------------------------------------------------

    def wait(self, group: Group, entry: Waiting, view: View) -> None:
        """Queue messages of a group; the entry gets its sequence number, and when the first of it dies."""
        if self.mortal:
            expiries = [self.range_expires_ms(group, waiting.base, entry.kept, view) for waiting in entry.ranges]
            entry.expires_ms = min((at for at in expiries if at is not None), default=None)
        entry.seq = self.next_seq
        self.next_seq += 1
        group.queue(entry)
        view.put(rows.waiting_key(group.group_id, entry.due_ms, entry.seq), entry.row())

    def range_expires_ms(self, group: Group, base: bytes, kept: bool, view: View) -> int | None:
        """When the messages of a range die of their ttl. One with a ttl of its own is alone in its row and range."""
        if kept:
            row = view.get(rows.of_group(rows.KEPT, group.group_id, base))
            assert row is not None
            _, _, fields, immortal = rows.unpack(row)
            extra = rows.Extra(base, fields.get(Column.TTL_MS), None, None)
            return None if immortal else self.expires_ms(LogEntry(base, 1, 0, extra))
        if self.own_ttl:
            return self.expires_ms(self.entry_at(base, view))
        ttl_ms = self.settings["ttl_ms"]
        return None if ttl_ms is None else offsets.deliver_ms(base) + ttl_ms

    @property
    def mortal(self) -> bool:
        """Whether any message may have a ttl."""
        return self.own_ttl or self.settings["ttl_ms"] is not None

    def next_death_ms(self, group: Group, view: View) -> int | None:
        """When the first of a group's messages dies of its ttl: of what waits, and of the log's head."""
        if group.seeking:
            return None
        waiting, head = group.first_death(), group.reader.head(view)
        times = [waiting.expires_ms] if waiting is not None and waiting.expires_ms is not None else []
        if head is not None and (expires_ms := self.expires_ms(head)) is not None:
            times.append(expires_ms)
        return min(times, default=None)

    def bury_expired(self, group: Group, entry: Waiting, now_ms: int, view: View) -> bool:
        """Bury what died of a waiting entry. Whether there was any."""
        if not self.mortal:
            return False
        expiries = [self.range_expires_ms(group, waiting.base, entry.kept, view) for waiting in entry.ranges]
        is_dead = [expires_ms is not None and expires_ms <= now_ms for expires_ms in expiries]
        alive = [expires_ms for expires_ms in expiries if expires_ms is not None and expires_ms > now_ms]
        dead = [waiting for waiting, gone in zip(entry.ranges, is_dead, strict=True) if gone]
        rest = [waiting for waiting, gone in zip(entry.ranges, is_dead, strict=True) if not gone]
        first_ms = min(alive, default=None)
        if dead or first_ms != entry.expires_ms:
            entry.expires_ms = first_ms
            self.shrink(group, entry, rest, view)
            group.watch(entry)
        if dead:
            self.bury(group, entry.attempt, EXPIRED, entry.error, dead, entry.history, entry.kept, now_ms, view)
        return bool(dead)

    def bury(
        self,
        group: Group,
        attempts: int,
        reason: str,
        error: str | None,
        ranges: list[Range],
        history: History,
        kept: bool,
        now_ms: int,
        view: View,
    ) -> None:
        messages = self.reader.messages(view, ranges, group.group_id if kept else None)
        count, size = bury(group.group_id, messages, attempts, reason, error, history, now_ms, view)
        group.dead[reason] += count
        self._count_dead(reason, count)
        self.buried_bytes += size
        self.finish(group, ranges, kept, now_ms, view)
        self.put_group(group, view)

    def _count_dead(self, reason: str, count: int) -> None:
        totals = self.totals
        if reason == EXPIRED:
            totals.dead_expired += count
        elif reason == NACKED:
            totals.dead_nacked += count
        else:
            totals.dead_lease_expired += count

    def finish(self, group: Group, ranges: list[Range], kept: bool, now_ms: int, view: View) -> None:
        """The group is through with these messages (acked, or dead)."""
        if not kept and not self.ordered:
            return
        for base, length in ranges:
            for offset in offsets.run(base, length):
                group.order.finish(offset)
                if kept:
                    self.drop_kept(group, offset, now_ms, view)

    def drop_kept(self, group: Group, offset: bytes, now_ms: int, view: View) -> None:
        key = rows.of_group(rows.KEPT, group.group_id, offset)
        row = view.get(key)
        if row is not None:
            view.delete(key)
            self.left(offset, rows.unpack(row)[0], now_ms, view)

    def left(self, offset: bytes, message_id: bytes, now_ms: int, view: View) -> None:
        """A message left a row that a group had of its own, or the log: if that was the last place where it was, then
        where it had been moved is remembered only for a while."""
        if message_id == offset or not self.is_trimmed(offset):
            return
        for group_id in self.groups:
            for tag in (rows.KEPT, rows.DEAD):
                if view.get(rows.of_group(tag, group_id, offset)) is not None:
                    return
        self._expiring_rows.leave(message_id, now_ms, view)

    def start_keys(self, group: Group, ranges: list[Range], kept: bool, view: View) -> None:
        for base, length in ranges:
            # In the log a message with a key has a row and so a range of its own; not among what was redriven.
            for offset in offsets.run(base, length if kept else 1):
                if (key := self.order_of(group, offset, kept, view)) is not None:
                    group.order.start(offset, key)

    def order_of(self, group: Group, offset: bytes, kept: bool, view: View) -> int | None:
        """The ordering hash of a message of its own row, if it has a key."""
        if kept:
            row = view.get(rows.of_group(rows.KEPT, group.group_id, offset))
            return None if row is None else rows.order_of(rows.unpack(row)[2])
        entry = self.entry_at(offset, view)
        return None if entry.extra is None else entry.extra.order

    # -- leases and groups ----------------------------------------------------------------------------------------

    def progress(self, lease: Lease, view: View) -> None:
        """Store what became of a lease; when nothing of it is live it ends, and is kept for a while."""
        group = self.groups.get(lease.group_id)
        if group is not None:
            group.metrics.see_lease(lease)
        if not lease.live:
            if lease.ended:
                return
            lease.ended = self.next_seq
            self.next_seq += 1
            if group is not None:
                group.leases.pop(lease.token, None)
                group.changed()
            self._held[lease.group_id, lease.consumer] -= 1
            if not self._held[lease.group_id, lease.consumer]:
                del self._held[lease.group_id, lease.consumer]
            self._ended[lease.token] = lease
            self._ended_ranges += len(lease.ranges)
            while len(self._ended) > ENDED_LEASES or self._ended_ranges > ENDED_RANGES:
                token, oldest = self._ended.popitem(last=False)
                self._ended_ranges -= len(oldest.ranges)
                del self.leases[token]
                view.delete(rows.token_key(rows.LEASE, token))
                view.delete(rows.token_key(rows.PROGRESS, token))
                if oldest is lease:
                    return
        view.put(rows.token_key(rows.PROGRESS, lease.token), lease.progress_row())

    def add_group(self, group: Group) -> None:
        self.groups[group.group_id] = group
        self._by_name[group.name] = group

    def remove_group(self, group: Group, view: View) -> None:
        """The group is no more: its leases are lost. Its other rows are for a job to delete."""
        for lease in list(group.leases.values()):
            self.revoke(lease, view)
        del self.groups[group.group_id]
        del self._by_name[group.name]
        view.delete(rows.group_key(group.group_id))

    def put_group(self, group: Group, view: View) -> None:
        view.put(rows.group_key(group.group_id), group.row())

    def put_holder(self, group: Group, holder: Lease | Waiting, view: View) -> None:
        """Store a lease or a waiting entry that has changed."""
        if isinstance(holder, Lease):
            view.put(rows.token_key(rows.LEASE, holder.token), holder.row())
        else:
            view.put(rows.waiting_key(group.group_id, holder.due_ms, holder.seq), holder.row())

    def add_lease(self, group: Group, lease: Lease) -> None:
        group.leases[lease.token] = self.leases[lease.token] = lease
        group.metrics.see_lease(lease)
        group.changed()
        self._held[group.group_id, lease.consumer] += 1
        heapq.heappush(self.deadlines, (lease.deadline_ms, lease.token))

    def stale(self, deadline_ms: int, token: int) -> bool:
        lease = self.leases.get(token)
        return lease is None or lease.ended != 0 or lease.deadline_ms != deadline_ms
