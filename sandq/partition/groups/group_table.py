"""The groups of a partition, by id and by name."""

from __future__ import annotations

from sandq.model.errors import UnknownGroup
from sandq.partition import rows
from sandq.partition.groups.group import Group
from sandq.partition.log.look_aheads import LookAheads
from sandq.partition.log.reader import LogReader
from sandq.partition.view import View


class GroupTable:
    """Owns the rows of groups. What a group holds is in tables of its own (`lease_table`, `waiting_table`)."""

    def __init__(self, look_aheads: LookAheads) -> None:
        self._look_aheads = look_aheads
        self.by_id: dict[int, Group] = {}
        self.next_id = 1
        self._by_name: dict[str, Group] = {}
        self._behind: Group | None = None
        """The group that had last been found to have a message yet to take: it has the next ones yet to take, too."""

    def load(self, view: View) -> None:
        for key, value in rows.all_rows(view, rows.GROUP):
            self._add(Group.load(key, value, self._look_aheads))

    def named(self, name: str) -> Group:
        """Return the group of this name. Raises UnknownGroup."""
        group = self._by_name.get(name)
        if group is None:
            raise UnknownGroup(f"there is no group {name!r} in this partition")
        return group

    def find(self, name: str) -> Group | None:
        return self._by_name.get(name)

    def create(self, name: str, cursor: bytes) -> Group:
        """Make a group; the caller stores it."""
        group = Group(self.next_id, name, cursor, self._look_aheads)
        self.next_id += 1
        self._add(group)
        return group

    def _add(self, group: Group) -> None:
        self.by_id[group.group_id] = group
        self._by_name[group.name] = group

    def readers(self) -> list[LogReader]:
        """The cursors of all groups."""
        return [group.reader for group in self.by_id.values()]

    def store(self, group: Group, view: View) -> None:
        """Put the row of a group that is new or has changed."""
        view.put(rows.group_key(group.group_id), group.row())

    def remove(self, group: Group, view: View) -> None:
        """Delete a group and its row; its leases have ended, and its other rows are for a job to delete."""
        del self.by_id[group.group_id]
        del self._by_name[group.name]
        view.delete(rows.group_key(group.group_id))

    def is_pending_elsewhere(self, group: Group, offset: bytes) -> bool:
        """Whether another group has yet to take a message."""
        last = self._behind
        if last is not None and last is not group and self.by_id.get(last.group_id) is last and last.is_pending(offset):
            return True
        for other in self.by_id.values():
            if other is not group and other.is_pending(offset):
                self._behind = other
                return True
        return False

    def is_blocked(self, offset: bytes) -> bool:
        """Whether a message is blocked by its key in some group."""
        return any(offset in group.order.blocked for group in self.by_id.values())

    def done_below(self) -> bytes | None:
        """The offset below which every group is done with everything; None without groups."""
        return min((group.done_below() for group in self.by_id.values()), default=None)
