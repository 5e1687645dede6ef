"""The log of a partition: finds messages, and cancels, moves and rewrites them while they are pending. `appends` stores
new messages. `trim` deletes messages that are no longer needed.

A message in a batch row is removed by a tombstone. A message in a row of its own is removed by deleting the row. If the
message is below the closed time, it also gets a tombstone, so that a reader can see the change of history.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sandq.model import offsets
from sandq.model.batch import Column
from sandq.partition.base import rows
from sandq.partition.base.expiring_rows import CANCEL_MEMORY_MS, ExpiringRows
from sandq.partition.base.garbage import Garbage
from sandq.partition.base.rows import Fields, LogEntry, Range
from sandq.partition.base.step import Step
from sandq.partition.base.view import Bounds, Row, View
from sandq.partition.groups.group_state import GroupState
from sandq.partition.groups.ownership import Ownership
from sandq.partition.groups.renewal import Change
from sandq.partition.groups.unique_keys import (
    Named,
    UniqueKeys,
)
from sandq.partition.log.counts import Counts
from sandq.partition.log.trim_schedule import TrimSchedule
from sandq.partition.reader import overlays
from sandq.partition.reader.pieces import (
    AS_PLACED,
    Message,
    MessageReader,
    Wanted,
    load_kept,
    load_message,
)
from sandq.partition.reader.reader import FILL_TOMBSTONES, find_row, gap_around, tombstones, without
from sandq.partition.records.leases import Made
from sandq.partition.shared_state import LogState, SharedState

CANCELLED, MOVED = "cancelled", "moved"
"""Reasons in tombstones."""
THIN_LOOKS = 16
"""Approximate number of times that the remaining messages of a batch row are counted while its messages are removed.
All replicas must decide alike: a change of this number, of `_causes_count` or of `_thin_out` requires a new feature
level.
"""
THIN_BYTES = 8 << 20
"""The rest of a batch row is split into single-message rows only if its updated fields have at most this many bytes,
because the split reads them all at once."""
LARGE_ROW_BYTES = 1 << 16
"""Minimum size in bytes of a row next to which look-ups of missing rows are worth avoiding."""


class Found(NamedTuple):
    """A message in the log."""

    offset: bytes
    id: bytes
    key: bytes
    """Key of its row."""
    value: bytes
    """Value of the message's row. For a batch row, only the header."""
    size: int
    """Size of its row's value, in bytes."""
    moves: int = 0
    moved_ms: int | None = None

    @property
    def alone(self) -> bool:
        """Whether the message is in a row of its own."""
        return self.value[0] == rows.KIND_MESSAGE

    @property
    def length(self) -> int:
        """Number of messages in the message's row."""
        length: int = rows.LOG_HEADER.unpack_from(self.value)[2]
        return length

    def holds(self, offset: bytes) -> bool:
        """Return whether the batch row that begins with this message contains another message."""
        behind = offsets.distance(self.offset, offset)
        return behind is not None and 0 <= behind < self.length

    def look_up(self, tag: bytes, offset: bytes, view: View) -> bytes | None:
        """Return the row `tag + offset` for a message of the batch row that begins with this message."""
        if self.size < LARGE_ROW_BYTES:
            return view.get(tag + offset)
        return view.get_ahead(tag + offset, rows.after(tag + offsets.shift(self.offset, self.length - 1)))


class Kept(NamedTuple):
    """A message that is no longer in the log, but that some group keeps in a row of the group."""

    offset: bytes
    id: bytes
    row: bytes
    moves: int
    """Number of times that the producer moved the message."""


class MessageLog:
    def __init__(
        self,
        *,
        partition: int,
        shared: SharedState,
        state: LogState,
        reader: MessageReader,
        group_state: GroupState,
        unique: UniqueKeys,
        expiring_rows: ExpiringRows,
        trim_schedule: TrimSchedule,
        ownership: Ownership,
    ) -> None:
        self.partition = partition
        self.state = state
        self.reader = reader
        self.counts = Counts()
        self.garbage = Garbage()
        self._shared = shared
        self._groups = group_state.groups
        self._unique = unique
        self._expiring_rows = expiring_rows
        self._trim_schedule = trim_schedule
        self._kept = group_state.kept
        self._ownership = ownership
        self._batch_row: Found | None = None
        """The first message of the batch row that was found last.

        Cached because messages that are cancelled or moved together are usually in one batch row, which may be
        large."""
        self.gap: Bounds = b"", b""
        """Gap between two log rows of an entry, in which a message was searched last. The first of these rows is large.

        The gap contains no messages, and only the same entry could add some. So the next search in it need not read the
        large row again.
        """

    # -- storing --------------------------------------------------------------------------------------------------

    def put(
        self, step: Step, offset: bytes, created_ms: int, fields: Fields, light: Fields, *, is_delay: bool = False
    ) -> LogEntry:
        """Put a new message into a log row of its own, and return its entry. The caller calls `note_added`."""
        view = step.view
        stored, entry = rows.message_rows(offset, created_ms, fields, None, light, is_delay=is_delay)
        for key, value in stored:
            view.put(key, value)
        return entry

    def _needed_of(self, fields: Fields, wanted_ms: int | None) -> Fields:
        """Return the columns of a message that the log needs. `wanted_ms`: as in `rows.needed_of`."""
        shared = self._shared
        return rows.needed_of(fields, shared.is_ordered, wanted_ms, key_digest=shared.name_digest(fields))

    def note_added(self, entries: list[LogEntry]) -> None:
        """Update numbers and readers for new entries, which must be in log order."""
        self.gap = b"", b""
        self.state.messages += sum([entry.length for entry in entries])
        self.state.bytes += sum([entry.size for entry in entries])
        if entries:
            for group in self._groups.by_id.values():
                group.reader.insert(entries)
                group.note_log_change(entries[0].first)

    # -- lookups --------------------------------------------------------------------------------------------------

    def find(self, message_id: bytes, view: View) -> Found | None:
        """Return the message with this id, at its current offset. None if it is not in the log."""
        batch = self._batch_row
        if batch is not None and batch.holds(message_id):
            moved = batch.look_up(rows.MOVED, message_id, view)
        else:
            moved = view.get(rows.MOVED + message_id)
        offset, moves, moved_ms, _ = rows.load_moved(moved) if moved is not None else rows.Moved(message_id)
        if batch is None or not batch.holds(offset):
            key = rows.log_key(offset)
            value = view.get(key)
            if value is None:
                if self.gap[0] < offset < self.gap[1]:
                    return None
                row, size = find_row(view, offset)
                if row is None:
                    if size >= LARGE_ROW_BYTES:
                        self.gap = gap_around(view, offset)
                    return None
                key, value = row
            if value[0] == rows.KIND_MESSAGE:
                if moved is None:
                    # The caller gave the offset to which the message was moved, instead of its id.
                    message_id = rows.id_of(key, value)
                    if message_id != offset:
                        return self.find(message_id, view)
                return Found(offset, message_id, key, value, len(value), moves, moved_ms)
            batch = self._batch_row = Found(key[1:], key[1:], key, value[: rows.LOG_HEADER.size], len(value))
        if batch.look_up(rows.TOMBSTONE, offset, view) is not None:
            return None
        return Found(offset, message_id, batch.key, batch.value, batch.size, moves, moved_ms)

    def find_named(
        self, unique_key: bytes, tenant: bytes | None, key: bytes | None, now_ms: int, view: View
    ) -> Named | None:
        """Return the message that a unique key belongs to, or None if the key is free. `tenant`: None stands for
        `default`. `key`: the key within which the unique key is unique; None if the message has no key."""
        if key is None:
            return self._unique.find(unique_key, tenant, now_ms, view)
        if not self._shared.has_keyed_names:
            return self._unique.find(unique_key, tenant, now_ms, view) if key == unique_key else None
        return self.find_keyed(unique_key, key, rows.key_digest(key), now_ms, view)

    def find_keyed(self, unique_key: bytes, key: bytes, digest: bytes, now_ms: int, view: View) -> Named | None:
        """Return the message that a unique key belongs to within the key with this digest. None if the unique key is
        free."""
        return self._unique.find(unique_key, None, now_ms, view, key_digest=digest)

    def find_owned(self, message_id: bytes, view: View) -> Found | Kept | None:
        """Return the message with this id, from the log or from a row of a group. None if neither has it."""
        found = self.find(message_id, view)
        if found is not None:
            return found
        moved = view.get(rows.MOVED + message_id)
        offset = rows.load_moved(moved).offset if moved is not None else message_id
        row = None if view.get(rows.TOMBSTONE + offset) is not None else self._kept.any_row(offset, view)
        if row is None:
            return None
        first_id = rows.load_kept(row).id
        if first_id != message_id:
            moved = view.get(rows.MOVED + first_id)  # the caller gave the offset to which it was moved
        return Kept(offset, first_id, row, rows.load_moved(moved).moves if moved is not None else 0)

    def is_pending(self, offset: bytes, view: View) -> bool:
        """Return whether the message may be cancelled and moved: every group has yet to make its first attempt."""
        groups = self._groups.by_id.values()
        return all(group.is_pending(offset, view) and not group.is_reviving(offset, view) for group in groups)

    def load(self, found: Found, view: View) -> Message:
        """Return the message with its fields."""
        if found.alone:
            return load_message(view, found.offset, found.value)
        return next(self.reader.messages(view, [Range(found.offset, 1)]))

    # -- removing -------------------------------------------------------------------------------------------------

    def cancel(self, step: Step, found: Found | Kept, *, remember: bool = True, frees_key: bool = True) -> None:
        """Cancel a message that its producer may change. `remember`: keep a tombstone for a while, so that a repeated
        cancel gets the same reply. `frees_key`: free its unique key; otherwise the caller gives the key to another
        message."""
        if isinstance(found, Kept):
            self._cancel_kept(step, found, remember, frees_key)
            return
        entry = self.entry_of(found)
        self._shared.totals.cancelled += 1
        self._take_out(step, found, entry, CANCELLED, remember=remember)
        if found.alone and rows.is_apart(found.value):
            step.view.delete(rows.PAYLOAD + found.id)
        if entry.extra is not None and frees_key:
            self._unique.mark_cancelled(step, entry.extra)
        if found.moves:
            # The MOVED row leads a repeated cancel to the tombstone.
            fields = (found.offset, found.moves, found.moved_ms)
            self._expiring_rows.put(step, rows.MOVED + found.id, step.now_ms + CANCEL_MEMORY_MS, *fields)

    def _cancel_kept(self, step: Step, kept: Kept, remember: bool, frees_key: bool) -> None:
        """Cancel a message that only groups keep."""
        entry = rows.kept_entry(kept.offset, kept.row)
        self._shared.totals.cancelled += 1
        assert entry.extra is not None
        if frees_key:
            self._unique.mark_cancelled(step, entry.extra)
        self._ownership.take_back(step, kept.offset)
        if remember:
            key, until_ms = rows.TOMBSTONE + kept.offset, step.now_ms + CANCEL_MEMORY_MS
            self._expiring_rows.put(step, key, until_ms, CANCELLED, step.now_ms)
            step.view.has_tombstones = True
        self._expiring_rows.expire_move(step, kept.id)

    def move(
        self,
        step: Step,
        found: Found | Kept,
        to_ms: int,
        position: int,
        *,
        is_delay: bool = False,
        priority: int | None = None,
    ) -> bytes:
        """Change the delivery time of a pending message. Return its new offset.

        The message keeps its id and its payload row. `position`: position in the entry, which makes the offset unique.
        `is_delay`: the time was given as a delay. `priority`: the new priority; None: unchanged.
        """
        offset = offsets.pack(min(max(to_ms, step.floor_ms), offsets.U48_MAX), step.index, position, self.partition)
        wanted = Wanted.of(to_ms, offsets.deliver_ms(offset), is_delay)
        news: Fields = {} if priority is None else {Column.PRIORITY: priority}
        if isinstance(found, Kept):
            message = load_kept(found.offset, found.row)
            entry = self.put_anew(step, offset, found.id, message.created_ms, message.fields | news, wanted)
            self._ownership.take_back(step, found.offset)
        else:
            entry = self._move_logged(step, found, offset, wanted, news)
        step.view.put(rows.MOVED + found.id, rows.pack(offset, found.moves + 1, step.stamp_ms, None))
        self.counts.add(offsets.deliver_ms(offset), 1)
        self.note_added([entry])
        self._shared.totals.moved += 1
        return offset

    def delay(self, step: Step, found: Found | Kept, to_ms: int, *, is_delay: bool = False) -> bytes:
        """Change the time of a message that waits in all groups, to its delivery time or later. Return its offset,
        which stays the same. `is_delay`: as in `move`."""
        due_ms = max(to_ms, step.now_ms, offsets.deliver_ms(found.offset))
        from_ms = step.stamp_ms if is_delay else 0
        made = Made(from_ms, min(max(to_ms - from_ms, 0), offsets.U48_MAX), by_move=True)
        self._ownership.delay(step, found.offset, min(due_ms, offsets.U48_MAX), made)
        self._shared.totals.moved += 1
        return found.offset

    def rank_waiting(self, step: Step, found: Found | Kept, priority: int) -> None:
        """Change the priority of a message that waits in all groups."""
        self._ownership.rank(step, found.offset, Change(priority), self.reader)

    def put_anew(
        self, step: Step, offset: bytes, message_id: bytes | None, created_ms: int, fields: Fields, wanted: Wanted
    ) -> LogEntry:
        """Put a message with this id (None: its offset) into a log row of its own."""
        view = step.view
        light = self._needed_of(fields, wanted.ms)
        stored, entry = rows.message_rows(offset, created_ms, fields, message_id, light, is_delay=wanted.is_delay)
        for key, value in stored:
            view.put(key, value)
        self._shared.note_copied(entry.size)
        return entry

    def _move_logged(self, step: Step, found: Found, offset: bytes, wanted: Wanted, news: Fields) -> LogEntry:
        """Move a message to another offset in the log. `news`: fields that change."""
        old = self.entry_of(found)
        value, stays = found.value, not news
        if found.alone and news and self.is_ranked_apart(found):
            value, stays = rows.ranked_row(value, news[Column.PRIORITY]), True
        if found.alone and stays:
            row = rows.moved_row(value, found.id, wanted.ms, is_delay=wanted.is_delay)
            step.view.put(rows.log_key(offset), row)
            entry = rows.log_entry(rows.log_key(offset), row)
        else:
            message = self.load(found, step.view)
            entry = self.put_anew(step, offset, found.id, message.created_ms, message.fields | news, wanted)
        self._take_out(step, found, old, MOVED, remember=False)
        return entry

    def rewrite(self, step: Step, found: Found, change: Change) -> LogEntry:
        """Apply a change to a message that has a row of its own, and return its entry."""
        view = step.view
        old, message = self.entry_of(found), self.load(found, view)
        message_id = None if found.id == found.offset else found.id
        fields, wanted = change.apply(message.fields), message.wanted or AS_PLACED
        entry = self.put_anew(step, found.offset, message_id, message.created_ms, fields, wanted)
        written = view.get(found.key)
        assert written is not None
        if rows.is_apart(found.value) and not rows.is_apart(written):
            view.delete(rows.PAYLOAD + found.id)
        self.state.bytes += entry.size - old.size
        return entry

    def is_ranked_apart(self, found: Found) -> bool:
        """Return whether the priority of a message can change without rewriting its payload."""
        return found.alone and rows.is_apart(found.value)

    def delete_row(self, step: Step, key: bytes, size: int, batch: int = 0) -> None:
        """Delete a log row of about `size` bytes. `batch`: number of its messages if it is a batch row, otherwise 0."""
        step.view.delete(key)
        if batch:
            self.state.bytes -= overlays.drop(step, key[1:], batch)
        self.garbage.deleted(key, size)
        if self._batch_row is not None and self._batch_row.key == key:
            self._batch_row = None

    def delete_rows(self, step: Step, found: Sequence[Row]) -> None:
        """Delete single-message rows, which must be in order."""
        step.view.delete_all([key for key, _ in found])
        self.garbage.deleted_all(found[0][0], found[-1][0], len(found), sum([len(value) for _, value in found]))

    def uncount(self, offset: bytes, count: int) -> None:
        """Subtract deleted messages at one offset from all counts. Every group has passed them. The caller stores the
        groups."""
        self.counts.add(offsets.deliver_ms(offset), -count)
        for group in self._groups.by_id.values():
            if group.reader.passed is not None:
                group.reader.passed -= count
            group.reader.uncount(offset, count)

    def drop_tombstone(self, step: Step, offset: bytes) -> None:
        """Delete a tombstone when the log is trimmed beyond it. Keep the tombstone of a cancel until `CANCEL_MEMORY_MS`
        has passed."""
        key = rows.TOMBSTONE + offset
        row = step.view.get(key)
        assert row is not None
        why, at_ms, forgotten_ms = rows.load_tombstone(row)
        if why == CANCELLED and at_ms + CANCEL_MEMORY_MS > step.now_ms:
            if forgotten_ms is None:
                self._expiring_rows.put(step, key, at_ms + CANCEL_MEMORY_MS, why, at_ms)
        else:
            step.view.delete(key)

    def entry_of(self, found: Found) -> LogEntry:
        """Return the log entry of a message."""
        if found.alone:
            return rows.log_entry(found.key, found.value)
        return LogEntry(found.offset, 1, rows.batch_entry(found.key[1:], found.length, found.size).unit)

    def _take_out(self, step: Step, found: Found, entry: LogEntry, why: str, *, remember: bool) -> None:
        """Remove a pending message from the log and from all groups. `why`: reason in its tombstone.

        `remember`: put a tombstone for a while, even if no reader needs one."""
        view, now_ms = step.view, step.now_ms
        offset = found.offset
        for group in self._ownership.take_back(step, offset):
            if offset <= group.cursor:
                group.reader.uncount(offset)
            self._groups.store(step, group)
        if found.length == 1:
            self.delete_row(step, found.key, found.size, 0 if found.alone else 1)
        else:
            self.state.bytes -= overlays.drop(step, offset, 1)
        if not found.alone or offsets.deliver_ms(offset) <= step.floor_ms:
            view.put(rows.TOMBSTONE + offset, rows.pack(why, now_ms, None))
            view.has_tombstones = True
            self._trim_schedule.note_settled(step)
        elif remember:
            self._expiring_rows.put(step, rows.TOMBSTONE + offset, now_ms + CANCEL_MEMORY_MS, why, now_ms)
            view.has_tombstones = True
        self.counts.add(offsets.deliver_ms(offset), -1)
        self.state.messages -= 1
        self.state.bytes -= entry.size
        for group in self._groups.by_id.values():
            if offset > group.cursor:
                group.reader.remove(offset)
                group.note_log_change(offset)
                continue
            group.note_change()
            if group.reader.passed is not None:
                group.reader.passed -= 1  # the group had passed it, perhaps ahead of its second
            if offset in group.order.blocked:
                group.order.remove(offset)
                view.delete(rows.of_group(rows.BLOCKED, group.group_id, offset))
        if not found.alone and found.length > 1 and offsets.deliver_ms(offset) > step.floor_ms and _causes_count(found):
            self._thin_out(step, found)

    def _thin_out(self, step: Step, taken: Found) -> None:
        """Split the rest of a batch row into single-message rows, once half of its messages are removed. Otherwise the
        removed messages would take up space until the delivery time of the batch."""
        view = step.view
        first, length = taken.key[1:], taken.length
        last = offsets.shift(first, length - 1)
        gone = tombstones(view, first, last, FILL_TOMBSTONES)
        if 2 * len(gone) < length or overlays.size_between(view, first, length) > THIN_BYTES:
            return
        if self._shared.is_budget_spent:
            return  # the next removals check the row again
        entry = rows.batch_entry(first, length, taken.size)
        left = [Range(part.first, part.length) for part in without(entry, gone)]
        messages = list(self.reader.messages(view, left, timed=True))
        # Delete the batch row first, because the first message's row has the same key.
        self.delete_row(step, taken.key, taken.size, length)
        self.reader.forget(first)
        self.state.bytes -= entry.size - len(gone) * entry.unit
        put_bytes = 0
        for one in self._shared.in_slices(messages):
            wanted_ms, is_delay = one.wanted or AS_PLACED
            light = self._needed_of(one.fields, wanted_ms)
            put_bytes += self.put(step, one.offset, one.created_ms, one.fields, light, is_delay=is_delay).size
        self.state.bytes += put_bytes
        self._shared.note_copied(put_bytes, length)  # the batch may have been compressed
        for offset in self._shared.in_slices(gone):
            self.drop_tombstone(step, offset)
        for group in self._groups.by_id.values():
            if first <= group.reader.covered:
                group.reader.drop_cache(last)
            group.note_log_change(first)


def _causes_count(taken: Found) -> bool:
    """Return whether to count the remaining messages of a batch row after this message was removed. About `THIN_LOOKS`
    messages of a batch cause a count. They are spread evenly over the batch, so the order of removals does not
    matter."""
    place = offsets.unpack(taken.offset).place
    return place * 0x9E3779B1 % (1 << 32) * taken.length < THIN_LOOKS << 32
