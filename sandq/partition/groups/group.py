"""A consumer group within one partition: its cursor, its leases, what waits for another attempt, its dead.

Every message at or below the cursor is in exactly one of these: a live lease, a waiting entry, blocked by its key
(`key_order.py`), dead, or acked (in none of them). That is why nothing is stored for an acked message.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from sandq.model import offsets
from sandq.model.limits import FIXED
from sandq.partition.base import rows
from sandq.partition.base.rows import Range
from sandq.partition.base.stale_heaps import LeastOfRising, is_overgrown
from sandq.partition.base.step import Step
from sandq.partition.base.view import View
from sandq.partition.groups.key_order import KeyOrder
from sandq.partition.limits.allowance import Allowance
from sandq.partition.reader.look_aheads import LookAheads
from sandq.partition.reader.reader import LogReader, single_row_entry
from sandq.partition.ready import queue_keys
from sandq.partition.ready.ready_queues import ReadyQueues
from sandq.partition.records.gaps import Gaps
from sandq.partition.records.holders import Holder, Holders
from sandq.partition.records.leases import Lease, Waiting
from sandq.partition.records.metrics import PartitionMetrics

SEEKING: Final = "a seek is under way"
RESETTING: Final = "the partition's clock is being set back"
"""Why a group gets nothing at present; until that is over nobody can tell what there is for it."""
PAUSED: Final = "it is paused, until somebody resumes it"


class Group:
    """State of one group; `GroupTable` writes its row, and the tables of leases and of what waits fill it."""

    def __init__(self, group_id: int, name: str, cursor: bytes, look_aheads: LookAheads) -> None:
        self.group_id = group_id
        self.name = name
        self.on_change: Callable[[Group], None] | None = None
        """Called when it may be another than it was, ..."""
        self.is_noted = False
        """... unless it was since the last of those who go by that looked at it: `note_change`."""
        self.head_until = offsets.LAST
        """No message that is put in or taken out above this offset changes what the group has next in the log."""
        self.reader = LogReader(cursor, look_aheads=look_aheads)
        self.leases: dict[int, Lease] = {}
        self.waiting: dict[int, Waiting] = {}
        """By seq; `_queue` orders it by time."""
        self._queue: list[tuple[int, int]] = []
        """Heap of (due_ms, seq); entries no longer in `waiting` are skipped when met."""
        self.popped_ms = 0
        """When the last was due of what `pop_due` has returned."""
        self._expiries: list[tuple[int, int]] = []
        """Heap of (expires_ms, seq), likewise; also those that have another `expires_ms` by now."""
        self.order = KeyOrder(self.note_change)
        self.ready: ReadyQueues | None = None
        """What is promoted and waits its turn, in a topic whose messages are ranked."""
        self.gaps = Gaps(group_id)
        self.metrics = PartitionMetrics()
        self.waiting_ranges = 0
        """Ranges of all that waits."""
        self.dead: Counter[str] = Counter()
        """By reason: as many as there are rows of them."""
        self.touched_ms = 0
        """When a consumer was last known to be there."""
        self.settings: dict[str, Any] = {}
        """What overrides the topic's."""
        self.allowance: Allowance | None = None
        """What it may have here of its limits; None: it has none."""
        self._holders = Holders()
        self._firsts: LeastOfRising[Holder] = LeastOfRising(_first)
        self._logged_firsts: LeastOfRising[Holder] = LeastOfRising(_first_logged)
        self._since: LeastOfRising[Holder] = LeastOfRising(_pinned_since_ms)
        self.paused = False
        """Somebody wants it to get nothing."""
        self.is_expired = False
        """`group_ttl` has passed: the log is no longer kept for what it has yet to receive."""
        self.seeking = False
        self.resetting = False
        """The partition's clock is being set back."""
        self.generation = 0
        """Rises when leases are revoked at once, by a seek; of this process alone."""

    @property
    def cursor(self) -> bytes:
        return self.reader.cursor

    def row(self) -> bytes:
        dead = sorted((reason, count) for reason, count in self.dead.items() if count)
        later = (self.paused, True) if self.is_expired else (True,) if self.paused else ()
        return rows.pack(self.name, self.cursor, dead, self.touched_ms, self.settings, self.reader.taken, *later)

    @classmethod
    def load(cls, key: bytes, row: bytes, look_aheads: LookAheads) -> Group:
        name, cursor, dead, touched_ms, settings, taken, *later = rows.unpack(row)
        group = cls(int.from_bytes(key[1:], "big"), name, cursor, look_aheads)
        group.dead.update(dict(dead))
        group.touched_ms, group.settings, group.reader.taken = touched_ms, settings, tuple(taken)
        group.paused, group.is_expired = later[:1] == [True], later[1:] == [True]
        return group

    def use(self, step: Step) -> None:
        """Note that the group has a consumer, or that an operator acts on it; the caller stores the group."""
        self.touched_ms, self.is_expired = step.now_ms, False

    def setting(self, name: str, topic: Mapping[str, Any]) -> Any:
        """A setting of the topic, unless the group overrides it."""
        return self.settings[name] if name in self.settings else topic[name]

    def note_change(self) -> None:
        """Tell who goes by this group that it may be another than it was. Whatever changes it here does so by itself;
        what its reader passes, and what stands in its row, is noted by who stores the row."""
        if not self.is_noted and self.on_change is not None:
            self.is_noted = True
            self.head_until = offsets.LAST
            self.on_change(self)

    @property
    def knows_next(self) -> bool:
        """Whether what it has next in the log, and how much is ready there, is known without a look at rows."""
        reader = self.reader
        if not reader.knows_head or reader.passed is None:
            return False
        return reader.unsure_s is None or reader.unsure_s == offsets.deliver_ms(reader.cursor) // 1000

    def note_log_change(self, offset: bytes) -> None:
        """Messages were put into the log at or above an offset that the cursor has not reached, or one was taken out
        there."""
        if offset <= self.head_until:
            self.note_change()

    @property
    def in_flight(self) -> int:
        """Messages that are leased, and are not settled."""
        return self.metrics.leased

    @property
    def unfinished(self) -> int:
        """Number of messages that the group has received and has yet to finish: leased, waiting or blocked."""
        return self.metrics.leased + self.metrics.waiting + len(self.order.blocked)

    @property
    def latest_due_ms(self) -> int:
        """When the last of its unfinished messages is due, or its lease ends; 0 without any."""
        times = [entry.due_ms for entry in self.waiting.values()]
        times += [lease.deadline_ms for lease in self.leases.values() if lease.live]
        times += [offsets.deliver_ms(offset) for offset in self.order.blocked]
        return max(times, default=0)

    @property
    def has_room(self) -> bool:
        """Whether its limits let another message be in flight here."""
        return self.allowance is None or self.allowance.has_room(self.in_flight)

    # -- what is leased -------------------------------------------------------------------------------------------

    def add_lease(self, lease: Lease) -> None:
        """Hold a lease until `end_lease`."""
        self.leases[lease.token] = lease
        self._add_holder(lease, lease.ranges, lease.first)
        self.count_lease(lease)

    def count_lease(self, lease: Lease) -> None:
        """Some of the messages of a lease may not be live any more."""
        self.metrics.count_lease(lease)
        if self.ready is not None:
            self.ready.count_lease(lease)
        self.note_change()

    def end_lease(self, lease: Lease) -> None:
        """Let go of a lease, if the group has it still."""
        if self.leases.pop(lease.token, None) is not None:
            self._holders.drop(lease.ranges, lease)
        self.note_change()

    def _add_holder(self, holder: Holder, ranges: Iterable[Range], first: bytes | None) -> None:
        self._holders.put(ranges, holder)
        living = len(self.leases) + len(self.waiting)
        self._firsts.add(holder, first, living)
        if not holder.kept:
            self._logged_firsts.add(holder, first, living)
            self._since.add(holder, holder.since_ms, living)

    # -- what waits -----------------------------------------------------------------------------------------------

    def add_waiting(self, entry: Waiting) -> None:
        """Keep an entry until its messages are leased again, or expire."""
        self.waiting[entry.seq] = entry
        self._count_waiting(entry, len(entry.ranges))
        self._add_holder(entry, entry.ranges, entry.first)
        self.metrics.count_waiting(entry)
        if is_overgrown(len(self._queue), len(self.waiting)):
            self._queue = [(one.due_ms, one.seq) for one in self.waiting.values()]
            heapq.heapify(self._queue)
        else:
            heapq.heappush(self._queue, (entry.due_ms, entry.seq))
        self.watch_expiry(entry)
        self.note_change()

    def take_waiting(self, entry: Waiting, taken: list[Range], ranges_before: int) -> None:
        """These messages were taken out of a waiting entry, which had so many ranges before; without any left it is
        gone."""
        self._holders.drop(taken, entry)
        self._count_waiting(entry, len(entry.ranges) - ranges_before)
        self.metrics.count_waiting(entry)
        if not entry.ranges:
            del self.waiting[entry.seq]
        self.note_change()

    def _count_waiting(self, entry: Waiting, ranges: int) -> None:
        self.waiting_ranges += ranges
        if self.ready is not None and entry.queue is not None:
            self.ready.limits.crowding.count(queue_keys.tenant_of(entry.queue), ranges)

    def watch_expiry(self, entry: Waiting) -> None:
        """Note when a waiting entry expires, after that has changed."""
        if entry.expires_ms is None:
            return
        if is_overgrown(len(self._expiries), len(self.waiting)):
            living = self.waiting.values()
            self._expiries = [(one.expires_ms, one.seq) for one in living if one.expires_ms is not None]
            heapq.heapify(self._expiries)
        else:
            heapq.heappush(self._expiries, (entry.expires_ms, entry.seq))

    def next_to_expire(self) -> Waiting | None:
        """The waiting entry that expires first."""
        while self._expiries:
            expires_ms, seq = self._expiries[0]
            entry = self.waiting.get(seq)
            if entry is not None and entry.expires_ms == expires_ms:
                return entry
            heapq.heappop(self._expiries)
        return None

    def next_waiting(self) -> Waiting | None:
        """The waiting entry whose next attempt comes first."""
        while self._queue:
            entry = self.waiting.get(self._queue[0][1])
            if entry is not None:
                return entry
            heapq.heappop(self._queue)
        return None

    def pop_due(self, now_ms: int) -> list[Waiting]:
        """Return the waiting entries whose time has come, each once, in the order of their times: where messages are
        ranked they stand in ready queues from then on."""
        due: list[Waiting] = []
        while (entry := self.next_waiting()) is not None and entry.due_ms <= now_ms:
            heapq.heappop(self._queue)
            due.append(entry)
            self.popped_ms = max(self.popped_ms, entry.due_ms)
        return due

    def forget_popped(self) -> None:
        """Have `pop_due` return everything once more."""
        self._queue = [(one.due_ms, one.seq) for one in self.waiting.values()]
        heapq.heapify(self._queue)
        self.popped_ms = 0

    # -- what stops it --------------------------------------------------------------------------------------------

    @property
    def halts(self) -> bool:
        """Whether it gets nothing whatever there is for it."""
        return self.seeking or self.resetting

    @property
    def most_waiting(self) -> int:
        """So many ranges of messages may wait for another attempt while anything new is leased."""
        return FIXED.max_gaps

    def pause_reason(self) -> str | None:
        """Why nothing new is leased; None when it is."""
        if self.resetting:
            return RESETTING
        if self.seeking:
            return SEEKING
        if self.paused:
            return PAUSED
        if self.waiting_ranges > self.most_waiting:
            most = self.most_waiting
            return f"{self.waiting_ranges} ranges wait for another attempt (limit {most}): nothing new is leased"
        return None

    def stall_reason(self) -> str | None:
        """Why nothing new is taken from the log; None when it is."""
        reason = self.pause_reason()
        if reason is None and self.ready is not None and not self.ready.takes_more:
            return self.ready.full_reason
        if reason is None and len(self.order.blocked) >= FIXED.key_window:
            return (
                f"{len(self.order.blocked)} messages wait for earlier ones of their keys (limit {FIXED.key_window}): "
                f"nothing new is leased"
            )
        return reason

    # -- messages -------------------------------------------------------------------------------------------------

    def is_pending(self, offset: bytes, view: View) -> bool:
        """No attempt of this message was made."""
        return not self.has_passed(offset) or offset in self.order.blocked or self.is_promoted(offset, view)

    def is_promoted(self, offset: bytes, view: View) -> bool:
        """Whether a message waits its turn in a ready queue."""
        key = self.queue_of(offset, view)
        return key is not None and self.ready is not None and self.ready.holds(key, offset, view)

    def queue_of(self, offset: bytes, view: View) -> bytes | None:
        """The ready queue that a message of the log may be in; None: it is in none."""
        if self.ready is None or not self.ready.messages or self.holder_of(offset) is not None:
            return None
        return queue_keys.of_message(self.ready.rank, view, offset)

    def unready(self, step: Step, offset: bytes) -> bool:
        """Take a message of the log out of its ready queue. Whether it was in one."""
        key = self.queue_of(offset, step.view)
        return key is not None and self.ready is not None and self.ready.remove(step, key, offset)

    def is_dead(self, offset: bytes, view: View) -> bool:
        """Whether a message is dead: looked up only where any is."""
        return self.dead.total() > 0 and view.get(rows.of_group(rows.DEAD, self.group_id, offset)) is not None

    def has_passed(self, offset: bytes) -> bool:
        """Whether the cursor is beyond this message, or was before the clock was set back."""
        return offset <= self.cursor or offset in self.gaps

    def holder_of(self, offset: bytes) -> Holder | None:
        """The live lease that holds this message, or what it waits in."""
        return self._holders.find(offset)

    @property
    def oldest_held(self) -> bytes | None:
        """The lowest message that is leased or waits."""
        first: bytes | None = self._firsts.first()
        return first

    @property
    def pinned_since_ms(self) -> int | None:
        """Since when the log is kept for something that is leased or waits: its first lease."""
        since_ms: int | None = self._since.first()
        return since_ms

    # -- the order of its keys ------------------------------------------------------------------------------------

    def load_key_order(self, view: View) -> None:
        """Find out which keys are busy with what is leased or waits, and load which messages they block."""
        for lease in self.leases.values():
            self.start_keys(lease.select(lease.live), lease.kept, view)
        for entry in self.waiting.values():
            self.start_keys(entry.ranges, entry.kept, view)
        for key, value in rows.all_of_group(view, rows.BLOCKED, self.group_id):
            self.order.load(key[5:], *rows.unpack(value))

    def start_keys(self, ranges: Iterable[Range], kept: bool, view: View) -> None:
        """Make the keys of messages busy. `kept`: they are in rows of the group's own."""
        for base, length in ranges:
            # In the log a message with a key has a row and so a range of its own; not among what was redriven.
            for offset in offsets.run(base, length if kept else 1):
                if (key := self._ordering_key(offset, kept, view)) is not None:
                    self.order.start(offset, key)

    def _ordering_key(self, offset: bytes, kept: bool, view: View) -> int | None:
        """The ordering hash of a message of its own row, if it has a key."""
        if kept:
            row = view.get(rows.of_group(rows.KEPT, self.group_id, offset))
            return None if row is None else rows.order_of(rows.load_kept(row).fields)
        entry = single_row_entry(view, offset)
        return None if entry.extra is None else entry.extra.order

    # -- what it is done with -------------------------------------------------------------------------------------

    def first_unacked(self) -> bytes | None:
        """The lowest offset at or below the cursor that keeps the log: leased, waiting, blocked or promoted, and not in
        a row of its own (as dead ones are)."""
        lowest_ready = None if self.ready is None else self.ready.lowest
        firsts: tuple[bytes | None, ...] = (self._logged_firsts.first(), self.order.lowest_logged(), lowest_ready)
        return min((first for first in firsts if first is not None), default=None)

    def done_below(self) -> bytes:
        """Everything below this offset is acked or dead in this group."""
        first, following = self.first_unacked(), _next(self.cursor)
        return following if first is None else min(first, following)  # of what it passed, some may be above the cursor

    def kept_from(self) -> bytes | None:
        """Return the offset from which on the log is kept for this group; None if it is not.

        An expired group keeps no message that it has yet to receive.
        """
        return self.first_unacked() if self.is_expired else self.done_below()


def _first(holder: Holder) -> bytes | None:
    return holder.first


def _first_logged(holder: Holder) -> bytes | None:
    return None if holder.kept else holder.first


def _pinned_since_ms(holder: Holder) -> int | None:
    return None if holder.kept or holder.first is None else holder.since_ms


def _next(offset: bytes) -> bytes:
    number = int.from_bytes(offset, "big") + 1
    return number.to_bytes(16, "big") if number < 1 << 128 else offset
