"""Values over all groups of a partition, kept up to date so that reading them does not visit every group.

A group is processed again only after it has changed. All values are computed from the groups and the settings, so they
are the same after loading from rows.
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
        """Ids of groups that have changed since `_done` and `_pinned` were updated."""
        self._done: LeastOf[bytes] = LeastOf()
        """`kept_from()` of each group, by its id."""
        self._pinned: LeastOf[int] = LeastOf()
        """`_pinned_since_ms` of each group, by its id."""
        self._ttl_changed = groups.changes()
        """Ids of groups that have changed since `_expiries` was updated."""
        self._ttl_rules: tuple[bool, int | None] | None = None
        """The ttl rules with which `_expiries` was computed."""
        self._expiries: LeastOf[int] = LeastOf()

    # -- log that groups need -------------------------------------------------------------------------------------

    def done_below(self) -> bytes | None:
        """Return the offset below which every group is done with all messages. None if no group keeps the log."""
        self._update()
        first = self._done.first()
        return None if first is None else first[0]

    def pinned_since_ms(self) -> int | None:
        """Return since when, in ms, the log keeps the oldest message that was due but is not settled in some group.
        None if it keeps no such message."""
        self._update()
        first = self._pinned.first()
        return None if first is None else first[0]

    def pinning(self, since_ms: int) -> list[Group]:
        """Return the groups for which the log is kept since `since_ms` or longer, in the order of their creation."""
        self._update()
        return self._chosen(self._pinned.up_to(since_ms))

    def _update(self) -> None:
        """Update `_done` and `_pinned` for the groups that have changed."""
        for group_id in self._changed:
            group = self._groups.by_id.get(group_id)
            self._done.put(group_id, None if group is None else group.kept_from())
            self._pinned.put(group_id, None if group is None else self._pinned_since_ms(group))
            if group is not None:
                group.is_noted = False
        self._changed.clear()

    def _pinned_since_ms(self, group: Group) -> int | None:
        """Return since when the log keeps a leased, waiting or blocked message for a group, in ms; None if it keeps
        none."""
        since_ms = group.pinned_since_ms
        blocked = group.order.lowest_logged()
        if blocked is None:
            return since_ms
        blocked_ms = offsets.deliver_ms(blocked)
        return blocked_ms if since_ms is None else min(since_ms, blocked_ms)

    # -- expiry ---------------------------------------------------------------------------------------------------

    def next_expiry_ms(self, view: View) -> int | None:
        """Return the time at which the first message of any group expires, in ms. None if none does."""
        self._update_expiries(view)
        first = self._expiries.first()
        return None if first is None else first[0]

    def expired(self, now_ms: int, view: View) -> list[Group]:
        """Return the groups in which messages have expired, in the order of their creation."""
        self._update_expiries(view)
        return self._chosen(self._expiries.up_to(now_ms))

    def _update_expiries(self, view: View) -> None:
        """Update `_expiries` for the groups that have changed; for all groups if the ttl rules have changed."""
        if self._ttl_rules != self._ttl.rules:
            self._ttl_rules = self._ttl.rules
            self._ttl_changed.update(self._groups.by_id)
        any_expires = self._ttl.any_expires  # if False, skip reading the log for groups without consumers
        for group_id in self._ttl_changed:
            group = self._groups.by_id.get(group_id)
            self._expiries.put(group_id, self._ttl.next_expiry_ms(group, view) if group and any_expires else None)
            if group is not None:
                group.is_noted = False
        self._ttl_changed.clear()

    def _chosen(self, group_ids: list[int]) -> list[Group]:
        """Return the groups with these ids."""
        return [self._groups.by_id[group_id] for group_id in group_ids]
