"""Run a sending and a receiving partition in memory. The test delivers each batch between them, once or repeatedly."""

from __future__ import annotations

from typing import Any

from sandq.model.batch import Column, headers_unpack
from sandq.model.errors import SandqError
from sandq.model.limits import DEFAULT
from sandq.model.names import TIMER
from sandq.model.outbox import DEAD_LETTER, Target, reserved_producer
from sandq.model.sequence import sequence_of
from sandq.partition import commands as c
from sandq.partition.base import rows
from sandq.partition.base.rows import Range
from sandq.partition.produce_validation import BatchTarget, check_batch
from sandq.partition.queries.queries import PartitionQueries
from sandq.partition.reader.pieces import Message
from tests.support.partition.bench import Bench, T

TO = 9
"""Number of the topic that receives dead letters."""
GROUP = 77
"""Raft group of the sending partition."""
HERE = Target(TO, 0)


class OutboxBench(Bench):
    """A partition whose dead letters go to the topic `TO`."""

    def __init__(self, *, partitions: int = 1, to_kind: str = TIMER, **settings: Any) -> None:
        super().__init__(**({"max_attempts": 1} | settings))
        self.forward_to(TO, partitions, to_kind)
        self.open()

    def forward_to(self, topic: int | None, partitions: int = 1, kind: str = TIMER) -> None:
        """Send dead letters to a topic from now on, or (None) keep them."""
        record = {name: value for name, value in self.settings.items() if name != DEAD_LETTER}
        self.settings = record if topic is None else record | {DEAD_LETTER: [topic, partitions, kind, "orders"]}
        self.apply(0, c.Configure(self.settings))

    def kill(self, *values: str, at: int = 0, **columns: Any) -> list[bytes]:
        """Append messages and let them die at their first attempt. Return their ids."""
        ids = [self.put(value, at=at, **columns) for value in values]
        for lease in self.lease(at=at):
            self.nack(lease.token, at=at, error="boom")
        return ids

    @property
    def batches(self) -> dict[Target, int]:
        """Return the epoch of each batch in progress, by target."""
        status = self.status().outbox
        return {} if status is None else status.batches

    def batch(self, target: Target) -> c.Append:
        """Return the command that stores the batch for this target at the receiving partition."""
        epoch = self.batches[target]
        raw = PartitionQueries(self.machine, self.view).outbox_batch(target, epoch)
        assert raw is not None
        place = BatchTarget(target.partition, 1, ordered=False)
        split = check_batch(raw, T, DEFAULT, place).split
        return c.Append(raw, reserved_producer(GROUP), epoch, sequence_of(1), split=split)

    def sent(self, target: Target, epoch: int, at: int = 0) -> str:
        """Report that a batch was stored; return the outcome."""
        outcome: str = self.apply(at, c.OutboxSent(*target, epoch))[0]
        return outcome

    def refused(self, target: Target, epoch: int, error: str | None = "no", at: int = 0) -> str:
        """Report that a batch was rejected; return the outcome."""
        outcome: str = self.apply(at, c.OutboxRefused(*target, epoch, error))[0]
        return outcome


def receiver(**settings: Any) -> Bench:
    """Return a partition that receives batches."""
    return Bench(**settings)


def carry(sender: OutboxBench, to: Bench, target: Target = HERE, at: int = 0) -> None:
    """Store one batch at the receiver, and report it to the sender."""
    command = sender.batch(target)
    stored = to.apply(at, command)[0]
    assert not isinstance(stored, SandqError), stored
    sender.sent(target, command.epoch, at)


def arrived(to: Bench) -> list[Message]:
    """Return every message that a partition has ever stored, in order; the partition keeps all of them."""
    return [message for row in to.rows(rows.LOG) for message in _messages(to, row)]


def _messages(bench: Bench, row: tuple[bytes, bytes]) -> list[Message]:
    entry = rows.log_entry(*row)
    return bench.read([Range(entry.first, entry.length)])


def values(messages: list[Message]) -> list[str]:
    return [message.fields[Column.VALUE].decode() for message in messages]


def headers(message: Message) -> dict[str, Any]:
    return headers_unpack(message.fields.get(Column.HEADERS))
