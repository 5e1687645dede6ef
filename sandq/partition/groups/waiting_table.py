"""Messages of all groups that wait for another attempt.

Each change is put into rows with the entry of the log that made it, so that a table loaded from rows goes on exactly as
the one that wrote them.
"""

from __future__ import annotations

from sandq.partition import rows
from sandq.partition.groups.group import Group
from sandq.partition.groups.group_table import GroupTable
from sandq.partition.groups.leases import Waiting
from sandq.partition.groups.message_ttl import MessageTtl
from sandq.partition.rows import Range
from sandq.partition.shared_state import SharedState
from sandq.partition.view import View


class WaitingTable:
    """Owns the rows of waiting entries. The entries themselves are kept by their groups, in order of time."""

    def __init__(self, shared: SharedState, groups: GroupTable, ttl: MessageTtl) -> None:
        self._shared = shared
        self._groups = groups
        self._ttl = ttl
        self._parted: dict[int, tuple[Group, Waiting]] = {}
        """Entries, by seq, that lost messages with this entry of the log, and whose rows do not say so yet."""

    def load(self, view: View) -> None:
        # In the order in which they came, as they are kept in memory.
        for key, value in sorted(rows.all_rows(view, rows.WAITING), key=lambda row: row[0][11:]):
            group = self._groups.by_id.get(int.from_bytes(key[1:5], "big"))
            if group is not None:  # else it is being dropped
                group.add_waiting(Waiting.load(key, value))

    def add(self, group: Group, entry: Waiting, view: View) -> None:
        """Store an entry; it gets its sequence number, and when the first of its messages expires."""
        if self._ttl.any_expires:
            entry.expires_ms = min(self._expiries(group, entry, view), default=None)
        entry.seq = self._shared.next_seq
        self._shared.next_seq += 1
        group.add_waiting(entry)
        self.store(group, entry, view)

    def store(self, group: Group, entry: Waiting, view: View) -> None:
        """Put the row of an entry that is new or has changed."""
        view.put(rows.waiting_key(group.group_id, entry.due_ms, entry.seq), entry.row())

    def reduce(self, group: Group, entry: Waiting, rest: list[Range], view: View) -> None:
        """Take all but `rest` out of an entry; without any left it is deleted."""
        group.waiting_ranges += len(rest) - len(entry.ranges)
        key = rows.waiting_key(group.group_id, entry.due_ms, entry.seq)
        entry.ranges = rest
        group.metrics.count_waiting(entry)
        group.forget_holders()
        if rest:
            view.put(key, entry.row())
        else:
            view.delete(key)
            del group.waiting[entry.seq]

    def part(self, group: Group, entry: Waiting, offset: bytes, due_ms: int | None, view: View) -> None:
        """Take one message out of an entry: from then on it waits until `due_ms` by itself, or (None) no longer. The
        row of the rest is put by `store_parted`: a producer may take many out of one entry, whose row is long."""
        expires_ms = None
        if self._ttl.any_expires:
            expires_ms = self._ttl.range_expires_ms(group, offset, entry.kept, view)
        apart = None
        if due_ms is not None:
            ranges, number = [Range(offset, 1)], self._shared.next_seq
            self._shared.next_seq += 1
            apart = Waiting(due_ms, number, entry.attempt, entry.error, ranges, entry.since_ms, entry.kept, expires_ms)
            apart.history = entry.history
        group.part_waiting(entry, offset, apart)
        if apart is not None:
            self.store(group, apart, view)
        if not entry.ranges:
            view.delete(rows.waiting_key(group.group_id, entry.due_ms, entry.seq))
            return
        if expires_ms is not None and expires_ms == entry.expires_ms:
            # It may have been the only one that expires so early.
            entry.expires_ms = min(self._expiries(group, entry, view), default=None)
            group.watch_expiry(entry)
        self._parted[entry.seq] = group, entry

    def store_parted(self, view: View) -> None:
        """Put the rows of entries that `part` took messages out of: once all commands of an entry of the log are
        applied."""
        for seq, (group, entry) in self._parted.items():
            if group.waiting.get(seq) is entry and self._groups.by_id.get(group.group_id) is group:
                self.store(group, entry, view)
        self._parted.clear()

    def _expiries(self, group: Group, entry: Waiting, view: View) -> list[int]:
        """When messages of an entry expire."""
        found = [self._ttl.range_expires_ms(group, waiting.base, entry.kept, view) for waiting in entry.ranges]
        return [at_ms for at_ms in found if at_ms is not None]

    def remove_expired(self, group: Group, entry: Waiting, now_ms: int, view: View) -> list[Range]:
        """Take what has expired out of an entry, and return it."""
        if not self._ttl.any_expires:
            return []
        expiries = [self._ttl.range_expires_ms(group, waiting.base, entry.kept, view) for waiting in entry.ranges]
        is_expired = [expires_ms is not None and expires_ms <= now_ms for expires_ms in expiries]
        to_come = [expires_ms for expires_ms in expiries if expires_ms is not None and expires_ms > now_ms]
        expired = [waiting for waiting, is_over in zip(entry.ranges, is_expired, strict=True) if is_over]
        rest = [waiting for waiting, is_over in zip(entry.ranges, is_expired, strict=True) if not is_over]
        first_ms = min(to_come, default=None)
        if expired or first_ms != entry.expires_ms:
            entry.expires_ms = first_ms
            self.reduce(group, entry, rest, view)
            group.watch_expiry(entry)
        return expired
