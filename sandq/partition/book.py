"""The book of a partition's groups: who holds which messages, what waits for another attempt, what is dead.

Every command on leases ends here. Each change is put into rows in the same breath, so that a book loaded from
rows goes on exactly as the one that wrote them.
"""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict
from typing import Any

from sandq.model import offsets
from sandq.model.errors import InvalidRequest, UnknownGroup
from sandq.model.limits import FIXED

from . import commands as c
from . import retry, rows
from .delivery import Reader
from .groups import Group, Lease, Waiting, split
from .rows import Range
from .view import View

MAX_LEASE_AHEAD_MS = 50
LEASE_BYTES = 8 << 20
"""Of all grants of one lease command: it is read and sent as a whole."""
EXPIRE_MESSAGES = 10_000
ENDED_LEASES = 1024
ENDED_RANGES = 65_536

Lost = list[list[Any]] | None
"""None: done. Else the ranges `[[base, count], ...]` of which the lease was lost; []: the whole lease."""


class GroupBook:
    """Groups, live leases, leases that ended lately (to answer repeated acks), deadlines."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.groups: dict[int, Group] = {}
        self.next_group = 1
        self.next_seq = 1
        self._by_name: dict[str, Group] = {}
        self._leases: dict[int, Lease] = {}
        """Live and ended ones."""
        self._held: Counter[tuple[int, str]] = Counter()
        """Live leases by (group, consumer)."""
        self._ended: OrderedDict[int, Lease] = OrderedDict()
        self._ended_ranges = 0
        self._deadlines: list[tuple[int, int]] = []
        """Heap of (deadline_ms, token); stale entries are skipped when met."""
        self._reader = Reader()

    # -- loading and looking --------------------------------------------------------------------------------------

    def load(self, view: View) -> None:
        for key, value in rows.all_rows(view, rows.GROUP):
            name, cursor, dead = rows.unpack(value)
            group = Group(int.from_bytes(key[1:], "big"), name, cursor)
            group.dead = dead
            self._add_group(group)
        progress = {key[1:]: value for key, value in rows.all_rows(view, rows.PROGRESS)}
        ended: list[Lease] = []
        for key, value in rows.all_rows(view, rows.LEASE):
            lease = Lease.load(int.from_bytes(key[1:], "big"), value, progress.get(key[1:]))
            if lease.ended:
                self._leases[lease.token] = lease
                ended.append(lease)
            else:
                self._add_lease(self.groups[lease.group_id], lease)
        for lease in sorted(ended, key=lambda lease: lease.ended):
            self._ended[lease.token] = lease
            self._ended_ranges += len(lease.ranges)
        for key, value in rows.all_rows(view, rows.WAITING):
            attempt, error, packed = rows.unpack(value)
            due_ms, seq = int.from_bytes(key[5:11], "big"), int.from_bytes(key[11:], "big")
            self.groups[int.from_bytes(key[1:5], "big")].queue(
                Waiting(due_ms, seq, attempt, error, rows.unpack_ranges(packed))
            )

    def group(self, name: str) -> Group:
        group = self._by_name.get(name)
        if group is None:
            raise UnknownGroup(f"there is no group {name!r} in this partition")
        return group

    def leases_of(self, group_name: str, consumer: str) -> list[Lease]:
        """Live leases of a consumer, in the order of their tokens; none when the group is not there."""
        group = self._by_name.get(group_name)
        held = group.leases.values() if group else ()
        return sorted((lease for lease in held if lease.consumer == consumer), key=lambda lease: lease.token)

    def next_expiry_ms(self) -> int | None:
        while self._deadlines and self._stale(*self._deadlines[0]):
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def done_below(self) -> bytes | None:
        """Every group is done with everything below this offset; None without groups."""
        return min((group.done_below() for group in self.groups.values()), default=None)

    # -- commands -------------------------------------------------------------------------------------------------

    def open_group(self, command: c.OpenGroup, latest: bytes, view: View) -> int:
        """The group's id; made at `latest` or at the beginning unless it exists. Raises InvalidRequest (limit)."""
        group = self._by_name.get(command.group)
        if group is None:
            if len(self.groups) >= FIXED.groups_per_topic:
                raise InvalidRequest(f"the topic has {len(self.groups)} groups, which is the limit")
            group = Group(self.next_group, command.group, latest if command.start == "latest" else offsets.FIRST)
            self.next_group += 1
            self._add_group(group)
            self._put_group(group, view)
        return group.group_id

    def lease(
        self, index: int, place: int, command: c.Lease, now_ms: int, average_bytes: int, view: View
    ) -> list[Lease]:
        """Grant what is due, in order. `place` is the entry's next free place for a token. Raises UnknownGroup."""
        group = self.group(command.group)
        horizon_ms = min(command.horizon_ms, now_ms + MAX_LEASE_AHEAD_MS)
        granted: list[Lease] = []
        left_bytes = LEASE_BYTES
        for grant in command.grants:
            limit = min(grant.limit, FIXED.grant_messages)
            while limit > 0 and left_bytes > 0 and place + len(granted) < FIXED.entry_grants:
                if self._held[group.group_id, grant.consumer] >= FIXED.leases_per_consumer:
                    break
                # How large waiting messages are is not known here: as large as all are on average.
                fitting = min(limit, 1 + left_bytes // max(average_bytes, 1))
                attempt, ranges, due_ms = self._take_waiting(group, horizon_ms, fitting, view)
                size = average_bytes * sum([r.length for r in ranges])
                if not ranges and group.paused() is None:
                    ranges, size = group.reader.take(view, horizon_ms, limit, left_bytes)
                    due_ms = offsets.deliver_ms(ranges[-1].base) if ranges else 0
                if not ranges:
                    break
                token = offsets.token(index, place + len(granted))
                lease = Lease(token, group.group_id, grant.consumer, attempt, now_ms + grant.lease_ms, due_ms, ranges)
                limit -= lease.total
                left_bytes -= size
                self._add_lease(group, lease)
                view.put(rows.token_key(rows.LEASE, token), lease.row())
                granted.append(lease)
        if granted:
            self._put_group(group, view)
        return granted

    def ack(self, token: int, what: c.What, view: View) -> Lost:
        lease = self._leases.get(token)
        if lease is None:
            return []
        mask, foreign = lease.mask_of(what)
        fresh = mask & lease.live
        if fresh:
            lease.acked |= fresh
            self._progress(lease, view)
        if what is None and lease.acked and not lease.revoked:
            return None  # "the whole lease" leaves out what its holder nacked itself
        return _lost(lease, mask & lease.left, foreign, what)

    def nack(self, token: int, what: c.What, delay_ms: int | None, error: str | None, now_ms: int, view: View) -> Lost:
        lease = self._leases.get(token)
        if lease is None:
            return []
        mask, foreign = lease.mask_of(what)
        fresh = mask & lease.live
        if fresh:
            self._give_back(lease, fresh, delay_ms, "nack", error, now_ms, view)
        return _lost(lease, mask & ~fresh, foreign, what)

    def extend(self, token: int, lease_ms: int, now_ms: int, view: View) -> int | None:
        """The new deadline (ms), or None when the lease has ended."""
        lease = self._leases.get(token)
        if lease is None or lease.ended:
            return None
        lease.deadline_ms = now_ms + lease_ms
        heapq.heappush(self._deadlines, (lease.deadline_ms, token))
        view.put(rows.token_key(rows.LEASE, token), lease.row())
        return lease.deadline_ms

    def expire(self, now_ms: int, view: View) -> int:
        """End leases whose deadline has come, up to `EXPIRE_MESSAGES`. Messages given back."""
        expired = 0
        while self._deadlines and self._deadlines[0][0] <= now_ms and expired < EXPIRE_MESSAGES:
            deadline_ms, token = heapq.heappop(self._deadlines)
            if not self._stale(deadline_ms, token):
                lease = self._leases[token]
                live = lease.live
                expired += live.bit_count()
                lease.revoked = True
                self._give_back(lease, live, None, "lease expired", None, now_ms, view)
        return expired

    def release(self, command: c.Release, now_ms: int, view: View) -> int:
        """What the consumer holds is ready again at once, the attempt not counted. Messages given back."""
        group = self.group(command.group)
        released = 0
        for lease in self.leases_of(command.group, command.consumer):
            live = lease.live
            self._wait(group, now_ms, lease.attempt - 1, None, lease.select(live), view)
            lease.left |= live
            lease.revoked = True
            self._progress(lease, view)
            released += live.bit_count()
        return released

    # -- parts ----------------------------------------------------------------------------------------------------

    def _take_waiting(self, group: Group, horizon_ms: int, limit: int, view: View) -> tuple[int, list[Range], int]:
        """Ranges whose back-off has passed, all with the same number of attempts: (attempt, ranges, due_ms)."""
        attempt = due_ms = 0
        taken: list[Range] = []
        while limit > 0:
            entry = group.first_waiting()
            if entry is None or entry.due_ms > horizon_ms or (taken and entry.attempt != attempt):
                break
            attempt, due_ms = entry.attempt, entry.due_ms
            ranges, rest = split(entry.ranges, limit)
            limit -= sum([r.length for r in ranges])
            taken += ranges
            group.gaps += len(rest) - len(entry.ranges)
            key = rows.waiting_key(group.group_id, entry.due_ms, entry.seq)
            entry.ranges = rest
            if rest:
                view.put(key, entry.row())
            else:
                view.delete(key)
                del group.waiting[entry.seq]
        return attempt + 1, sorted(taken), due_ms

    def _give_back(
        self,
        lease: Lease,
        mask: int,
        delay_ms: int | None,
        reason: str,
        error: str | None,
        now_ms: int,
        view: View,
    ) -> None:
        """What a lease names in `mask` waits for its next attempt, or is dead after its last."""
        group = self.groups[lease.group_id]
        ranges = lease.select(mask)
        last = self.settings["max_attempts"]
        if last is not None and lease.attempt >= last:
            self._bury(group, lease.attempt, reason, error, ranges, now_ms, view)
        else:
            if delay_ms is None:
                delay_ms = retry.delay_ms(self.settings["backoff"], lease.attempt, ranges[0].base, group.group_id)
            self._wait(group, now_ms + delay_ms, lease.attempt, error, ranges, view)
        lease.left |= mask
        self._progress(lease, view)

    def _wait(
        self, group: Group, due_ms: int, attempt: int, error: str | None, ranges: list[Range], view: View
    ) -> None:
        # Leased ahead of its time and given back before it: not before its time even so.
        by_due: dict[int, list[Range]] = {}
        for waiting in ranges:
            by_due.setdefault(max(due_ms, offsets.deliver_ms(waiting.base)), []).append(waiting)
        for at_ms, together in by_due.items():
            self._queue(group, min(at_ms, offsets.U48_MAX), attempt, error, together, view)

    def _queue(
        self, group: Group, due_ms: int, attempt: int, error: str | None, ranges: list[Range], view: View
    ) -> None:
        entry = Waiting(due_ms, self.next_seq, attempt, error, ranges)
        self.next_seq += 1
        group.queue(entry)
        view.put(rows.waiting_key(group.group_id, entry.due_ms, entry.seq), entry.row())

    def _bury(
        self,
        group: Group,
        attempts: int,
        reason: str,
        error: str | None,
        ranges: list[Range],
        now_ms: int,
        view: View,
    ) -> None:
        """Dead messages are copied to rows of their own, so that they keep nothing else in the log."""
        for message in self._reader.messages(view, ranges):
            row = rows.pack(attempts, reason, error, now_ms, message.id, message.created_ms, message.fields)
            view.put(rows.dead_key(group.group_id, message.offset), row)
            group.dead += 1
        self._put_group(group, view)

    def _progress(self, lease: Lease, view: View) -> None:
        """Store what became of a lease; when nothing of it is live it ends, and is kept for a while."""
        if not lease.live:
            lease.ended = self.next_seq
            self.next_seq += 1
            del self.groups[lease.group_id].leases[lease.token]
            self._held[lease.group_id, lease.consumer] -= 1
            if not self._held[lease.group_id, lease.consumer]:
                del self._held[lease.group_id, lease.consumer]
            self._ended[lease.token] = lease
            self._ended_ranges += len(lease.ranges)
            while len(self._ended) > ENDED_LEASES or self._ended_ranges > ENDED_RANGES:
                token, oldest = self._ended.popitem(last=False)
                self._ended_ranges -= len(oldest.ranges)
                del self._leases[token]
                view.delete(rows.token_key(rows.LEASE, token))
                view.delete(rows.token_key(rows.PROGRESS, token))
                if oldest is lease:
                    return
        view.put(rows.token_key(rows.PROGRESS, lease.token), lease.progress_row())

    def _add_group(self, group: Group) -> None:
        self.groups[group.group_id] = group
        self._by_name[group.name] = group

    def _put_group(self, group: Group, view: View) -> None:
        view.put(rows.group_key(group.group_id), group.row())

    def _add_lease(self, group: Group, lease: Lease) -> None:
        group.leases[lease.token] = self._leases[lease.token] = lease
        self._held[group.group_id, lease.consumer] += 1
        heapq.heappush(self._deadlines, (lease.deadline_ms, lease.token))

    def _stale(self, deadline_ms: int, token: int) -> bool:
        lease = self._leases.get(token)
        return lease is None or lease.ended != 0 or lease.deadline_ms != deadline_ms


def _lost(lease: Lease, mask: int, foreign: list[list[Any]], what: c.What) -> Lost:
    if not mask and not foreign:
        return None
    if what is None and mask == (1 << lease.total) - 1:
        return []
    return [[r.base, r.length] for r in lease.select(mask)] + foreign
