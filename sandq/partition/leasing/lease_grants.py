"""Grants leases. A lease takes due waiting messages first, then messages that their keys no longer block, then the next
messages of the log."""

from __future__ import annotations

from collections.abc import Callable

from sandq.model import offsets
from sandq.model.limits import FIXED
from sandq.partition import commands as c
from sandq.partition.base import rows
from sandq.partition.base.rows import LogEntry, Range
from sandq.partition.base.step import Step
from sandq.partition.base.view import View
from sandq.partition.groups.group import Group
from sandq.partition.groups.group_limits import GroupLimits
from sandq.partition.groups.group_state import GroupState
from sandq.partition.groups.spilling import RECALLED
from sandq.partition.groups.unique_keys import UniqueKeys
from sandq.partition.leasing import retry
from sandq.partition.leasing.fitting import LEASE_BYTES, fitting
from sandq.partition.leasing.ranked_grants import RankedGrants
from sandq.partition.limits.cost_budget import CostBudget
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
        self._spilling = group_state.spilling
        self._ttl = group_state.ttl
        self._kept = group_state.kept
        self._dead = group_state.dead
        self._unique = unique
        self._limits = limits
        self._reader = group_state.reader
        self.is_latest: Callable[[Message, View], bool] | None = None
        """Returns whether a message is the last write of its key. None if the topic is not compacted."""
        self._ranked = RankedGrants(shared, group_state, unique)
        self._budget: CostBudget | None = None
        """Budget of the current lease command. None if the rate of the group has no unit."""

    def grant(self, step: Step, command: c.Lease) -> list[Lease]:
        """Grant leases of due messages, in order. Raise UnknownGroup."""
        group = self._groups.named(command.group)
        group.use(step)
        self._groups.store(step, group)
        if group.halts or group.paused:
            return []
        capacity = self._limits.available(step, group, sum([grant.limit for grant in command.grants]))
        if group.allowance is not None and capacity <= 0:
            return []
        self._budget = self._limits.budget(step, group)
        if group.ready is not None:
            granted = self._ranked.grant(step, group, group.ready, command, capacity, self._budget)
        else:
            granted = self._grant(step, group, command, capacity)
        self._limits.serve(step, group, sum([lease.total for lease in granted]), self._budget)
        self._groups.store(step, group)
        return granted

    def _grant(self, step: Step, group: Group, command: c.Lease, capacity: int) -> list[Lease]:
        """Grant leases in a topic that does not rank messages, `capacity` messages at most."""
        view, now_ms = step.view, step.now_ms
        horizon_ms = min(command.horizon_ms, now_ms + MAX_LEASE_AHEAD_MS)
        if command.recalls:
            self._spilling.recall_due(step, group, horizon_ms, max(min(capacity, FIXED.grant_messages), RECALLED))
        granted: list[Lease] = []
        left_bytes, is_empty = LEASE_BYTES, False
        for grant in command.grants:
            if self._is_blocked or (is_empty and not self._may_find_more(group, horizon_ms, view)):
                break
            limit = min(grant.limit, FIXED.grant_messages, capacity)
            while limit > 0 and left_bytes > 0 and step.grants < FIXED.entry_grants:
                if self._leases.live_count(group, grant.consumer) >= FIXED.leases_per_consumer:
                    break
                token = offsets.token(step.index, step.grants)
                lease = Lease(token, group.group_id, grant.consumer, 1, now_ms + grant.lease_ms, 0, [], now_ms, now_ms)
                lease.epoch, lease.handlers = grant.epoch, grant.handlers
                size = self._take_waiting(step, group, lease, horizon_ms, limit, left_bytes)
                if not lease.ranges and not self._is_blocked and group.pause_reason() is None:
                    size = self._take_free(step, group, lease, horizon_ms, limit, left_bytes)
                if not lease.ranges and not self._is_blocked and group.stall_reason() is None:
                    size = self._take_log(step, group, lease, horizon_ms, limit, left_bytes)
                if not lease.ranges:
                    is_empty = True
                    break
                lease.reindex()
                lease.note_last(retry.max_attempts_of(lease.retry, group, self._shared.settings))
                limit -= lease.total
                capacity -= lease.total
                left_bytes -= size
                self._leases.add(step, group, lease)
                granted.append(lease)
                step.grants += 1
        return granted

    def _may_find_more(self, group: Group, horizon_ms: int, view: View) -> bool:
        """Return whether a further lease may find messages. The last lease found none, perhaps only because it reached
        a limit."""
        free = group.order.first_free()
        if free is not None and offsets.deliver_ms(free) <= horizon_ms:
            return True
        head = group.reader.head(view)
        return head is not None and offsets.deliver_ms(head.first) <= horizon_ms

    @property
    def _is_blocked(self) -> bool:
        """Whether the next message does not fit into the budget. No later messages are leased before it."""
        return self._budget is not None and self._budget.needed is not None

    def _fits(self, entry: LogEntry) -> bool:
        """Return whether the first message of an entry fits into the budget."""
        return self._budget is None or self._budget.most(entry.cost) > 0

    @property
    def _is_spent(self) -> bool:
        """Whether the budget of this log entry for dead and dropped messages is spent."""
        return self._shared.is_budget_spent

    def _take_waiting(self, step: Step, group: Group, lease: Lease, horizon_ms: int, limit: int, max_bytes: int) -> int:
        """Add due waiting messages to the lease. All of them are alike (`Lease.alike`). Return their bytes."""
        view = step.view
        left, taken_bytes, looked_at, parted = limit, 0, 0, 0
        while left > 0 and taken_bytes < max_bytes:
            entry = group.next_waiting()
            if entry is None or entry.due_ms > horizon_ms:
                break
            if paused := group.paused_keys_in(entry):
                if len(paused) == entry.ranges.messages:
                    group.park(paused.values())
                elif parted and parted + len(paused) > FIXED.grant_messages:
                    break
                else:
                    parted += len(paused)
                    for offset in paused:  # they wait on, apart from the messages whose keys are not paused
                        self._waiting.part(step, group, entry, offset, entry.due_ms, entry.made)
                continue
            if entry.dies_waiting and entry.due_ms > lease.leased_ms:
                break  # it expires before it is due, so do not lease it ahead
            if lease.ranges and entry.alike != lease.alike:
                break
            if self._is_spent and entry.expires_ms is not None and entry.expires_ms <= lease.leased_ms:
                break  # expired messages must end first, which this log entry may not do any more
            if self._dead.end_expired(step, group, entry):
                continue
            count, size, cost = fitting(self._kept, group, entry, left, max_bytes - taken_bytes, view, self._budget)
            if not count:
                break
            if self._budget is not None:
                self._budget.spend(cost)
            ranges = self._waiting.take(step, group, entry, count)
            taken_bytes += size
            if self.is_latest is not None:
                ranges = self._without_superseded(step, group, ranges, entry.kept)
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

    def _without_superseded(self, step: Step, group: Group, ranges: list[Range], kept: bool) -> list[Range]:
        """Finish the messages whose keys have a later write, and return the others.

        If they were delivered after the later write, a consumer's copy of the keys would keep the older value."""
        view = step.view
        assert self.is_latest is not None
        latest: list[Range] = []
        for message in self._reader.messages(view, ranges, group.group_id if kept else None):
            if self.is_latest(message, view):
                latest.append(Range(message.offset, 1))
            else:
                self._kept.finish(step, group, [Range(message.offset, 1)], kept)
                self._shared.totals.superseded += 1
        return ranges if len(latest) == sum([length for _, length in ranges]) else latest

    def _take_free(self, step: Step, group: Group, lease: Lease, horizon_ms: int, limit: int, max_bytes: int) -> int:
        """Add free messages to the lease: their keys no longer block them. Return their bytes."""
        view = step.view
        taken: list[bytes] = []
        size = 0
        while len(taken) < limit and size < max_bytes and (offset := group.order.first_free()) is not None:
            if offsets.deliver_ms(offset) > horizon_ms:
                break  # a lease with a later horizon passed it
            kept = offset in group.order.kept
            if taken and kept != lease.kept:
                break
            entry = self._kept.entry(group, offset, view) if kept else single_row_entry(view, offset)
            rules = entry.extra.retry if entry.extra is not None else None
            if taken and rules != lease.retry:
                break
            expires_ms = self._ttl.entry_expires_ms(entry)
            is_expired = expires_ms is not None and expires_ms <= lease.leased_ms
            if self._is_spent if is_expired else not self._fits(entry):
                break
            view.delete(rows.of_group(rows.BLOCKED, group.group_id, offset))
            self._unique.mark_delivered(step, group, entry)
            size += entry.size
            if is_expired:
                group.order.remove(offset)
                self._dead.expire(step, group, [Range(offset, 1)], kept)
            else:
                group.order.take(offset)
                if self._budget is not None:
                    self._budget.spend(entry.cost)
                lease.kept, lease.retry = kept, rules
                taken.append(offset)
        if taken:
            lease.ranges = [Range(offset, 1) for offset in taken]
            lease.due_ms = offsets.deliver_ms(taken[-1])
        return size

    def _take_log(self, step: Step, group: Group, lease: Lease, horizon_ms: int, limit: int, max_bytes: int) -> int:
        """Add the next messages of the log to the lease. Return their bytes."""
        view = step.view

        def judge(entry: LogEntry) -> bool | None:
            """Decide about the next entry of the log. Return True: lease it; False: pass over it; None: stop here."""
            if entry.first in group.gaps:
                return False
            expires_ms = self._ttl.entry_expires_ms(entry)
            if expires_ms is not None and expires_ms <= lease.leased_ms:
                if self._is_spent:
                    return None
                self._unique.mark_delivered(step, group, entry)
                self._dead.expire(step, group, [Range(entry.first, entry.length)], False)
                return False
            key = entry.extra.order if entry.extra is not None else None
            if key is not None and group.order.is_full(key):
                group.order.block(entry.first, key)
                view.put(rows.of_group(rows.BLOCKED, group.group_id, entry.first), rows.pack(key))
                return False
            if not self._fits(entry):
                return None
            if key is not None:
                group.order.start(entry.first, key)
            self._unique.mark_delivered(step, group, entry)
            return True

        judge_all = self._shared.settings["ttl_ms"] is not None or bool(group.gaps)
        lease.ranges, size, lease.plain, lease.retry = group.reader.take(
            view, horizon_ms, limit, max_bytes, judge, judge_all=judge_all, is_alike=True, budget=self._budget
        )
        group.gaps.clear_passed(step, group.cursor)
        if lease.ranges:
            lease.due_ms = offsets.deliver_ms(lease.ranges[-1].base)
        return size
