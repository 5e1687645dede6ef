"""Granting leases where messages are ranked: what is due is promoted from the log into ready queues, what was given
back stands in them again; then tenants take turns, of each the best priority goes first, and of that the oldest.

Nothing is leased while more is due than was promoted: of what was stored before a lease, whatever goes first is in it.
A group in which too much waits for another attempt gets that alone, best priority first.
"""

from __future__ import annotations

from typing import Final

from sandq.model import offsets
from sandq.model.limits import FIXED
from sandq.partition import commands as c
from sandq.partition.base.rows import LogEntry, Range
from sandq.partition.base.step import Step
from sandq.partition.groups.dead_letters import EXPIRED_UNREAD
from sandq.partition.groups.group import Group
from sandq.partition.groups.group_state import GroupState
from sandq.partition.groups.unique_keys import UniqueKeys
from sandq.partition.leasing.fitting import LEASE_BYTES, fitting
from sandq.partition.ready import queue_keys
from sandq.partition.ready.ready_queue import ReadyQueue
from sandq.partition.ready.ready_queues import ReadyQueues
from sandq.partition.records.leases import FRESH, Lease, Waiting
from sandq.partition.shared_state import SharedState

PROMOTED: Final = 10_000
"""Messages that one lease promotes."""
PART_ENTRIES: Final = 256
"""After which it may give way."""
BURIED: Final = 1000
"""Messages whose ttl has passed that one lease buries."""


class RankedGrants:
    def __init__(self, shared: SharedState, group_state: GroupState, unique: UniqueKeys) -> None:
        self._shared = shared
        self._leases = group_state.leases
        self._waiting = group_state.waiting
        self._ttl = group_state.ttl
        self._kept = group_state.kept
        self._dead = group_state.dead
        self._unique = unique
        self._buried = 0

    def grant(self, step: Step, group: Group, ready: ReadyQueues, command: c.Lease, room: int) -> list[Lease]:
        """Grant what is ready, in order: `room` messages at most."""
        is_stopped = group.pause_reason() is not None
        until_ms = min(command.horizon_ms, step.now_ms)  # the partition's time may be ahead, by a clock that was wrong
        is_all = is_stopped or self._promote(step, group, ready, until_ms)
        ready.is_promoting = not is_all
        granted: list[Lease] = []
        if is_all:
            if group.popped_ms > until_ms:
                # By a clock that was wrong it was due, and is not: a process that began since does not know of it.
                group.forget_popped()
                ready.forget_returned()
            for entry in group.pop_due(until_ms):
                assert entry.queue is not None, "where messages are ranked each waiting entry has its queue"
                ready.give_back(entry.queue, entry)
            most = group.most_waiting if ready.rank == queue_keys.FAIR else None
            ready.begin(step, most, group.in_flight + room, self._shared.in_turns)
            granted = self._lease(step, group, ready, command, room, is_stopped=is_stopped)
            ready.is_promoting = self._buried >= BURIED  # there may be something behind them
        ready.end(step)
        return granted

    def _promote(self, step: Step, group: Group, ready: ReadyQueues, until_ms: int) -> bool:
        """Put what is due in the log into ready queues, a bounded number of messages. Whether that was all."""
        view = step.view
        messages = 0
        while ready.takes_more:
            passed = group.reader.pass_due(view, until_ms, PART_ENTRIES)
            if not passed:
                return True
            if group.gaps:
                passed = [entry for entry in passed if entry.first not in group.gaps]
                group.gaps.clear_passed(step, group.cursor)
            for key, entry in queue_keys.split(ready.rank, passed, view):
                ready.add(step, key, entry)
                messages += entry.length
            if messages >= PROMOTED:
                head = group.reader.head(view)
                return head is None or offsets.deliver_ms(head.first) > until_ms
            self._shared.give_way()
        return True

    def _lease(
        self, step: Step, group: Group, ready: ReadyQueues, command: c.Lease, room: int, *, is_stopped: bool
    ) -> list[Lease]:
        """`is_stopped`: nothing new is leased, only what was given back."""
        now_ms = step.now_ms
        granted: list[Lease] = []
        left_bytes, self._buried = LEASE_BYTES, 0
        for grant in command.grants:
            limit = min(grant.limit, FIXED.grant_messages, room)
            while limit > 0 and left_bytes > 0 and step.grants < FIXED.entry_grants:
                if self._leases.live_count(group, grant.consumer) >= FIXED.leases_per_consumer:
                    break
                token = offsets.token(step.index, step.grants)
                lease = Lease(token, group.group_id, grant.consumer, 1, now_ms + grant.lease_ms, 0, [], now_ms, now_ms)
                lease.epoch, lease.handlers = grant.epoch, grant.handlers
                size = self._fill(step, group, ready, lease, limit, left_bytes, is_stopped)
                if not lease.ranges:
                    return granted
                lease.reindex()
                lease.note_last(group.setting("max_attempts", self._shared.settings))
                limit -= lease.total
                room -= lease.total
                left_bytes -= size
                self._leases.add(step, group, lease)
                ready.limits.granted()
                granted.append(lease)
                step.grants += 1
        return granted

    def _fill(
        self, step: Step, group: Group, ready: ReadyQueues, lease: Lease, limit: int, max_bytes: int, is_stopped: bool
    ) -> int:
        """Put what comes next into a lease, all of it with the same number of attempts. Bytes taken."""
        view = step.view
        ageing_ms: int | None = self._shared.settings["ageing_ms"]
        left, taken_bytes = limit, 0
        while left > 0 and taken_bytes < max_bytes and self._buried < BURIED:
            is_first = not lease.ranges or lease.alike == FRESH
            if is_first and not is_stopped and ageing_ms is None and not self._ttl.any_expires:
                turns, size = ready.take_turns(step, left, max_bytes - taken_bytes)
                if turns:
                    _note_turns(lease, turns)
                    left -= len(turns)
                    taken_bytes += size
                    continue
            turn = ready.next_back() if is_stopped else ready.next(ageing_ms)
            if turn is None:
                break
            queue, is_shared = turn
            room = ready.limits.room_of(queue.tenant)
            most = 1 if is_shared else left if room is None else min(left, room)
            assert most > 0, "who has a turn has room"
            returned = ready.first_returned(queue)
            gets_nothing_new = is_stopped or queue.tenant in ready.limits.crowding.stopped
            head = None if gets_nothing_new else ready.head(queue, view)
            room_for_new = ready.limits.room_for_new(queue.tenant)
            if returned is not None and (head is None or _first(returned) < head.first):
                if lease.ranges and lease.alike != returned.alike:
                    break
                if most > 1:
                    # What was given back together need not stand together.
                    firsts = [head.first] if head is not None else []
                    firsts += [_first(following)] if (following := ready.next_returned(queue)) is not None else []
                    most = returned.ranges.count_below(min(firsts, default=offsets.LAST), most)
                count, size = self._take_returned(step, group, lease, returned, most, max_bytes - taken_bytes)
            else:
                assert head is not None, "a queue that has a turn has something"
                if not is_first:
                    break
                most = most if room_for_new is None else min(most, room_for_new)
                assert most > 0, "who gets nothing new is stopped"
                count, size = self._take_head(step, group, ready, queue, lease, head, most, max_bytes - taken_bytes)
            if count:
                ready.serve(queue, count)
                _note_queue(lease, queue.key, count)
            ready.settle(queue)
            left -= count
            taken_bytes += size
        return taken_bytes

    def _take_returned(
        self, step: Step, group: Group, lease: Lease, entry: Waiting, limit: int, max_bytes: int
    ) -> tuple[int, int]:
        """Put what was given back into the lease. How many messages, and their bytes: none, if it was buried."""
        if self._dead.bury_expired(step, group, entry):
            self._note_buried(1)
            return 0, 0
        count, size = fitting(self._kept, group, entry, limit, max_bytes, step.view)
        ranges = self._waiting.take(step, group, entry, count)
        lease.adopt(entry.alike)
        lease.due_ms = max(lease.due_ms, entry.due_ms)
        lease.since_ms = min(lease.since_ms, entry.since_ms)
        lease.ranges += ranges
        if entry.history:
            lease.past.append((ranges, entry.history))
        return count, size

    def _note_buried(self, messages: int) -> None:
        """Count what was buried: enough, once the entry has no budget left for it."""
        self._buried += messages
        if self._shared.is_budget_spent:
            self._buried = max(self._buried, BURIED)

    def _take_head(
        self,
        step: Step,
        group: Group,
        ready: ReadyQueues,
        queue: ReadyQueue,
        lease: Lease,
        head: LogEntry,
        limit: int,
        max_bytes: int,
    ) -> tuple[int, int]:
        """Put the first entry of a queue into the lease, as much of it as fits, and perhaps others behind it. How many
        messages, and their bytes."""
        if head.length == 1 and head.extra is None and limit > 1 and not queue.returned and not self._ttl.any_expires:
            singles, size = ready.take_singles(step, queue, limit, max_bytes)
            lease.ranges += singles
            lease.due_ms = max(lease.due_ms, offsets.deliver_ms(singles[-1].base))
            return len(singles), size
        expires_ms = self._ttl.entry_expires_ms(head)
        self._unique.mark_delivered(step, group, head)
        if expires_ms is not None and expires_ms <= lease.leased_ms:
            ready.take(step, queue, head.length)
            self._dead.bury(step, group, [Range(head.first, head.length)], False, EXPIRED_UNREAD)
            self._note_buried(head.length)
            return 0, 0
        unit = head.unit or head.size
        count = min(head.length, limit, 1 + (max_bytes - 1) // unit)
        ready.take(step, queue, count)
        lease.ranges.append(Range(head.first, count))
        lease.due_ms = max(lease.due_ms, offsets.deliver_ms(head.first))
        return count, unit * count


def _first(entry: Waiting) -> bytes:
    assert entry.first is not None, "what waits has a first message"
    return entry.first


def _note_queue(lease: Lease, key: bytes, count: int) -> None:
    """The next messages of a lease are of this queue."""
    if lease.queues and lease.queues[-1][0] == key:
        lease.queues[-1] = key, lease.queues[-1][1] + count
    else:
        lease.queues.append((key, count))


def _note_turns(lease: Lease, turns: list[tuple[bytes, bytes]]) -> None:
    """The next messages of a lease are these, each of a queue."""
    for key, _ in turns:
        _note_queue(lease, key, 1)
    lease.ranges += [Range(first, 1) for _, first in turns]
    lease.due_ms = max(lease.due_ms, offsets.deliver_ms(max([first for _, first in turns])))
