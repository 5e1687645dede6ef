"""Keeps the waiting messages of a group in memory few: those whose next attempt is farthest away are spilled into rows
(`groups.spilled`), and recalled when their time comes.

A group has up to `FIXED.waiting_window` ranges of waiting messages in memory. While more than half of them are in use,
each entry spills messages. A lease recalls messages that are due while the window has space, except for messages of
paused tenants. Both depend only on replicated state. Topics that deliver in the order of keys spill nothing: each
waiting message keeps its key busy, in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from sandq.model import offsets
from sandq.partition.base import rows
from sandq.partition.base.rows import Range
from sandq.partition.base.step import Step
from sandq.partition.groups.group import Group
from sandq.partition.groups.group_table import GroupTable
from sandq.partition.groups.kept_messages import KeptMessages
from sandq.partition.groups.message_ttl import MessageTtl
from sandq.partition.groups.waiting_table import WaitingTable, note_made
from sandq.partition.reader.pieces import MessageReader
from sandq.partition.ready import queue_keys
from sandq.partition.records.leases import Made, Waiting
from sandq.partition.shared_state import SharedState

SPILLED: Final = 1000
"""Maximum number of messages of a group that one entry spills. The next entry continues."""
SPILLED_LEAST: Final = 100
"""An entry spills half of the ranges that are too many, but at least up to this number. So no entry takes much longer
than the nacks that it contains, and a steady flow of nacks finds space."""
SPILLED_BYTES: Final = 1 << 20
"""Bytes of copied messages after which an entry stops spilling."""
RECALLED: Final = 64
"""Maximum number of messages that `recall_due` recalls, unless its caller gives another number."""
EXAMINED: Final = 500
"""Maximum number of spilled messages that `recall_due` looks at, including those that it leaves spilled."""
POSTPONED_MS: Final = 30_000
"""Time after which due messages of a paused tenant are recalled again, in ms, unless the pause ends before."""
FREED: Final = 64
"""Maximum number of ranges of tenants at their limits that a lease spills to make room for those of other tenants."""
HELD_UP_MS: Final = 10_000
"""Time after which messages that were left spilled because of their tenant's limits are recalled, in ms."""
SLICE: Final = 64
"""Number of messages to spill before yielding."""


class Spilling:
    def __init__(
        self,
        shared: SharedState,
        groups: GroupTable,
        waiting: WaitingTable,
        kept: KeptMessages,
        ttl: MessageTtl,
        reader: MessageReader,
    ) -> None:
        self._shared = shared
        self._groups = groups
        self._waiting = waiting
        self._kept = kept
        self._ttl = ttl
        self._reader = reader
        self._messages = self._bytes = 0
        """Number of messages that `add` has spilled in this log entry, and the bytes that it has copied."""

    def add(self, step: Step, group: Group, entries: Sequence[Waiting]) -> None:
        """Store new waiting entries. Spill them at once if the end of the log entry would spill them anyway: this costs
        less than putting them into memory first."""
        far: list[Waiting] = []
        messages = 0
        for entry in entries:
            if self._is_far(step, group, entry, messages):
                far.append(entry)
                messages += entry.ranges.messages
            else:
                self._waiting.add(step, group, entry)
        if far:
            self._spill_new(step, group, far)

    def _is_far(self, step: Step, group: Group, entry: Waiting, before: int) -> bool:
        """Return whether there is no space in memory for a new entry, and it is not due next: a spilled message is due
        before it, or all messages in memory are. `before`: messages that will be spilled before it."""
        if group.waiting_ranges < group.spill_from or self._shared.is_ordered or entry.due_ms <= step.now_ms:
            return False
        if self._shared.rank is not None and entry.queue is None:
            return False
        if self._messages + before + entry.ranges.messages > SPILLED or self._bytes >= SPILLED_BYTES:
            return False
        if self._shared.is_budget_spent:
            return False
        spilled_ms = group.spilled.next_ms
        if spilled_ms is not None and spilled_ms <= entry.due_ms:
            return True
        farthest = group.farthest_waiting(step.now_ms)
        return farthest is None or farthest.due_ms <= entry.due_ms

    def _spill_new(self, step: Step, group: Group, entries: list[Waiting]) -> None:
        """Spill entries that are in no table, as far as the bytes that a log entry spills allow. Add the rest."""
        logged = sorted([one for entry in entries if not entry.kept for one in entry.ranges])
        copied, size = self._copy(step, group, logged, SPILLED_BYTES - self._bytes) if logged else (0, 0)
        self._bytes += size
        left = rows.behind(logged, copied)
        for entry in entries:
            taken = list(entry.ranges)
            if left and not entry.kept:
                done = entry.ranges.count_below(left[0].base, entry.ranges.messages)
                if rest := rows.behind(taken, done):
                    self._waiting.add(step, group, entry.apart(rest))
                taken = rows.first_of(taken, done)
            if taken:
                note_made(step, entry)
                self._put(step, group, entry, taken)
                self._messages += sum([length for _, length in taken])
        group.note_change()

    def spill(self, step: Step) -> None:
        """Spill messages of the groups whose windows are full. Call it once all commands of an entry are
        applied."""
        if self._shared.is_ordered:
            return
        for group_id in sorted(self._waiting.crowded):
            group = self._groups.by_id.get(group_id)
            if group is None or group.waiting_ranges <= group.spill_from:
                self._waiting.crowded.discard(group_id)
            else:
                self._spill_from(step, group)
        self._messages = self._bytes = 0

    def _spill_from(self, step: Step, group: Group) -> None:
        """Spill the messages of a group that are due last. Messages that are due now stay in memory."""
        messages, size = 0, self._bytes
        planned = min(max((group.waiting_ranges - group.spill_from) // 2, SPILLED_LEAST), SPILLED - self._messages)
        while group.waiting_ranges > group.spill_from and (entry := group.farthest_waiting(step.now_ms)) is not None:
            if entry.expires_ms is not None and entry.expires_ms <= step.now_ms:
                break  # it was recalled to end now
            most = planned - messages
            if most <= 0 or size >= SPILLED_BYTES or self._shared.is_budget_spent:
                break
            done, done_size = self._spill_part(step, group, entry, most, SPILLED_BYTES - size)
            messages += done
            size += done_size

    def free_window(self, step: Step, group: Group, entries: Iterable[Waiting]) -> None:
        """Spill due messages that cannot be leased now, in the order of `entries`, up to `FREED` ranges, and as far as
        the limits of an entry allow. They are recalled after `HELD_UP_MS`. Messages whose ttl has passed stay."""
        until_ms, enough = step.now_ms + HELD_UP_MS, group.waiting_ranges - FREED
        for entry in entries:
            left = SPILLED - self._messages
            if left <= 0 or self._bytes >= SPILLED_BYTES or self._shared.is_budget_spent:
                break
            if group.waiting_ranges <= enough:
                break
            if entry.expires_ms is None or entry.expires_ms > step.now_ms:
                done, size = self._spill_part(step, group, entry, left, SPILLED_BYTES - self._bytes, until_ms)
                self._messages += done
                self._bytes += size

    def _spill_part(
        self, step: Step, group: Group, entry: Waiting, most: int, most_bytes: int, not_before_ms: int = 0
    ) -> tuple[int, int]:
        """Spill the first messages of a waiting entry, up to `most` messages or `most_bytes`. Return their number and
        the bytes that were copied. `not_before_ms`: as in `SpilledMessages.put`."""
        taken = self._waiting.take(step, group, entry, most)
        done, size = sum([length for _, length in taken]), 0
        if not entry.kept:
            done, size = self._copy(step, group, taken, most_bytes)
            if left := rows.behind(taken, done):
                self._waiting.add(step, group, entry.apart(left))
                taken = rows.first_of(taken, done)
        self._put(step, group, entry, taken, not_before_ms)
        group.note_change()
        return done, size

    def _put(self, step: Step, group: Group, entry: Waiting, ranges: list[Range], not_before_ms: int = 0) -> None:
        """Put messages, which the group keeps, into rows with the state of a waiting entry."""
        spilled = [offset for base, length in ranges for offset in offsets.run(base, length)]
        messages = [(offset, self._expires_ms(step, group, offset)) for offset in spilled]
        group.spilled.put(step, entry, messages, not_before_ms=not_before_ms)

    def _copy(self, step: Step, group: Group, ranges: list[Range], most_bytes: int) -> tuple[int, int]:
        """Copy the first messages of the log in `ranges` into rows of their group, at least one. Return their number
        and their bytes."""
        count = size = 0
        for message in self._reader.messages(step.view, ranges, timed=True):
            if count and (size >= most_bytes or self._shared.is_budget_spent):
                break
            if count % SLICE == 0:
                self._shared.yield_now()
            copied = self._kept.put(step, group, message)
            self._shared.note_copied(copied)
            count, size = count + 1, size + copied
        return count, size

    def recall_due(
        self,
        step: Step,
        group: Group,
        until_ms: int,
        most: int = RECALLED,
        is_held_up: Callable[[str], bool] | None = None,
    ) -> bool:
        """Bring up to `most` spilled messages whose time is `until_ms` or earlier back into memory, while the window
        has space. Return whether there were any.

        Messages of paused tenants are left spilled until the pause ends, at most for `POSTPONED_MS`, and those of
        tenants for which `is_held_up` returns True for `HELD_UP_MS`."""
        recalled = examined = 0
        while recalled < most and examined < EXAMINED:
            next_ms = group.next_recall_ms
            if next_ms is None or next_ms > until_ms:
                break
            part = min(most - recalled, EXAMINED - examined)
            # The messages of a range must expire together.
            for entry in group.spilled.take_due(step, until_ms, part, merges=not self._ttl.any_expires):
                examined += entry.ranges.messages
                later_ms = self._later_ms(step, group, entry, is_held_up)
                if later_ms is None:
                    recalled += entry.ranges.messages
                    self._waiting.add(step, group, entry)
                else:
                    self._postpone(step, group, entry, later_ms)
            self._shared.yield_now()
        return examined > 0

    def _later_ms(
        self, step: Step, group: Group, entry: Waiting, is_held_up: Callable[[str], bool] | None
    ) -> int | None:
        """Return until when a due entry is left spilled, in ms. None if it is recalled now."""
        if group.ready is None or entry.queue is None:
            return None
        tenant = queue_keys.tenant_of(entry.queue)
        paused_ms = group.ready.limits.pauses.until_ms(tenant, step.now_ms) if group.pauses.tenants else None
        if paused_ms is not None:
            return min(paused_ms, step.now_ms + POSTPONED_MS)
        return step.now_ms + HELD_UP_MS if is_held_up is not None and is_held_up(tenant) else None

    def _postpone(self, step: Step, group: Group, entry: Waiting, until_ms: int) -> None:
        """Leave the messages of an entry that was taken out of its rows spilled until `until_ms`, so that they fill no
        part of the window. Messages whose ttl has passed are recalled."""
        ended: list[Range] = []
        left: list[tuple[bytes, int | None]] = []
        for base, length in entry.ranges:
            for offset in offsets.run(base, length):
                expires_ms = self._expires_ms(step, group, offset)
                if expires_ms is not None and expires_ms <= step.now_ms:
                    ended.append(Range(offset, 1))
                else:
                    left.append((offset, expires_ms))
        group.spilled.put(step, entry, left, not_before_ms=until_ms)
        if ended:
            self._waiting.add(step, group, entry.apart(ended))

    def begin_again(self, step: Step, group: Group, offset: bytes) -> None:
        """Make a spilled message due now, with attempt 0. It stays spilled."""
        entry = group.spilled.find(offset, step.view)
        assert entry is not None, "only a spilled message begins again"
        due_ms = max(step.now_ms, offsets.deliver_ms(offset))
        again = Waiting(due_ms, 0, 0, None, entry.ranges, step.now_ms, kept=True, made=Made(step.stamp_ms, 0))
        again.queue, again.retry = entry.queue, entry.retry
        self.put_again(step, group, offset, again)

    def put_again(self, step: Step, group: Group, offset: bytes, entry: Waiting) -> None:
        """Replace the state of a spilled message. It stays spilled."""
        group.spilled.remove(step, offset)
        group.spilled.put(step, entry, [(offset, self._expires_ms(step, group, offset))])

    def _expires_ms(self, step: Step, group: Group, offset: bytes) -> int | None:
        """Return when a message that a group keeps expires, in ms. None if it does not."""
        return self._ttl.range_expires_ms(group, offset, True, step.view) if self._ttl.any_expires else None

    def holder_of(self, step: Step, group: Group, offset: bytes) -> Waiting | None:
        """Return the waiting entry of a message, for a change. Bring the message back into memory if it is spilled.
        None if the message does not wait."""
        entry = group.spilled.remove(step, offset)
        if entry is not None:
            self._waiting.add(step, group, entry)
        holder = group.holder_of(offset, step.view)
        return holder if isinstance(holder, Waiting) else None
