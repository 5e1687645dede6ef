"""The messages of all groups that wait for their next attempt.

Each change is put into rows together with the log entry that caused it. So a table loaded from rows behaves exactly
like the table that wrote the rows.
"""

from __future__ import annotations

import heapq
from dataclasses import replace

from sandq.model import offsets
from sandq.partition.base import rows
from sandq.partition.base.rows import Range
from sandq.partition.base.step import Step
from sandq.partition.base.view import View
from sandq.partition.groups.group import Group
from sandq.partition.groups.group_table import GroupTable
from sandq.partition.groups.message_ttl import MessageTtl
from sandq.partition.groups.renewal import Change
from sandq.partition.ready import queue_keys
from sandq.partition.records.leases import Made, Waiting
from sandq.partition.records.packed_ranges import PackedRanges
from sandq.partition.shared_state import SharedState


class Expiries:
    """The expiry times of the messages of a waiting entry, under fixed rules."""

    def __init__(self, rules: tuple[bool, int | None]) -> None:
        self.rules = rules
        self._heap: list[tuple[int, bytes]] = []
        """Heap of (expires_ms, last message of a range). Items of messages that have left the entry are skipped at the
        top."""

    def add(self, expires_ms: int | None, added: Range) -> None:
        """Add a range that is new in the entry, or a range that remained after a message was taken out of a longer
        range."""
        if expires_ms is not None:
            base, length = added
            heapq.heappush(self._heap, (expires_ms, offsets.shift(base, length - 1) if length > 1 else base))

    def first_ms(self, entry: Waiting) -> int | None:
        """Return when the first message of the entry expires, in ms. None if none does."""
        while self._heap:
            if entry.holds(self._heap[0][1]):
                return self._heap[0][0]
            heapq.heappop(self._heap)
        return None

    def take(self, entry: Waiting, now_ms: int) -> list[Range]:
        """Take the expired ranges out of the entry and return them, sorted."""
        taken: list[Range] = []
        while self._heap and self._heap[0][0] <= now_ms:
            one = entry.ranges.take_range(heapq.heappop(self._heap)[1])
            if one is not None:
                taken.append(one)
        return sorted(taken)


class WaitingTable:
    """Owns the rows of waiting entries. Groups hold the entries themselves, ordered by time."""

    def __init__(self, shared: SharedState, groups: GroupTable, ttl: MessageTtl) -> None:
        self._shared = shared
        self._groups = groups
        self._ttl = ttl
        self._parted: dict[int, tuple[Group, Waiting]] = {}
        """Waiting entries by seq. They lost messages in this log entry, so their rows are out of date."""
        self.crowded: set[int] = set()
        """Ids of groups that may have more than the number of ranges above which messages are spilled. `Spilling.spill`
        checks them."""

    def load(self, view: View) -> None:
        """Load all waiting entries."""
        # Load the entries in the order of their creation, which is their order in memory.
        for key, value in sorted(rows.all_rows(view, rows.WAITING), key=lambda row: row[0][11:]):
            group = self._groups.by_id.get(int.from_bytes(key[1:5], "big"))
            if group is not None:  # otherwise the group is being deleted
                self._hold(group, Waiting.load(key, value))

    def add(self, step: Step, group: Group, entry: Waiting) -> None:
        """Store an entry, and set its sequence number and its first expiry time. If messages are ranked, split an entry
        without a ready queue into one entry per queue."""
        if self._shared.rank is not None and entry.queue is None:
            for queue, ranges in self._by_queue(self._shared.rank, group, entry, step.view).items():
                self.add(step, group, replace(entry, ranges=PackedRanges(ranges), queue=queue))
            return
        note_made(step, entry)
        if self._ttl.any_expires:
            entry.expires_ms = self._expiries(group, entry, step.view).first_ms(entry)
        entry.seq = self._shared.next_seq
        self._shared.next_seq += 1
        self._hold(group, entry)
        self.store(step, group, entry)

    def _hold(self, group: Group, entry: Waiting) -> None:
        """Add an entry to a group, in memory."""
        group.add_waiting(entry)
        self._note_crowded(group)

    def _note_crowded(self, group: Group) -> None:
        """Note that a group may have to spill messages. Call it whenever its number of waiting ranges has risen."""
        if group.waiting_ranges > group.spill_from:
            self.crowded.add(group.group_id)

    def _by_queue(self, rank: str, group: Group, entry: Waiting, view: View) -> dict[bytes, list[Range]]:
        """Return the messages of an entry by their ready queues."""
        found: dict[bytes, list[Range]] = {}
        for base, length in entry.ranges:
            for offset in offsets.run(base, length):
                if entry.kept:
                    row = view.get(rows.of_group(rows.KEPT, group.group_id, offset))
                    assert row is not None, "a message that a group keeps has a row"
                    queue = queue_keys.of_fields(rank, rows.load_kept(row).fields)
                else:
                    named = queue_keys.of_message(rank, view, offset)
                    assert named is not None, "a message that waits has a row"
                    queue = named
                found.setdefault(queue, []).append(Range(offset, 1))
        return found

    def store(self, step: Step, group: Group, entry: Waiting) -> None:
        """Put the row of an entry that is new or has changed."""
        step.view.put(_key(group, entry), entry.row())

    def take(self, step: Step, group: Group, entry: Waiting, count: int) -> list[Range]:
        """Take the first `count` messages out of an entry. Delete the entry if none are left."""
        before = len(entry.ranges)
        taken = entry.ranges.take(count)
        self._taken(step, group, entry, taken, before)
        return taken

    def _taken(self, step: Step, group: Group, entry: Waiting, taken: list[Range], ranges_before: int) -> None:
        """Update the group and the row of an entry after messages were taken out of the entry."""
        group.take_waiting(entry, taken, ranges_before)
        if entry.ranges:
            self.store(step, group, entry)
        else:
            step.view.delete(_key(group, entry))

    def part(
        self,
        step: Step,
        group: Group,
        entry: Waiting,
        offset: bytes,
        due_ms: int | None,
        made: Made | None = None,
        change: Change | None = None,
    ) -> None:
        """Take one message out of an entry. It then waits until `due_ms` in an entry of its own. `due_ms` None: it no
        longer waits.

        `store_parted` puts the row of the rest later, because the row is long, and a producer may take many messages
        out of one entry. `made`: as in `Waiting`. `change`: new fields of the message, which the message's row in the
        group already has.
        """
        view = step.view
        expires_ms = None
        if self._ttl.any_expires:
            expires_ms = self._ttl.range_expires_ms(group, offset, entry.kept, view)
        before, left = len(entry.ranges), entry.ranges.part(offset)
        group.take_waiting(entry, [Range(offset, 1)], before)
        self._note_crowded(group)  # a range that loses a message in the middle becomes two
        if due_ms is not None:
            ranges, number = PackedRanges([Range(offset, 1)]), self._shared.next_seq
            self._shared.next_seq += 1
            apart = Waiting(due_ms, number, entry.attempt, entry.error, ranges, entry.since_ms, entry.kept, expires_ms)
            apart.history, apart.queue = entry.history, entry.queue
            apart.snoozes, apart.crashes, apart.retry = entry.snoozes, entry.crashes, entry.retry
            if change is not None:
                apart.kept, apart.queue = True, change.queue(entry.queue)
            apart.made = made
            self._hold(group, apart)
            self.store(step, group, apart)
        if not entry.ranges:
            view.delete(_key(group, entry))
            return
        if entry.expiries is not None:
            for part in left:
                entry.expiries.add(expires_ms, part)
        if expires_ms is not None and expires_ms == entry.expires_ms:
            # The taken message may have been the only one with the earliest expiry time.
            entry.expires_ms = self._expiries(group, entry, view).first_ms(entry)
            group.watch_expiry(entry)
        self._parted[entry.seq] = group, entry

    def store_parted(self, step: Step) -> None:
        """Put the rows of entries from which `part` took messages. Call it once all commands of a log entry are
        applied."""
        for seq, (group, entry) in self._parted.items():
            if group.waiting.get(seq) is entry and self._groups.by_id.get(group.group_id) is group:
                self.store(step, group, entry)
        self._parted.clear()

    def remove_expired(self, step: Step, group: Group, entry: Waiting) -> list[Range]:
        """Take the expired messages out of an entry and return them."""
        if not self._ttl.any_expires:
            return []
        expiries = self._expiries(group, entry, step.view)
        before = len(entry.ranges)
        expired = expiries.take(entry, step.now_ms)
        first_ms = expiries.first_ms(entry)
        if expired or first_ms != entry.expires_ms:
            entry.expires_ms = first_ms
            self._taken(step, group, entry, expired, before)
            group.watch_expiry(entry)
        return expired

    def _expiries(self, group: Group, entry: Waiting, view: View) -> Expiries:
        """Return the expiry times of the messages of an entry. They are cached until the ttl rules change."""
        known: Expiries | None = entry.expiries
        if known is None or known.rules != self._ttl.rules:
            known = entry.expiries = Expiries(self._ttl.rules)
            for one in entry.ranges:
                known.add(self._ttl.range_expires_ms(group, one.base, entry.kept, view), one)
        return known


def note_made(step: Step, entry: Waiting) -> None:
    """Note how the time of a new entry was chosen, unless it is known."""
    if entry.made is None:
        entry.made = Made(step.stamp_ms, max(entry.due_ms - step.now_ms, 0))


def _key(group: Group, entry: Waiting) -> bytes:
    return rows.waiting_key(group.group_id, entry.due_ms, entry.seq)
