"""Clock reset: an operator's command sets back the time of a partition that a wrong clock put far ahead (ADR 24).

After the command, the partition stores and leases nothing until the reset is complete. `Upkeep` commands update all
data between the new time and the old floor, in bounded steps. The progress is part of the partition's stored state, so
a restarted node continues with the next step.

Messages between the new time and the old floor are treated as follows:

- If a message is at its requested delivery time, it keeps its offset. If the floor had delayed it, it is placed again:
  at its requested time, or at the new time if that is later. The ids and the order of messages do not change.
- A group that had passed a message does not receive it again. An acked, waiting or dead message stays in its state.
  Cursors move back to the new time, so a message above the cursor that a group had passed becomes a gap
  (`records/gaps.py`). Exception: if a group received a message too early and has not acked it, the message is delivered
  again at its time.
- Leases end as if their consumers had left, so their messages are ready immediately.

The new offset of a message that is placed again depends on its groups:

- If all groups had passed the message, and its requested time is not after the new time: at the new time, below all
  cursors.
- If the message is only in rows of groups: right before the new time, where the log counts as trimmed. Exception: the
  message returns to the log if a group keeps it, it was not redriven, and its requested time is after the new time.
- All other messages: above the cursors, at `new_ms` + 1 or later.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from sandq.model import offsets
from sandq.model.batch import Batch, Column
from sandq.model.pauses import set_back_end
from sandq.partition.base import rows
from sandq.partition.base.expiring_rows import CANCEL_MEMORY_MS, ExpiringRows
from sandq.partition.base.rows import Fields, LogEntry, Range
from sandq.partition.base.step import Step
from sandq.partition.base.view import Row, View
from sandq.partition.groups import dead_letters
from sandq.partition.groups.group import Group
from sandq.partition.groups.group_state import GroupState
from sandq.partition.groups.spilled import time_of
from sandq.partition.groups.unique_keys import window_of
from sandq.partition.jobs.jobs import Jobs
from sandq.partition.leasing.settlement import LeaseSettlement
from sandq.partition.log.holds import Holds
from sandq.partition.log.message_log import CANCELLED, MessageLog
from sandq.partition.log.trim import Trimmer
from sandq.partition.producers.producers import Producers
from sandq.partition.reader import overlays
from sandq.partition.reader.pieces import FAR_MS, Message, decode_fields, load_kept, wanted_times
from sandq.partition.reader.reader import FILL_TOMBSTONES, tombstones
from sandq.partition.records.leases import Made, Waiting, merged
from sandq.partition.records.packed_ranges import PackedRanges
from sandq.partition.shared_state import SharedState

LEAST_AHEAD_MS: Final = FAR_MS
"""Minimum distance of the floor from the new time, in ms.

If the floor is less far ahead, real time reaches it before an operator could react."""
STEP_ROWS = 1000
_UNIQUE_TAGS = (rows.UNIQUE, rows.SCOPED_UNIQUE, rows.KEYED_UNIQUE)
STEP_MESSAGES = 1000
"""Number of messages after which a step ends. A step always completes the row that it began."""
STEP_BYTES = 8 << 20
_NO_LIMIT = 1 << 40

BEGUN, UNDER_WAY, NOT_AHEAD = "begun", "under_way", "not_ahead"
"""Outcomes of a `ClockReset`: a reset begins; an earlier reset is still in progress; the floor is not ahead."""


class ResetState(NamedTuple):
    """Progress of a reset. Stored with the partition's state, in this order of fields."""

    new_ms: int
    old_ms: int
    """The floor before the reset."""
    total: int
    """Approximate number of messages to check."""
    done: int = 0
    from_index: int = 0
    """Index of the first log entry whose step may place messages again.

    A message whose offset has a lower index has not been placed again."""
    phase: int = 0
    position: bytes = b""
    """Row key from which the current phase continues. Empty at the start of a phase."""
    cursors: tuple[tuple[int, bytes], ...] = ()
    """Id and former cursor of each group."""


def is_placing(fields: list[Any] | None) -> bool:
    """Return whether a reset with these fields in its row has begun to place messages again.

    From then on, groups keep no key order. Until then, seeks and removals of groups still use the key order."""
    return fields is not None and ResetState(*fields).phase > 0


class _Message(NamedTuple):
    """A message of the log that a step checks."""

    offset: bytes
    id: bytes
    wanted_ms: int
    value: bytes | None
    """Its log row, if that is a single-message row."""
    created_ms: int = 0
    fields: Fields | None = None
    """Its fields, if it is in a batch row."""


class ClockResets:
    """Applies clock resets. The state machine itself changes the time of the partition."""

    def __init__(
        self,
        *,
        shared: SharedState,
        group_state: GroupState,
        log: MessageLog,
        settlement: LeaseSettlement,
        jobs: Jobs,
        holds: Holds,
        trimmer: Trimmer,
        producers: Producers,
        expiring_rows: ExpiringRows,
    ) -> None:
        self.state: ResetState | None = None
        """None if no reset is in progress."""
        self._shared = shared
        self._groups = group_state.groups
        self._waiting = group_state.waiting
        self._spilling = group_state.spilling
        self._ttl = group_state.ttl
        self._dead = group_state.dead
        self._log = log
        self._settlement = settlement
        self._jobs = jobs
        self._holds = holds
        self._trimmer = trimmer
        self._producers = producers
        self._expiring_rows = expiring_rows
        self._phases: tuple[Callable[[Step], bool], ...] = (
            self._end_own_jobs,
            self._reposition_log,
            self._reposition_kept,
            self._reposition_dead,
            self._forget_tombstones,
            self._reschedule_spilled,
            self._reschedule_waiting,
            self._shorten_expiries,
        )
        """Each phase function does a bounded part of its work, and returns whether the phase is complete."""
        self._begun = 0
        """Index of the log entry that began the reset. 0 if this process has not applied that entry."""

    def load(self, fields: list[Any] | None) -> None:
        """Restore a reset that is in progress from the fields of its row. Call it after the groups are loaded."""
        if fields is not None:
            *known, cursors = fields
            self.state = ResetState(*known)._replace(cursors=tuple((at[0], at[1]) for at in cursors))
            self._set_resetting(True)

    def _set_resetting(self, resetting: bool) -> None:
        """Set whether a reset is in progress, in all groups."""
        for group in self._groups.by_id.values():
            group.resetting = resetting
            group.note_change()

    def begin(self, step: Step, old_ms: int) -> None:
        """Begin to set the time back from `old_ms`, the current floor, to the time of this step."""
        counts, new_ms = self._log.counts, step.now_ms
        total = counts.between(new_ms // 1000, old_ms // 1000 + 1, step.view)
        counts.set_back(step, old_ms)
        self._jobs.set_back(step)
        self.state = ResetState(new_ms, old_ms, total)
        self._begun = step.index
        self._set_resetting(True)

    def advance(self, step: Step) -> None:
        """Do a bounded part of the reset."""
        if step.index == self._begun:
            # Start with the next entry. Other commands of this entry may have stored messages. If the reset started
            # with this entry, these messages would count as placed again, and the reset would skip them.
            return
        if self._phases[self._current().phase](step):
            state = self._current()
            self.state = state._replace(phase=state.phase + 1, position=b"")
            if state.phase + 1 == len(self._phases):
                self._end(step)

    def _current(self) -> ResetState:
        """Return the state of the reset in progress."""
        assert self.state is not None
        return self.state

    def _continue_at(self, position: bytes, done: int = 0) -> bool:
        """Record that a phase is complete up to a row key and has more to do. Return False."""
        state = self._current()
        self.state = state._replace(position=position, done=state.done + done)
        return False

    def _end(self, step: Step) -> None:
        """End the reset: restore the order of keys, and let the groups lease again."""
        view = step.view
        self.state = None
        if self._shared.is_ordered:
            for group in self._groups.by_id.values():
                group.order.clear()
                group.load_key_order(view)
        self._reread_log()
        self._set_resetting(False)

    def _reread_log(self) -> None:
        """Make groups read the log again beyond their cursors."""
        for group in self._groups.by_id.values():
            group.reader.seek(group.cursor)
            group.note_change()

    # -- data without an offset in the log ------------------------------------------------------------------------

    def _end_own_jobs(self, step: Step) -> bool:
        """Complete the seeks and removals of groups that are in progress, because they refer to old offsets.

        Then set back all other data without an offset in the log."""
        state = self._current()
        if self._jobs.run_own(step):
            return False
        self._settlement.give_back_all(step)
        self.state = state._replace(
            from_index=step.index,
            cursors=tuple((group.group_id, group.cursor) for group in self._groups.by_id.values()),
        )
        above = _last_offset_at(state.new_ms)
        for group in self._groups.by_id.values():
            group.order.clear()
            group.reader.seek(min(group.cursor, above))
            if group.ready is not None:
                group.ready.limits.set_back()
            group.touched_ms = min(group.touched_ms, state.new_ms)
            group.removed_ms = min(group.removed_ms, state.new_ms)
            self._set_back_pauses(step, group)
            self._groups.store(step, group)
        trimmed = min(self._log.state.trimmed, _last_offset_at(state.new_ms - 1))
        self._log.state.trimmed, self._log.state.gone = trimmed, (0, 0)
        self._holds.set_back(step, _last_offset_at(state.new_ms - 1))
        self._trimmer.set_back(step)
        self._producers.set_back(step)
        self._expiring_rows.set_back(step)
        return True

    def _set_back_pauses(self, step: Step, group: Group) -> None:
        """Shorten the pauses that the wrong clock has most likely set."""
        state = self._current()
        until_ms = group.paused_until_ms
        if until_ms is not None and (ends_ms := set_back_end(until_ms, state.old_ms, state.new_ms)) != until_ms:
            group.pause(True, ends_ms)
        group.pauses.set_back(step, state.old_ms, state.new_ms)

    # -- the log ------------------------------------------------------------------------------------------------------

    def _reposition_log(self, step: Step) -> bool:
        """Move each message of the log whose delivery time was wrong to its requested time, in the order of the log.

        It gets a new offset."""
        state = self._current()
        start = state.position or rows.after(rows.log_key(_last_offset_at(state.new_ms)))
        # Scan to the end of the log. A message whose delay counts from the wrong time may be beyond the old floor.
        stop = rows.tag_bounds(rows.LOG)[1]
        found = step.view.scan(start, stop, limit=STEP_ROWS, max_bytes=STEP_BYTES)
        placing = _Placing(step, self)
        for key, value in found:
            if offsets.unpack(key[1:]).index < state.from_index:
                placing.place(key, value)
            start = rows.after(key)
            if placing.messages >= STEP_MESSAGES:
                break
        placing.store()
        self._reread_log()
        return not found or self._continue_at(start, placing.messages)

    # -- rows of groups ---------------------------------------------------------------------------------------------

    def _rows_of_groups(self, tag: bytes, view: View) -> tuple[list[Row], bytes]:
        """Return the next rows of groups with this tag, and the row key after them."""
        start, stop = rows.tag_bounds(tag)
        found = view.scan(self._current().position or start, stop, limit=STEP_ROWS, max_bytes=STEP_BYTES)
        return found, rows.after(found[-1][0]) if found else b""

    def _is_outdated(self, offset: bytes) -> bool:
        """Return whether an offset is between the new time and the old floor, and was assigned before the reset."""
        state = self._current()
        parts = offsets.unpack(offset)
        return state.new_ms < parts.deliver_ms <= state.old_ms and parts.index < state.from_index

    def next_offset(self, step: Step, ms: int) -> bytes:
        """Return the next free offset at a time."""
        return offsets.pack(min(ms, offsets.U48_MAX), step.index, step.next_position(), self._log.partition)

    def _offset_before_log(self, step: Step, message_id: bytes) -> bytes:
        """Return the new offset of a message that is only in rows of groups. The offset is the same for all these
        rows."""
        moved = step.view.get(rows.MOVED + message_id)
        if (
            moved is not None
            and offsets.unpack(at := rows.load_moved(moved).offset).index >= self._current().from_index
        ):
            return at
        return self.next_offset(step, self._current().new_ms - 1)

    def _reposition_kept(self, step: Step) -> bool:
        """Give new offsets to messages that groups keep and that are no longer in the log."""
        view = step.view
        found, position = self._rows_of_groups(rows.KEPT, view)
        regrouped, placing = _Regrouped(self), _Placing(step, self)
        for key, value in found:
            group, offset = self._groups.by_id.get(int.from_bytes(key[1:5], "big")), key[5:]
            if group is None or not self._is_outdated(offset) or self._log.find(offset, view) is not None:
                continue
            if view.get(key) is None:
                continue  # the message was restored to the log for another group
            message = load_kept(offset, value)
            wanted_ms = self._kept_wanted_ms(message, view)
            restored = placing.as_moved(
                _Message(offset, message.id, wanted_ms, None, message.created_ms, message.fields)
            )
            if restored.wanted_ms > self._current().new_ms and self._is_kept_unredriven(offset, view):
                # Back in the log, the message reaches no group before its requested time, even after a redrive. Its ttl
                # counts from its new offset.
                placing.restore_to_log(restored)
                continue
            new = self._offset_before_log(step, message.id)
            regrouped.take(step, group, offset, new, wanted_ms)
            view.delete(key)
            row = rows.unpack(value)
            view.put(rows.of_group(rows.KEPT, group.group_id, new), rows.pack(*row))
            self._follow_move(step, message.id, new)
            blocked_key = rows.of_group(rows.BLOCKED, group.group_id, offset)
            if (blocked_row := view.get(blocked_key)) is not None:
                view.delete(blocked_key)
                view.put(rows.of_group(rows.BLOCKED, group.group_id, new), blocked_row)
        regrouped.store(step)
        placing.store()
        return not found or self._continue_at(position)

    def _kept_wanted_ms(self, message: Message, view: View) -> int:
        """Return the requested time of a message that only groups keep, in ms. 0 if the time does not matter."""
        moved = view.get(rows.MOVED + message.id)
        request_ms: int = (rows.load_moved(moved).moved_ms if moved is not None else None) or message.created_ms
        if message.wanted is None:
            # The row of a redriven message does not tell whether its time was a delay. A group in which the message
            # waits has received it before, so its time no longer matters there. A group in which its key blocks it must
            # not receive it early.
            wanted_ms = offsets.deliver_ms(message.offset)
            received = wanted_ms >= request_ms > self._current().new_ms and not self._is_blocked(message.offset, view)
            return 0 if received else wanted_ms
        ms, is_delay = message.wanted
        wanted_ms = offsets.deliver_ms(message.offset) if ms is None else ms
        return wanted_ms - max(request_ms - self._current().new_ms, 0) if is_delay else wanted_ms

    def _is_kept_unredriven(self, offset: bytes, view: View) -> bool:
        """Return whether some group keeps a message as it was in the log, without a redrive."""
        keys = [rows.of_group(rows.KEPT, group_id, offset) for group_id in self._groups.by_id]
        return any((row := view.get(key)) is not None and not rows.is_immortal(row) for key in keys)

    def _is_blocked(self, offset: bytes, view: View) -> bool:
        """Return whether the message's key blocks it in some group."""
        return any(
            view.get(rows.of_group(rows.BLOCKED, group_id, offset)) is not None for group_id in self._groups.by_id
        )

    def _reposition_dead(self, step: Step) -> bool:
        """Give new offsets to dead messages that are no longer in the log. No message has died after the new time."""
        view = step.view
        new_ms = self._current().new_ms
        found, position = self._rows_of_groups(rows.DEAD, view)
        for key, value in found:
            offset, message = key[5:], dead_letters.load(key, value)
            is_outdated = self._is_outdated(offset) and self._log.find(offset, view) is None
            before = offset
            if is_outdated:
                view.delete(key)
                offset = self._offset_before_log(step, message.id)
                self._follow_move(step, message.id, offset)
                self._dead.moved(step, message, offset)
            if is_outdated or message.dead_ms > new_ms:
                attempts, reason, error, dead_ms, *rest = rows.unpack(value)
                row = rows.pack(attempts, reason, error, min(dead_ms, new_ms), *rest)
                view.put(key[:5] + offset, row)
                self._move_death(step, int.from_bytes(key[1:5], "big"), message, before, offset, min(dead_ms, new_ms))
        return not found or self._continue_at(position)

    def _move_death(
        self, step: Step, group_id: int, message: dead_letters.DeadMessage, old: bytes, new: bytes, dead_ms: int
    ) -> None:
        """Move the index row of a dead message to a new offset and time of death."""
        group = self._groups.by_id.get(group_id)
        if group is not None and not message.is_waiting_to_be_sent:
            group.deaths.delete(step.view, message.dead_ms, old)
            group.deaths.put(step.view, dead_ms, new)

    def _follow_move(self, step: Step, message_id: bytes, offset: bytes) -> None:
        """Store the current offset of the message with an id."""
        moved = step.view.get(rows.MOVED + message_id)
        _, moves, moved_ms, _ = rows.load_moved(moved) if moved is not None else rows.Moved(offset)
        step.view.put(rows.MOVED + message_id, rows.pack(offset, moves, moved_ms, None))

    # -- tombstones, waiting messages, and rows that expire -------------------------------------------------------

    def _forget_tombstones(self, step: Step) -> bool:
        """Delete the tombstones of moved messages, because the log rows no longer contain these messages.

        The tombstones of cancelled messages stay for `CANCEL_MEMORY_MS`."""
        view = step.view
        state = self._current()
        start = state.position or rows.after(rows.TOMBSTONE + _last_offset_at(state.new_ms))
        stop = rows.after(rows.TOMBSTONE + _last_offset_at(state.old_ms))
        found = view.scan(start, stop, limit=STEP_ROWS, max_bytes=_NO_LIMIT)
        for key, value in found:
            reason, at_ms, forgotten_ms = rows.load_tombstone(value)
            if reason != CANCELLED:
                view.delete(key)
            elif forgotten_ms is None:
                until_ms = state.new_ms + CANCEL_MEMORY_MS
                self._expiring_rows.put(step, key, until_ms, reason, min(at_ms, state.new_ms))
        return not found or self._continue_at(rows.after(found[-1][0]))

    def _reschedule_spilled(self, step: Step) -> bool:
        """Make spilled messages due as `_reschedule_waiting` does. They stay spilled."""
        new_ms = self._current().new_ms
        found, position = self._rows_of_groups(rows.SPILLED_AT, step.view)
        for key, _ in found:
            group, offset = self._groups.by_id.get(int.from_bytes(key[1:5], "big")), key[-offsets.OFFSET_BYTES :]
            entry = None if group is None else group.spilled.find(offset, step.view)
            if group is None or entry is None:
                continue
            if self.due_ms(entry) < entry.due_ms or entry.since_ms > new_ms:
                due_ms = min(max(self.due_ms(entry), self._wanted_ms(offset)), max(entry.due_ms, new_ms))
                self._spilling.put_again(step, group, offset, self._at(entry, due_ms))
            elif time_of(key) > max(entry.due_ms, new_ms):
                # A lease by the wrong clock postponed the message, because of a pause or a limit of its tenant.
                self._spilling.put_again(step, group, offset, entry)
        return not found or self._continue_at(position)

    def _reschedule_waiting(self, step: Step) -> bool:
        """Make waiting messages due when they would be due if the clock had been correct."""
        new_ms = self._current().new_ms
        seen = 0
        for group in self._groups.by_id.values():
            for entry in list(group.waiting.values()):
                if self.due_ms(entry) >= entry.due_ms and entry.since_ms <= new_ms:
                    continue
                seen += entry.ranges.messages
                by_due: dict[int, list[Range]] = {}
                for part in self._waiting.take(step, group, entry, entry.ranges.messages):
                    due_ms = max(self.due_ms(entry), self._wanted_ms(part.base))
                    by_due.setdefault(min(due_ms, max(entry.due_ms, new_ms)), []).append(part)
                for due_ms, ranges in by_due.items():
                    self.wait(step, group, entry, due_ms, ranges)
                if seen >= STEP_MESSAGES:
                    return False
        return True

    def _wanted_ms(self, offset: bytes) -> int:
        """Return the requested time of a message that keeps its offset, in ms: at least the new time."""
        return max(offsets.deliver_ms(offset), self._current().new_ms)

    def due_ms(self, entry: Waiting) -> int:
        """Return the new due time of a waiting entry, in ms, regardless of the requested times of its messages."""
        new_ms = self._current().new_ms
        if entry.due_ms <= new_ms:
            return entry.due_ms
        if entry.made is None:
            return new_ms
        return max(min(entry.made.stamp_ms, new_ms) + entry.made.delay_ms, new_ms)

    def wait(self, step: Step, group: Group, entry: Waiting, due_ms: int, ranges: list[Range]) -> None:
        """Put messages of a waiting entry into a new entry that is due at `due_ms`."""
        again = self._at(entry, due_ms)
        again.ranges = PackedRanges(sorted(ranges))
        self._waiting.add(step, group, again)

    def _at(self, entry: Waiting, due_ms: int) -> Waiting:
        """Return a copy of a waiting entry without messages that is due at `due_ms`."""
        again = entry.apart([])
        again.due_ms, again.made = due_ms, Made(0, due_ms, _is_moved(entry))
        again.since_ms = min(entry.since_ms, self._current().new_ms)
        return again

    def _shorten_expiries(self, step: Step) -> bool:
        """Shorten the expiry times of rows that would be kept longer than documented, counted from the new time."""
        view = step.view
        state = self._current()
        start, stop = rows.FORGET + (state.new_ms + 1).to_bytes(6, "big"), rows.tag_bounds(rows.FORGET)[1]
        found = view.scan(state.position or start, stop, limit=STEP_ROWS, max_bytes=_NO_LIMIT)
        window_ms = max(self._shared.settings["dedup_window_ms"], CANCEL_MEMORY_MS)
        for index_key, _ in found:
            due_ms, key = int.from_bytes(index_key[1:7], "big"), index_key[7:]
            is_unique = key[:1] in _UNIQUE_TAGS
            until_ms = state.new_ms + (window_ms if is_unique else CANCEL_MEMORY_MS)
            if due_ms <= until_ms:
                continue
            row = view.get(key)
            fields = [] if row is None else rows.unpack(row)
            if not fields or fields[-1] != due_ms:
                view.delete(index_key)
                continue
            window = window_of(fields[3:-1]) if is_unique else None
            until_ms = until_ms if window is None else max(until_ms, state.new_ms + window.length_ms)
            if due_ms > until_ms:
                view.delete(index_key)
                self._expiring_rows.put(step, key, until_ms, *fields[:-1])
        return not found or self._continue_at(rows.after(found[-1][0]))


class _Regrouped:
    """Waiting messages that were taken out of their entries, and will wait at their new offsets."""

    def __init__(self, reset: ClockResets) -> None:
        self._reset = reset
        self._found: dict[tuple[int, int, int], tuple[Group, Waiting, list[bytes]]] = {}

    def take(self, step: Step, group: Group, offset: bytes, new: bytes, wanted_ms: int) -> Waiting | None:
        """Take a message out of its waiting entry; it will wait at offset `new`. Return the entry.

        Return None if the message does not wait."""
        entry = self._reset._spilling.holder_of(step, group, offset)
        if entry is None:
            return None
        self._reset._waiting.part(step, group, entry, offset, None)
        due_ms = self._reset.due_ms(entry)
        if not _is_moved(entry):
            due_ms = max(due_ms, wanted_ms)
        self._found.setdefault((group.group_id, entry.seq, due_ms), (group, entry, []))[2].append(new)
        return entry

    def store(self, step: Step) -> None:
        """Store new waiting entries. Call it once the messages are at their new offsets."""
        for (_, _, due_ms), (group, entry, found) in self._found.items():
            # All messages of one range must expire at the same time.
            can_merge = entry.kept and not self._reset._ttl.any_expires
            ranges = merged(sorted(found)) if can_merge else [Range(offset, 1) for offset in found]
            self._reset.wait(step, group, entry, due_ms, ranges)


class _Placing:
    """Gives new offsets to the messages of the log that one step checks."""

    def __init__(self, step: Step, reset: ClockResets) -> None:
        self.messages = 0
        self._reset = reset
        self._state = state = reset._current()
        self._step = step
        self._view = step.view
        self._log = reset._log
        self._regrouped = _Regrouped(reset)
        self._gaps: dict[int, list[bytes]] = {}
        cursors = dict(state.cursors)
        self._groups = [(group, cursors[group.group_id]) for group in reset._groups.by_id.values()]

    def place(self, key: bytes, value: bytes) -> None:
        """Place the messages of a row again."""
        entry = rows.log_entry(key, value)
        self.messages += entry.length
        if value[0] == rows.KIND_MESSAGE:
            at_ms = offsets.deliver_ms(entry.first)
            message = self.as_moved(self._single_message(entry.first, at_ms, value))
            passed = self._passed(message)
            if message.wanted_ms == at_ms:
                self._count(at_ms, at_ms)
                self._note_gaps(passed, message.offset)
                return
            self._log.delete_row(self._step, key, len(value))
            self._log.state.bytes += self._move(message, passed).size - entry.size
            return
        at_ms = offsets.deliver_ms(entry.first)
        messages = [self.as_moved(message) for message in self._batch_messages(key, value, entry)]
        # A batch row stays only if two conditions are met. It has no tombstones, because tombstones are deleted. And no
        # group had passed any of its messages, because a group skips gaps only as whole rows.
        has_all = len(messages) == entry.length
        if has_all and all([message.wanted_ms == at_ms and self._is_unpassed(message.offset) for message in messages]):
            for _ in messages:
                self._count(at_ms, at_ms)
            return
        passed_each = [self._passed(message) for message in messages]  # while the row exists
        self._log.delete_row(self._step, key, len(value), entry.length)
        self._log.state.bytes -= entry.size - entry.unit * (entry.length - len(messages))
        for message, passed in zip(messages, passed_each, strict=True):
            self._log.state.bytes += self._move(message, passed).size

    def as_moved(self, message: _Message) -> _Message:
        """Return a message with its latest requested time: the producer may have moved the message while it waited."""
        for group, _ in self._groups:
            if isinstance(entry := group.holder_of(message.offset, self._view), Waiting) and _is_moved(entry):
                return message._replace(wanted_ms=self._reset.due_ms(entry))
        return message

    def restore_to_log(self, message: _Message) -> None:
        """Put a message back into the log that was trimmed because only groups kept it."""
        self._log.state.bytes += self._move(message, self._passed(message)).size
        self._log.state.messages += 1

    def _single_message(self, offset: bytes, at_ms: int, value: bytes) -> _Message:
        """Return the message of a single-message row."""
        _, flags, _, from_ms = rows.LOG_HEADER.unpack_from(value)
        message_id, *rest = rows.unpack(value[rows.LOG_HEADER.size :])
        wanted_ms: int = rest[-1].get(Column.DELIVER_MS, at_ms)
        if flags & rows.FLAG_DELAY:
            if message_id is not None and (moved := self._view.get(rows.MOVED + message_id)) is not None:
                from_ms = rows.load_moved(moved).moved_ms or from_ms
            # A delay counts from the time of its request. A correct clock shows that time as the new time at the
            # latest.
            wanted_ms -= max(from_ms - self._state.new_ms, 0)
        return _Message(offset, message_id or offset, wanted_ms, value)

    def _batch_messages(self, key: bytes, value: bytes, entry: LogEntry) -> list[_Message]:
        """Return the messages of a batch row that have no tombstones."""
        created_ms = rows.LOG_HEADER.unpack_from(value)[3]
        batch = Batch.parse(value[rows.LOG_HEADER.size :])
        wanted = wanted_times(batch, min(created_ms, self._state.new_ms))
        gone = set(tombstones(self._view, entry.first, rows.last_of(entry), FILL_TOMBSTONES))
        others = overlays.between(self._view, entry.first, entry.length)
        return [
            _Message(
                offset, offset, wanted_ms, None, created_ms, overlays.laid_over(self._view, others, offset, fields)
            )
            for offset, wanted_ms, fields in zip(
                offsets.run(entry.first, entry.length), wanted, decode_fields(batch), strict=True
            )
            if offset not in gone
        ]

    def _is_unpassed(self, offset: bytes) -> bool:
        """Return whether every group has yet to pass a message."""
        return not any([offset <= cursor or offset in group.gaps for group, cursor in self._groups])

    def _passed(self, message: _Message) -> list[Group]:
        """Return the groups that had passed a message and do not receive it again."""
        offset, passed = message.offset, []
        for group, cursor in self._groups:
            if offset > cursor and offset not in group.gaps:
                continue
            if self._is_delivered_again(group, message):
                self._view.delete(rows.of_group(rows.KEPT, group.group_id, offset))
            else:
                passed.append(group)
        return passed

    def _is_delivered_again(self, group: Group, message: _Message) -> bool:
        """Return whether a group receives a message again from the log, although it had passed it.

        This applies to a message that its key blocks or that is in a ready queue. It also applies to a waiting message
        that would be due before its requested time: while it waits, it would block its key, and count for the group's
        limit.

        The message is then removed from the rows of blocked, ready or waiting messages."""
        reset, view, offset = self._reset, self._view, message.offset
        if reset._shared.is_ordered:
            blocked_key = rows.of_group(rows.BLOCKED, group.group_id, offset)
            if view.get(blocked_key) is not None:
                view.delete(blocked_key)
                return True
        if group.unready(self._step, offset):
            return True
        entry = reset._spilling.holder_of(self._step, group, offset)
        if offset in group.gaps:
            return False  # an earlier reset decided that the group does not receive the message again
        if entry is None or max(reset.due_ms(entry), self._state.new_ms + 1) > message.wanted_ms:
            return False
        reset._waiting.part(self._step, group, entry, offset, None)
        return True

    def _move(self, message: _Message, passed: list[Group]) -> LogEntry:
        """Move a message to its new offset, with the rows that groups have for it."""
        view, new_ms, old = self._view, self._state.new_ms, message.offset
        is_done = len(passed) == len(self._groups) > 0 and message.wanted_ms <= new_ms
        at_ms = new_ms if is_done else max(message.wanted_ms, new_ms + 1)
        new = self._reset.next_offset(self._step, at_ms)
        for group in passed:
            entry = self._regrouped.take(self._step, group, old, new, message.wanted_ms)
            if entry is not None and entry.kept:
                self._rekey(rows.KEPT, group, old, new)
            if group.dead.total() and (dead := dead_letters.find(group, old, view)) is not None:
                self._rekey(rows.DEAD, group, old, new)
                self._reset._move_death(self._step, group.group_id, dead, old, new, dead.dead_ms)
                self._reset._dead.moved(self._step, dead, new)
        self._note_gaps(passed, new)
        self._reset._follow_move(self._step, message.id, new)
        self._count(offsets.deliver_ms(old), at_ms)
        return self._put(message, new)

    def _put(self, message: _Message, new: bytes) -> LogEntry:
        """Put the log row of a message at its new offset. Return its entry."""
        view = self._view
        if message.value is not None:
            row = rows.moved_row(message.value, message.id)
            view.put(rows.log_key(new), row)
            return rows.log_entry(rows.log_key(new), row)
        fields = message.fields or {}
        shared = self._reset._shared
        light = rows.needed_of(fields, shared.is_ordered, key_digest=shared.name_digest(fields))
        stored, entry = rows.message_rows(new, message.created_ms, fields, message.id, light)
        for key, value in stored:
            view.put(key, value)
        return entry

    def _rekey(self, tag: bytes, group: Group, old: bytes, new: bytes) -> None:
        """Move a group's row with this tag, if there is one, to a new offset."""
        key = rows.of_group(tag, group.group_id, old)
        row = self._view.get(key)
        if row is not None:
            self._view.delete(key)
            self._view.put(rows.of_group(tag, group.group_id, new), row)

    def _count(self, old_ms: int, at_ms: int) -> None:
        """Count a message that moves from `old_ms` to `at_ms`.

        `begin` has removed the counts of the seconds after the second of the new time, up to the second of the old
        floor."""
        counts = self._log.counts
        is_counted = not self._state.new_ms // 1000 < old_ms // 1000 <= self._state.old_ms // 1000
        if is_counted and old_ms == at_ms:
            return
        if is_counted:
            counts.add(old_ms, -1)
        counts.add(at_ms, 1)

    def _note_gaps(self, passed: list[Group], offset: bytes) -> None:
        """Note a gap in each of these groups whose cursor is below the message."""
        for group in passed:
            if offset > group.cursor and offset not in group.gaps:
                self._gaps.setdefault(group.group_id, []).append(offset)

    def store(self) -> None:
        """Store changes that concern several messages."""
        self._regrouped.store(self._step)
        for group_id, found in self._gaps.items():
            self._reset._groups.by_id[group_id].gaps.add(self._step, merged(sorted(found)))


def _is_moved(entry: Waiting) -> bool:
    """Return whether a waiting entry exists because the producer moved its messages."""
    return entry.made is not None and entry.made.by_move


def _last_offset_at(ms: int) -> bytes:
    """Return the highest offset at a time."""
    return offsets.ceiling(max(ms, 0), offsets.U48_MAX)
