"""Chunks on their way to the broker, each stored once, whichever attempt of a task sends it.

A topic partition remembers of the task (`identity`) how many chunks it has stored, and the checksums of the last five.
So the sender of one topic partition begins by asking how many are *known* there. Then:

* Those beyond are new, and stored in the order of their numbers. Whatever is sent twice, because an answer was lost, a
  leader went, or two attempts work at once, is stored once.
* The last five of those known are sent again, and the broker compares: it refuses one that is not the same.
* Older ones are not sent. They were the same, because the last five are, and each of those says a checksum of all
  before it (`model.sequence`: the chain): five times 16 bits.
* Nothing new is sent before all that are known have been found the same. And an attempt must not end before it has sent
  as many as are known.

What does not pass this has other rows than the attempt before: no chunk of it is taken as stored without having been
compared, be it by itself or by the chains of those behind it. It is an error, `ChangedRows`. Or all chunks of the
partition are written again under a name that nobody had: when `again` asks for it, at the price of duplicates; and
without that, when all rows have a unique key and a taken one is ignored. For that, chunks are kept in a file as long as
it is not sure that they are stored.

What remains. A broker forgets a producer after seven days, or for 10,000 others in one topic partition: a task that is
run again after that doubles its rows. (Within 15 minutes the broker refuses it, for it knows that it may have forgotten
it.) An attempt that is still at work though Spark gave it up, and that has other rows, may leave rows behind those of
the attempt that counts; and a topic partition for which an attempt has no rows at all is not asked what an earlier one
with other rows stored there. Those rows are doubled, never lost. The comparison is by 32-bit checksums.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import anyio

from sandq.client.options import again
from sandq.client.producer import NEVER, BatchSender, NumberedBatch
from sandq.client.signals import Signal
from sandq.client.transport import Cluster
from sandq.model.batch import Batch, Column
from sandq.model.errors import (
    AlreadyStored,
    ClosedError,
    Conflict,
    DuplicateKey,
    OutOfSequence,
    ProducerFenced,
    ProtocolError,
    SandqError,
    TimedOut,
    Unavailable,
)
from sandq.model.limits import FIXED
from sandq.model.sequence import MAX_NUMBER, RESENT, sequence_of
from sandq.protocol.replies import Offsets
from sandq.protocol.requests import IGNORE, REJECT
from sandq.spark.sink.chunk_file import Kept
from sandq.spark.sink.chunks import Chunk
from sandq.spark.sink.identity import Identity

log = logging.getLogger("sandq.spark")

RETRY_S: Final = 120.0
"""Chunks are sent again until none was confirmed for so long; then the task fails. Five of them, one behind the other,
stay below the broker's `producer_retry_ms`."""
COMPARED: Final = FIXED.producer_answers
"""The broker compares the last so many; and so many are under way at once."""
QUESTION: Final = MAX_NUMBER
"""A number that no chunk ever has: the broker answers which one is next."""
AGAIN_BYTES: Final = 16 << 20
"""Of kept chunks that are read, and sent again, at once."""
_HELP: Final = (
    "make the rows of each Spark partition the same in every attempt (sortWithinPartitions; no random values, no "
    "current time), or give them a unique_key column; with onChangedRows=again the rows of the task are written again, "
    "and some of them will be there twice"
)


class ChangedRows(Conflict):
    """An attempt has other rows than an earlier one that stored some; details: the `reason` to think so."""


class _SentChunk(NumberedBatch):
    """A chunk under way."""

    __slots__ = ("chunk", "is_resent")

    def __init__(self, chunk: Chunk, base: int, identity: Identity) -> None:
        """`base`: the broker counts from there."""
        super().__init__(anyio.current_time(), chunk.on_conflict)
        self.chunk = chunk
        self.is_resent = identity.resent
        self.data, self.epoch, self.sequence = chunk.data, identity.epoch, chunk.number - base

    def __len__(self) -> int:
        return self.chunk.rows

    def wire_sequence(self) -> int:
        sequence = sequence_of(self.sequence, self.chunk.chain)
        return sequence | RESENT if self.is_resent or self.sent_at != NEVER else sequence


class _Question(NumberedBatch):
    """A batch that is refused in any case: the refusal says which number is next."""

    __slots__ = ()

    def __init__(self, chunk: Chunk, identity: Identity) -> None:
        super().__init__(anyio.current_time(), REJECT)
        self.data, self.epoch, self.sequence = Batch.parse(chunk.data).slice(0, 1), identity.epoch, QUESTION

    def __len__(self) -> int:
        return 1

    def order(self) -> tuple[int, int]:
        return self.epoch, 0  # before chunks that wait for its answer

    def wire_sequence(self) -> int:
        return QUESTION

    def may_retry(self, error: SandqError) -> bool:
        return _expected_by(error) is None and super().may_retry(error)


def _expected_by(error: SandqError | None) -> int | None:
    """The number that a broker expects next, if that is what an error says."""
    expected = error.details.get("expected") if isinstance(error, OutOfSequence) else None
    return expected if type(expected) is int else None


class PartitionSender(BatchSender[NumberedBatch]):
    """See the module's docstring. Its methods are of the client's event loop; numbers are those of the chunks."""

    def __init__(self, cluster: Cluster, topic: str, partition: int, identity: Identity, *, again: bool) -> None:
        """`again`: write changed rows again."""
        options = replace(cluster.options, delivery_timeout_s=RETRY_S, in_flight_batches=COMPARED)
        self._changed = Signal()
        super().__init__(cluster, options, topic, partition, identity.producer_id, self._changed.set)
        self.already_stored = self.again = 0  # chunks
        self._identity = identity
        self._again = again
        self._base = 0  # the broker counts from here
        self._known: int | None = None  # the last number that the broker had, when it was asked
        self._confirmed = 0  # the last number that is stored
        self._is_ignorable = True
        self._kept = Kept()  # since it was sure last

    async def deliver(self, chunks: list[Chunk]) -> None:
        """Have chunks stored, those next in order. ChangedRows; what a chunk fails with for good; what was to be tried
        again, after RETRY_S."""
        self._is_ignorable = self._is_ignorable and all([chunk.ignorable for chunk in chunks])
        try:
            await self._store(chunks)
        except ChangedRows as changed:
            await self._store_again(changed, chunks)
        if self._is_sure or not self._may_repeat:
            self._kept.clear()
        else:
            self._kept.add(chunks)

    async def finish(self) -> None:
        """All was delivered. ChangedRows when an earlier attempt stored more."""
        if self._known is not None and self._confirmed < self._known:
            more = f"an earlier attempt stored {self._known} chunks, and this one ends with {self._confirmed}"
            await self._store_again(self._changed_rows(more), [])
            self._kept.clear()

    @property
    def _is_sure(self) -> bool:
        """Whether all that was delivered is stored, and no earlier attempt has been further."""
        return self._known is not None and self._confirmed >= self._known

    @property
    def _may_repeat(self) -> bool:
        return self._again or self._is_ignorable

    async def _store_again(self, changed: ChangedRows, chunks: list[Chunk]) -> None:
        """Everything since it was sure last, under a name that nobody had."""
        if not self._may_repeat:
            raise changed
        how = "their unique keys keep them from being doubled" if self._is_ignorable else "some will be there twice"
        log.warning("%s: %s; the rows are written again: %s", self.where, changed.details["reason"], how)
        self._identity = self._identity.another()
        self.producer_id = self._identity.producer_id
        self._known = None
        for part in _parts(self._kept.read(self.topic, self.partition), chunks):
            if self._known is None:
                self._base = self._known = self._confirmed = part[0].number - 1
                self.already_stored = min(self.already_stored, self._base)
            await self._store(part)
            self.again += len(part)

    # What is sent.

    async def _store(self, chunks: list[Chunk]) -> None:
        left, flying = deque(chunks), deque[_SentChunk]()
        try:
            if self._known is None:
                self._known = await self._ask(chunks[0])
            while left or flying:
                if not flying and left[0].number <= self._known_now - COMPARED:
                    self._skip(left.popleft())
                    continue
                while left and len(flying) < COMPARED:
                    flying.append(_SentChunk(left.popleft(), self._base, self._identity))
                    self.add(flying[-1])
                sent = flying.popleft()
                await self._end_of(sent)
                await self._confirm(sent)
                for batch in flying:
                    batch.opened_at = anyio.current_time()
        finally:
            self.abandon(lambda batch: ClosedError("the task was ended"))

    def may_send(self, batch: NumberedBatch) -> bool:
        """Nothing new before all that is known is confirmed: what was changed must not be stored beside it."""
        is_new = isinstance(batch, _SentChunk) and batch.chunk.number > self._known_now
        return (not is_new or self._is_sure) and super().may_send(batch)

    def expired(self, batch: NumberedBatch, limit_s: float) -> SandqError:
        """What a chunk was refused with last, and which one it is."""
        what = f"chunk {batch.chunk.number}" if isinstance(batch, _SentChunk) else "the number of the last chunk"
        last = batch.returned_with or self.last_error
        if last is None and batch.unknown:
            last = TimedOut("no answer")
        elif last is None:
            last = Unavailable(f"the partition has no leader that can be reached{self.cluster.error_summary()}")
        return again(last, f"{what} was not confirmed in {limit_s:g} s; the last: {last.message}")

    @property
    def _known_now(self) -> int:
        return self._known or 0

    async def _ask(self, chunk: Chunk) -> int:
        """The last number that the broker has."""
        question = _Question(chunk, self._identity)
        self.waiting.appendleft(question)
        await self._end_of(question)
        if (expected := _expected_by(question.error)) is not None:
            return self._base + expected - 1
        if question.error is not None:
            raise self._explained(question.error)
        raise ProtocolError(f"{self.where}: the broker took a batch with number {QUESTION}")

    async def _end_of(self, batch: NumberedBatch) -> None:
        """Send, and send again, until a batch is confirmed, refused or out of time."""
        while True:
            now = anyio.current_time()
            self.expire(now)
            self.pump(now)
            if batch.done:
                return
            self.cluster.check_open()
            with anyio.move_on_after(self.next_time(now) - now):
                # What flies will be answered; what does not waits for a pause to end, or for a leader.
                await (self._changed.wait() if self.flying else self.cluster.wait_for_change())

    # What is answered.

    async def _confirm(self, sent: _SentChunk) -> None:
        chunk = sent.chunk
        if isinstance(sent.error, AlreadyStored):
            self._known = await self._ask(chunk)
            if chunk.number <= self._known - COMPARED:
                self._skip(chunk)
                return
            # It was compared, and its answer is too large for the broker to be kept.
            if chunk.on_conflict != IGNORE:
                raise DuplicateKey(f"{self.where}: over {FIXED.answer_ids} rows have a unique key that is taken")
        elif sent.error is not None:
            raise self._explained(sent.error)
        elif sent.offsets is not None and sent.offsets.conflicts:
            raise self._taken(chunk, sent.offsets)
        if chunk.number <= self._known_now:
            self.already_stored += 1
        self._confirmed = chunk.number

    def _skip(self, chunk: Chunk) -> None:
        """The broker has one with its number; the chains of those behind it tell that it is this one."""
        self._confirmed = chunk.number
        self.already_stored += 1

    def _taken(self, chunk: Chunk, offsets: Offsets) -> DuplicateKey:
        keys = Batch.parse(chunk.data).bytes_column(Column.UNIQUE_KEY) or ()
        first = min(offsets.conflicts)
        return DuplicateKey(
            f"{self.where}: {len(offsets.conflicts)} rows of a chunk have a unique key that is taken; the first "
            f"is {keys[first]!r}, of a message that is {offsets.conflicts[first]}. They were not stored, others "
            "were; onConflict=ignore leaves such rows out"
        )

    def _explained(self, error: SandqError) -> SandqError:
        if isinstance(error, ProducerFenced):
            return again(
                error,
                f"{self.where}: a later micro-batch, or another query of the same checkpoint, has written since; this "
                f"attempt is over ({error.message})",
            )
        if type(error) is Conflict:
            return self._changed_rows(f"a chunk is not what an earlier attempt stored in its place ({error.message})")
        return again(error, f"{self.where}: {error.message}")

    def _changed_rows(self, what: str) -> ChangedRows:
        where = f"{self.where}, Spark partition {self._identity.partition}"
        text = f"the rows differ between attempts of a task ({where}): {what}. To be exactly once, {_HELP}"
        return ChangedRows(text, reason=what)


def _parts(kept: Iterator[Chunk], chunks: list[Chunk]) -> Iterator[list[Chunk]]:
    """Kept chunks, then those that are at hand, not too many at once."""
    part: list[Chunk] = []
    size = 0
    for chunk in kept:
        part.append(chunk)
        size += len(chunk.data)
        if size >= AGAIN_BYTES:
            yield part
            part, size = [], 0
    yield from [found for found in (part, chunks) if found]
