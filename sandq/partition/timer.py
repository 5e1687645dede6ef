"""The timer partition: one time-ordered log, any number of groups that lease and ack its messages.

Invariants (the first three carry the promise "never skipped, never early, never leased twice at once"):

* A message is placed at max(its time, `floor_ms`), and `floor_ms` is the greatest of every applied stamp and every
  leased delivery time. With the Raft index behind it in the offset, no insert lands at or below a leased offset.
* A group's cursor is the last leased offset. A lease takes what lies above it in order and leaves nothing out.
* A message at or below the cursor is in one live lease, waits, is dead, or is acked.
* Rows and memory say the same after every entry: a partition loaded from rows goes on exactly as the one that
  wrote them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sandq.model import offsets
from sandq.model.batch import Batch, Column, peek
from sandq.model.errors import InvalidRequest, NotFound
from sandq.model.limits import FIXED

from . import commands as c
from . import rows
from .book import GroupBook
from .delivery import decode_fields
from .groups import Group, Lease
from .rows import LogEntry
from .view import View

_STATE_VERSION = 1

Result = Any
"""Of Append: (base, count) or 16 bytes a message. Lease: [Lease]. Ack, Nack: per item what was lost (`book.Lost`).
Extend: per item the deadline or None. Expire, Release: messages given back. OpenGroup: group id. Trim: whether more
is left. Of any: the SandqError that refused the command."""


@dataclass(frozen=True, slots=True)
class GroupStatus:
    group_id: int
    name: str
    next_ms: int | None
    """When something is next to be leased; None: nothing is there, or the group is paused."""
    paused: str | None


@dataclass(frozen=True, slots=True)
class Status:
    """An immutable copy of what the event loop needs to know."""

    applied_index: int
    now_ms: int
    floor_ms: int
    next_expiry_ms: int | None
    messages: int
    bytes: int
    trim_due: bool
    groups: tuple[GroupStatus, ...]


class TimerPartition:
    def __init__(self, partition: int, settings: dict[str, Any]) -> None:
        self.partition = partition
        self.applied_index = 0
        self.now_ms = 0
        self.floor_ms = 0
        self.clock_epoch = 0
        self.messages = 0
        self.bytes = 0
        self.book = GroupBook(settings)
        self._trimmed = offsets.FIRST
        """Nothing is left in the log at or below this offset."""
        self._trim_due = False

    # -- rows ---------------------------------------------------------------------------------------------------

    def write_state(self, view: View) -> None:
        """Put the state row. The host calls it once for each set of changes it writes."""
        state = (
            _STATE_VERSION,
            self.applied_index,
            self.now_ms,
            self.floor_ms,
            self.clock_epoch,
            self.messages,
            self.bytes,
            self._trimmed,
            self._trim_due,
            self.book.next_group,
            self.book.next_seq,
            self.book.settings,
        )
        view.put(rows.STATE_KEY, rows.pack(*state))

    @classmethod
    def load(cls, partition: int, settings: dict[str, Any], view: View) -> TimerPartition:
        """From rows; `settings` are those of a partition that has none stored yet."""
        self = cls(partition, settings)
        state = view.get(rows.STATE_KEY)
        if state is not None:
            (
                _,
                self.applied_index,
                self.now_ms,
                self.floor_ms,
                self.clock_epoch,
                self.messages,
                self.bytes,
                self._trimmed,
                self._trim_due,
                self.book.next_group,
                self.book.next_seq,
                self.book.settings,
            ) = rows.unpack(state)
            self.book.load(view)
        return self

    # -- what the host asks ---------------------------------------------------------------------------------------

    @property
    def settings(self) -> dict[str, Any]:
        return self.book.settings

    def status(self, view: View) -> Status:
        return Status(
            self.applied_index,
            self.now_ms,
            self.floor_ms,
            self.book.next_expiry_ms(),
            self.messages,
            self.bytes,
            self._trim_due,
            tuple(
                GroupStatus(group.group_id, group.name, _next_ms(group, view), group.paused())
                for group in self.book.groups.values()
            ),
        )

    def next_deadline(self, view: View) -> int | None:
        """The earliest instant (ms) at which something is to be leased or expires."""
        status = self.status(view)
        times = [status.next_expiry_ms, *(group.next_ms for group in status.groups)]
        return min((at for at in times if at is not None), default=None)

    # -- apply ----------------------------------------------------------------------------------------------------

    def apply(self, index: int, entry: c.Entry, view: View) -> list[Result]:
        """Apply a committed entry: one result for each of its commands. An index applied before changes nothing."""
        if index <= self.applied_index:
            return []
        self.now_ms = max(self.now_ms, entry.now_ms)
        self.floor_ms = max(self.floor_ms, self.now_ms)
        place = grants = 0
        results: list[Result] = []
        for command in entry.commands:
            try:
                match command:
                    case c.Append():
                        stored = self._append(index, place, command, view)
                        results.append(stored)
                        place += stored[1] if isinstance(stored, tuple) else len(stored) // offsets.OFFSET_BYTES
                    case c.Lease():
                        leases = self._lease(index, grants, command, view)
                        grants += len(leases)
                        results.append(leases)
                    case _:
                        results.append(self._other(index, place, command, view))
            except (NotFound, InvalidRequest) as refusal:
                results.append(refusal)
        self.applied_index = index
        return results

    def _other(self, index: int, place: int, command: c.Command, view: View) -> Result:
        book, now_ms = self.book, self.now_ms
        match command:
            case c.Ack():
                self._trim_due = self._trim_due or self.settings["delete_on_ack"]
                return [book.ack(token, what, view) for token, what in command.items]
            case c.Nack():
                self._trim_due = self._trim_due or self.settings["delete_on_ack"]
                return [book.nack(item[0], item[1], item[2], item[3], now_ms, view) for item in command.items]
            case c.Extend():
                return [book.extend(token, lease_ms, now_ms, view) for token, lease_ms in command.items]
            case c.Expire():
                self._trim_due = self._trim_due or self.settings["delete_on_ack"]
                return book.expire(now_ms, view)
            case c.Release():
                return book.release(command, now_ms, view)
            case c.OpenGroup():
                # latest: above everything whose time has come, below everything that is still delayed.
                # `place`: what this very entry stored before the command is below, what it stores after is above.
                return book.open_group(command, _just_below(self.floor_ms, index, place), view)
            case c.Trim():
                return self._trim(command.limit, view)
            case c.Configure():
                book.settings = command.settings
        return None

    def _append(self, index: int, place: int, command: c.Append, view: View) -> tuple[bytes, int] | bytes:
        header = peek(command.batch)
        latest_ms = header.max_deliver_ms + (self.now_ms if header.relative else 0)
        if latest_ms <= self.floor_ms:
            base = offsets.pack(self.floor_ms, index, place, self.partition)
            row = rows.batch_row(header.count, self.now_ms, command.batch)
            view.put(rows.log_key(base), row)
            self._added([LogEntry(base, header.count, len(row))])
            return base, header.count
        batch = Batch.parse(command.batch)
        start_ms = self.now_ms if header.relative else 0
        added: list[LogEntry] = []
        asked = batch.int_column(Column.DELIVER_MS)
        assert asked is not None
        for at, (asked_ms, fields) in enumerate(zip(asked, decode_fields(batch), strict=True)):
            placed_ms = min(max(start_ms + (asked_ms or 0), self.floor_ms), offsets.U48_MAX)
            offset = offsets.pack(placed_ms, index, place + at, self.partition)
            stored = rows.message_rows(offset, self.now_ms, fields, None)
            for key, value in stored:
                view.put(key, value)
            added.append(LogEntry(offset, 1, len(stored[-1][1])))
        column = b"".join([entry.first for entry in added])
        added.sort()
        self._added(added)
        return column

    def _added(self, entries: list[LogEntry]) -> None:
        """`entries`: in the order of the log."""
        self.messages += sum([entry.length for entry in entries])
        self.bytes += sum([entry.size for entry in entries])
        for group in self.book.groups.values():
            group.reader.insert(entries)

    def _lease(self, index: int, place: int, command: c.Lease, view: View) -> list[Lease]:
        average_bytes = self.bytes // max(self.messages, 1)
        leases = self.book.lease(index, place, command, self.now_ms, average_bytes, view)
        if leases:
            cursor = self.book.group(command.group).cursor
            self.floor_ms = max(self.floor_ms, offsets.deliver_ms(cursor))
        return leases

    def _trim(self, limit: int, view: View) -> bool:
        """Delete log rows that every group is done with, oldest first. Without groups messages stay."""
        self._trim_due = False
        done_below = self.book.done_below()
        if done_below is None or not self.settings["delete_on_ack"]:
            return False
        limit = min(limit, FIXED.trim_rows)
        # From where the last trim ended: a scan from the log's start would walk over every row deleted so far.
        start = rows.after(rows.log_key(self._trimmed))
        found = view.scan(start, rows.log_key(done_below), limit=limit, max_bytes=rows.TRIM_BYTES)
        for key, value in found:
            entry = rows.log_entry(key, value)
            last = rows.last_of(entry)
            if last >= done_below:
                return False
            view.delete(key)
            if value[0] == rows.KIND_MESSAGE:
                view.delete(rows.PAYLOAD + key[1:])
            self.messages -= entry.length
            self.bytes -= entry.size
            self._trimmed = last
        self._trim_due = bool(found)
        return self._trim_due


def _just_below(deliver_ms: int, index: int, place: int) -> bytes:
    """The greatest offset below everything that is stored at this place or a later one."""
    return (int.from_bytes(offsets.pack(deliver_ms, index, place, 0), "big") - 1).to_bytes(16, "big")


def _next_ms(group: Group, view: View) -> int | None:
    waiting = group.first_waiting()
    times = [waiting.due_ms] if waiting else []
    if group.paused() is None:
        head = group.reader.head(view)
        if head is not None:
            times.append(offsets.deliver_ms(head.first))
    return min(times, default=None)
