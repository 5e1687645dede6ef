"""A clock reset: the way out of a floor that a wrong clock put far ahead, an operator's command (ADR 24).

From its entry on nothing is leased and nothing stored, until `Upkeep` has gone through all that stands between the new
time and the old floor, a bounded part at a time. Nothing of it is in memory alone: who is restarted goes on with the
next step. What becomes of a message there:

* One that stands at the instant it was wanted at stays, one that the floor had put later comes to that instant, or to
  the new time if that has passed. Their order stays, and so do their ids.
* A group that had passed it does not get it anew: what is acked is acked, what waited or is dead does so still. Cursors
  go back to the new time, so what a group had passed above it is a gap (`records/gaps.py`). Only what it was given too
  early, and has not acked, it comes to once more when the time has come.
* Leases end as if their consumers had left: what they held is ready at once.

What every group had passed, and was wanted by now, comes to the new time itself, below all cursors. What is only in
rows of groups any more comes right before it, where the log counts as trimmed. Everything else is put above the
cursors, at `new_ms` + 1 or later.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from sandq.model import offsets
from sandq.model.batch import Batch, Column
from sandq.partition.base import rows
from sandq.partition.base.expiring_rows import CANCEL_MEMORY_MS, ExpiringRows
from sandq.partition.base.rows import Fields, LogEntry, Range
from sandq.partition.base.step import Step
from sandq.partition.base.view import Row, View
from sandq.partition.groups import dead_letters
from sandq.partition.groups.group import Group
from sandq.partition.groups.group_state import GroupState
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

LEAST_MS: Final = FAR_MS
"""A floor that is less far ahead is left alone: it is reached before anybody could have done something about it."""
STEP_ROWS = 1000
_UNIQUE_TAGS = (rows.UNIQUE, rows.SCOPED_UNIQUE, rows.KEYED_UNIQUE)
STEP_MESSAGES = 1000
"""Of one step; one row, at least, is gone through as a whole."""
STEP_BYTES = 8 << 20
_NO_LIMIT = 1 << 40

BEGUN, UNDER_WAY, NOTHING = "begun", "under_way", "not_ahead"
"""What a `ClockReset` is answered: it has begun; one that began before goes on; the floor is not ahead."""


class ResetState(NamedTuple):
    """How far a reset is. Written with the partition's state, in this order."""

    new_ms: int
    old_ms: int
    """The floor there was."""
    total: int
    """Messages to look at, about."""
    done: int = 0
    from_index: int = 0
    """Of the entry with which messages were begun to be placed anew: what has no lower one in its offset was."""
    phase: int = 0
    position: bytes = b""
    """Of the phase: done up to here."""
    cursors: tuple[tuple[int, bytes], ...] = ()
    """Of all groups by their ids, as they were."""


def is_placing(fields: list[Any] | None) -> bool:
    """Whether a reset with these fields in its row has begun to place messages anew: no group keeps its keys in order
    then. Before that seeks and the ends of groups go by their order still."""
    return fields is not None and ResetState(*fields).phase > 0


class _Message(NamedTuple):
    """A message of the log that is looked at."""

    offset: bytes
    id: bytes
    wanted_ms: int
    value: bytes | None
    """Its log row, if it has one of its own."""
    created_ms: int = 0
    fields: Fields | None = None
    """Unless it has a row of its own."""


class ClockResets:
    """Sets a partition's time back. The partition's own time is for the state machine to change."""

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
        """None: none is under way."""
        self._shared = shared
        self._groups = group_state.groups
        self._waiting = group_state.waiting
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
            self._place_log,
            self._place_kept,
            self._place_dead,
            self._forget_tombstones,
            self._time_waiting,
            self._time_memories,
        )
        """Each does a bounded part, and returns whether that was all."""
        self._begun = 0
        """The entry that began it, while it is applied."""

    def load(self, fields: list[Any] | None) -> None:
        """Go on with one that is under way, once groups are loaded."""
        if fields is not None:
            *known, cursors = fields
            self.state = ResetState(*known)._replace(cursors=tuple((at[0], at[1]) for at in cursors))
            self._halt(True)

    def _halt(self, resetting: bool) -> None:
        for group in self._groups.by_id.values():
            group.resetting = resetting
            group.note_change()

    def begin(self, step: Step, old_ms: int) -> None:
        """Begin to set the time back from `old_ms`, the floor until now, to the time of this step."""
        counts, new_ms = self._log.counts, step.now_ms
        total = counts.between(new_ms // 1000, old_ms // 1000 + 1, step.view)
        counts.set_back(step, old_ms)
        self._jobs.set_back(step)
        self.state = ResetState(new_ms, old_ms, total)
        self._begun = step.index
        self._halt(True)

    def advance(self, step: Step) -> None:
        """Do a bounded part of the reset."""
        if step.index == self._begun:
            return  # what the same entry stored before has its index, by which what is placed anew is known
        if self._phases[self._now().phase](step):
            state = self._now()
            self.state = state._replace(phase=state.phase + 1, position=b"")
            if state.phase + 1 == len(self._phases):
                self._end(step)

    def _now(self) -> ResetState:
        assert self.state is not None
        return self.state

    def _go_on(self, position: bytes, done: int = 0) -> bool:
        """A phase is through up to here, and there is more."""
        state = self._now()
        self.state = state._replace(position=position, done=state.done + done)
        return False

    def _end(self, step: Step) -> None:
        view = step.view
        self.state = None
        if self._shared.is_ordered:
            for group in self._groups.by_id.values():
                group.order.clear()
                group.load_key_order(view)
        self._look_anew()
        self._halt(False)

    def _look_anew(self) -> None:
        """Let what groups know of the log beyond their cursors be read anew."""
        for group in self._groups.by_id.values():
            group.reader.seek(group.cursor)
            group.note_change()

    # -- what has no place in the log ---------------------------------------------------------------------------------

    def _end_own_jobs(self, step: Step) -> bool:
        """Seeks and the ends of groups go on to their end by the old places. Then everything else is set back that has
        no place in the log."""
        state = self._now()
        if self._jobs.run_own(step):
            return False
        self._settlement.give_back_all(step)
        self.state = state._replace(
            from_index=step.index,
            cursors=tuple((group.group_id, group.cursor) for group in self._groups.by_id.values()),
        )
        above = _last_of(state.new_ms)
        for group in self._groups.by_id.values():
            group.order.clear()
            group.reader.seek(min(group.cursor, above))
            if group.ready is not None:
                group.ready.limits.set_back()
            group.touched_ms = min(group.touched_ms, state.new_ms)
            self._groups.store(step, group)
        trimmed = min(self._log.state.trimmed, _last_of(state.new_ms - 1))
        self._log.state.trimmed, self._log.state.gone = trimmed, (0, 0)
        self._holds.set_back(step, _last_of(state.new_ms - 1))
        self._trimmer.set_back(step)
        self._producers.set_back(step)
        self._expiring_rows.set_back(step)
        return True

    # -- the log ------------------------------------------------------------------------------------------------------

    def _place_log(self, step: Step) -> bool:
        """Place what stands in the log, in order."""
        state = self._now()
        start = state.position or rows.after(rows.log_key(_last_of(state.new_ms)))
        # To its end: what is delayed, counted from a wrong clock, stands beyond the floor.
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
        self._look_anew()
        return not found or self._go_on(start, placing.messages)

    # -- rows of groups ---------------------------------------------------------------------------------------------

    def _rows_of_groups(self, tag: bytes, view: View) -> tuple[list[Row], bytes]:
        """The next rows that groups have of their own, and where to go on."""
        start, stop = rows.tag_bounds(tag)
        found = view.scan(self._now().position or start, stop, limit=STEP_ROWS, max_bytes=STEP_BYTES)
        return found, rows.after(found[-1][0]) if found else b""

    def _is_astray(self, offset: bytes) -> bool:
        """Whether a message is still at a place that the log gives to nobody any more."""
        state = self._now()
        parts = offsets.unpack(offset)
        return state.new_ms < parts.deliver_ms <= state.old_ms and parts.index < state.from_index

    def next_place(self, step: Step, ms: int) -> bytes:
        """The next place at an instant."""
        return offsets.pack(min(ms, offsets.U48_MAX), step.index, step.next_position(), self._log.partition)

    def _own_place(self, step: Step, message_id: bytes) -> bytes:
        """The place for a message that is only in rows of groups: the same for all of these."""
        moved = step.view.get(rows.MOVED + message_id)
        if moved is not None and offsets.unpack(at := rows.load_moved(moved).offset).index >= self._now().from_index:
            return at
        return self.next_place(step, self._now().new_ms - 1)

    def _place_kept(self, step: Step) -> bool:
        """Place what groups keep, and the log has not any more."""
        view = step.view
        found, position = self._rows_of_groups(rows.KEPT, view)
        regrouped, placing = _Regrouped(self), _Placing(step, self)
        for key, value in found:
            group, offset = self._groups.by_id.get(int.from_bytes(key[1:5], "big")), key[5:]
            if group is None or not self._is_astray(offset) or self._log.find(offset, view) is not None:
                continue
            if view.get(key) is None:
                continue  # it went to the log with that of another group
            message = load_kept(offset, value)
            wanted_ms = self._kept_wanted_ms(message, view)
            again = placing.as_moved(_Message(offset, message.id, wanted_ms, None, message.created_ms, message.fields))
            if again.wanted_ms > self._now().new_ms and self._comes_of_itself(offset, view):
                # It must not come before its time, whatever becomes of it until then; and its ttl counts from there.
                placing.put_back(again)
                continue
            new = self._own_place(step, message.id)
            regrouped.take(step, group, offset, new, wanted_ms)
            view.delete(key)
            row = rows.unpack(value)
            view.put(rows.of_group(rows.KEPT, group.group_id, new), rows.pack(*row))
            self._follow_move(step, message.id, new)
            blocked = rows.of_group(rows.BLOCKED, group.group_id, offset)
            if (turn := view.get(blocked)) is not None:
                view.delete(blocked)
                view.put(rows.of_group(rows.BLOCKED, group.group_id, new), turn)
        regrouped.store(step)
        placing.store()
        return not found or self._go_on(position)

    def _kept_wanted_ms(self, message: Message, view: View) -> int:
        """When a message is wanted that only groups keep."""
        moved = view.get(rows.MOVED + message.id)
        asked_ms: int = (rows.load_moved(moved).moved_ms if moved is not None else None) or message.created_ms
        if message.wanted is None:
            # Whether the time of a redriven message was a delay is not known. A group in which it waits has had it
            # before; another group must not receive it early.
            wanted_ms = offsets.deliver_ms(message.offset)
            was_had = wanted_ms >= asked_ms > self._now().new_ms and not self._is_blocked(message.offset, view)
            return 0 if was_had else wanted_ms
        ms, is_delay = message.wanted
        wanted_ms = offsets.deliver_ms(message.offset) if ms is None else ms
        return wanted_ms - max(asked_ms - self._now().new_ms, 0) if is_delay else wanted_ms

    def _comes_of_itself(self, offset: bytes, view: View) -> bool:
        """Whether some group has a message that only groups keep as it came from the log, and was not redriven."""
        keys = [rows.of_group(rows.KEPT, group_id, offset) for group_id in self._groups.by_id]
        return any((row := view.get(key)) is not None and not rows.is_immortal(row) for key in keys)

    def _is_blocked(self, offset: bytes, view: View) -> bool:
        """Whether a message's key blocks it in some group."""
        return any(
            view.get(rows.of_group(rows.BLOCKED, group_id, offset)) is not None for group_id in self._groups.by_id
        )

    def _place_dead(self, step: Step) -> bool:
        """Place what is dead, and the log has not any more; nothing died after now."""
        view = step.view
        new_ms = self._now().new_ms
        found, position = self._rows_of_groups(rows.DEAD, view)
        for key, value in found:
            offset, message = key[5:], dead_letters.load(key, value)
            is_astray = self._is_astray(offset) and self._log.find(offset, view) is None
            if is_astray:
                view.delete(key)
                offset = self._own_place(step, message.id)
                self._follow_move(step, message.id, offset)
                self._dead.moved(step, message, offset)
            if is_astray or message.dead_ms > new_ms:
                attempts, reason, error, dead_ms, *rest = rows.unpack(value)
                row = rows.pack(attempts, reason, error, min(dead_ms, new_ms), *rest)
                view.put(key[:5] + offset, row)
        return not found or self._go_on(position)

    def _follow_move(self, step: Step, message_id: bytes, offset: bytes) -> None:
        """Remember where the message of an id is now."""
        moved = step.view.get(rows.MOVED + message_id)
        _, moves, moved_ms, _ = rows.load_moved(moved) if moved is not None else rows.Moved(offset)
        step.view.put(rows.MOVED + message_id, rows.pack(offset, moves, moved_ms, None))

    # -- what is forgotten, and what waits ------------------------------------------------------------------------

    def _forget_tombstones(self, step: Step) -> bool:
        """Tombstones stand for nothing any more; what was cancelled is remembered for as long as ever."""
        view = step.view
        state = self._now()
        start = state.position or rows.after(rows.TOMBSTONE + _last_of(state.new_ms))
        stop = rows.after(rows.TOMBSTONE + _last_of(state.old_ms))
        found = view.scan(start, stop, limit=STEP_ROWS, max_bytes=_NO_LIMIT)
        for key, value in found:
            why, at_ms, forgotten_ms = rows.load_tombstone(value)
            if why != CANCELLED:
                view.delete(key)
            elif forgotten_ms is None:
                until_ms = state.new_ms + CANCEL_MEMORY_MS
                self._expiring_rows.put(step, key, until_ms, why, min(at_ms, state.new_ms))
        return not found or self._go_on(rows.after(found[-1][0]))

    def _time_waiting(self, step: Step) -> bool:
        """Let what waits come when it was to come by the clock that is right."""
        new_ms = self._now().new_ms
        seen = 0
        for group in self._groups.by_id.values():
            for entry in list(group.waiting.values()):
                if self.due_ms(entry) >= entry.due_ms and entry.since_ms <= new_ms:
                    continue
                seen += entry.ranges.messages
                by_due: dict[int, list[Range]] = {}
                for one in self._waiting.take(step, group, entry, entry.ranges.messages):
                    due_ms = max(self.due_ms(entry), self._wanted_ms(one.base))
                    by_due.setdefault(min(due_ms, max(entry.due_ms, new_ms)), []).append(one)
                for due_ms, ranges in by_due.items():
                    self.wait(step, group, entry, due_ms, ranges)
                if seen >= STEP_MESSAGES:
                    return False
        return True

    def _wanted_ms(self, offset: bytes) -> int:
        """When a message that was not placed anew is wanted: the new time, if it was placed before that."""
        return max(offsets.deliver_ms(offset), self._now().new_ms)

    def due_ms(self, entry: Waiting) -> int:
        """When what waits there is to come, but for the messages' own times."""
        new_ms = self._now().new_ms
        if entry.due_ms <= new_ms:
            return entry.due_ms
        if entry.made is None:
            return new_ms
        return max(min(entry.made.stamp_ms, new_ms) + entry.made.delay_ms, new_ms)

    def wait(self, step: Step, group: Group, entry: Waiting, due_ms: int, ranges: list[Range]) -> None:
        """Let messages that waited in an entry wait until then."""
        since_ms = min(entry.since_ms, self._now().new_ms)
        places, made = PackedRanges(sorted(ranges)), Made(0, due_ms, _is_moved(entry))
        again = Waiting(due_ms, 0, entry.attempt, entry.error, places, since_ms, entry.kept, None, entry.history, made)
        again.queue, again.snoozes, again.crashes = entry.queue, entry.snoozes, entry.crashes
        self._waiting.add(step, group, again)

    def _time_memories(self, step: Step) -> bool:
        """Forget nothing sooner than is promised, counted from now, and nothing later."""
        view = step.view
        state = self._now()
        start, stop = rows.FORGET + (state.new_ms + 1).to_bytes(6, "big"), rows.tag_bounds(rows.FORGET)[1]
        found = view.scan(state.position or start, stop, limit=STEP_ROWS, max_bytes=_NO_LIMIT)
        window_ms = max(self._shared.settings["dedup_window_ms"], CANCEL_MEMORY_MS)
        for index_key, _ in found:
            due_ms, key = int.from_bytes(index_key[1:7], "big"), index_key[7:]
            until_ms = state.new_ms + (window_ms if key[:1] in _UNIQUE_TAGS else CANCEL_MEMORY_MS)
            if due_ms <= until_ms:
                continue
            view.delete(index_key)
            row = view.get(key)
            if row is not None and (fields := rows.unpack(row))[-1] == due_ms:
                self._expiring_rows.put(step, key, until_ms, *fields[:-1])
        return not found or self._go_on(rows.after(found[-1][0]))


class _Regrouped:
    """Messages that wait, taken out of their entries, to wait at another place."""

    def __init__(self, reset: ClockResets) -> None:
        self._reset = reset
        self._found: dict[tuple[int, int, int], tuple[Group, Waiting, list[bytes]]] = {}

    def take(self, step: Step, group: Group, offset: bytes, new: bytes, wanted_ms: int) -> Waiting | None:
        """Take a message out of the entry in which it waits, if it does: it is at another place now."""
        entry = group.holder_of(offset)
        if not isinstance(entry, Waiting):
            return None
        self._reset._waiting.part(step, group, entry, offset, None)
        due_ms = self._reset.due_ms(entry)
        if not _is_moved(entry):
            due_ms = max(due_ms, wanted_ms)
        self._found.setdefault((group.group_id, entry.seq, due_ms), (group, entry, []))[2].append(new)
        return entry

    def store(self, step: Step) -> None:
        """Let them wait, once they are where they are now."""
        for (_, _, due_ms), (group, entry, found) in self._found.items():
            # Of what is in one range all expires together.
            is_one = entry.kept and not self._reset._ttl.any_expires
            ranges = merged(sorted(found)) if is_one else [Range(offset, 1) for offset in found]
            self._reset.wait(step, group, entry, due_ms, ranges)


class _Placing:
    """Places messages of the log, those of one step."""

    def __init__(self, step: Step, reset: ClockResets) -> None:
        self.messages = 0
        self._reset = reset
        self._state = state = reset._now()
        self._step = step
        self._view = step.view
        self._log = reset._log
        self._regrouped = _Regrouped(reset)
        self._gaps: dict[int, list[bytes]] = {}
        cursors = dict(state.cursors)
        self._groups = [(group, cursors[group.group_id]) for group in reset._groups.by_id.values()]

    def place(self, key: bytes, value: bytes) -> None:
        """Place the messages of a row."""
        entry = rows.log_entry(key, value)
        self.messages += entry.length
        if value[0] == rows.KIND_MESSAGE:
            at_ms = offsets.deliver_ms(entry.first)
            message = self.as_moved(self._alone(entry.first, at_ms, value))
            passed = self._passed(message)
            if message.wanted_ms == at_ms:
                self._count(at_ms, at_ms)
                self._note_gaps(passed, message.offset)
                return
            self._log.delete_row(self._step, key, len(value))
            self._log.state.bytes += self._move(message, passed).size - entry.size
            return
        at_ms = offsets.deliver_ms(entry.first)
        messages = [self.as_moved(message) for message in self._messages(key, value, entry)]
        # Tombstones are forgotten: what is left beside some is placed anew. And of a row that stays, a group must not
        # have had a part: rows are gone through, and gaps told, as a whole.
        stays = len(messages) == entry.length
        if stays and all([message.wanted_ms == at_ms and self._is_new(message.offset) for message in messages]):
            for _ in messages:
                self._count(at_ms, at_ms)
            return
        passed_each = [self._passed(message) for message in messages]  # while the row is there
        self._log.delete_row(self._step, key, len(value), entry.length)
        self._log.state.bytes -= entry.size - entry.unit * (entry.length - len(messages))
        for message, passed in zip(messages, passed_each, strict=True):
            self._log.state.bytes += self._move(message, passed).size

    def as_moved(self, message: _Message) -> _Message:
        """A message as its producer wants it, who may have moved it where it waits."""
        for group, _ in self._groups:
            if isinstance(entry := group.holder_of(message.offset), Waiting) and _is_moved(entry):
                return message._replace(wanted_ms=self._reset.due_ms(entry))
        return message

    def put_back(self, message: _Message) -> None:
        """Place a message in the log again that was trimmed there, since only groups kept it."""
        self._log.state.bytes += self._move(message, self._passed(message)).size
        self._log.state.messages += 1

    def _alone(self, offset: bytes, at_ms: int, value: bytes) -> _Message:
        """A message with a row of its own."""
        _, flags, _, from_ms = rows.LOG_HEADER.unpack_from(value)
        message_id, *rest = rows.unpack(value[rows.LOG_HEADER.size :])
        wanted_ms: int = rest[-1].get(Column.DELIVER_MS, at_ms)
        if flags & rows.FLAG_DELAY:
            if message_id is not None and (moved := self._view.get(rows.MOVED + message_id)) is not None:
                from_ms = rows.load_moved(moved).moved_ms or from_ms
            # A delay counts from when it was asked for: by the clock that is right, that was not after now.
            wanted_ms -= max(from_ms - self._state.new_ms, 0)
        return _Message(offset, message_id or offset, wanted_ms, value)

    def _messages(self, key: bytes, value: bytes, entry: LogEntry) -> list[_Message]:
        """The messages of a batch that were not taken out."""
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

    def _is_new(self, offset: bytes) -> bool:
        """Whether no group had passed a message."""
        return not any([offset <= cursor or offset in group.gaps for group, cursor in self._groups])

    def _passed(self, message: _Message) -> list[Group]:
        """The groups that had passed a message, and are to go on as they were with it."""
        offset, passed = message.offset, []
        for group, cursor in self._groups:
            if offset > cursor and offset not in group.gaps:
                continue
            if self._comes_again(group, message):
                self._view.delete(rows.of_group(rows.KEPT, group.group_id, offset))
            else:
                passed.append(group)
        return passed

    def _comes_again(self, group: Group, message: _Message) -> bool:
        """Whether a group is to come to a message anew: one that its key blocks, in order; and one that it had too
        early, and gave back, at its instant, for what waits keeps others of its key up, and the group at its limit."""
        reset, view, offset = self._reset, self._view, message.offset
        if reset._shared.is_ordered:
            blocked = rows.of_group(rows.BLOCKED, group.group_id, offset)
            if view.get(blocked) is not None:
                view.delete(blocked)
                return True
        if group.unready(self._step, offset):
            return True
        entry = group.holder_of(offset)
        if offset in group.gaps:
            return False  # of an earlier reset, which named it for good
        if not isinstance(entry, Waiting) or max(reset.due_ms(entry), self._state.new_ms + 1) > message.wanted_ms:
            return False
        reset._waiting.part(self._step, group, entry, offset, None)
        return True

    def _move(self, message: _Message, passed: list[Group]) -> LogEntry:
        """Put a message to its new place, with all that groups have of it."""
        view, new_ms, old = self._view, self._state.new_ms, message.offset
        is_done = len(passed) == len(self._groups) > 0 and message.wanted_ms <= new_ms
        at_ms = new_ms if is_done else max(message.wanted_ms, new_ms + 1)
        new = self._reset.next_place(self._step, at_ms)
        for group in passed:
            entry = self._regrouped.take(self._step, group, old, new, message.wanted_ms)
            if entry is not None and entry.kept:
                self._rekey(rows.KEPT, group, old, new)
            if group.dead.total() and (dead := dead_letters.find(group, old, view)) is not None:
                self._rekey(rows.DEAD, group, old, new)
                self._reset._dead.moved(self._step, dead, new)
        self._note_gaps(passed, new)
        self._reset._follow_move(self._step, message.id, new)
        self._count(offsets.deliver_ms(old), at_ms)
        return self._put(message, new)

    def _put(self, message: _Message, new: bytes) -> LogEntry:
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
        key = rows.of_group(tag, group.group_id, old)
        row = self._view.get(key)
        if row is not None:
            self._view.delete(key)
            self._view.put(rows.of_group(tag, group.group_id, new), row)

    def _count(self, old_ms: int, at_ms: int) -> None:
        """Where it stood it is not counted any more, but in the seconds of the new time and beyond the old floor."""
        counts = self._log.counts
        is_counted = not self._state.new_ms // 1000 < old_ms // 1000 <= self._state.old_ms // 1000
        if is_counted and old_ms == at_ms:
            return
        if is_counted:
            counts.add(old_ms, -1)
        counts.add(at_ms, 1)

    def _note_gaps(self, passed: list[Group], offset: bytes) -> None:
        for group in passed:
            if offset > group.cursor and offset not in group.gaps:
                self._gaps.setdefault(group.group_id, []).append(offset)

    def store(self) -> None:
        """Store what concerns several messages."""
        self._regrouped.store(self._step)
        for group_id, found in self._gaps.items():
            self._reset._groups.by_id[group_id].gaps.add(self._step, merged(sorted(found)))


def _is_moved(entry: Waiting) -> bool:
    """Whether the producer of what waits in an entry has moved it there."""
    return entry.made is not None and entry.made.by_move


def _last_of(ms: int) -> bytes:
    """The last place there is at an instant."""
    return offsets.ceiling(max(ms, 0), offsets.U48_MAX)
