"""Appends to the log: a producer's batch becomes one row, or a row per message; a message whose unique key is taken is
refused, left out, or replaces the other one.
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
    UniqueKeys,
    claimed_state,
    resolve_conflict,
    state_of,
)
from sandq.partition.log.message_log import MessageLog
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
"""What became of a message whose unique key was taken, and which was not refused: the other one was cancelled; it was
stored beside the other one, for which it came too late; it was left out."""
PART_MESSAGES = 2048
"""Of a batch whose messages get rows of their own, after which it may give way."""
WHOLE_MESSAGES = 8
"""A batch that is due at one moment to come is a row from so many messages on: fewer are cancelled and moved for less
where each has its own. Replicas go by it: another number needs a feature level of its own."""


class Stored(NamedTuple):
    """What became of a batch whose messages were stored one by one: 16 bytes a message (its own offset, or the id of
    the message that has its unique key), and those refused: (position, how the other is: delayed, ready, delivered)."""

    offsets: bytes
    refused: list[tuple[int, str]]
    outcomes: list[tuple[int, str, bytes | str]] | None = None
    """Of the others whose unique keys were taken: (position, what became of it, the id of the one that was replaced, or
    how the one is that was not). None: that is not told, where taken keys refuse."""

    @property
    def count(self) -> int:  # type: ignore[override]  # hides tuple.count, which nobody wants here
        """Messages of the batch."""
        return len(self.offsets) // offsets.OFFSET_BYTES


class _Resolved(NamedTuple):
    """What becomes of a message whose unique key is taken."""

    stays: bytes | None = None
    """The id of the other one, in place of this; None: this one is stored."""
    refused: str | None = None
    """How the other one is, if this one is refused."""
    told: tuple[str, bytes | str] | None = None
    """As in `Stored.outcomes`."""


class Appends:
    """Stores batches of producers, and messages of the partition's own."""

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
        """Whether a batch that is due at one moment to come is one row."""
        return count >= WHOLE_MESSAGES

    def _is_ranked_alike(self, batch: bytes) -> bool:
        """Whether all messages of a batch go into one ready queue, if they go into any: else they are given to
        consumers one by one, in whatever order, which takes longer of a row that they share."""
        rank = self._shared.rank
        return rank is None or queue_keys.is_one(rank, batch)

    def _append_each(self, step: Step, command: c.Append) -> Stored:
        give_way, stamp_ms = self._shared.give_way, step.stamp_ms
        batch = Batch.parse(command.batch)
        give_way()
        wanted_ms = wanted_times(batch, stamp_ms)
        position = step.take_positions(batch.count)
        times, column = _placed(wanted_ms, step.index, position, self.partition, step.floor_ms)
        give_way()
        wanted = wanted_each(batch, stamp_ms, wanted_ms, times)
        give_way()
        if command.split:
            messages = decode_fields(batch)
            give_way()
            refused, outcomes = self._append_special(step, column, messages, wanted, command)
            return Stored(b"".join(column), refused, outcomes if command.on_conflict != c.REJECT else None)
        else:
            self._append_plain(step, column, batch, wanted)
            self._log.counts.add_each(times)
            self._shared.totals.stored += batch.count
        return Stored(b"".join(column), [])

    def _append_plain(self, step: Step, column: list[bytes], batch: Batch, wanted: list[Wanted] | None) -> None:
        """Messages of which the log needs nothing, but where they are."""
        values = values_alone(batch)
        messages = decode_fields(batch) if values is None else []
        self._shared.give_way()
        for start in range(0, len(column), PART_MESSAGES):
            part = slice(start, start + PART_MESSAGES)
            its_values = None if values is None else values[part]
            its_wanted = None if wanted is None else wanted[part]
            self._append_part(step, column[part], messages[part], its_values, its_wanted)
            self._shared.give_way()

    def _append_part(
        self,
        step: Step,
        column: list[bytes],
        messages: list[Fields],
        values: list[bytes] | None,
        wanted: list[Wanted] | None,
    ) -> None:
        """`values`: in place of `messages`, of those that have nothing else."""
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
        # Most of them are far ahead of what anybody looks at.
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
        """One at a time, for the next may replace this one; in `column` a message that is not stored gives way to the
        one that has its unique key. Those refused, and what is told of others."""
        view, now_ms = step.view, step.now_ms
        refused: list[tuple[int, str]] = []
        outcomes: list[tuple[int, str, bytes | str]] = []
        is_keyed = self._shared.has_keyed_names
        for at, fields in enumerate(self._shared.in_turns(messages)):
            offset = column[at]
            unique_key = fields.get(Column.UNIQUE_KEY)
            digest = None
            if unique_key is not None:
                sender = (*command.numbers, at) if command.producer_id else None
                tenant = fields.get(Column.TENANT)
                key = fields.get(Column.KEY) if is_keyed else None
                if key is None:
                    named = self._unique.find(unique_key, tenant, now_ms, view)
                else:
                    digest = rows.key_digest(key)
                    named = self._log.find_keyed(unique_key, key, digest, now_ms, view)
                stays = None
                if named is not None:
                    stays, state, told = self._resolve_conflict(step, named, command.on_conflict, sender)
                    refused += [(at, state)] if state is not None else []
                    outcomes += [(at, *told)] if told is not None else []
                if stays is not None:
                    column[at] = stays
                    continue
                self._unique.hold(step, unique_key, tenant, offset, sender, key_digest=digest)
            self._store_one(step, offset, fields, AS_PLACED if wanted is None else wanted[at], digest)
        return refused, outcomes

    def _store_one(
        self, step: Step, offset: bytes, fields: Fields, wanted: Wanted, key_digest: bytes | None = None
    ) -> None:
        light = rows.needed_of(fields, self._shared.is_ordered, wanted.ms, key_digest=key_digest)
        self._ttl.any_own = self._ttl.any_own or Column.TTL_MS in light
        self._log.counts.add(offsets.deliver_ms(offset), 1)
        self._shared.totals.stored += 1
        self._log.note_added([self._log.put(step, offset, step.stamp_ms, fields, light, is_delay=wanted.is_delay)])

    def store(self, step: Step, fields: Fields, at_ms: int) -> bytes:
        """Store a message of the partition's own, without a unique key, to be delivered at an instant. Its id."""
        placed_ms = min(max(at_ms, step.floor_ms), offsets.U48_MAX)
        offset = offsets.pack(placed_ms, step.index, step.next_position(), self.partition)
        self._store_one(step, offset, fields, Wanted.of(at_ms, placed_ms, is_delay=False))
        return offset

    def append_one(self, step: Step, offset: bytes, fields: Fields) -> None:
        """Store a message in a row of its own, at an offset above all others."""
        self._log.counts.add(offsets.deliver_ms(offset), 1)
        self._shared.totals.stored += 1
        self._log.note_added([self._log.put(step, offset, step.now_ms, fields, {})])

    def _resolve_conflict(self, step: Step, named: Named, on_conflict: int, sender: Sender | None) -> _Resolved:
        """Decide about a message whose unique key is taken: one that it replaces is cancelled."""
        owned = self._log.find_owned(named.id, step.view)
        claim = None if owned is None else self._ownership.claim(owned.offset, step.view)
        state = claimed_state(None if owned is None else owned.offset, claim, step.now_ms)
        beside = _Resolved(told=(TOLD_STORED, state) if on_conflict == c.REPLACE else None)
        is_over = named.state == ATTEMPTED and not (claim is not None and claim.pending)
        if is_over and not self._unique.end_attempted(step, named):
            return beside  # there is no window
        resolution = resolve_conflict(named, claim, on_conflict, sender)
        if resolution == REFUSED:
            if on_conflict == c.REPLACE_PENDING or (on_conflict == c.REPLACE and claim is not None):
                return _Resolved(named.id, state)
            pending_at = owned.offset if owned is not None and named.state == HELD else None
            return _Resolved(named.id, state_of(pending_at, step.now_ms))
        if resolution == IGNORED:
            is_itself = sender is not None and named.sender == sender
            return _Resolved(named.id, told=None if is_itself else (TOLD_IGNORED, state))
        if resolution == REPLACES and owned is not None:
            self._log.cancel(step, owned, remember=False)
            return _Resolved(told=(TOLD_REPLACED, owned.id))
        return _Resolved() if named.state == CANCELLED else beside


def moment_of(header: Header, stamp_ms: int, floor_ms: int) -> int | None:
    """The one instant at which all messages of a batch are placed; None: they have several."""
    start_ms = stamp_ms if header.relative else 0
    asked = header.min_deliver_ms, header.max_deliver_ms
    first_ms, last_ms = [min(max(start_ms + at_ms, floor_ms), offsets.U48_MAX) for at_ms in asked]
    return last_ms if first_ms == last_ms else None


def placed_each(
    batch: Batch, index: int, position: int, partition: int, stamp_ms: int, floor_ms: int
) -> tuple[list[int], list[bytes]]:
    """Return times and offsets of a batch's messages, each at a time of its own. `position` is that of the first."""
    return _placed(wanted_times(batch, stamp_ms), index, position, partition, floor_ms)


def _placed(
    wanted: list[int], index: int, position: int, partition: int, floor_ms: int
) -> tuple[list[int], list[bytes]]:
    times = wanted
    if wanted and (min(wanted) < floor_ms or max(wanted) > offsets.U48_MAX):
        times = [min(max(at_ms, floor_ms), offsets.U48_MAX) for at_ms in wanted]
    return times, offsets.pack_run(times, index, position, partition)


def _different(wanted: list[Wanted]) -> set[Wanted]:
    """Which there are: most often one."""
    return {wanted[0]} if wanted.count(wanted[0]) == len(wanted) else set(wanted)


def _first(entry: LogEntry) -> bytes:
    return entry.first
