"""Grants leases in topics that rank messages. Due messages are promoted from the log into ready queues, and due waiting
messages return to their queues. Then tenants take turns. Within a tenant, messages of the best priority are leased
first, and among these the oldest.

Nothing is leased until all due messages are promoted. So a lease contains the first messages of all that were stored
before the lease. If too many messages of a group wait for their next attempt, the group leases only returned messages,
best priority first.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

from sandq.model import offsets
from sandq.model.limits import FIXED
from sandq.partition import commands as c
from sandq.partition.base.rows import LogEntry, Range
from sandq.partition.base.step import Step
from sandq.partition.groups.group import Group
from sandq.partition.groups.group_state import GroupState
from sandq.partition.groups.spilling import RECALLED
from sandq.partition.groups.unique_keys import UniqueKeys
from sandq.partition.leasing import retry
from sandq.partition.leasing.fitting import LEASE_BYTES, fitting
from sandq.partition.leasing.open_leases import OpenLeases
from sandq.partition.limits.cost_budget import CostBudget
from sandq.partition.ready import queue_keys
from sandq.partition.ready.ready_queue import ReadyQueue
from sandq.partition.ready.ready_queues import ReadyQueues
from sandq.partition.records.leases import FRESH, Lease, Waiting
from sandq.partition.shared_state import SharedState

PROMOTED: Final = 10_000
"""A lease command stops promoting after this number of messages."""
PART_ENTRIES: Final = 256
"""Number of entries to promote before yielding."""
RECALLED_WITH_NEW: Final = 16
"""Number of messages that a lease command recalls if new ones have come since the last lease, instead of `RECALLED`. A
node that is busy with the retries of an outage then makes many small leases, so that new messages wait a short time
only. Retries are late instead."""
BURIED: Final = 1000
"""Number of expired messages after which a lease command stops making more of them dead."""


@dataclass(slots=True)
class _Filling:
    """The leases of one grant while messages are added to them. `is_stopped`: add only returned messages. `budget`:
    for the costs of messages, if the rate of the group has a unit."""

    step: Step
    group: Group
    ready: ReadyQueues
    opened: OpenLeases
    is_stopped: bool
    budget: CostBudget | None


class RankedGrants:
    def __init__(self, shared: SharedState, group_state: GroupState, unique: UniqueKeys) -> None:
        self._shared = shared
        self._leases = group_state.leases
        self._waiting = group_state.waiting
        self._spilling = group_state.spilling
        self._ttl = group_state.ttl
        self._kept = group_state.kept
        self._dead = group_state.dead
        self._unique = unique
        self._buried = 0
        self._promoted = 0
        """Number of messages that the lease command has promoted."""
        self._budget: CostBudget | None = None
        """Budget of the lease command for the costs of messages. None if the rate of the group has no unit."""

    def grant(
        self,
        step: Step,
        group: Group,
        ready: ReadyQueues,
        command: c.Lease,
        capacity: int,
        budget: CostBudget | None = None,
    ) -> list[Lease]:
        """Grant leases of ready messages, in order: `capacity` messages at most, and with a total cost that fits into
        the budget."""
        self._promoted, self._budget = 0, budget
        is_stopped = group.pause_reason() is not None
        until_ms = min(command.horizon_ms, step.now_ms)  # after a clock error, `now_ms` may be ahead
        is_all = is_stopped or self._promote(step, group, ready, until_ms)
        ready.is_promoting = not is_all
        granted: list[Lease] = []
        if is_all:
            if group.popped_ms > until_ms:
                # These messages were due by a wrong clock, and are not due now. A replica that restarted since then
                # does not know that they were due, so forget them: all replicas must get the same result.
                group.forget_popped()
                ready.forget_returned()
            if command.recalls:
                # If the lease takes many new messages, it also takes many retries, so that these do not fall behind.
                recalled = min(ready.messages, capacity, FIXED.grant_messages) // 2
                recalled = max(recalled, RECALLED_WITH_NEW if self._promoted else RECALLED)
                self._spilling.recall_due(step, group, until_ms, recalled)
            for entry in group.pop_due(until_ms):
                assert entry.queue is not None, "if messages are ranked, each waiting entry has a queue"
                ready.give_back(entry.queue, entry)
            most = group.most_waiting if ready.rank == queue_keys.FAIR else None
            ready.begin(step, most, group.in_flight + capacity, self._shared.in_slices)
            granted = self._lease(step, group, ready, command, capacity, is_stopped=is_stopped)
            if group.is_recall_blocked(until_ms):
                self._spilling.free_window(step, group, ready.held_back())
            if command.recalls and not granted and ready.limits.held_up:
                # Messages of tenants at their limits may be due before those of others. There are too many for memory.
                self._spilling.recall_due(step, group, until_ms, is_held_up=ready.limits.held_up.__contains__)
            ready.is_promoting = self._buried >= BURIED  # more messages may be due behind these
        ready.end(step)
        return granted

    def _promote(self, step: Step, group: Group, ready: ReadyQueues, until_ms: int) -> bool:
        """Promote a bounded number of due messages of the log into ready queues. Return whether all due messages are
        promoted."""
        view = step.view
        while ready.takes_more:
            passed = group.reader.advance_over_due(view, until_ms, PART_ENTRIES)
            if not passed:
                return True
            if group.gaps:
                passed = [entry for entry in passed if entry.first not in group.gaps]
                group.gaps.clear_passed(step, group.cursor)
            for key, entry in queue_keys.split(ready.rank, passed, view):
                ready.add(step, key, entry)
                self._promoted += entry.length
            if self._promoted >= PROMOTED:
                head = group.reader.head(view)
                return head is None or offsets.deliver_ms(head.first) > until_ms
            self._shared.yield_now()
        return True

    def _lease(
        self, step: Step, group: Group, ready: ReadyQueues, command: c.Lease, capacity: int, *, is_stopped: bool
    ) -> list[Lease]:
        """Grant leases from the ready queues. `is_stopped`: lease only returned messages, no new ones."""
        granted: list[Lease] = []
        left_bytes, self._buried = LEASE_BYTES, 0
        for grant in command.grants:
            limit = min(grant.limit, FIXED.grant_messages, capacity)
            of_consumer = FIXED.leases_per_consumer - self._leases.live_count(group, grant.consumer)
            most = min(FIXED.entry_grants - step.grants, of_consumer)
            if limit <= 0 or left_bytes <= 0 or most <= 0:
                continue
            opened = OpenLeases(most, partial(_open, step, group, grant))
            filling = _Filling(step, group, ready, opened, is_stopped, self._budget)
            left_bytes -= self._fill(filling, limit, left_bytes)
            if not opened.leases:
                break
            for lease in opened.leases:
                lease.reindex()
                lease.note_last(retry.max_attempts_of(lease.retry, group, self._shared.settings))
                capacity -= lease.total
                self._leases.add(step, group, lease)
            ready.limits.granted()
            granted += opened.leases
        return granted

    def _fill(self, filling: _Filling, limit: int, max_bytes: int) -> int:
        """Add the next messages to the leases of a grant. Return their bytes."""
        step, ready, opened, is_stopped = filling.step, filling.ready, filling.opened, filling.is_stopped
        budget = filling.budget
        ageing_ms: int | None = self._shared.settings["ageing_ms"]
        has_rules = is_stopped or ageing_ms is not None or self._ttl.any_expires
        left, taken_bytes = limit, 0
        while left > 0 and taken_bytes < max_bytes and self._buried < BURIED:
            # Messages without attempts need at most one more lease, whatever their tenants.
            if not has_rules and opened.may_open:
                most = left if budget is None else min(left, max(budget.left, 0))
                taken, size = ready.serve_tenants(step, most, max_bytes - taken_bytes)
                if taken:
                    if budget is not None:
                        budget.spend(len(taken))
                    _add_singles(opened, taken)
                    left -= len(taken)
                    taken_bytes += size
                    continue
            turn = ready.next_back() if is_stopped else ready.next(ageing_ms)
            if turn is None:
                break
            queue, is_shared = turn
            capacity = ready.limits.capacity_of(queue.tenant)
            # If tenants take turns after each message (`is_shared`), take only one.
            most = 1 if is_shared else left if capacity is None else min(left, capacity)
            assert most > 0, "a queue with a turn has messages that may be leased"
            # Take the first returned message or the first new one: whichever has the lower offset.
            returned = ready.first_returned(queue)
            gets_nothing_new = is_stopped or queue.tenant in ready.limits.crowding.stopped
            head = None if gets_nothing_new else ready.head(queue, step.view)
            if returned is not None and (head is None or _first(returned) < head.first):
                if most > 1:
                    most = _count_in_order(returned, head, ready.next_returned(queue), most)
                added = self._take_returned(filling, queue, returned, most, max_bytes - taken_bytes)
            else:
                assert head is not None, "a queue that has a turn contains a message"
                capacity_for_new = ready.limits.capacity_for_new(queue.tenant)
                most = most if capacity_for_new is None else min(most, capacity_for_new)
                assert most > 0, "a tenant without capacity for new messages is stopped"
                added = self._take_head(filling, queue, head, most, max_bytes - taken_bytes)
            if added is None:
                break
            count, size = added
            if count:
                ready.serve(queue, count)
            ready.settle(queue)
            left -= count
            taken_bytes += size
        return taken_bytes

    def _take_returned(
        self, filling: _Filling, queue: ReadyQueue, entry: Waiting, limit: int, max_bytes: int
    ) -> tuple[int, int] | None:
        """Add returned messages to their lease. Return (number, bytes): zeros if messages expired instead. None if no
        lease may take them."""
        step, group = filling.step, filling.group
        if self._dead.end_expired(step, group, entry):
            self._note_buried(1)
            return 0, 0
        count, size, cost = fitting(self._kept, group, entry, limit, max_bytes, step.view, filling.budget)
        lease = filling.opened.lease_for(queue.tenant, entry.alike) if count else None
        if lease is None:
            return None
        if filling.budget is not None:
            filling.budget.spend(cost)
        ranges = self._waiting.take(step, group, entry, count)
        lease.due_ms = max(lease.due_ms, entry.due_ms)
        lease.since_ms = min(lease.since_ms, entry.since_ms)
        lease.ranges += ranges
        if entry.history:
            lease.past.append((ranges, entry.history))
        _note_queue(lease, queue.key, count)
        return count, size

    def _note_buried(self, messages: int) -> None:
        """Count expired messages. If the budget of the entry is spent, stop making more of them dead."""
        self._buried += messages
        if self._shared.is_budget_spent:
            self._buried = max(self._buried, BURIED)

    def _take_head(
        self, filling: _Filling, queue: ReadyQueue, head: LogEntry, limit: int, max_bytes: int
    ) -> tuple[int, int] | None:
        """Add the first entry of a queue to its lease, as far as it fits, and possibly further entries. Return (number
        of messages, bytes): zeros if messages expired instead. None if no lease may take them."""
        step, group, ready = filling.step, filling.group, filling.ready
        expires_ms = self._ttl.entry_expires_ms(head)
        if expires_ms is not None and expires_ms <= step.now_ms:
            self._unique.mark_delivered(step, group, head)
            ready.take(step, queue, head.length)
            self._dead.expire(step, group, [Range(head.first, head.length)], False)
            self._note_buried(head.length)
            return 0, 0
        if filling.budget is not None:
            limit = min(limit, filling.budget.most(head.cost))
            if not limit:
                return None
        rules = head.extra.retry if head.extra is not None else None
        lease = filling.opened.lease_for(queue.tenant, FRESH._replace(retry=rules) if rules is not None else FRESH)
        if lease is None:
            return None
        if head.length == 1 and head.extra is None and limit > 1 and not queue.returned and not self._ttl.any_expires:
            ranges, size = ready.take_singles(step, queue, limit, max_bytes)
        else:
            self._unique.mark_delivered(step, group, head)
            unit = head.unit or head.size
            count = min(head.length, limit, 1 + (max_bytes - 1) // unit)
            ready.take(step, queue, count)
            ranges, size = [Range(head.first, count)], unit * count
        lease.ranges += ranges
        lease.due_ms = max(lease.due_ms, offsets.deliver_ms(ranges[-1].base))
        count = sum([length for _, length in ranges])
        if filling.budget is not None:
            filling.budget.spend(count * head.cost)
        _note_queue(lease, queue.key, count)
        return count, size


def _open(step: Step, group: Group, grant: c.Grant) -> Lease:
    """Return a new lease without messages."""
    now_ms, token = step.now_ms, offsets.token(step.index, step.grants)
    step.grants += 1
    lease = Lease(token, group.group_id, grant.consumer, 1, now_ms + grant.lease_ms, 0, [], now_ms, now_ms)
    lease.epoch, lease.handlers = grant.epoch, grant.handlers
    return lease


def _first(entry: Waiting) -> bytes:
    """Return the first message of a waiting entry."""
    assert entry.first is not None, "a waiting entry has a first message"
    return entry.first


def _count_in_order(returned: Waiting, head: LogEntry | None, following: Waiting | None, most: int) -> int:
    """Return how many messages of a returned entry come before the other messages of their queue, up to `most`.

    Messages that were given back together are not always adjacent in their queue. `head`: the first new message of the
    queue. `following`: the next returned entry of the queue."""
    firsts = [head.first] if head is not None else []
    firsts += [_first(following)] if following is not None else []
    return returned.ranges.count_below(min(firsts, default=offsets.LAST), most)


def _note_queue(lease: Lease, key: bytes, count: int) -> None:
    """Record in a lease that its next `count` messages come from this queue."""
    if lease.queues and lease.queues[-1][0] == key:
        lease.queues[-1] = key, lease.queues[-1][1] + count
    else:
        lease.queues.append((key, count))


def _add_singles(opened: OpenLeases, taken: list[tuple[bytes, bytes]]) -> None:
    """Add messages without attempts to their leases. `taken`: pairs of a queue and a message. The grant may open one
    more lease for them."""
    for key, first in taken:
        lease = opened.lease_for(queue_keys.tenant_of(key), FRESH)
        assert lease is not None, "one more lease may be opened"
        _note_queue(lease, key, 1)
        lease.ranges.append(Range(first, 1))
        lease.due_ms = max(lease.due_ms, offsets.deliver_ms(first))
