"""What the event loop is told of the groups of a partition, after each run of the apply thread.

A group is looked at anew only after it has changed, or when time alone changes something: what there is to say of all
others is shared with what was said before. How much of the log is ready changes with every message that comes to be
due, for all groups at once: that is reckoned when somebody asks for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import Any, NamedTuple

from sandq.model import offsets
from sandq.partition.base import rows
from sandq.partition.base.stale_heaps import LeastOf
from sandq.partition.base.view import View
from sandq.partition.groups.group import Group
from sandq.partition.groups.group_table import GroupTable
from sandq.partition.log.counts import Counts
from sandq.partition.shared_state import LogState

_versions = count(1)
"""Of all partitions of the process, so that none is taken for another's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStatus:
    group_id: int
    name: str
    next_ms: int | None
    """When something is next to be leased; None: nothing is there, or the group is paused, or its limits let it have
    nothing more in flight."""
    paused: str | None
    """Why nothing new is leased."""
    is_paused: bool
    """Because somebody wants it so, whatever else there is."""
    generation: int
    ready: int
    """Messages that a consumer may have now, by the second: of the log, and of those given back."""
    leased: int
    waiting: int
    """Messages given back whose next attempt has not come."""
    dead: int
    oldest_ms: int | None
    """When the oldest message was due that is not acked; None: all are. By the second: it may be some ms ahead."""
    is_promoting: bool = False
    """There may be more in the log that is due than the last lease came to: the next one goes on with it."""
    limit: Limited | None = None
    """Of a group that has limits."""
    unfinished: int = 0
    """Messages that are leased, waiting or blocked by their keys."""
    is_expired: bool = False
    """`group_ttl` has passed, and the group keeps its unfinished messages alone."""

    @property
    def not_before_ms(self) -> int:
        """When the next message may be leased by its rate, at the earliest."""
        return 0 if self.limit is None else self.limit.free_ms or 0

    @property
    def due_ms(self) -> int | None:
        """When something may next be leased."""
        return None if self.next_ms is None else max(self.next_ms, self.not_before_ms)


class Limited(NamedTuple):
    """How the limits of a group stand here."""

    next_ms: int | None
    """When something were next to be leased without them."""
    has_room: bool
    """Another message may be in flight."""
    free_ms: int | None
    """When the rate lets the next message go, if not now; None: not before the home partition allows it."""

    def holds_up(self, now_ms: int) -> tuple[bool, bool]:
        """Whether something that is due waits for messages in flight to be settled, and for the rate."""
        is_due = self.next_ms is not None and self.next_ms <= now_ms
        return is_due and not self.has_room, is_due and (self.free_ms is None or self.free_ms > now_ms)


class _Standing(NamedTuple):
    """A group as it was when it was looked at."""

    status: GroupStatus
    """Without what is ready in the log."""
    passed: int
    """Of the messages that are due, as `Counts.due` counts them: the rest is ready, ..."""
    from_s: int | None
    """... from this second on; None: never, ..."""
    least: int
    """... and is so many at least."""
    head_ms: int | None
    """When the first of them was due."""

    def at(self, due: int, now_s: int) -> GroupStatus:
        if self.from_s is None or self.from_s > now_s:
            return self.status
        status, head_ms, oldest_ms = self.status, self.head_ms, self.status.oldest_ms
        if head_ms is not None:
            oldest_ms = head_ms if oldest_ms is None else min(head_ms, oldest_ms)
        return GroupStatus(
            group_id=status.group_id,
            name=status.name,
            next_ms=status.next_ms,
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
            is_expired=status.is_expired,
        )


class GroupStatuses(Sequence[GroupStatus]):
    """The groups of a partition at one moment, in the order in which they were made."""

    __slots__ = ("_by_name", "_due", "_now_s", "changed", "since", "version")

    def __init__(
        self,
        by_name: Mapping[str, _Standing] | None = None,
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
        """Another one with each change of any group; never that of another partition."""
        self.since = since
        """The version before it: ..."""
        self.changed = changed
        """... these groups may have changed between the two, or are gone."""

    def get(self, name: str) -> GroupStatus | None:
        """The group of this name, if there is one."""
        standing = self._by_name.get(name)
        return None if standing is None else standing.at(self._due, self._now_s)

    @property
    def names(self) -> list[str]:
        """Of all groups; what is known of each is not put together for that."""
        return list(self._by_name)

    def is_any_due(self, now_ms: int) -> bool:
        """Whether some group has something to be leased by then."""
        times = (standing.status.next_ms for standing in self._by_name.values())
        return any(at is not None and at <= now_ms for at in times)

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[GroupStatus]:
        return (standing.at(self._due, self._now_s) for standing in self._by_name.values())

    def __getitem__(self, at: Any) -> Any:
        return tuple(self)[at]

    def __contains__(self, group: object) -> bool:
        return group in tuple(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GroupStatuses) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]  # they are compared by what is in them

    def __repr__(self) -> str:
        return f"GroupStatuses({list(islice(self, 10))})"


class StatusTable:
    """Keeps what is to be said of each group; of this process alone, nothing is decided by it."""

    def __init__(self, groups: GroupTable, counts: Counts, log_state: LogState) -> None:
        self._groups = groups
        self._counts = counts
        self._log_state = log_state
        self._changed = groups.changes()
        self._standings: dict[str, _Standing] = {}
        self._names: dict[int, str] = {}
        self._ripening: LeastOf[int] = LeastOf()
        """When time alone changes something for a group."""
        self._told = GroupStatuses()
        self.dead = 0
        """Dead messages of all groups."""

    def look(self, now_ms: int, view: View) -> GroupStatuses:
        """The groups as they are."""
        counts = self._counts
        self._changed.update(self._ripening.up_to(now_ms))
        told = self._told
        version, since, changed = told.version, told.since, told.changed
        if self._changed:
            names = [self._look_at(group_id, now_ms, view) for group_id in sorted(self._changed)]
            self._changed.clear()
            version, since = next(_versions), version
            changed = tuple(dict.fromkeys([name for name in names if name is not None]))
            by_name: Mapping[str, _Standing] = self._standings.copy()
        else:
            by_name = told._by_name
        self._told = GroupStatuses(by_name, counts.due, counts.now_s, version, since, changed)
        return self._told

    def _look_at(self, group_id: int, now_ms: int, view: View) -> str | None:
        """The name of the group; None: it came and went."""
        group, name = self._groups.by_id.get(group_id), self._names.get(group_id)
        if name is not None and (before := self._standings.get(name)) and before.status.group_id == group_id:
            self.dead -= before.status.dead
            if group is None:
                del self._standings[name]
        if group is None:
            self._ripening.put(group_id, None)
            return self._names.pop(group_id, None)
        standing = self._standing(group, now_ms, view)
        self._names[group_id] = group.name
        self._standings[group.name] = standing
        self.dead += standing.status.dead
        head = None if group.halts else group.reader.head(view)
        group.is_noted, group.head_until = False, offsets.LAST if head is None else rows.last_of(head)
        self._ripening.put(group_id, self._ripens_ms(group, now_ms))
        return group.name

    def _standing(self, group: Group, now_ms: int, view: View) -> _Standing:
        next_ms, limit = _next_ms(group, view), None
        if group.allowance is not None:
            limit = Limited(next_ms, group.has_room, group.allowance.free_ms(now_ms * 1000))
            if not limit.has_room or limit.free_ms is None:
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
            # What its limits hold up is ranked once they do not: nobody asks again and again until then.
            is_promoting = is_promoting and (limit is None or (next_ms is not None and not limit.free_ms))
        status = GroupStatus(
            group_id=group.group_id,
            name=group.name,
            next_ms=next_ms,
            paused=group.stall_reason(),
            is_paused=group.paused,
            generation=group.generation,
            ready=blocked + promoted + metrics.ripe,
            leased=metrics.leased,
            waiting=metrics.waiting - metrics.ripe,
            dead=group.dead.total(),
            oldest_ms=None if oldest is None else offsets.deliver_ms(oldest),
            is_promoting=is_promoting,
            limit=limit,
            unfinished=group.unfinished,
            is_expired=group.is_expired,
        )
        return _Standing(status, passed, from_s, least, head_ms)

    def _in_log(self, group: Group, view: View) -> tuple[int, int | None, int, int | None]:
        """What a `_Standing` says of the messages above a group's cursor.

        Where a group stands within a second is not known after a seek or a start: until it comes to the next second,
        or to the end of what is due, those of the second that it passed before are among them.
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
            # Not below it: what was leased ahead of its second is passed, and not due yet.
            reader.passed = max(reader.passed, counts.due)
        if head is None or head_ms is None:
            return reader.passed, None, 0, None
        return reader.passed, head_ms // 1000, head.length, head_ms

    def _ripens_ms(self, group: Group, now_ms: int) -> int | None:
        """When there is something else to say of a group though nothing has happened to it."""
        ripens_ms, cursor_ms = group.metrics.ripens_ms, offsets.deliver_ms(group.cursor) // 1000 * 1000
        if cursor_ms <= now_ms:
            return ripens_ms
        return cursor_ms if ripens_ms is None else min(ripens_ms, cursor_ms)


def _next_ms(group: Group, view: View) -> int | None:
    if group.halts or group.paused:
        return None
    waiting = group.next_waiting()
    times = [waiting.due_ms] if waiting else []
    if group.ready is not None:
        ready_ms = group.ready.next_ms(is_stopped=group.pause_reason() is not None)
        if ready_ms is not None:
            times.append(ready_ms)
    free = group.order.first_free()
    if free is not None and group.pause_reason() is None:
        times.append(offsets.deliver_ms(free))
    if group.stall_reason() is None:
        head = group.reader.head(view)
        if head is not None:
            times.append(offsets.deliver_ms(head.first))
    return min(times, default=None)
