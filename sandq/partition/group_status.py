"""The state of a partition's groups as the event loop sees it, after each run of the apply thread.

A group is processed again only after it has changed, or when time alone changes it. All other groups keep the status of
the previous copy. The number of ready messages in the log changes for all groups with every message that becomes due,
so it is computed only when it is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import Any, NamedTuple

from sandq.model import offsets
from sandq.model.pauses import FOREVER
from sandq.partition.base import rows
from sandq.partition.base.stale_heaps import LeastOf
from sandq.partition.base.view import View
from sandq.partition.groups.group import Group
from sandq.partition.groups.group_table import GroupTable
from sandq.partition.limits.allowance import Allowance
from sandq.partition.log.counts import Counts
from sandq.partition.shared_state import LogState

_versions = count(1)
"""Source of version numbers for all partitions of the process. So no two partitions have the same version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStatus:
    group_id: int
    name: str
    next_ms: int | None
    """Time of the next message to lease, in ms, or the end of the pause. None if there is no such message, if the group
    is paused until it is resumed, or if its messages in flight have reached their limit."""
    head_ms: int | None
    """Delivery time in ms of the next message that the group takes from the log: the next one without attempts. None if
    there is no such message, or if the group takes none now."""
    paused: str | None
    """Reason why no new messages are leased. None if new messages are leased."""
    is_paused: bool
    """Whether the group is paused. `paused` may give another reason at the same time."""
    generation: int
    ready: int
    """Number of messages that a consumer may lease now: messages of the log, and retries that are due. Exact to the
    second."""
    leased: int
    waiting: int
    """Number of messages whose next attempt is not due yet."""
    dead: int
    oldest_ms: int | None
    """Delivery time of the oldest due message that is not acked, in ms. None if all due messages are acked. Rounded to
    whole seconds, so the time may be slightly in the future."""
    is_promoting: bool = False
    """Whether the log may have due messages that the last lease did not promote. The next lease promotes more of
    them."""
    limit: Limited | None = None
    """State of the group's limits. None if the group has no limits."""
    unfinished: int = 0
    """Number of messages that are leased, waiting or blocked by their keys."""
    dropped: int = 0
    """Number of messages that the group has dropped, because they expired."""
    removed: int = 0
    """Number of dead messages that were removed because of `dead_retention` or `max_dead_letters`."""
    is_expired: bool = False
    """Whether `group_ttl` has passed. The group then keeps only its unfinished messages."""
    paused_until_ms: int | None = None
    """Time at which the group's pause ends, in ms. None if it does not end by itself."""
    paused_tenants: int = 0
    paused_keys: int = 0

    @property
    def not_before_ms(self) -> int:
        """Earliest time at which the group's pause and rate allow the next message, in ms."""
        return max(self.paused_until_ms or 0, 0 if self.limit is None else self.limit.free_ms or 0)

    def is_limit_paused(self, now_ms: int) -> bool:
        """Return whether the named limit of the group is paused."""
        return self.limit is not None and self.limit.paused_until_ms > now_ms

    @property
    def due_ms(self) -> int | None:
        """Time at which the next message may be leased, in ms. None if there is no such message."""
        return None if self.next_ms is None else max(self.next_ms, self.not_before_ms)


class Limited(NamedTuple):
    """The state of a group's limits in this partition."""

    next_ms: int | None
    """Time at which the next message could be leased without limits, in ms."""
    has_capacity: bool
    """Whether one more message may be in flight."""
    free_ms: int | None
    """Time at which the rate allows the next message, in ms; 0: now. None if the home partition must allow units
    first."""
    needed: int = 1
    """Number of units of the rate that the next message needs."""
    paused_until_ms: int = 0
    """End of the pause of the named limit, in ms. 0 if it is not paused."""

    def holds_up(self, now_ms: int) -> tuple[bool, int]:
        """Return (whether the messages in flight hold up a due message, number of units for which it waits). The number
        is 0 if the rate does not hold up the message. (False, 0) while the named limit is paused, because a larger
        share would not help."""
        is_due = self.next_ms is not None and self.next_ms <= now_ms and self.paused_until_ms <= now_ms
        waits_for_rate = is_due and (self.free_ms is None or self.free_ms > now_ms)
        return is_due and not self.has_capacity, self.needed if waits_for_rate else 0

    def later_ms(self, now_ms: int) -> int | None:
        """Return when the next message becomes due, in ms. None if it is due, or if there is none."""
        return self.next_ms if self.next_ms is not None and self.next_ms > now_ms else None


class _Snapshot(NamedTuple):
    """The state of a group when it was last processed."""

    status: GroupStatus
    """Status without the ready messages in the log."""
    passed: int
    """Number of due messages that the group has passed, counted as in `Counts.due`. The remaining due messages are
    ready."""
    from_s: int | None
    """Second from which on messages in the log are ready. None: never."""
    least: int
    """Minimum number of ready messages in the log from `from_s` on."""
    head_ms: int | None
    """Delivery time of the first message in the log, in ms."""

    def at(self, due: int, now_s: int) -> GroupStatus:
        """Return the status at a time, including the ready messages in the log. `due`: as `Counts.due` at that time."""
        if self.from_s is None or self.from_s > now_s:
            return self.status
        status, head_ms, oldest_ms = self.status, self.head_ms, self.status.oldest_ms
        if head_ms is not None:
            oldest_ms = head_ms if oldest_ms is None else min(head_ms, oldest_ms)
        return GroupStatus(
            group_id=status.group_id,
            name=status.name,
            next_ms=status.next_ms,
            head_ms=status.head_ms,
            paused=status.paused,
            is_paused=status.is_paused,
            generation=status.generation,
            ready=status.ready + max(due - self.passed, self.least),
            leased=status.leased,
            waiting=status.waiting,
            dead=status.dead,
            oldest_ms=oldest_ms,
            is_promoting=status.is_promoting,
            limit=status.limit,
            unfinished=status.unfinished,
            dropped=status.dropped,
            removed=status.removed,
            is_expired=status.is_expired,
            paused_until_ms=status.paused_until_ms,
            paused_tenants=status.paused_tenants,
            paused_keys=status.paused_keys,
        )


class GroupStatuses(Sequence[GroupStatus]):
    """The groups of a partition at one time, in the order of their creation."""

    __slots__ = ("_by_name", "_due", "_now_s", "changed", "since", "version")

    def __init__(
        self,
        by_name: Mapping[str, _Snapshot] | None = None,
        due: int = 0,
        now_s: int = 0,
        version: int = 0,
        since: int = 0,
        changed: tuple[str, ...] = (),
    ) -> None:
        self._by_name = by_name or {}
        self._due = due
        self._now_s = now_s
        self.version = version
        """Changes with every change of a group. Never equals a version of another partition."""
        self.since = since
        """The previous version."""
        self.changed = changed
        """Names of groups that may have changed since the version `since`, or were deleted."""

    def get(self, name: str) -> GroupStatus | None:
        """Return the status of the group with this name. None if there is no such group."""
        snapshot = self._by_name.get(name)
        return None if snapshot is None else snapshot.at(self._due, self._now_s)

    @property
    def names(self) -> list[str]:
        """Names of all groups. Does not compute their statuses."""
        return list(self._by_name)

    def is_any_due(self, now_ms: int) -> bool:
        """Return whether any group has a message to lease at `now_ms`."""
        times = (snapshot.status.next_ms for snapshot in self._by_name.values())
        return any(at is not None and at <= now_ms for at in times)

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[GroupStatus]:
        return (snapshot.at(self._due, self._now_s) for snapshot in self._by_name.values())

    def __getitem__(self, at: Any) -> Any:
        return tuple(self)[at]

    def __contains__(self, group: object) -> bool:
        return group in tuple(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GroupStatuses) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]  # compared by contents

    def __repr__(self) -> str:
        return f"GroupStatuses({list(islice(self, 10))})"


class StatusTable:
    """Keeps the status of each group. Local to this process: no replicated decision depends on it."""

    def __init__(self, groups: GroupTable, counts: Counts, log_state: LogState) -> None:
        self._groups = groups
        self._counts = counts
        self._log_state = log_state
        self._changed = groups.changes()
        self._snapshots: dict[str, _Snapshot] = {}
        self._names: dict[int, str] = {}
        self._ripening: LeastOf[int] = LeastOf()
        """Times at which time alone changes the status of groups."""
        self._last = GroupStatuses()
        self.dead = 0
        """Number of dead messages in all groups."""

    def refresh(self, now_ms: int, view: View) -> GroupStatuses:
        """Return the current status of all groups."""
        counts = self._counts
        self._changed.update(self._ripening.up_to(now_ms))
        last = self._last
        version, since, changed = last.version, last.since, last.changed
        if self._changed:
            names = [self._process(group_id, now_ms, view) for group_id in sorted(self._changed)]
            self._changed.clear()
            version, since = next(_versions), version
            changed = tuple(dict.fromkeys([name for name in names if name is not None]))
            by_name: Mapping[str, _Snapshot] = self._snapshots.copy()
        else:
            by_name = last._by_name
        self._last = GroupStatuses(by_name, counts.due, counts.now_s, version, since, changed)
        return self._last

    def _process(self, group_id: int, now_ms: int, view: View) -> str | None:
        """Update the status of a group, and return its name. None if it was created and deleted in between."""
        group, name = self._groups.by_id.get(group_id), self._names.get(group_id)
        if name is not None and (before := self._snapshots.get(name)) and before.status.group_id == group_id:
            self.dead -= before.status.dead
            if group is None:
                del self._snapshots[name]
        if group is None:
            self._ripening.put(group_id, None)
            return self._names.pop(group_id, None)
        snapshot = self._snapshot(group, now_ms, view)
        self._names[group_id] = group.name
        self._snapshots[group.name] = snapshot
        self.dead += snapshot.status.dead
        head = None if group.halts else group.reader.head(view)
        group.is_noted, group.head_until = False, offsets.LAST if head is None else rows.last_of(head)
        self._ripening.put(group_id, self._ripens_ms(group, now_ms))
        return group.name

    def _snapshot(self, group: Group, now_ms: int, view: View) -> _Snapshot:
        """Return the current state of a group."""
        taken_ms = _head_ms(group, view)
        next_ms, limit = _next_ms(group, taken_ms), None
        if group.allowance is not None:
            limit = _limited(group, group.allowance, next_ms, taken_ms, now_ms)
            if not limit.has_capacity or limit.free_ms is None:
                next_ms = None
        passed, from_s, least, head_ms = self._in_log(group, view)
        metrics, blocked = group.metrics, len(group.order.blocked)
        metrics.ripen(now_ms)
        oldest = group.oldest_held
        if blocked:
            lowest = group.order.lowest()
            assert lowest is not None
            oldest = lowest if oldest is None else min(oldest, lowest)
        promoted, is_promoting = 0, False
        if group.ready is not None:
            promoted = group.ready.messages
            lowest_ready = group.ready.lowest
            if lowest_ready is not None:
                oldest = lowest_ready if oldest is None else min(oldest, lowest_ready)
            is_promoting = group.ready.is_promoting and not group.halts and not group.paused
            # While limits hold up messages, promote none. Otherwise lease commands would repeat without effect.
            is_promoting = is_promoting and (limit is None or (next_ms is not None and not limit.free_ms))
        status = GroupStatus(
            group_id=group.group_id,
            name=group.name,
            next_ms=next_ms,
            head_ms=taken_ms,
            paused=group.stall_reason(),
            is_paused=group.paused,
            generation=group.generation,
            ready=blocked + promoted + metrics.ripe,
            leased=metrics.leased,
            waiting=group.waiting_messages - metrics.ripe,
            dead=group.dead.total(),
            oldest_ms=None if oldest is None else offsets.deliver_ms(oldest),
            is_promoting=is_promoting,
            limit=limit,
            unfinished=group.unfinished,
            dropped=group.dropped,
            removed=group.removed,
            is_expired=group.is_expired,
            paused_until_ms=group.paused_until_ms,
            paused_tenants=group.pauses.tenants,
            paused_keys=group.pauses.keys,
        )
        return _Snapshot(status, passed, from_s, least, head_ms)

    def _in_log(self, group: Group, view: View) -> tuple[int, int | None, int, int | None]:
        """Return the fields of a `_Snapshot` for the messages above a group's cursor.

        After a seek or a start, the position of a group within its second is not known. Until the group reaches the
        next second, or the end of the due messages, all messages of this second count as ready, even if the group has
        passed them.
        """
        reader, counts = group.reader, self._counts
        at_s = offsets.deliver_ms(group.cursor) // 1000
        if reader.passed is None or (reader.unsure_s is not None and reader.unsure_s != at_s):
            reader.unsure_s = at_s if reader.passed is None else None
            second, taken = max(reader.taken, self._log_state.gone, (at_s, 0))
            reader.passed = counts.due - counts.between(second, counts.now_s + 1, view) + taken
        if group.halts:
            return reader.passed, 0, 0, None
        head = reader.head(view)
        head_ms = None if head is None else offsets.deliver_ms(head.first)
        if head_ms is None or head_ms // 1000 > counts.now_s:
            # `passed` may exceed `due`: messages that were leased ahead of their second are passed, but not due yet.
            reader.passed = max(reader.passed, counts.due)
        if head is None or head_ms is None:
            return reader.passed, None, 0, None
        return reader.passed, head_ms // 1000, head.length, head_ms

    def _ripens_ms(self, group: Group, now_ms: int) -> int | None:
        """Return the time in ms at which the status of a group changes without any command. None if there is no such
        time."""
        ripens_ms, cursor_ms = group.metrics.ripens_ms, offsets.deliver_ms(group.cursor) // 1000 * 1000
        if cursor_ms <= now_ms:
            return ripens_ms
        return cursor_ms if ripens_ms is None else min(ripens_ms, cursor_ms)


def _head_ms(group: Group, view: View) -> int | None:
    """Return the delivery time in ms of the next message that the group takes from the log; None if it takes none."""
    if group.stall_reason() is not None:
        return None
    head = group.reader.head(view)
    return None if head is None else offsets.deliver_ms(head.first)


def _next_ms(group: Group, head_ms: int | None) -> int | None:
    """Return the time in ms of the next message that the group may lease; None if it may lease none. Ignore limits.

    `head_ms`: as `_head_ms` returned. While the group is paused, return the end of the pause."""
    if group.halts or group.paused:
        return None if group.halts else group.paused_until_ms
    retry_ms = group.next_retry_ms
    times = [] if retry_ms is None else [retry_ms]
    if group.ready is not None:
        ready_ms = group.ready.next_ms(is_stopped=group.pause_reason() is not None)
        if ready_ms is not None:
            times.append(ready_ms)
    free = group.order.first_free()
    if free is not None and group.pause_reason() is None:
        times.append(offsets.deliver_ms(free))
    if head_ms is not None:
        times.append(head_ms)
    return min(times, default=None)


def _limited(group: Group, allowance: Allowance, next_ms: int | None, head_ms: int | None, now_ms: int) -> Limited:
    """Return the state of a group's limits. `next_ms`, `head_ms`: as `_next_ms` and `_head_ms` returned."""
    until_ms = allowance.pause.until_ms
    if until_ms > now_ms:
        # At the end of the pause, the next lease shows whether the group must wait for a share.
        return Limited(next_ms, True, None if until_ms == FOREVER else until_ms, allowance.needed, until_ms)
    free_ms = _free_ms(group, allowance, head_ms, now_ms)
    return Limited(next_ms, group.has_capacity, free_ms, allowance.needed)


def _free_ms(group: Group, allowance: Allowance, head_ms: int | None, now_ms: int) -> int | None:
    """Return when the rate allows the next message, in ms, as `Allowance.free_ms` does. `head_ms`: as `_head_ms`
    returned.

    In a topic that ranks messages, a message that is not in a ready queue yet may come before the message that waits
    for the rate. Only a lease ranks it. So the result is not later than the time at which that message is due and the
    rate allows any message."""
    free_ms = allowance.free_ms(now_ms * 1000)
    if group.ready is None or free_ms == 0:
        return free_ms
    waiting = group.next_waiting()
    unranked_ms = [at_ms for at_ms in (head_ms, None if waiting is None else waiting.due_ms) if at_ms is not None]
    any_ms = allowance.free_ms(now_ms * 1000, 1)
    if not unranked_ms or any_ms is None:
        return free_ms
    at_ms = max(min(unranked_ms), any_ms)
    return at_ms if free_ms is None else min(at_ms, free_ms)
