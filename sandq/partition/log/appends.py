"""Appends to the log. A producer's batch becomes one batch row, or a row per message.

If the unique key of a message is taken, the message is rejected, ignored, or replaces the other message.
"""

from __future__ import annotations

from typing import NamedTuple

from sandq.model import offsets
from sandq.model.batch import Batch, Column, Header, peek
from sandq.partition import commands as c
from sandq.partition.base import rows
from sandq.partition.base.rows import Fields, LogEntry
from sandq.partition.base.step import Step
from sandq.partition.groups.group_state import GroupState
from sandq.partition.groups.ownership import Ownership
from sandq.partition.groups.unique_keys import (
    ATTEMPTED,
    CANCELLED,
    HELD,
    IGNORED,
    REFUSED,
    REPLACES,
    Named,
    Sender,
    Throttled,
    UniqueKeys,
    claimed_state,
    is_replaceable,
    resolve_conflict,
    resolve_throttled,
    state_of,
)
from sandq.partition.log.message_log import Found, Kept, MessageLog
from sandq.partition.reader.pieces import (
    AS_PLACED,
    FROM_STAMP,
    Wanted,
    decode_fields,
    values_alone,
    wanted_each,
    wanted_times,
)
from sandq.partition.reader.reader import AT_HAND_BYTES
from sandq.partition.ready import queue_keys
from sandq.partition.shared_state import SharedState

TOLD_REPLACED, TOLD_STORED, TOLD_IGNORED = "replaced", "stored", "ignored"
"""Outcomes of a message that was not rejected although its unique key was taken. REPLACED: the other message was
cancelled. STORED: both are stored, because the other message could no longer be cancelled. IGNORED: the new message was
not stored."""
PART_MESSAGES = 2048
"""Number of messages with rows of their own, after which appending yields."""
WHOLE_MESSAGES = 8
"""A batch with a single future delivery time becomes one row if it has at least this many messages. Fewer messages get
rows of their own, in which they are cheaper to cancel and move. All replicas must use the same number: changing it
requires a new feature level."""


class Stored(NamedTuple):
    """The result for a batch whose messages were stored one by one.

    `offsets`: 16 bytes per message: its offset, or the id of the message that has its unique key. `refused`: (position
    in the batch, state of the other message: delayed, ready, delivered).
    """

    offsets: bytes
    refused: list[tuple[int, str]]
    outcomes: list[tuple[int, str, bytes | str]] | None = None
    """For messages that were not rejected although their unique keys were taken: (position, outcome, id of the replaced
    message or state of the other message). None if the producer chose to reject such messages."""

    @property
    def count(self) -> int:  # type: ignore[override]  # hides tuple.count, which is not used here
        """Number of messages of the batch."""
        return len(self.offsets) // offsets.OFFSET_BYTES


class _Resolved(NamedTuple):
    """The decision about a message whose unique key is taken."""

    stays: bytes | None = None
    """Id of the other message, which stays instead of the new one. None if the new message is stored."""
    refused: str | None = None
    """State of the other message. None unless the new message is rejected."""
    outcome: tuple[str, bytes | str] | None = None
    """See `Stored.outcomes`."""
    start_ms: int | None = None
    """Start of the series or of the window that the new message belongs to, in ms. None if it begins one."""


class Appends:
    """Stores batches of producers, and messages of the partition itself."""

    def __init__(
        self, shared: SharedState, group_state: GroupState, log: MessageLog, unique: UniqueKeys, ownership: Ownership
    ) -> None:
        self._shared = shared
        self._groups = group_state.groups
        self._ttl = group_state.ttl
        self.partition = log.partition
        self._log = log
        self._unique = unique
        self._ownership = ownership

    def append(self, step: Step, command: c.Append) -> tuple[bytes, int] | Stored:
        """Store a producer's batch, as one row if possible. Return (first offset, count), or a `Stored`."""
        header = peek(command.batch)
        self._shared.totals.stored_bytes += len(command.batch)
        stamp_ms = step.stamp_ms
        moment_ms = None if command.split else moment_of(header, stamp_ms, step.floor_ms)
        is_row = moment_ms == step.floor_ms or self._is_row_of_its_own(header.count)
        if moment_ms is not None and is_row and self._is_ranked_alike(command.batch):
            base = offsets.pack(moment_ms, step.index, step.take_positions(header.count), self.partition)
            row = rows.batch_row(header.count, stamp_ms, command.batch)
            step.view.put(rows.log_key(base), row)
            self._log.counts.add(moment_ms, header.count)
            self._log.note_added([rows.batch_entry(base, header.count, len(row))])
            self._shared.totals.stored += header.count
            return base, header.count
        return self._append_each(step, command)

    def _is_row_of_its_own(self, count: int) -> bool:
        """Return whether a batch with a single future delivery time becomes one row."""
        return count >= WHOLE_MESSAGES

    def _is_ranked_alike(self, batch: bytes) -> bool:
        """Return whether all messages of a batch belong to one ready queue, or messages are not ranked. Messages of
        different queues are leased one by one in any order, which is slower from a shared row."""
        rank = self._shared.rank
        return rank is None or queue_keys.is_one(rank, batch)

    def _append_each(self, step: Step, command: c.Append) -> Stored:
        """Store the messages of a batch in rows of their own."""
        yield_now, stamp_ms = self._shared.yield_now, step.stamp_ms
        batch = Batch.parse(command.batch)
        yield_now()
        wanted_ms = wanted_times(batch, stamp_ms)
        position = step.take_positions(batch.count)
        times, column = _placed(wanted_ms, step.index, position, self.partition, step.floor_ms)
        yield_now()
        wanted = wanted_each(batch, stamp_ms, wanted_ms, times)
        yield_now()
        if command.split:
            messages = decode_fields(batch)
            yield_now()
            refused, outcomes = self._append_special(step, column, messages, wanted, command)
            return Stored(b"".join(column), refused, outcomes if command.on_conflict != c.REJECT else None)
        else:
            self._append_plain(step, column, batch, wanted)
            self._log.counts.add_each(times)
            self._shared.totals.stored += batch.count
        return Stored(b"".join(column), [])

    def _append_plain(self, step: Step, column: list[bytes], batch: Batch, wanted: list[Wanted] | None) -> None:
        """Store messages for which the log needs no columns."""
        values = values_alone(batch)
        messages = decode_fields(batch) if values is None else []
        self._shared.yield_now()
        for start in range(0, len(column), PART_MESSAGES):
            part = slice(start, start + PART_MESSAGES)
            its_values = None if values is None else values[part]
            its_wanted = None if wanted is None else wanted[part]
            self._append_part(step, column[part], messages[part], its_values, its_wanted)
            self._shared.yield_now()

    def _append_part(
        self,
        step: Step,
        column: list[bytes],
        messages: list[Fields],
        values: list[bytes] | None,
        wanted: list[Wanted] | None,
    ) -> None:
        """Store a part of a batch. `values`: replaces `messages` if these have only a value."""
        stamp_ms = step.stamp_ms
        kinds = {AS_PLACED} if wanted is None else _different(wanted)
        stored = None
        if kinds <= {AS_PLACED} or kinds <= {FROM_STAMP}:
            is_delay = kinds == {FROM_STAMP}
            if values is not None:
                stored = rows.value_rows(column, stamp_ms, values, is_delay=is_delay)
            else:
                stored = rows.plain_rows(column, stamp_ms, messages, is_delay=is_delay)
        if stored is None:
            if values is not None:
                messages = [{Column.VALUE: value} for value in values]
            added = [
                self._log.put(
                    step, offset, stamp_ms, fields, rows.needed_of({}, False, each.ms), is_delay=each.is_delay
                )
                for offset, fields, each in zip(column, messages, wanted or [AS_PLACED] * len(column), strict=True)
            ]
            added.sort(key=_first)
            self._log.note_added(added)
            return
        step.view.put_all(stored)
        self._log.state.messages += len(stored)
        self._log.state.bytes += sum([len(row) for _, row in stored])
        groups = self._groups.by_id.values()
        # Readers need the entries only of messages near them; most messages are far ahead of all readers.
        near = max([group.reader.covered for group in groups], default=offsets.FIRST)
        added = rows.plain_entries([row for row in stored if row[0][1:] <= near], AT_HAND_BYTES)
        added.sort(key=_first)
        if added:
            for group in groups:
                group.reader.insert(added)
                group.note_log_change(added[0].first)

    def _append_special(
        self, step: Step, column: list[bytes], messages: list[Fields], wanted: list[Wanted] | None, command: c.Append
    ) -> tuple[list[tuple[int, str]], list[tuple[int, str, bytes | str]]]:
        """Store messages one by one, because a message may replace an earlier one of the same batch. Return (rejected
        messages, outcomes).

        If a message is not stored, replace its offset in `column` by the id of the message that has its unique key.
        """
        view, now_ms = step.view, step.now_ms
        refused: list[tuple[int, str]] = []
        outcomes: list[tuple[int, str, bytes | str]] = []
        is_keyed = self._shared.has_keyed_names
        for at, fields in enumerate(self._shared.in_slices(messages)):
            offset = column[at]
            unique_key = fields.get(Column.UNIQUE_KEY)
            digest, its_wanted = None, AS_PLACED if wanted is None else wanted[at]
            if unique_key is not None:
                sender = (*command.numbers, at) if command.producer_id else None
                tenant = fields.get(Column.TENANT)
                key = fields.get(Column.KEY) if is_keyed else None
                if key is None:
                    named = self._unique.find(unique_key, tenant, now_ms, view)
                else:
                    digest = rows.key_digest(key)
                    named = self._log.find_keyed(unique_key, key, digest, now_ms, view)
                stays = start_ms = None
                if named is not None:
                    stays, state, outcome, start_ms = self._resolve_conflict(step, named, command, sender)
                    refused += [(at, state)] if state is not None else []
                    outcomes += [(at, *outcome)] if outcome is not None else []
                if stays is not None:
                    column[at] = stays
                    continue
                marks = _marks_of(step, command, start_ms)
                offset, its_wanted = _timed(step, command, offset, its_wanted, marks)
                column[at] = offset
                self._unique.hold(step, unique_key, tenant, offset, sender, key_digest=digest, marks=marks)
            self._store_one(step, offset, fields, its_wanted, digest)
        return refused, outcomes

    def _store_one(
        self, step: Step, offset: bytes, fields: Fields, wanted: Wanted, key_digest: bytes | None = None
    ) -> None:
        """Store one message in a row of its own, and update the counts."""
        light = rows.needed_of(fields, self._shared.is_ordered, wanted.ms, key_digest=key_digest)
        self._ttl.any_own = self._ttl.any_own or Column.TTL_MS in light
        self._log.counts.add(offsets.deliver_ms(offset), 1)
        self._shared.totals.stored += 1
        self._log.note_added([self._log.put(step, offset, step.stamp_ms, fields, light, is_delay=wanted.is_delay)])

    def store(self, step: Step, fields: Fields, at_ms: int) -> bytes:
        """Store a message of the partition itself, without a unique key, for delivery at `at_ms`. Return its id."""
        placed_ms = min(max(at_ms, step.floor_ms), offsets.U48_MAX)
        offset = offsets.pack(placed_ms, step.index, step.next_position(), self.partition)
        self._store_one(step, offset, fields, Wanted.of(at_ms, placed_ms, is_delay=False))
        return offset

    def append_one(self, step: Step, offset: bytes, fields: Fields) -> None:
        """Store a message in a row of its own, at an offset above all others."""
        self._log.counts.add(offsets.deliver_ms(offset), 1)
        self._shared.totals.stored += 1
        self._log.note_added([self._log.put(step, offset, step.now_ms, fields, {})])

    def _resolve_conflict(self, step: Step, named: Named, command: c.Append, sender: Sender | None) -> _Resolved:
        """Decide about a message whose unique key is taken. If the decision is to replace the other message, cancel
        that message."""
        on_conflict, is_itself = command.on_conflict, sender is not None and named.sender == sender
        owned = self._log.find_owned(named.id, step.view)
        claim = None if owned is None else self._ownership.claim(owned.offset, step.view)
        state = claimed_state(None if owned is None else owned.offset, claim, step.now_ms)
        stored_too = _Resolved(outcome=(TOLD_STORED, state) if on_conflict in (c.REPLACE, c.DEBOUNCE) else None)
        if command.window_ms is not None and named.window is not None and not is_itself:
            throttled = resolve_throttled(named.window, command, step.now_ms, is_free=is_replaceable(named, claim))
            return self._throttle(step, named, owned, state, throttled)
        # If every group has passed the other message, only `dedup_window` can still reserve its unique key.
        is_over = named.state == ATTEMPTED and not is_itself and not (claim is not None and claim.pending)
        if is_over and not self._unique.end_attempted(step, named):
            return stored_too  # dedup_window is zero
        resolution = resolve_conflict(named, claim, on_conflict, sender)
        if resolution == REFUSED:
            if on_conflict == c.REPLACE_PENDING or (on_conflict == c.REPLACE and claim is not None):
                return _Resolved(named.id, state)
            pending_at = owned.offset if owned is not None and named.state == HELD else None
            return _Resolved(named.id, state_of(pending_at, step.now_ms))
        if resolution == IGNORED:
            return _Resolved(named.id, outcome=None if is_itself else (TOLD_IGNORED, state))
        if resolution == REPLACES and owned is not None:
            self._log.cancel(step, owned, remember=False, frees_key=False)
            first_ms = named.first_ms if on_conflict == c.DEBOUNCE else None
            return _Resolved(outcome=(TOLD_REPLACED, owned.id), start_ms=first_ms)
        return _Resolved() if named.state == CANCELLED else stored_too

    def _throttle(
        self, step: Step, named: Named, owned: Found | Kept | None, state: str, throttled: Throttled
    ) -> _Resolved:
        """Carry out the decision about a throttled message. `owned`, `state`: the message that has the key."""
        resolution, start_ms = throttled
        if resolution == IGNORED:
            if named.window is not None and start_ms != named.window.start_ms:
                self._unique.set_start(step, named, start_ms)
            return _Resolved(named.id, outcome=(TOLD_IGNORED, state))
        if resolution == REPLACES and owned is not None:
            self._log.cancel(step, owned, remember=False, frees_key=False)
            return _Resolved(outcome=(TOLD_REPLACED, owned.id), start_ms=start_ms)
        return _Resolved(outcome=(TOLD_STORED, state), start_ms=start_ms)


def _marks_of(step: Step, command: c.Append, start_ms: int | None) -> tuple[int, ...]:
    """Return the fields that the row of a unique key gets because of the rule of its message. `start_ms`: as in
    `_Resolved`."""
    if command.window_ms is not None:
        return step.now_ms if start_ms is None else start_ms, command.window_ms
    if command.on_conflict == c.DEBOUNCE:
        return (step.stamp_ms if start_ms is None else start_ms,)
    return ()


def _timed(step: Step, command: c.Append, offset: bytes, own: Wanted, marks: tuple[int, ...]) -> tuple[bytes, Wanted]:
    """Return the offset and the requested time of a message, changed as the rule of its unique key demands. `own`: its
    own requested time. `marks`: the result of `_marks_of`."""
    own_ms = offsets.deliver_ms(offset)
    if command.on_conflict == c.DEBOUNCE and command.span_ms is not None:
        wanted_ms = marks[0] + command.span_ms
        if (own_ms if own.ms is None else own.ms) <= wanted_ms:
            return offset, own
        placed_ms = max(wanted_ms, step.floor_ms)
    elif command.on_conflict == c.THROTTLE_BOTH and marks and marks[0] > own_ms:
        # Windows count by the time of the partition, but a delay counts from the stamp, also in a clock reset.
        placed_ms = marks[0]
        wanted_ms = step.stamp_ms + placed_ms - step.now_ms
    else:
        return offset, own
    return offsets.at_time(offset, placed_ms), Wanted.of(wanted_ms, placed_ms, is_delay=True)


def moment_of(header: Header, stamp_ms: int, floor_ms: int) -> int | None:
    """Return the delivery time of all messages of a batch, in ms. None if they have different times."""
    start_ms = stamp_ms if header.relative else 0
    asked = header.min_deliver_ms, header.max_deliver_ms
    first_ms, last_ms = [min(max(start_ms + at_ms, floor_ms), offsets.U48_MAX) for at_ms in asked]
    return last_ms if first_ms == last_ms else None


def placed_each(
    batch: Batch, index: int, position: int, partition: int, stamp_ms: int, floor_ms: int
) -> tuple[list[int], list[bytes]]:
    """Return (times, offsets) of the messages of a batch. `position`: position of the first message in the log
    entry."""
    return _placed(wanted_times(batch, stamp_ms), index, position, partition, floor_ms)


def _placed(
    wanted: list[int], index: int, position: int, partition: int, floor_ms: int
) -> tuple[list[int], list[bytes]]:
    """Return (times, offsets): the wanted times limited to the floor and the maximum, and an offset for each."""
    times = wanted
    if wanted and (min(wanted) < floor_ms or max(wanted) > offsets.U48_MAX):
        times = [min(max(at_ms, floor_ms), offsets.U48_MAX) for at_ms in wanted]
    return times, offsets.pack_run(times, index, position, partition)


def _different(wanted: list[Wanted]) -> set[Wanted]:
    """Return the distinct values, usually one."""
    return {wanted[0]} if wanted.count(wanted[0]) == len(wanted) else set(wanted)


def _first(entry: LogEntry) -> bytes:
    """Return the first offset of an entry, as a sort key."""
    return entry.first
