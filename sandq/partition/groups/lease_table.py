"""The leases of a partition: live ones with their deadlines, and recently ended ones.

Each change is put into rows immediately. So a table loaded from rows behaves exactly like the table that wrote the
rows.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterable

from sandq.partition.base import rows
from sandq.partition.base.stale_heaps import is_overgrown
from sandq.partition.base.step import Step
from sandq.partition.base.view import View
from sandq.partition.groups.group import Group
from sandq.partition.groups.group_table import GroupTable
from sandq.partition.records.leases import Lease
from sandq.partition.shared_state import SharedState

ENDED_LEASES = 1024
ENDED_RANGES = 65_536


class LeaseTable:
    """Owns the rows of leases and of their progress."""

    def __init__(self, shared: SharedState, groups: GroupTable) -> None:
        self.by_token: dict[int, Lease] = {}
        """Live leases, and ended leases as long as repeated acks get a reply."""
        self._shared = shared
        self._groups = groups
        self._live: dict[tuple[int, str], dict[int, Lease]] = {}
        """Live leases by token, by (group, consumer)."""
        self._ended: OrderedDict[int, Lease] = OrderedDict()
        """Ended leases, in the order in which they ended."""
        self._ended_ranges = 0
        self._deadlines: list[tuple[int, int]] = []
        """Heap of (deadline_ms, token). Items that are out of date are skipped at the top."""

    def load(self, view: View) -> None:
        """Load all leases."""
        progress = {key[1:]: value for key, value in rows.all_rows(view, rows.PROGRESS)}
        ended: list[Lease] = []
        for key, value in rows.all_rows(view, rows.LEASE):
            lease = Lease.load(int.from_bytes(key[1:], "big"), value, progress.get(key[1:]))
            if lease.ended:
                self.by_token[lease.token] = lease
                ended.append(lease)
            else:
                self._add(self._groups.by_id[lease.group_id], lease)
        for lease in sorted(ended, key=lambda lease: lease.ended):
            self._ended[lease.token] = lease
            self._ended_ranges += len(lease.ranges)

    # -- lookups --------------------------------------------------------------------------------------------------

    def live_of(self, group_name: str, consumer: str) -> list[Lease]:
        """Return the live leases of a consumer, in the order of their tokens. Empty if the group does not exist."""
        group = self._groups.find(group_name)
        held = self._live.get((group.group_id, consumer), {}) if group else {}
        return [held[token] for token in sorted(held)]

    def live_count(self, group: Group, consumer: str) -> int:
        """Return the number of live leases of the consumer."""
        return len(self._live.get((group.group_id, consumer), ()))

    def acked_under(self, group: Group, offset: bytes) -> Lease | None:
        """Return the lease under which a message was acked. None if the lease is no longer stored."""
        for lease in reversed(self._ended.values()):
            if lease.group_id == group.group_id and lease.has_acked(offset):
                return lease
        return None

    def next_deadline_ms(self) -> int | None:
        """Return the earliest deadline of a live lease, in ms. None if there are no live leases."""
        while self._deadlines and self._is_stale(*self._deadlines[0]):
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def groups_of(self, tokens: Iterable[int]) -> dict[int, str]:
        """Return the group names of leases by token. Leases that do not exist are left out."""
        found = {}
        for token in tokens:
            lease = self.by_token.get(token)
            group = None if lease is None else self._groups.by_id.get(lease.group_id)
            if group is not None:
                found[token] = group.name
        return found

    def _is_stale(self, deadline_ms: int, token: int) -> bool:
        """Return whether an item of `_deadlines` is out of date."""
        lease = self.by_token.get(token)
        return lease is None or lease.ended != 0 or lease.deadline_ms != deadline_ms

    # -- changes --------------------------------------------------------------------------------------------------

    def add(self, step: Step, group: Group, lease: Lease) -> None:
        """Store a lease that was just granted."""
        self._add(group, lease)
        step.view.put(rows.token_key(rows.LEASE, lease.token), lease.row())

    def _add(self, group: Group, lease: Lease) -> None:
        """Register a live lease."""
        self.by_token[lease.token] = lease
        group.add_lease(lease)
        self._live.setdefault((group.group_id, lease.consumer), {})[lease.token] = lease
        self.watch_deadline(lease)

    def watch_deadline(self, lease: Lease) -> None:
        """Make `pop_overdue` return a live lease once its deadline has passed."""
        if is_overgrown(len(self._deadlines), len(self.by_token) - len(self._ended)):
            self._deadlines = [(one.deadline_ms, one.token) for one in self.by_token.values() if not one.ended]
            heapq.heapify(self._deadlines)
        else:
            heapq.heappush(self._deadlines, (lease.deadline_ms, lease.token))

    def store(self, step: Step, lease: Lease) -> None:
        """Put the row of a lease after a change of more than its progress."""
        step.view.put(rows.token_key(rows.LEASE, lease.token), lease.row())

    def extend(self, step: Step, lease: Lease, deadline_ms: int) -> None:
        """Give a live lease a new deadline."""
        lease.deadline_ms = deadline_ms
        self.watch_deadline(lease)
        self.store(step, lease)

    def pop_overdue(self, step: Step) -> Lease | None:
        """Return a live lease whose deadline has passed. None if there is none. The caller ends the lease; later calls
        do not return it again."""
        now_ms = step.now_ms
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            deadline_ms, token = heapq.heappop(self._deadlines)
            if not self._is_stale(deadline_ms, token):
                return self.by_token[token]
        return None

    def revoke(self, step: Step, lease: Lease) -> None:
        """End a lease. The caller handles its messages."""
        lease.left |= lease.live
        lease.revoked = True
        self.store_progress(step, lease)

    def _drop_live(self, lease: Lease) -> None:
        """Remove a lease from the live leases of its consumer."""
        held = self._live[lease.group_id, lease.consumer]
        del held[lease.token]
        if not held:
            del self._live[lease.group_id, lease.consumer]

    def store_progress(self, step: Step, lease: Lease) -> None:
        """Put the progress of a lease. If none of its messages is live, end the lease and keep it for a while."""
        view = step.view
        group = self._groups.by_id.get(lease.group_id)
        if group is not None:
            group.count_lease(lease)
        if not lease.live:
            if lease.ended:
                return
            lease.end(self._shared.next_seq)
            self._shared.next_seq += 1
            if group is not None:
                group.end_lease(lease)
            self._drop_live(lease)
            self._ended[lease.token] = lease
            self._ended_ranges += len(lease.ranges)
            while len(self._ended) > ENDED_LEASES or self._ended_ranges > ENDED_RANGES:
                token, oldest = self._ended.popitem(last=False)
                self._ended_ranges -= len(oldest.ranges)
                del self.by_token[token]
                view.delete(rows.token_key(rows.LEASE, token))
                view.delete(rows.token_key(rows.PROGRESS, token))
                if oldest is lease:
                    return
        view.put(rows.token_key(rows.PROGRESS, lease.token), lease.progress_row())
