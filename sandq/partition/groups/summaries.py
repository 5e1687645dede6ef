"""What the groups of a partition come to together, kept so that it is known without asking each of them.

A group is looked at again only after it has changed. All of it follows from the groups and the settings: one made anew
from rows says the same.
"""

from __future__ import annotations

from sandq.model import offsets
from sandq.partition.base.stale_heaps import LeastOf
from sandq.partition.base.view import View
from sandq.partition.groups.group import Group
from sandq.partition.groups.group_table import GroupTable
from sandq.partition.groups.message_ttl import MessageTtl
from sandq.partition.shared_state import SharedState


class GroupSummaries:
    def __init__(self, shared: SharedState, groups: GroupTable, ttl: MessageTtl) -> None:
        self._shared = shared
        self._groups = groups
        self._ttl = ttl
        self._changed = groups.changes()
        self._done: LeastOf[bytes] = LeastOf()
        self._pinned: LeastOf[int] = LeastOf()
        self._ttl_changed = groups.changes()
        self._ttl_rules: tuple[bool, int | None] | None = None
        """That `_expiries` go by."""
        self._expiries: LeastOf[int] = LeastOf()

    # -- what the log must keep -----------------------------------------------------------------------------------

    def done_below(self) -> bytes | None:
        """The offset below which every group is done with everything; None without groups that keep the log."""
        self._look()
        first = self._done.first()
        return None if first is None else first[0]

    def pinned_since_ms(self) -> int | None:
        """Since when the log is kept for something that a group is not done with, though its time came; None: for
        nothing."""
        self._look()
        first = self._pinned.first()
        return None if first is None else first[0]

    def pinning(self, since_ms: int) -> list[Group]:
        """The groups for which the log is kept so long, or longer, in the order in which they were made."""
        self._look()
        return self._chosen(self._pinned.up_to(since_ms))

    def _look(self) -> None:
        for group_id in self._changed:
            group = self._groups.by_id.get(group_id)
            self._done.put(group_id, None if group is None else group.kept_from())
            self._pinned.put(group_id, None if group is None else self._pinned_since_ms(group))
            if group is not None:
                group.is_noted = False
        self._changed.clear()

    def _pinned_since_ms(self, group: Group) -> int | None:
        since_ms = group.pinned_since_ms
        blocked = group.order.lowest_logged()
        if blocked is None:
            return since_ms
        blocked_ms = offsets.deliver_ms(blocked)
        return blocked_ms if since_ms is None else min(since_ms, blocked_ms)

    # -- what expires ---------------------------------------------------------------------------------------------

    def next_expiry_ms(self, view: View) -> int | None:
        """When the first message of all groups expires."""
        self._look_at_ttls(view)
        first = self._expiries.first()
        return None if first is None else first[0]

    def expired(self, now_ms: int, view: View) -> list[Group]:
        """The groups in which something has expired, in the order in which they were made."""
        self._look_at_ttls(view)
        return self._chosen(self._expiries.up_to(now_ms))

    def _look_at_ttls(self, view: View) -> None:
        if self._ttl_rules != self._ttl.rules:
            self._ttl_rules = self._ttl.rules
            self._ttl_changed.update(self._groups.by_id)
        any_expires = self._ttl.any_expires  # else nobody looks into the log of groups that nobody reads
        for group_id in self._ttl_changed:
            group = self._groups.by_id.get(group_id)
            self._expiries.put(group_id, self._ttl.next_expiry_ms(group, view) if group and any_expires else None)
            if group is not None:
                group.is_noted = False
        self._ttl_changed.clear()

    def _chosen(self, group_ids: list[int]) -> list[Group]:
        return [self._groups.by_id[group_id] for group_id in group_ids]
