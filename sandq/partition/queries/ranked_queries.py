"""Queries about groups of priority and fair topics: which messages come before a message, and why tenants wait.

The queries only read. Their work is bounded: at most `LOOKED_AT` messages are checked one by one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from heapq import nsmallest
from typing import Any, Final, NamedTuple

from sandq.model import offsets
from sandq.model.pauses import pause_text
from sandq.model.rates import rate_text
from sandq.model.times import format_instant
from sandq.partition.base.rows import LogEntry
from sandq.partition.base.view import View
from sandq.partition.groups.group import Group
from sandq.partition.reader.reader import AnswerReader
from sandq.partition.ready import queue_keys
from sandq.partition.ready.ready_queues import ReadyQueues
from sandq.partition.records.leases import Waiting
from sandq.partition.state_machine import TimerPartition

LOOKED_AT: Final = 1000
"""Maximum number of messages that are compared with a given message, to count the messages before it."""
TENANTS: Final = 100
"""Maximum number of tenants per group that a query returns."""
_READ_BYTES: Final = 8 << 20


class ReadyPosition(NamedTuple):
    """Position of a message among the ready messages of its tenant."""

    key: bytes
    """Key of its ready queue."""
    offset: bytes
    ageing_ms: int | None

    def is_behind(self, key: bytes, offset: bytes) -> bool:
        """Return whether the message at `offset`, in the queue `key` of the same tenant, comes before this message."""
        return self._order(key, offset) < self._order(self.key, self.offset)

    def _order(self, key: bytes, offset: bytes) -> tuple[int, int, bytes]:
        """Return the sort key of a message of this tenant. Without ageing, the priority decides before the offset."""
        priority = queue_keys.unpack(key).priority
        aged = priority if self.ageing_ms is None else offsets.deliver_ms(offset) + priority * self.ageing_ms
        return aged, priority, offset

    def bound(self, key: bytes) -> bytes | None:
        """Return the offset below which messages in a queue of the same tenant come before this message. None if none
        does."""
        own, other = queue_keys.unpack(self.key).priority, queue_keys.unpack(key).priority
        if own == other:
            return self.offset
        if self.ageing_ms is None:
            return offsets.LAST if other < own else None
        ms = offsets.deliver_ms(self.offset) + (own - other) * self.ageing_ms + (other < own)
        return offsets.LAST if ms > offsets.U48_MAX else offsets.pack(ms, 0, 0, 0) if ms > 0 else None


def why_ready(machine: TimerPartition, group: Group, ready: ReadyQueues, offset: bytes, view: View) -> str | None:
    """Return why a message that is ready in a group waits. None if it is the next message of its tenant."""
    holder = group.holder_of(offset, view)
    key = holder.queue if isinstance(holder, Waiting) else queue_keys.of_message(ready.rank, view, offset)
    if key is None:
        return None
    tenant = queue_keys.tenant_of(key)
    paused_ms = ready.limits.pauses.until_ms(tenant, machine.now_ms) if ready.rank == queue_keys.FAIR else None
    if paused_ms is not None:
        return f"tenant {tenant} is {pause_text(paused_ms)}"
    most = ready.limits.rule_of(tenant).max_in_flight if ready.rank == queue_keys.FAIR else None
    if most is not None and (flying := ready.limits.in_flight[tenant]) >= most:
        return f"tenant {tenant} has {flying} of {most} messages in flight"
    paced_ms = ready.limits.paced_ms(tenant)
    if paced_ms is not None and paced_ms > machine.now_ms:
        return f"tenant {tenant} has had what its rate allows, its next message may go at {format_instant(paced_ms)}"
    crowding = ready.limits.crowding
    if tenant in crowding.stopped and not crowding.is_stale and not isinstance(holder, Waiting):
        ranges, flying = crowding.waits[tenant], ready.limits.in_flight[tenant]
        return (
            f"tenant {tenant} has {ranges} runs of messages that wait for another attempt, and {flying} messages in "
            "flight: until they are fewer, it gets no new messages"
        )
    position = ReadyPosition(key, offset, machine.shared.settings["ageing_ms"])
    before, is_all = _before(machine, group, ready, position, view)
    if not before:
        return None
    count = f"more than {LOOKED_AT}" if before > LOOKED_AT else f"{before}" if is_all else f"{before} or more"
    verb = "message goes" if count == "1" else "messages go"
    return f"{count} {verb} before it" + (" in its tenant" if tenant else "")


def _before(
    machine: TimerPartition, group: Group, ready: ReadyQueues, position: ReadyPosition, view: View
) -> tuple[int, bool]:
    """Return (number of messages of the same tenant before a message, whether all were checked). Counts up to a little
    more than `LOOKED_AT`."""
    # Count messages in ready queues, then returned messages, then due messages that are not promoted yet.
    before, is_all = ready.count_before(queue_keys.tenant_of(position.key), position.bound, LOOKED_AT + 1, view)
    for given_back in group.waiting.values():
        if before > LOOKED_AT:
            return before, True
        queue = given_back.queue
        if given_back.due_ms <= machine.now_ms and queue is not None and _are_of_one(queue, position.key):
            before += sum([position.is_behind(queue, each) for one in given_back.ranges for each in offsets.run(*one)])
    if before > LOOKED_AT:
        return before, True
    reader = AnswerReader(group.cursor, machine.shared.yield_now)
    ranges = reader.take(view, machine.now_ms, LOOKED_AT, _READ_BYTES).ranges
    entries = [LogEntry(base, length, 0) for base, length in ranges if base not in group.gaps]
    for key, entry in queue_keys.split(ready.rank, entries, view):
        if _are_of_one(key, position.key):
            before += sum([position.is_behind(key, each) for each in offsets.run(entry.first, entry.length)])
    return before, is_all and sum([length for _, length in ranges]) < LOOKED_AT


def _are_of_one(key: bytes, other: bytes) -> bool:
    """Return whether two ready queues belong to the same tenant."""
    return queue_keys.tenant_of(key) == queue_keys.tenant_of(other)


def tenant_rows(group: Group, ready: ReadyQueues, now_ms: int) -> list[dict[str, Any]]:
    """Return a row for each tenant of a fair topic with messages in a group. Tenants are sorted by their ready
    messages, then by their messages in flight, highest first. Ready messages do not include due messages that are not
    promoted yet. `free_ms`: when the rate allows the tenant's next message."""
    waiting = ready.count_by_tenant()
    for entry in group.waiting.values():
        if entry.queue is not None and entry.due_ms <= now_ms:
            waiting[queue_keys.tenant_of(entry.queue)] += entry.ranges.messages
    return list(_rows(ready, waiting, now_ms))


def _rows(ready: ReadyQueues, waiting: Counter[str], now_ms: int) -> Iterator[dict[str, Any]]:
    """Yield the rows of `tenant_rows`. `waiting`: number of ready messages by tenant."""
    flying = ready.limits.in_flight
    order = {tenant: (-waiting[tenant], -flying[tenant], tenant) for tenant in (*waiting, *flying)}
    for tenant in nsmallest(TENANTS, order, key=order.__getitem__):
        rule = ready.limits.rule_of(tenant)
        yield {
            "tenant": tenant,
            "ready": waiting[tenant],
            "in_flight": flying[tenant],
            "max_in_flight": rule.max_in_flight,
            "weight": rule.weight,
            "rate": None if rule.pace is None else rate_text(rule.pace.interval_us),
            "burst": None if rule.pace is None else rule.pace.burst,
            **({"paused_until_ms": paused_ms} if (paused_ms := ready.limits.pauses.until_ms(tenant, now_ms)) else {}),
            "free_ms": free_ms if (free_ms := ready.limits.paced_ms(tenant)) is not None and free_ms > now_ms else None,
        }
