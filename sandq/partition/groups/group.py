"""A consumer group within one partition: its cursor, its leases, its waiting messages and its dead messages.

Every message at or below the cursor is in exactly one of these states: in a live lease, in a waiting entry, blocked by
its key (`key_order.py`), dead, or acked. A message in none of the other states is acked, so nothing is stored for acked
messages.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from sandq.model import offsets
from sandq.model.limits import FIXED
from sandq.model.times import format_instant
from sandq.partition.base import rows
from sandq.partition.base.rows import Range
from sandq.partition.base.stale_heaps import LeastOfRising, is_overgrown
from sandq.partition.base.step import Step
from sandq.partition.base.view import View
from sandq.partition.groups.key_order import KeyOrder
from sandq.partition.groups.part_pauses import PartPauses
from sandq.partition.groups.spilled import SpilledMessages
from sandq.partition.limits.allowance import Allowance
from sandq.partition.reader.look_aheads import LookAheads
from sandq.partition.reader.reader import LogReader, single_row_entry
from sandq.partition.ready import queue_keys
from sandq.partition.ready.ready_queues import ReadyQueues
from sandq.partition.records.dead_index import DeadIndex
from sandq.partition.records.gaps import Gaps
from sandq.partition.records.holders import Holder, Holders
from sandq.partition.records.leases import Lease, Waiting
from sandq.partition.records.metrics import PartitionMetrics

SEEKING: Final = "a seek is under way"
RESETTING: Final = "the partition's clock is being set back"
"""Reasons why a group leases nothing at present.

Until the seek or the reset ends, the partition does not know which messages the group has yet to receive."""
PAUSED: Final = "it is paused until"
"""Beginning of the reason why a paused group leases nothing."""


class Group:
    """State of one group. `GroupTable` writes its row; the tables of leases and of waiting messages fill it."""

    def __init__(self, group_id: int, name: str, cursor: bytes, look_aheads: LookAheads) -> None:
        self.group_id = group_id
        self.name = name
        self.on_change: Callable[[Group], None] | None = None
        """Called when the state of the group may have changed, unless `is_noted` is set."""
        self.is_noted = False
        """Whether `on_change` was called, and the listeners have not processed the group since. See `note_change`."""
        self.head_until = offsets.LAST
        """A change of the log above this offset does not affect the group's next message."""
        self.reader = LogReader(cursor, look_aheads=look_aheads)
        self.leases: dict[int, Lease] = {}
        self.waiting: dict[int, Waiting] = {}
        """Waiting entries by seq. `_queue` orders them by time."""
        self._queue: list[tuple[int, int]] = []
        """Heap of (due_ms, seq). Entries that are no longer in `waiting` are skipped at the top."""
        self._farthest: list[tuple[int, int]] = []
        """Heap of (-due_ms, -seq) of all waiting entries. Entries that are no longer in `waiting` are skipped at the
        top."""
        self.popped_ms = 0
        """Due time of the last entry that `pop_due` has returned, in ms."""
        self._expiries: list[tuple[int, int]] = []
        """Heap of (expires_ms, seq). Outdated items are skipped at the top: their entry is gone, or has another
        `expires_ms`."""
        self.order = KeyOrder(self.note_change)
        self.pauses = PartPauses(group_id, self.order, self.unpark)
        self._parked: dict[int, dict[tuple[int, int], None]] = {}
        """By paused key: waiting entries that were removed from `_queue`, as (due_ms, seq)."""
        self.spilled = SpilledMessages(group_id)
        """Waiting messages that are not in memory."""
        self.ready: ReadyQueues | None = None
        """Promoted messages, in a topic that ranks messages. Otherwise None."""
        self.gaps = Gaps(group_id)
        self.metrics = PartitionMetrics()
        self.waiting_ranges = 0
        """Number of ranges in all waiting entries."""
        self.dead: Counter[str] = Counter()
        """Number of dead messages by reason, equal to the number of their rows."""
        self.dropped = 0
        """Number of messages that the group has dropped, because they expired."""
        self.deaths = DeadIndex(group_id)
        self.removed = 0
        """Number of dead messages that were removed because of `dead_retention` or `max_dead_letters`."""
        self.removed_ms = 0
        """Time of the last such removal, in ms."""
        self.touched_ms = 0
        """Time at which the group last had a consumer, in ms."""
        self.settings: dict[str, Any] = {}
        """Settings that override the topic's."""
        self.allowance: Allowance | None = None
        """Allowance of this partition for the group's limits. None if the group has no limits."""
        self._holders = Holders()
        self._firsts: LeastOfRising[Holder] = LeastOfRising(_first, _is_held)
        self._logged_firsts: LeastOfRising[Holder] = LeastOfRising(_first_logged, _is_logged)
        self._since: LeastOfRising[Holder] = LeastOfRising(_pinned_since_ms, _is_logged)
        self.paused = False
        """Whether the group is paused. `pause` sets it."""
        self.paused_until_ms: int | None = None
        """End of the pause in ms. None if the group is not paused, or paused until it is resumed."""
        self.is_expired = False
        """Whether `group_ttl` has passed. If so, the log no longer keeps messages that the group has yet to receive."""
        self.seeking = False
        self.resetting = False
        """Whether a clock reset is in progress."""
        self.generation = 0
        """Increases when a seek revokes all leases. Belongs to this process."""

    @property
    def cursor(self) -> bytes:
        return self.reader.cursor

    def row(self) -> bytes:
        """Return the row of the group. Trailing fields that are False or 0 are omitted."""
        dead = sorted((reason, count) for reason, count in self.dead.items() if count)
        later: list[bool | int] = [self.paused, self.is_expired, self.dropped, self.removed, self.removed_ms]
        later.append((self.paused and self.paused_until_ms) or 0)
        while later and not later[-1]:
            del later[-1]
        return rows.pack(self.name, self.cursor, dead, self.touched_ms, self.settings, self.reader.taken, *later)

    @classmethod
    def load(cls, key: bytes, row: bytes, look_aheads: LookAheads) -> Group:
        """Read a group from its row."""
        name, cursor, dead, touched_ms, settings, taken, *later = rows.unpack(row)
        group = cls(int.from_bytes(key[1:], "big"), name, cursor, look_aheads)
        group.dead.update(dict(dead))
        group.touched_ms, group.settings, group.reader.taken = touched_ms, settings, tuple(taken)
        group.paused, group.is_expired, *counted, until_ms = rows.with_defaults(later, False, False, 0, 0, 0, 0)
        group.dropped, group.removed, group.removed_ms = counted
        group.paused_until_ms = until_ms or None
        return group

    def use(self, step: Step) -> None:
        """Record the time of a use: by a consumer, or by an operator's command. The caller stores the group."""
        self.touched_ms, self.is_expired = step.now_ms, False

    def setting(self, name: str, topic: Mapping[str, Any]) -> Any:
        """Return a setting of the group. If the group does not set it, return the topic's setting."""
        return self.settings[name] if name in self.settings else topic[name]

    def note_change(self) -> None:
        """Notify listeners that the state of the group may have changed.

        The methods of this class call `note_change` for their own changes. Code that stores the group's row calls it
        for changes of the row and the reader.
        """
        if not self.is_noted and self.on_change is not None:
            self.is_noted = True
            self.head_until = offsets.LAST
            self.on_change(self)

    @property
    def knows_next(self) -> bool:
        """Whether the next message in the log, and the number of ready messages, are known without reading rows."""
        reader = self.reader
        if not reader.knows_head or reader.passed is None:
            return False
        return reader.unsure_s is None or reader.unsure_s == offsets.deliver_ms(reader.cursor) // 1000

    def note_log_change(self, offset: bytes) -> None:
        """Note a change of the log at an offset above the cursor: messages were added there or above, or the message
        there was removed."""
        if offset <= self.head_until:
            self.note_change()

    @property
    def in_flight(self) -> int:
        """Number of messages that are leased and not settled."""
        return self.metrics.leased

    @property
    def unfinished(self) -> int:
        """Number of messages that the group has received and has yet to finish: leased, waiting or blocked."""
        return self.metrics.leased + self.waiting_messages + len(self.order.blocked)

    @property
    def waiting_messages(self) -> int:
        """Number of messages that wait for their next attempt, including messages that are due."""
        return self.metrics.waiting + self.spilled.messages

    def latest_due_ms(self, view: View) -> int:
        """Time in ms at which the last unfinished message is due again, or its lease ends. 0 if there are no such
        messages."""
        times = [entry.due_ms for entry in self.waiting.values()]
        times += [lease.deadline_ms for lease in self.leases.values() if lease.live]
        times += [offsets.deliver_ms(offset) for offset in self.order.blocked]
        return max([*times, self.spilled.latest_due_ms(view)])

    @property
    def has_capacity(self) -> bool:
        """Whether the limits allow one more message in flight in this partition."""
        return self.allowance is None or self.allowance.has_capacity(self.in_flight)

    # -- leases ---------------------------------------------------------------------------------------------------

    def add_lease(self, lease: Lease) -> None:
        """Add a lease. It stays until `end_lease`."""
        self.leases[lease.token] = lease
        self._add_holder(lease, lease.ranges, lease.first)
        self.count_lease(lease)

    def count_lease(self, lease: Lease) -> None:
        """Update the numbers for a lease. Some of its messages may be settled already."""
        self.metrics.count_lease(lease)
        if self.ready is not None:
            self.ready.count_lease(lease)
        self.note_change()

    def end_lease(self, lease: Lease) -> None:
        """Remove a lease, if the group still has it."""
        if self.leases.pop(lease.token, None) is not None:
            self._holders.drop(lease.ranges, lease)
        self.note_change()

    def _add_holder(self, holder: Holder, ranges: Iterable[Range], first: bytes | None) -> None:
        """Register a new lease or waiting entry as the holder of its messages."""
        self._holders.put(ranges, holder)
        living = len(self.leases) + len(self.waiting)
        self._firsts.add(holder, first, living)
        if not holder.kept:
            self._logged_firsts.add(holder, first, living)
            self._since.add(holder, holder.since_ms, living)

    # -- waiting messages -----------------------------------------------------------------------------------------

    def add_waiting(self, entry: Waiting) -> None:
        """Add a waiting entry. It stays until its messages are leased again or expire."""
        self.waiting[entry.seq] = entry
        self._count_waiting(entry, len(entry.ranges))
        self._add_holder(entry, entry.ranges, entry.first)
        self.metrics.count_waiting(entry)
        if is_overgrown(len(self._queue), len(self.waiting)):
            self._queue = [(one.due_ms, one.seq) for one in self.waiting.values()]
            heapq.heapify(self._queue)
        else:
            heapq.heappush(self._queue, (entry.due_ms, entry.seq))
        if is_overgrown(len(self._farthest), len(self.waiting)):
            self._farthest = [(-one.due_ms, -one.seq) for one in self.waiting.values()]
            heapq.heapify(self._farthest)
        else:
            heapq.heappush(self._farthest, (-entry.due_ms, -entry.seq))
        self.watch_expiry(entry)
        self.note_change()

    def take_waiting(self, entry: Waiting, taken: list[Range], ranges_before: int) -> None:
        """Note that messages were taken out of a waiting entry, which had `ranges_before` ranges. Remove the entry if
        it is empty."""
        self._holders.drop(taken, entry)
        self._count_waiting(entry, len(entry.ranges) - ranges_before)
        self.metrics.count_waiting(entry)
        if not entry.ranges:
            del self.waiting[entry.seq]
        self.note_change()

    def _count_waiting(self, entry: Waiting, ranges: int) -> None:
        """Count ranges that were added to or removed from a waiting entry."""
        self.waiting_ranges += ranges
        if self.ready is not None and entry.queue is not None:
            self.ready.limits.crowding.count(queue_keys.tenant_of(entry.queue), ranges)

    def watch_expiry(self, entry: Waiting) -> None:
        """Watch the expiry time of a waiting entry, after it has changed."""
        if entry.expires_ms is None:
            return
        if is_overgrown(len(self._expiries), len(self.waiting)):
            living = self.waiting.values()
            self._expiries = [(one.expires_ms, one.seq) for one in living if one.expires_ms is not None]
            heapq.heapify(self._expiries)
        else:
            heapq.heappush(self._expiries, (entry.expires_ms, entry.seq))

    def next_to_expire(self) -> Waiting | None:
        """Return the waiting entry that expires first. None if none expires."""
        while self._expiries:
            expires_ms, seq = self._expiries[0]
            entry = self.waiting.get(seq)
            if entry is not None and entry.expires_ms == expires_ms:
                return entry
            heapq.heappop(self._expiries)
        return None

    def next_waiting(self) -> Waiting | None:
        """Return the waiting entry that is due first. None if there is none."""
        while self._queue:
            entry = self.waiting.get(self._queue[0][1])
            if entry is not None:
                return entry
            heapq.heappop(self._queue)
        return None

    def pop_due(self, now_ms: int) -> list[Waiting]:
        """Return the waiting entries that are due, in the order of their times. Later calls do not return them again.
        If messages are ranked, the caller moves the entries to ready queues."""
        due: list[Waiting] = []
        while (entry := self.next_waiting()) is not None and entry.due_ms <= now_ms:
            heapq.heappop(self._queue)
            due.append(entry)
            self.popped_ms = max(self.popped_ms, entry.due_ms)
        return due

    @property
    def next_retry_ms(self) -> int | None:
        """Time at which the next waiting message is due, in ms. None if none waits, or if there is no space in memory
        for it."""
        waiting, spilled_ms = self.next_waiting(), self.next_recall_ms
        times = [waiting.due_ms if waiting is not None else None, spilled_ms]
        return min([at for at in times if at is not None], default=None)

    @property
    def next_recall_ms(self) -> int | None:
        """Time of the next spilled message, in ms. None if there is none, or if it may not be recalled: the window is
        full, or the group leases nothing."""
        return None if self.window_capacity <= 0 or self.halts else self.spilled.next_ms

    def is_recall_blocked(self, until_ms: int) -> bool:
        """Return whether a spilled message whose time is `until_ms` or earlier finds no space in memory."""
        next_ms = self.spilled.next_ms
        return next_ms is not None and next_ms <= until_ms and self.window_capacity <= 0

    @property
    def window_capacity(self) -> int:
        """Number of spilled messages that may be recalled now."""
        return FIXED.waiting_window - self.waiting_ranges

    @property
    def spill_from(self) -> int:
        """Number of waiting ranges in memory above which messages are spilled. The rest of the window is for messages
        that are recalled, and for bursts."""
        return FIXED.waiting_window // 2

    @property
    def spilled_capacity(self) -> int:
        """Number of messages that may be spilled in addition."""
        return FIXED.spilled_messages - self.spilled.messages

    def farthest_waiting(self, now_ms: int) -> Waiting | None:
        """Return the waiting entry that is due last, if it is due after `now_ms`. None if there is none."""
        # Not from `_queue`: a replica that restarted since then has not popped the same entries from it.
        while self._farthest:
            entry = self.waiting.get(-self._farthest[0][1])
            if entry is not None:
                return entry if entry.due_ms > now_ms else None
            heapq.heappop(self._farthest)
        return None

    def forget_popped(self) -> None:
        """Make `pop_due` return all entries once more."""
        self._queue = [(one.due_ms, one.seq) for one in self.waiting.values()]
        heapq.heapify(self._queue)
        self.popped_ms = 0

    # -- pauses ---------------------------------------------------------------------------------------------------

    def pause(self, paused: bool, until_ms: int | None) -> None:
        """Pause the group until `until_ms` (None: until it is resumed), or resume it. The caller stores the group."""
        self.paused, self.paused_until_ms = paused, until_ms if paused else None

    def is_paused_until(self, tenant: str | None, until_ms: int) -> bool:
        """Return whether the group, or one tenant of it, is paused until this time or for longer."""
        if tenant is not None:
            return self.pauses.ends.get(tenant, 0) >= until_ms
        return self.paused and (self.paused_until_ms is None or self.paused_until_ms >= until_ms)

    def paused_keys_in(self, entry: Waiting) -> dict[bytes, int]:
        """Return the messages of a waiting entry whose keys are paused, with these keys."""
        if not self.order.paused:
            return {}
        # Only messages that the group keeps have ranges with several keys: see `start_keys`.
        messages = [
            offset for base, length in entry.ranges for offset in offsets.run(base, length if entry.kept else 1)
        ]
        keys = {offset: self.order.paused_key_of(offset) for offset in messages}
        return {offset: key for offset, key in keys.items() if key is not None}

    def park(self, keys: Iterable[int]) -> None:
        """Pass over the waiting entry that `next_waiting` returned, until `unpark` is called for one of its keys. All
        its messages have these paused keys."""
        item = heapq.heappop(self._queue)
        for key in keys:
            self._parked.setdefault(key, {})[item] = None

    def unpark(self, key: int) -> None:
        """Make `next_waiting` return the entries that were passed over because of a key."""
        for item in self._parked.pop(key, ()):
            heapq.heappush(self._queue, item)

    @property
    def halts(self) -> bool:
        """Whether the group leases nothing, even if messages are ready."""
        return self.seeking or self.resetting

    @property
    def most_waiting(self) -> int:
        """Maximum number of waiting ranges with which the group still leases new messages."""
        return FIXED.max_gaps

    def pause_reason(self) -> str | None:
        """Return why the group leases no new messages. None if it leases them."""
        if self.resetting:
            return RESETTING
        if self.seeking:
            return SEEKING
        if self.paused:
            until_ms = self.paused_until_ms
            return f"{PAUSED} {'it is resumed' if until_ms is None else format_instant(until_ms)}"
        if self.waiting_ranges > self.most_waiting:
            most = self.most_waiting
            return f"{self.waiting_ranges} ranges wait for another attempt (limit {most}): nothing new is leased"
        if self.spilled_capacity <= 0:
            most = FIXED.spilled_messages
            return f"{self.waiting_messages} messages wait for another attempt (limit {most}): nothing new is leased"
        return None

    def stall_reason(self) -> str | None:
        """Return why the group takes no new messages from the log. None if it takes them."""
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
        """Return whether the group has yet to make the first attempt of this message."""
        return not self.has_passed(offset, view) or offset in self.order.blocked or self.is_promoted(offset, view)

    def is_promoted(self, offset: bytes, view: View) -> bool:
        """Return whether a message is in a ready queue."""
        key = self.queue_of(offset, view)
        return key is not None and self.ready is not None and self.ready.holds(key, offset, view)

    def queue_of(self, offset: bytes, view: View) -> bytes | None:
        """Return the key of the ready queue that may contain a message of the log. None if no queue contains it."""
        if self.ready is None or not self.ready.messages or self.holder_of(offset, view) is not None:
            return None
        return queue_keys.of_message(self.ready.rank, view, offset)

    def unready(self, step: Step, offset: bytes) -> bool:
        """Remove a message of the log from its ready queue. Return whether it was in one."""
        key = self.queue_of(offset, step.view)
        return key is not None and self.ready is not None and self.ready.remove(step, key, offset)

    def is_dead(self, offset: bytes, view: View) -> bool:
        """Return whether a message is dead. Read its row only if the group has dead messages."""
        return self.dead.total() > 0 and view.get(rows.of_group(rows.DEAD, self.group_id, offset)) is not None

    def is_reviving(self, offset: bytes, view: View) -> bool:
        """Return whether a message is dead until the seek in progress makes it ready again.

        If its producer could change it meanwhile, the seek would not find it in the log, and would deliver the dead
        letter in its place: a cancelled message, or a moved one for the second time."""
        return self.seeking and self.is_dead(offset, view)

    def has_passed(self, offset: bytes, view: View) -> bool:
        """Return whether the cursor is above this message, or was above it before a clock reset or a seek."""
        return offset <= self.cursor or offset in self.gaps or self.holder_of(offset, view) is not None

    def holder_of(self, offset: bytes, view: View) -> Holder | None:
        """Return the live lease that holds this message, or its waiting entry. None if it is neither leased nor
        waiting. The entry of a spilled message is in no table: `Spilling.holder_of` returns one that may be changed."""
        return self.held_in_memory(offset) or self.spilled.find(offset, view)

    def held_in_memory(self, offset: bytes) -> Holder | None:
        """As `holder_of`, but without spilled messages."""
        return self._holders.find(offset)

    def is_being_sought(self, offset: bytes, view: View) -> bool:
        """Return whether a seek in progress may have yet to decide about a spilled message.

        Its producer may not change the message meanwhile: the seek may drop it here because the log delivers it again,
        and would miss it if it were in memory."""
        return self.seeking and self.spilled.holds(offset, view)

    @property
    def oldest_held(self) -> bytes | None:
        """Offset of the lowest message that is leased or waits."""
        firsts = self._firsts.first(), self.spilled.first
        return min((first for first in firsts if first is not None), default=None)

    @property
    def pinned_since_ms(self) -> int | None:
        """Earliest first-lease time, in ms, of the leased and waiting messages that the log keeps. None if it keeps
        none of them."""
        since_ms: int | None = self._since.first()
        return since_ms

    # -- the order of its keys ------------------------------------------------------------------------------------

    def load_key_order(self, view: View) -> None:
        """Compute which keys are busy because of leased or waiting messages, and load the messages that are blocked."""
        for lease in self.leases.values():
            self.start_keys(lease.select(lease.live), lease.kept, view)
        for entry in self.waiting.values():
            self.start_keys(entry.ranges, entry.kept, view)
        for key, value in rows.all_of_group(view, rows.BLOCKED, self.group_id):
            self.order.load(key[5:], *rows.unpack(value))

    def start_keys(self, ranges: Iterable[Range], kept: bool, view: View) -> None:
        """Make the keys of messages busy. `kept`: the messages are in rows of the group."""
        for base, length in ranges:
            # In the log, a message with a key has a row of its own, and so a range of its own. A range of redriven
            # messages may contain several keys.
            for offset in offsets.run(base, length if kept else 1):
                if (key := self._ordering_key(offset, kept, view)) is not None:
                    self.order.start(offset, key)

    def _ordering_key(self, offset: bytes, kept: bool, view: View) -> int | None:
        """Return the ordering hash of a message with a row of its own. None if it has no key."""
        if kept:
            row = view.get(rows.of_group(rows.KEPT, self.group_id, offset))
            return None if row is None else rows.order_of(rows.load_kept(row).fields)
        entry = single_row_entry(view, offset)
        return None if entry.extra is None else entry.extra.order

    # -- progress -------------------------------------------------------------------------------------------------

    def first_unacked(self) -> bytes | None:
        """Return the lowest offset at or below the cursor that the log must keep: a leased, waiting, blocked or
        promoted message. Dead messages, and messages in rows of the group, do not count. None if there is no such
        message."""
        lowest_ready = None if self.ready is None else self.ready.lowest
        firsts: tuple[bytes | None, ...] = (self._logged_firsts.first(), self.order.lowest_logged(), lowest_ready)
        return min((first for first in firsts if first is not None), default=None)

    def done_below(self) -> bytes:
        """Return the offset below which every message is acked or dead in this group."""
        first, following = self.first_unacked(), _next(self.cursor)
        # After a clock reset, the group may have passed messages above its cursor: see `gaps`.
        return following if first is None else min(first, following)

    def kept_from(self) -> bytes | None:
        """Return the lowest offset that the log must keep for this group. None if the log is not kept for it.

        An expired group keeps no message that it has yet to receive.
        """
        return self.first_unacked() if self.is_expired else self.done_below()


def _first(holder: Holder) -> bytes | None:
    """Return the lowest message that a lease or waiting entry holds; None if it holds none."""
    return holder.first


def _first_logged(holder: Holder) -> bytes | None:
    """As `_first`, but only for messages that the log must keep."""
    return None if holder.kept else holder.first


def _pinned_since_ms(holder: Holder) -> int | None:
    """Return the time since which the log keeps messages for a holder, in ms; None if it keeps none."""
    return None if holder.kept or holder.first is None else holder.since_ms


def _is_held(holder: Holder) -> bool:
    """Return whether a lease or waiting entry holds any message."""
    return not holder.is_empty


def _is_logged(holder: Holder) -> bool:
    """Return whether a lease or waiting entry holds any message that the log must keep."""
    return not (holder.kept or holder.is_empty)


def _next(offset: bytes) -> bytes:
    """Return the next higher offset."""
    number = int.from_bytes(offset, "big") + 1
    return number.to_bytes(16, "big") if number < 1 << 128 else offset
