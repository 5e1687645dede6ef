"""The outbox of a partition: messages to send to other partitions, with one queue per target partition.

Rows: `f`, topic u32, partition u16, seq u64: a message to send to that partition. `B`, topic u32, partition u16: the
batch that is being sent to that partition. PERSISTED: the field orders of `Letter` and `Batch`.

The first rows of each queue are its *batch*. These rows no longer change, so that every attempt sends the same bytes. A
batch has a number, its *epoch*, greater than the epochs of all earlier batches. The target partition accepts each batch
once (`producers/producers.py`). After each entry, every queue that has rows has a batch.
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
"""Kinds of letters (messages in the outbox). DEAD: a dead message, whose row stays in its group until it is sent.
MESSAGE: a message that an ack sends."""
_LAST_SEQ: Final = (1 << 64) - 2
_SCAN_BYTES: Final = 1 << 40


class Letter(NamedTuple):
    """A message to send. For a dead message, the fields after `offset` are set when its batch begins."""

    kind: int
    group_id: int
    """Group that sends the message."""
    offset: bytes
    """Offset of the dead message. If an ack sends the message, its id in this partition."""
    deliver_ms: int = 0
    """Requested delivery time, in ms. 0: immediately."""
    fields: Fields = {}  # noqa: RUF012 - never changed

    @property
    def size(self) -> int:
        """Approximate size of the message, in bytes."""
        return 64 + sum([len(value) for value in self.fields.values() if isinstance(value, bytes)])


class Batch(NamedTuple):
    """The batch that is being sent to a partition: the rows of its queue up to `last_seq`."""

    epoch: int
    last_seq: int
    size: int
    """Number of rows."""
    kind: str
    """Kind of the target topic. Empty if the batch contains no dead messages."""
    source: str
    """Name of the topic that the messages come from. Empty if the batch contains no dead messages."""


class TargetQueue:
    """The queue of messages to send to one partition."""

    def __init__(self, first_seq: int, batch: Batch | None = None) -> None:
        self.batch = batch
        self.kind, self.source = ("", "") if batch is None else (batch.kind, batch.source)
        """See `Batch`."""
        self.first_seq = first_seq
        """Lower bound of the sequence numbers of its rows. Scans start here, so that they do not step over deleted
        rows."""


class OutboxStatus(NamedTuple):
    """State of an outbox that its sender needs."""

    batches: dict[Target, int]
    """Epoch of each target's batch."""
    messages: int


class Outbox:
    """Owns the rows and batches of the outbox. Callers decide what these contain."""

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.messages = 0
        """Number of messages to send."""
        self.ack_messages = self.ack_bytes = 0
        """Number of messages sent by acks in the outbox, and the bytes of their rows. Only the outbox stores these
        messages, so they have a limit."""
        self.restless: set[Target] = set()
        """Targets of queues without a batch, while an entry is applied."""
        self._queues: dict[Target, TargetQueue] = {}
        self._next_seq = 1
        self._epoch = 0
        """Epoch of the last batch."""
        self._status: OutboxStatus | None = None

    # -- rows -----------------------------------------------------------------------------------------------------

    @property
    def was_used(self) -> bool:
        """Whether anything was ever put into the outbox."""
        return self._next_seq > 1

    def state(self) -> tuple[int, ...]:
        """Return the fields for the partition's state row."""
        return self.messages, self.ack_messages, self.ack_bytes, self._next_seq, self._epoch

    def load(self, state: tuple[int, ...], view: View) -> None:
        """Restore what `state` returned, and load the batches from their rows."""
        self.messages, self.ack_messages, self.ack_bytes, self._next_seq, self._epoch = state
        for key, row in rows.all_rows(view, rows.OUTBOX_BATCH):
            self._queues[_target_of(key)] = TargetQueue(0, Batch(*rows.unpack(row)))

    def put(self, step: Step, target: Target, letter: Letter, topic: DeadLetterTopic | None = None) -> int:
        """Append a letter to a queue, and return its number. `topic`: the target of a dead message."""
        seq, self._next_seq = self._next_seq, self._next_seq + 1
        row = rows.pack(*_packed(letter))
        step.view.put(_key(target, seq), row)
        self._count(letter, 1, len(row))
        queue = self._queues.setdefault(target, TargetQueue(seq))
        if topic is not None and not queue.source:
            queue.kind, queue.source = topic.kind, topic.source
            if queue.batch is not None:
                self._write(step, target, queue, queue.batch._replace(kind=topic.kind, source=topic.source))
        if queue.batch is None:
            self.restless.add(target)
        self._status = None
        return seq

    def find(self, target: Target, seq: int, view: View) -> Letter | None:
        """Return the letter with this number in a queue."""
        row = view.get(_key(target, seq))
        return None if row is None else _letter(row)

    def is_leaving(self, target: Target, seq: int) -> bool:
        """Return whether a letter is in a batch, and so may have been sent."""
        queue = self._queues.get(target)
        return queue is not None and queue.batch is not None and seq <= queue.batch.last_seq

    def rewrite(self, step: Step, target: Target, seq: int, letter: Letter) -> None:
        """Replace the row of a letter that exists."""
        assert letter.kind == DEAD, "a message that an ack sends never changes"
        step.view.put(_key(target, seq), rows.pack(*_packed(letter)))

    def remove(self, step: Step, target: Target, seq: int) -> None:
        """Delete a letter, if it exists."""
        key = _key(target, seq)
        row = step.view.get(key)
        if row is not None:
            step.view.delete(key)
            self._count(_letter(row), -1, -len(row))
            self._status = None

    def has_capacity(self, messages: int, size: int) -> bool:
        """Return whether this many more messages of acks, with this many bytes, fit into the outbox."""
        fit = self.ack_messages + messages <= FIXED.outbox_messages and self.ack_bytes + size <= FIXED.outbox_bytes
        return fit or not messages

    def _count(self, letter: Letter, more: int, more_bytes: int) -> None:
        """Add a letter to the counts, or subtract it."""
        self.messages += more
        if letter.kind == MESSAGE:
            self.ack_messages += more
            self.ack_bytes += more_bytes

    # -- lines ----------------------------------------------------------------------------------------------------

    def batch_of(self, target: Target) -> Batch | None:
        """Return the batch that is being sent to a partition. None if there is none."""
        queue = self._queues.get(target)
        return None if queue is None else queue.batch

    def ends(self, target: Target) -> tuple[str, str]:
        """Return the kind of a queue's target topic, and the name of its source topic (see `Batch`)."""
        queue = self._queues[target]
        return queue.kind, queue.source

    def letters(self, target: Target, view: View, last_seq: int = _LAST_SEQ) -> list[tuple[int, Letter]]:
        """Return (number, letter) of the first letters of a queue, up to `last_seq`, as many as a batch may have."""
        start, stop = _key(target, self._queues[target].first_seq), _key(target, last_seq + 1)
        max_bytes = FIXED.outbox_batch_bytes if last_seq == _LAST_SEQ else _SCAN_BYTES
        found = view.scan(start, stop, limit=FIXED.outbox_batch_messages, max_bytes=max_bytes)
        return [(int.from_bytes(key[-8:], "big"), _letter(row)) for key, row in found]

    def batch_letters(self, target: Target, view: View) -> list[tuple[int, Letter]]:
        """Return (number, letter) of the letters that are being sent to a partition."""
        batch = self.batch_of(target)
        return [] if batch is None else self.letters(target, view, batch.last_seq)

    def begin(self, step: Step, target: Target, last_seq: int, size: int) -> None:
        """Replace the batch of a queue by its first letters, up to `last_seq`."""
        # Use the time as the epoch if it is greater than the next number. So new epochs are greater even if the
        # partition was forced back to an older state and has forgotten its last epochs.
        self._epoch = max(self._epoch + 1, step.now_ms)
        queue = self._queues[target]
        self._write(step, target, queue, Batch(self._epoch, last_seq, size, queue.kind, queue.source))
        self.restless.discard(target)

    def _write(self, step: Step, target: Target, queue: TargetQueue, batch: Batch) -> None:
        """Set the batch of a queue, and put its row."""
        queue.batch = batch
        step.view.put(_batch_key(target), rows.pack(*batch))
        self._status = None

    def end(self, step: Step, target: Target) -> None:
        """End a batch after its letters were removed."""
        queue = self._queues[target]
        if queue.batch is not None:
            queue.first_seq = queue.batch.last_seq + 1
            queue.batch = None
            step.view.delete(_batch_key(target))
        self.restless.add(target)
        self._status = None

    def drop(self, target: Target) -> None:
        """Forget a queue that no longer has rows."""
        self._queues.pop(target, None)
        self.restless.discard(target)
        self._status = None

    def status(self) -> OutboxStatus | None:
        """Return the state that the sender needs. None if there is nothing to send."""
        if not self._queues:
            return None
        if self._status is None:
            batches = {target: queue.batch.epoch for target, queue in self._queues.items() if queue.batch is not None}
            self._status = OutboxStatus(batches, self.messages)
        return self._status


def encode_letters(letters: Sequence[Letter]) -> bytes:
    """Encode letters as the batch that is sent. PERSISTED: if a new version encoded the same letters in other bytes,
    the target would take a repeated batch for a different batch."""
    columns: dict[int, list[Any]] = {Column.VALUE: [letter.fields.get(Column.VALUE) for letter in letters]}
    for column in sorted({column for letter in letters for column in letter.fields} - {Column.VALUE}):
        columns[column] = [letter.fields.get(column) for letter in letters]
    if any([letter.deliver_ms for letter in letters]):
        columns[Column.DELIVER_MS] = [letter.deliver_ms or None for letter in letters]
    return encode(columns)


def _packed(letter: Letter) -> tuple[Any, ...]:
    """Return the fields of a letter as stored."""
    return tuple(letter) if letter.fields else tuple(letter)[:3]


def _letter(row: bytes) -> Letter:
    """Read a letter from its row."""
    return Letter(*rows.unpack(row))


def _key(target: Target, seq: int) -> bytes:
    """Return the key of a letter's row."""
    return rows.OUTBOX + target.topic.to_bytes(4, "big") + target.partition.to_bytes(2, "big") + seq.to_bytes(8, "big")


def _batch_key(target: Target) -> bytes:
    """Return the key of the row of a target's batch."""
    return rows.OUTBOX_BATCH + target.topic.to_bytes(4, "big") + target.partition.to_bytes(2, "big")


def _target_of(key: bytes) -> Target:
    """Return the target in the key of a batch."""
    return Target(int.from_bytes(key[1:5], "big"), int.from_bytes(key[5:7], "big"))
