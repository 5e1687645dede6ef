"""The outbox of a partition: rows of what is to be sent to other partitions, in a line for each of them.

Rows: `f`, topic u32, partition u16, seq u64: a message that is to be sent there. `B`, topic u32, partition u16: how far
the batch goes that is being sent there. PERSISTED: the field orders of `Letter` and `Batch`.

Of each line the first rows are its *batch*: what they say changes no more, so that whoever sends them sends the same,
however often. A batch has a number of its own (its *epoch*), greater than that of all before it: the other partition
takes each once (`producers/producers.py`). After each entry every line that has rows has a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from sandq.model.batch import Column, encode
from sandq.model.limits import FIXED
from sandq.model.outbox import DeadLetterTopic, Target
from sandq.partition.base import rows
from sandq.partition.base.rows import Fields
from sandq.partition.base.step import Step
from sandq.partition.base.view import View

DEAD, MESSAGE = 0, 1
"""Kinds of letters: a dead letter, whose own row stays where it is until it is sent; a message that an ack sends."""
_LAST_SEQ: Final = (1 << 64) - 2
_SCAN_BYTES: Final = 1 << 40


class Letter(NamedTuple):
    """A message that is to be sent. Of a dead letter what follows `offset` is there once it is in a batch."""

    kind: int
    group_id: int
    """Of the group that sends it."""
    offset: bytes
    """Of the dead letter; of another message the id that it has here."""
    deliver_ms: int = 0
    """When it is wanted; 0: at once."""
    fields: Fields = {}  # noqa: RUF012 - never changed

    @property
    def size(self) -> int:
        """Return about how many bytes its message has."""
        return 64 + sum([len(value) for value in self.fields.values() if isinstance(value, bytes)])


class Batch(NamedTuple):
    """What is being sent to a partition: the rows of its line up to `last_seq`."""

    epoch: int
    last_seq: int
    size: int
    """How many they are."""
    kind: str
    """Of the topic that they go to; empty where no dead letter goes there."""
    source: str
    """The name of the topic that they come from, likewise."""


class Line:
    """What is to be sent to one partition."""

    def __init__(self, first_seq: int, batch: Batch | None = None) -> None:
        self.batch = batch
        self.kind, self.source = ("", "") if batch is None else (batch.kind, batch.source)
        """See `Batch`."""
        self.first_seq = first_seq
        """No row of it is below this one; it saves a walk over rows that were deleted."""


class OutboxStatus(NamedTuple):
    """What of an outbox its sender has to know."""

    batches: dict[Target, int]
    """The epoch of each batch."""
    messages: int


class Outbox:
    """Keeps rows and batches; what stands in them is for others to decide."""

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.messages = 0
        """That are to be sent."""
        self.ack_messages = self.ack_bytes = 0
        """Those of acks among them, and the bytes of their rows: they have no other place, so they have a bound."""
        self.restless: set[Target] = set()
        """Lines without a batch, while an entry is applied."""
        self._lines: dict[Target, Line] = {}
        self._next_seq = 1
        self._epoch = 0
        """Of the last batch."""
        self._status: OutboxStatus | None = None

    # -- rows -----------------------------------------------------------------------------------------------------

    @property
    def was_used(self) -> bool:
        """Whether anything was ever put into it."""
        return self._next_seq > 1

    def state(self) -> tuple[int, ...]:
        """What the partition's row keeps of it."""
        return self.messages, self.ack_messages, self.ack_bytes, self._next_seq, self._epoch

    def load(self, state: tuple[int, ...], view: View) -> None:
        """Take what `state` gave, and the batches from their rows."""
        self.messages, self.ack_messages, self.ack_bytes, self._next_seq, self._epoch = state
        for key, row in rows.all_rows(view, rows.OUTBOX_BATCH):
            self._lines[_target_of(key)] = Line(0, Batch(*rows.unpack(row)))

    def put(self, step: Step, target: Target, letter: Letter, topic: DeadLetterTopic | None = None) -> int:
        """Put a letter at the end of a line. Its number there. `topic`: of a dead letter, where it goes."""
        seq, self._next_seq = self._next_seq, self._next_seq + 1
        row = rows.pack(*_packed(letter))
        step.view.put(_key(target, seq), row)
        self._count(letter, 1, len(row))
        line = self._lines.setdefault(target, Line(seq))
        if topic is not None and not line.source:
            line.kind, line.source = topic.kind, topic.source
            if line.batch is not None:
                self._write(step, target, line, line.batch._replace(kind=topic.kind, source=topic.source))
        if line.batch is None:
            self.restless.add(target)
        self._status = None
        return seq

    def find(self, target: Target, seq: int, view: View) -> Letter | None:
        """Return the letter with this number in a line."""
        row = view.get(_key(target, seq))
        return None if row is None else _letter(row)

    def is_leaving(self, target: Target, seq: int) -> bool:
        """Whether a letter is in a batch: it may have been sent."""
        line = self._lines.get(target)
        return line is not None and line.batch is not None and seq <= line.batch.last_seq

    def rewrite(self, step: Step, target: Target, seq: int, letter: Letter) -> None:
        """Write a letter that is there in another way."""
        assert letter.kind == DEAD, "what an ack sends stays as it is"
        step.view.put(_key(target, seq), rows.pack(*_packed(letter)))

    def remove(self, step: Step, target: Target, seq: int) -> None:
        """Delete a letter, if it is there."""
        key = _key(target, seq)
        row = step.view.get(key)
        if row is not None:
            step.view.delete(key)
            self._count(_letter(row), -1, -len(row))
            self._status = None

    def has_room(self, messages: int, size: int) -> bool:
        """Whether so many more messages that acks have sent, of so many bytes, fit."""
        fit = self.ack_messages + messages <= FIXED.outbox_messages and self.ack_bytes + size <= FIXED.outbox_bytes
        return fit or not messages

    def _count(self, letter: Letter, more: int, more_bytes: int) -> None:
        self.messages += more
        if letter.kind == MESSAGE:
            self.ack_messages += more
            self.ack_bytes += more_bytes

    # -- lines ----------------------------------------------------------------------------------------------------

    def batch_of(self, target: Target) -> Batch | None:
        """Return what is being sent to a partition."""
        line = self._lines.get(target)
        return None if line is None else line.batch

    def ends(self, target: Target) -> tuple[str, str]:
        """Return the kind of the topic that a line goes to, and the name of that which it comes from (see `Batch`)."""
        line = self._lines[target]
        return line.kind, line.source

    def letters(self, target: Target, view: View, last_seq: int = _LAST_SEQ) -> list[tuple[int, Letter]]:
        """Return the first letters of a line, as many as a batch may have, up to a number, each with its own."""
        start, stop = _key(target, self._lines[target].first_seq), _key(target, last_seq + 1)
        max_bytes = FIXED.outbox_batch_bytes if last_seq == _LAST_SEQ else _SCAN_BYTES
        found = view.scan(start, stop, limit=FIXED.outbox_batch_messages, max_bytes=max_bytes)
        return [(int.from_bytes(key[-8:], "big"), _letter(row)) for key, row in found]

    def batch_letters(self, target: Target, view: View) -> list[tuple[int, Letter]]:
        """Return the letters that are being sent to a partition."""
        batch = self.batch_of(target)
        return [] if batch is None else self.letters(target, view, batch.last_seq)

    def begin(self, step: Step, target: Target, last_seq: int, size: int) -> None:
        """Make a batch of the first letters of a line, whatever was one before."""
        # By the time, where that is greater: a partition that was set back to an older state by force, and has
        # forgotten how far its numbers had come, is beyond them even so.
        self._epoch = max(self._epoch + 1, step.now_ms)
        line = self._lines[target]
        self._write(step, target, line, Batch(self._epoch, last_seq, size, line.kind, line.source))
        self.restless.discard(target)

    def _write(self, step: Step, target: Target, line: Line, batch: Batch) -> None:
        line.batch = batch
        step.view.put(_batch_key(target), rows.pack(*batch))
        self._status = None

    def end(self, step: Step, target: Target) -> None:
        """A batch is over: its letters were taken out."""
        line = self._lines[target]
        if line.batch is not None:
            line.first_seq = line.batch.last_seq + 1
            line.batch = None
            step.view.delete(_batch_key(target))
        self.restless.add(target)
        self._status = None

    def drop(self, target: Target) -> None:
        """A line has no rows any more."""
        self._lines.pop(target, None)
        self.restless.discard(target)
        self._status = None

    def status(self) -> OutboxStatus | None:
        """What its sender has to know; None: there is nothing to be sent."""
        if not self._lines:
            return None
        if self._status is None:
            batches = {target: line.batch.epoch for target, line in self._lines.items() if line.batch is not None}
            self._status = OutboxStatus(batches, self.messages)
        return self._status


def encode_letters(letters: Sequence[Letter]) -> bytes:
    """Return letters as the batch that is sent. PERSISTED: a version that made other bytes of the same letters would
    send what was stored before as another batch."""
    columns: dict[int, list[Any]] = {Column.VALUE: [letter.fields.get(Column.VALUE) for letter in letters]}
    for column in sorted({column for letter in letters for column in letter.fields} - {Column.VALUE}):
        columns[column] = [letter.fields.get(column) for letter in letters]
    if any([letter.deliver_ms for letter in letters]):
        columns[Column.DELIVER_MS] = [letter.deliver_ms or None for letter in letters]
    return encode(columns)


def _packed(letter: Letter) -> tuple[Any, ...]:
    return tuple(letter) if letter.fields else tuple(letter)[:3]


def _letter(row: bytes) -> Letter:
    return Letter(*rows.unpack(row))


def _key(target: Target, seq: int) -> bytes:
    return rows.OUTBOX + target.topic.to_bytes(4, "big") + target.partition.to_bytes(2, "big") + seq.to_bytes(8, "big")


def _batch_key(target: Target) -> bytes:
    return rows.OUTBOX_BATCH + target.topic.to_bytes(4, "big") + target.partition.to_bytes(2, "big")


def _target_of(key: bytes) -> Target:
    return Target(int.from_bytes(key[1:5], "big"), int.from_bytes(key[5:7], "big"))
