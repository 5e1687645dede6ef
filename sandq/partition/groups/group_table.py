"""The groups of a partition, by id and by name."""

from __future__ import annotations

from typing import Final

from sandq.model.errors import InvalidRequest, UnknownGroup
from sandq.model.key_limits import key_limit
from sandq.partition.base import rows
from sandq.partition.base.stale_heaps import LeastOf
from sandq.partition.base.step import Step
from sandq.partition.base.view import View
from sandq.partition.groups.group import Group
from sandq.partition.groups.part_pauses import Part
from sandq.partition.limits.allowance import Allowance
from sandq.partition.reader.look_aheads import LookAhead, LookAheads
from sandq.partition.ready.queue_keys import FAIR
from sandq.partition.ready.ready_queues import ReadyQueues
from sandq.partition.shared_state import SharedState

PAUSES_ENDED: Final = 1000
"""Maximum number of pauses that end in one entry. The rest ends in the next entries."""


class GroupTable:
    """Owns the rows of groups. The messages of groups are in other tables (`lease_table`, `waiting_table`)."""

    def __init__(self, shared: SharedState, look_aheads: LookAheads) -> None:
        self._shared = shared
        self._look_aheads = look_aheads
        self.by_id: dict[int, Group] = {}
        self.next_id = 1
        self._by_name: dict[str, Group] = {}
        self.allowances: dict[str, Allowance] = {}
        """Allowances by group name, including groups that do not exist yet. Changed by `groups.group_limits`."""
        self._behind: Group | None = None
        """The group in which the last checked message was pending. It is checked first, as the next messages are
        probably pending there, too."""
        self._changed: list[set[int]] = []
        """Sets returned by `changes`, which receive the ids of changed groups."""
        self._touched_ms: LeastOf[int] = LeastOf()
        """Time of last use, by group id."""
        self._pause_ends: LeastOf[int] = LeastOf()
        """End of the pause in ms, by group id."""
        self.expired: set[int] = set()
        """Ids of the expired groups."""

    def changes(self) -> set[int]:
        """Return a set that receives the id of each group that may have changed or was deleted. After processing a
        group, the caller removes its id from the set and resets the group's `is_noted`."""
        changed = set(self.by_id)
        self._changed.append(changed)
        return changed

    def _note_change(self, group: Group) -> None:
        """Add a changed group to the sets that `changes` returned."""
        for changed in self._changed:
            changed.add(group.group_id)

    def load(self, view: View) -> None:
        """Load all groups and their gaps and ready queues."""
        for key, value in rows.all_rows(view, rows.GROUP):
            group = Group.load(key, value, self._look_aheads)
            group.gaps.load(view)
            group.spilled.load(view)
            self._add(group)
            if group.ready is not None:
                group.ready.load(view)
            group.pauses.load(view)
            self._note_pauses(group)

    def named(self, name: str) -> Group:
        """Return the group with this name. Raise UnknownGroup if there is none."""
        group = self._by_name.get(name)
        if group is None:
            raise UnknownGroup(f"there is no group {name!r} in this partition")
        return group

    def find(self, name: str) -> Group | None:
        """Return the group with this name; None if there is none."""
        return self._by_name.get(name)

    def create(self, name: str, cursor: bytes) -> Group:
        """Create a group. The caller stores it."""
        group = Group(self.next_id, name, cursor, self._look_aheads)
        self.next_id += 1
        self._add(group)
        return group

    def limit_keys(self, group: Group) -> None:
        """Apply the limit of messages per key, from the settings of the group and the topic."""
        limit = key_limit(self._shared.settings, group.settings)
        if limit is not None:
            group.order.set_limit(limit)

    def _add(self, group: Group) -> None:
        """Register a group, and connect it with its settings and listeners."""
        group.allowance = self.allowances.get(group.name)
        self.limit_keys(group)
        if self._shared.rank is not None:
            group.ready = ReadyQueues(
                group.group_id,
                self._shared.rank,
                group.waiting,
                lambda: self._shared.tenants,
                self._look_aheads,
            )
            group.pauses.ready = group.ready
        self.by_id[group.group_id] = group
        self._by_name[group.name] = group
        self._note_use(group)
        self._note_pauses(group)
        group.on_change = self._note_change
        group.note_change()

    def readers(self) -> list[LookAhead]:
        """Return the look-aheads of all groups."""
        groups = self.by_id.values()
        return [*(group.reader for group in groups), *(group.ready for group in groups if group.ready is not None)]

    def store(self, step: Step, group: Group) -> None:
        """Put the row of a group that is new or has changed."""
        step.view.put(rows.group_key(group.group_id), group.row())
        self._note_use(group)
        self._note_pauses(group)
        group.note_change()

    @property
    def pause_end_ms(self) -> int | None:
        """Time in ms at which the next pause of a group ends. None if none ends by itself."""
        first = self._pause_ends.first()
        return None if first is None else first[0]

    def end_pauses(self, step: Step) -> None:
        """End the pauses of groups whose time has come, and a bounded number of pauses of tenants and keys. The end of
        a group's pause counts as use of the group."""
        left = PAUSES_ENDED
        while left > 0 and (first := self._pause_ends.first()) is not None and first[0] <= step.now_ms:
            group = self.by_id[first[1]]
            if group.paused_until_ms is not None and group.paused_until_ms <= step.now_ms:
                group.pause(False, None)
                group.use(step)
            left -= 1 + group.pauses.end(step, left)
            self.store(step, group)

    def pause_part(self, step: Step, group: Group, part: Part, until_ms: int | None, key: bytes | None = None) -> None:
        """Pause a tenant or a key of a group up to `until_ms`, or end its pause (None). `key`: the key to store with
        the pause. Raise InvalidRequest if the topic has no such parts, or if too many are paused."""
        if isinstance(part, str) and self._shared.rank != FAIR:
            raise InvalidRequest("only a fair topic has tenants: pause the group")
        if isinstance(part, int) and not self._shared.is_ordered:
            raise InvalidRequest(
                "only a topic with `ordering: key` or `max_in_flight_per_key` can pause a key: pause the group"
            )
        if until_ms is not None and until_ms > step.now_ms:
            group.pauses.pause(step, part, until_ms, key)
        else:
            group.pauses.resume(step, part)
        group.use(step)
        self.store(step, group)

    def _note_pauses(self, group: Group) -> None:
        """Note when the next pause of a group, or of a part of it, ends."""
        ends = [end for end in (group.paused_until_ms, group.pauses.next_ms()) if end is not None]
        self._pause_ends.put(group.group_id, min(ends, default=None))

    def _note_use(self, group: Group) -> None:
        """Note when a group was last used, and whether it has expired."""
        self._touched_ms.put(group.group_id, group.touched_ms)
        if group.is_expired:
            self.expired.add(group.group_id)
        elif self.expired:
            self.expired.discard(group.group_id)

    def remove(self, step: Step, group: Group) -> None:
        """Delete a group and its row. Its leases must have ended. A job deletes its other rows."""
        del self.by_id[group.group_id]
        del self._by_name[group.name]
        self._touched_ms.put(group.group_id, None)
        self._pause_ends.put(group.group_id, None)
        self.expired.discard(group.group_id)
        group.note_change()
        step.view.delete(rows.group_key(group.group_id))

    @property
    def longest_unused(self) -> Group | None:
        """The group whose last use was longest ago."""
        first = self._touched_ms.first()
        return None if first is None else self.by_id[first[1]]

    def is_pending_elsewhere(self, group: Group, offset: bytes, view: View) -> bool:
        """Return whether a message is pending in another group."""
        last = self._behind
        is_other = last is not None and last is not group and self.by_id.get(last.group_id) is last
        if is_other and last is not None and self.awaits(last, offset, view):
            return True
        for other in self.by_id.values():
            if other is not group and self.awaits(other, offset, view):
                self._behind = other
                return True
        return False

    def awaits(self, group: Group, offset: bytes, view: View) -> bool:
        """Return whether a message is pending in a group.

        An expired group does not await its messages while any group is not expired, except for messages that are
        blocked by their keys. Otherwise the unique keys of these messages would stay taken as long as the log has them.
        """
        if group.is_expired and len(self.expired) < len(self.by_id) and offset not in group.order.blocked:
            return False
        return group.is_pending(offset, view)

    def is_blocked(self, offset: bytes) -> bool:
        """Return whether a message is blocked by its key in any group."""
        return any(offset in group.order.blocked for group in self.by_id.values())
