"""Idempotent producers: if a producer sends a batch again because the reply was lost, the partition stores it once.

A producer identifies its batches by its id, an epoch, and the numbers 1, 2, 3, ... within the epoch. For each producer,
a partition remembers the epoch, the number of the last batch, and the replies to the last five batches. The reply
depends on the number and the epoch of a batch:

* the next number: it is stored.
* one of the last five numbers: it gets the same reply as the first time, and nothing is stored. An older number:
  AlreadyStored.
* a later number: OutOfSequence. The missing batches may still arrive, and must be stored before this batch.
* an older epoch: ProducerFenced. The producer has ended that epoch. So a delayed copy of a batch is not stored after
  later batches.
* a newer epoch: number 1 is stored. Any other number is OutOfSequence, because batches before it are missing.

Storing a batch uses up its number, even if some of its messages were rejected because of taken unique keys. If a batch
is rejected as a whole, nothing is stored, and its number stays free.

A producer that the partition does not know is new, or was forgotten: not seen for a week, or the least recently used of
10,000.

* The number of its batch is not 1: OutOfSequence. The batch may have been stored before the producer was forgotten:
  storing it again would duplicate it. Earlier batches may also have yet to arrive: storing it first would break the
  order. The producer knows which of its batches have a reply. A batch that was never sent before begins a new epoch,
  which is accepted. If it was sent before without a reply, its outcome is unknown, and the producer reports that to its
  caller.
* The number is 1, and the batch was not sent before: it begins an epoch and is stored.
* The number is 1, and the batch was sent before (`sequence.RESENT`): it is stored, with one exception. If the limit of
  10,000 has dropped a producer that was used within `PRODUCER_RETRY_MS` (the longest time for which a producer
  retries), that may be this producer, so the batch is OutOfSequence.

Another partition that sends messages to this partition (`model.outbox`) is a producer, too. It gives each batch a new
epoch, with number 1. It sends one batch at a time, and repeats it until there is a reply. So a partition is never
forgotten, neither by age nor by the limit. The number of such producers is limited by the number of partitions.

So a batch can be stored twice in only one case: a copy of the first batch of an epoch stays in a connection that the
client gave up, until 10,000 other producers have written to the partition. Times are stamps of entries, so all replicas
forget the same producers. A batch that is rejected or repeated changes nothing.
"""

from __future__ import annotations

from typing import Any

from sandq.model.errors import InvalidRequest, OutOfSequence, ProducerFenced
from sandq.model.limits import FIXED
from sandq.model.outbox import is_reserved
from sandq.model.sequence import is_resent, number_of
from sandq.partition import commands as c
from sandq.partition.base import rows
from sandq.partition.base.step import Step
from sandq.partition.base.view import View
from sandq.partition.log.appends import Stored
from sandq.partition.producers.answers import ANSWER_BYTES, WITH_ROW, Answer, already_stored, recall, remember, unpack

PRODUCERS = FIXED.producers
ANSWERS = FIXED.producer_answers
PRODUCER_TTL_MS = FIXED.producer_ttl_ms
PRODUCER_RETRY_MS = FIXED.producer_retry_ms
FORGET_PRODUCERS = 1000
"""Maximum number of producers to forget in one step."""


class Producer:
    """The state of a producer. Its row has the fields in this order."""

    __slots__ = ("answers", "epoch", "is_partition", "number", "used_ms")

    def __init__(
        self, epoch: int, number: int = 0, used_ms: int = 0, answers: bytes = b"", is_partition: bool = False
    ) -> None:
        self.epoch = epoch
        self.number = number
        """Number of the producer's last batch."""
        self.used_ms = used_ms
        self.answers = answers
        """Replies to its last batches, packed: Python objects would take five times the memory."""
        self.is_partition = is_partition
        """Whether the producer is another partition, which is never forgotten."""

    def row(self) -> tuple[Any, ...]:
        """Return the stored fields."""
        row = self.epoch, self.number, self.used_ms, self.answers
        return (*row, True) if self.is_partition else row

    @property
    def kept(self) -> int:
        """Number of replies that are kept."""
        return len(self.answers) // ANSWER_BYTES


class Producers:
    def __init__(self, partition: int) -> None:
        self._partition = partition
        self._known: dict[int, Producer] = {}
        """Producers by id, the least recently used first."""
        self._partitions: dict[int, Producer] = {}
        """Other partitions, by id."""
        self._dropped_ms = 0
        """Latest time of last use among the producers that were dropped because of the limit, in ms."""
        self._changed: set[int] = set()

    def __len__(self) -> int:
        return len(self._known) + len(self._partitions)

    @property
    def next_ms(self) -> int | None:
        """Time at which the next producer is forgotten, in ms. None if there is none."""
        first = next(iter(self._known.values()), None)
        return None if first is None else first.used_ms + PRODUCER_TTL_MS

    # -- rows -----------------------------------------------------------------------------------------------------

    def write(self, view: View) -> None:
        """Put the rows of producers that have changed. Called once for each set of changes that is written."""
        for producer_id in self._changed:
            producer = self._find(producer_id)
            if producer is not None:
                view.put(rows.producer_key(producer_id), rows.pack(*producer.row()))
        self._changed.clear()

    def load(self, view: View) -> None:
        """Load all producers, in the order of their last use."""
        found: list[tuple[Any, int, Producer]] = []
        for key, value in rows.all_rows(view, rows.PRODUCER):
            if key == rows.PRODUCER:
                (self._dropped_ms,) = rows.unpack(value)
                continue
            producer, producer_id = Producer(*rows.unpack(value)), int.from_bytes(key[1:], "big")
            if producer.is_partition:
                self._partitions[producer_id] = producer
                continue
            *_, last = unpack(producer.answers)
            found.append(((last.entry, last.place), producer_id, producer))
        # Positions of batches increase, so sorting by position gives the order in which producers were used.
        found.sort(key=lambda row: row[:2])
        self._known = {producer_id: producer for _, producer_id, producer in found}

    # -- batches --------------------------------------------------------------------------------------------------

    def answered(self, command: c.Append, now_ms: int, view: View) -> tuple[bytes, int] | Stored | None:
        """Return the earlier reply to a repeated batch. None if the batch must be stored. If the batch must be
        rejected, raise the error."""
        producer_id, epoch, number = command.numbers
        if not (epoch and number):
            raise InvalidRequest(f"producer {producer_id}: epochs and numbers of batches begin with 1")
        producer = self._find(producer_id)
        if producer is None:
            self._check_unknown(command, now_ms)
            return None
        if epoch < producer.epoch:
            raise ProducerFenced(
                f"producer {producer_id} has begun epoch {producer.epoch}: its batch {number} of epoch {epoch} "
                "is refused"
            )
        last = producer.number if epoch == producer.epoch else 0
        if number > last + 1:
            raise _gap(command, last + 1, f"{last + 1} is next")
        if number == last + 1:
            return None
        if number <= last - producer.kept:
            raise already_stored(command)
        at = (number - last - 1) * ANSWER_BYTES
        (answer,) = unpack(producer.answers[at:][:ANSWER_BYTES])
        return recall(answer, command, self._partition, view)

    def is_repeated(self, command: c.Append) -> bool:
        """Return whether a batch may have been stored before."""
        _, epoch, number = command.numbers
        producer = self._find(command.producer_id)
        return producer is not None and epoch == producer.epoch and number <= producer.number

    def _find(self, producer_id: int) -> Producer | None:
        """Return the state of a producer; None if it is unknown."""
        return self._known.get(producer_id) or self._partitions.get(producer_id)

    def _check_unknown(self, command: c.Append, now_ms: int) -> None:
        """Raise OutOfSequence if the batch of an unknown producer may have predecessors, or may be stored already."""
        if command.numbers[2] > 1:
            raise _gap(command, 1, "the producer is not known here (any more), and begins a new epoch with 1")
        if is_resent(command.sequence) and now_ms - self._dropped_ms <= PRODUCER_RETRY_MS:
            raise _gap(
                command,
                1,
                f"it was sent before, and more than {PRODUCERS} producers wrote here since: "
                "whether it was stored is not known any more",
            )

    def stored(self, step: Step, command: c.Append, stored: tuple[bytes, int] | Stored, position: int) -> None:
        """Remember the reply to a batch that was just stored. `position`: position of the batch's first message in the
        entry."""
        producer = self._next(step, command.numbers)
        answer = remember(step, command, stored, self._partition, position)
        self._keep(step, command.numbers, producer, answer)

    def skipped(self, step: Step, command: c.Skipped, answer: Answer) -> None:
        """If the number of a skipped batch was the next number, use it up, so that later batches can be stored."""
        _, epoch, number = numbers = command.producer_id, command.epoch, number_of(command.sequence)
        producer = self._find(command.producer_id)
        last = producer.number if producer is not None and producer.epoch == epoch else 0
        if number == last + 1 and (producer is None or epoch >= producer.epoch):
            self._keep(step, numbers, self._next(step, numbers), answer)

    def _next(self, step: Step, numbers: tuple[int, int, int]) -> Producer:
        """Return the state of a producer, with a free slot for the reply to its next batch."""
        producer_id, epoch, _ = numbers
        producer = self._known.pop(producer_id, None) or self._partitions.get(producer_id)
        if producer is None:
            producer = Producer(epoch, is_partition=is_reserved(producer_id))
            if not producer.is_partition:
                self._drop_oldest(step)
        elif epoch > producer.epoch:
            _drop_rows(step, producer_id, producer, producer.kept)
            producer = Producer(epoch, is_partition=producer.is_partition)
        elif producer.kept == ANSWERS:
            _drop_rows(step, producer_id, producer, 1)
            producer.answers = producer.answers[ANSWER_BYTES:]
        return producer

    def _keep(self, step: Step, numbers: tuple[int, int, int], producer: Producer, answer: Answer) -> None:
        """Append the reply to a producer's last batch to its state."""
        producer_id, _, number = numbers
        producer.answers += answer.pack()
        producer.number, producer.used_ms = number, step.now_ms
        (self._partitions if producer.is_partition else self._known)[producer_id] = producer
        self._changed.add(producer_id)

    # -- forgetting -----------------------------------------------------------------------------------------------

    def forget(self, step: Step) -> None:
        """Forget a bounded number of producers that were not used for long."""
        now_ms = step.now_ms
        for _ in range(FORGET_PRODUCERS):
            if self.next_ms is None or self.next_ms > now_ms:
                return
            self._forget_first(step)

    def set_back(self, step: Step) -> None:
        """Adjust to a clock reset, which sets the partition's time back to that of `step`: lower all later times of
        use."""
        now_ms = step.now_ms
        for producer_id, producer in [*self._known.items(), *self._partitions.items()]:
            if producer.used_ms > now_ms:
                producer.used_ms = now_ms
                self._changed.add(producer_id)
        if self._dropped_ms > now_ms:
            self._dropped_ms = now_ms
            step.view.put(rows.PRODUCER, rows.pack(now_ms))

    def _drop_oldest(self, step: Step) -> None:
        """Forget the least recently used producers, so that one more fits."""
        view = step.view
        while len(self._known) >= PRODUCERS:
            self._dropped_ms = max(self._dropped_ms, self._forget_first(step))
            view.put(rows.PRODUCER, rows.pack(self._dropped_ms))

    def _forget_first(self, step: Step) -> int:
        """Forget the least recently used producer, and return the time of its last use in ms."""
        producer_id = next(iter(self._known))
        producer = self._known.pop(producer_id)
        _drop_rows(step, producer_id, producer, producer.kept)
        step.view.delete(rows.producer_key(producer_id))
        return producer.used_ms


def _drop_rows(step: Step, producer_id: int, producer: Producer, count: int) -> None:
    """Delete the rows of a producer's first `count` replies."""
    view = step.view
    first = producer.number - producer.kept + 1
    for at, answer in enumerate(unpack(producer.answers[: count * ANSWER_BYTES])):
        if answer.how in WITH_ROW:
            view.delete(rows.answer_key(producer_id, first + at))


def _gap(command: c.Append, expected: int, why: str) -> OutOfSequence:
    """Return the error for a batch whose number is not the expected one."""
    producer_id, epoch, number = command.numbers
    return OutOfSequence(
        f"batch {number} of producer {producer_id} in epoch {epoch} is out of sequence, and not stored: {why}",
        expected=expected,
    )
