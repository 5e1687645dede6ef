"""Keeps the waiting messages of a group in memory few: those whose next attempt is farthest away are spilled into rows
(`groups.spilled`), and recalled when their time comes.

A group has up to `FIXED.waiting_window` ranges of waiting messages in memory. An entry that reaches the window spills
messages until half of it is left. A lease recalls messages that are due while the window has space, except for messages
of paused tenants. Both depend only on replicated state. Topics that deliver in the order of keys spill nothing: each
waiting message keeps its key busy, in memory.
"""

from __future__ import annotations

from typing import Final

from sandq.model import offsets
from sandq.partition.base import rows
from sandq.partition.base.rows import Range
from sandq.partition.base.step import Step
from sandq.partition.groups.group import Group
from sandq.partition.groups.group_table import GroupTable
from sandq.partition.groups.kept_messages import KeptMessages
from sandq.partition.groups.message_ttl import MessageTtl
from sandq.partition.groups.waiting_table import WaitingTable
from sandq.partition.reader.pieces import MessageReader
from sandq.partition.ready import queue_keys
from sandq.partition.records.leases import Made, Waiting
from sandq.partition.shared_state import SharedState

SPILLED: Final = 1000
"""Maximum number of messages of a group that one entry spills. A group that is still over its window continues with the
next entry."""
SPILLED_BYTES: Final = 1 << 20
"""Bytes of copied messages after which an entry stops spilling."""
RECALLED: Final = 1000
"""Maximum number of messages that one command recalls."""
POSTPONED_MS: Final = 30_000
"""Time after which due messages of a paused tenant are recalled again, in ms, unless the pause ends before."""
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

    def spill(self, step: Step) -> None:
        """Spill messages of the groups whose windows are full. Call it once all commands of an entry are
        applied."""
        if self._shared.is_ordered:
            return
        for group_id in sorted(self._waiting.crowded):
            group = self._groups.by_id.get(group_id)
            if group is None or group.waiting_ranges < group.spill_from:
                self._waiting.crowded.discard(group_id)
            else:
                self._spill_from(step, group)

    def _spill_from(self, step: Step, group: Group) -> None:
        """Spill the messages of a group that are due last. Messages that are due now stay in memory."""
        messages = size = 0
        while group.waiting_ranges > group.spill_to and (entry := group.farthest_waiting(step.now_ms)) is not None:
            if entry.expires_ms is not None and entry.expires_ms <= step.now_ms:
                break  # it was recalled to end now
            most = min(SPILLED - messages, group.spilled_capacity)
            if most <= 0 or size >= SPILLED_BYTES or self._shared.is_budget_spent:
                break
            done, done_size = self._spill_part(step, group, entry, most, SPILLED_BYTES - size)
            messages += done
            size += done_size

    def _spill_part(self, step: Step, group: Group, entry: Waiting, most: int, most_bytes: int) -> tuple[int, int]:
        """Spill the first messages of a waiting entry, up to `most` messages or `most_bytes`. Return their number and
        the bytes that were copied."""
        taken = self._waiting.take(step, group, entry, most)
        done, size = sum([length for _, length in taken]), 0
        if not entry.kept:
            done, size = self._copy(step, group, taken, most_bytes)
            if left := rows.behind(taken, done):
                self._waiting.add(step, group, entry.apart(left))
                taken = rows.first_of(taken, done)
        spilled = [offset for base, length in taken for offset in offsets.run(base, length)]
        group.spilled.put(step, entry, [(offset, self._expires_ms(step, group, offset)) for offset in spilled])
        group.note_change()
        return done, size

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

    def recall_due(self, step: Step, group: Group, until_ms: int) -> bool:
        """Bring spilled messages whose time is `until_ms` or earlier back into memory, as many as the window allows.
        Return whether there were any."""
        next_ms = group.next_recall_ms
        if next_ms is None or next_ms > until_ms:
            return False
        most = min(RECALLED, group.window_capacity)
        # The messages of a range must expire together.
        for entry in group.spilled.take_due(step, until_ms, most, merges=not self._ttl.any_expires):
            paused_ms = self._paused_ms(step, group, entry)
            if paused_ms is None:
                self._waiting.add(step, group, entry)
            else:
                self._postpone(step, group, entry, min(paused_ms, step.now_ms + POSTPONED_MS))
        return True

    def _paused_ms(self, step: Step, group: Group, entry: Waiting) -> int | None:
        """Return when the pause of the tenant of a waiting entry ends, in ms. None if it is not paused."""
        if group.ready is None or entry.queue is None or not group.pauses.tenants:
            return None
        return group.ready.limits.pauses.until_ms(queue_keys.tenant_of(entry.queue), step.now_ms)

    def _postpone(self, step: Step, group: Group, entry: Waiting, until_ms: int) -> None:
        """Leave the messages of an entry that was taken out of its rows spilled until `until_ms`, so that they fill no
        part of the window. Messages whose ttl has passed are recalled."""
        ended: list[Range] = []
        for base, length in entry.ranges:
            for offset in offsets.run(base, length):
                expires_ms = self._expires_ms(step, group, offset)
                if expires_ms is not None and expires_ms <= step.now_ms:
                    ended.append(Range(offset, 1))
                else:
                    group.spilled.put(step, entry, [(offset, expires_ms)], not_before_ms=until_ms)
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
