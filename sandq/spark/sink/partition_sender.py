"""`PartitionSender`: sends chunks to one topic partition; each is stored once, also if several attempts send it.

For each task (`identity`), a topic partition remembers the number of chunks that it has stored, and the checksums of
the last five. So the sender first asks for that number: the *known* chunks. Then:

* Later chunks are new. The broker stores them in the order of their numbers. If a chunk is sent twice, because a reply
  was lost, a leader failed or two attempts run at once, it is stored once.
* The last five known chunks are sent again. The broker compares them, and refuses one that differs.
* Older chunks are not sent. Each of the last five contains 16 bits of a checksum of all chunks before it (the chain,
  see `model.sequence`). So if the last five are the same, the older ones are the same.
* No new chunk is sent before all known chunks were found equal. An attempt that ends with fewer chunks than are known
  has different rows as well.

If a check fails, the attempt has different rows than an earlier one. The sender raises `ChangedRows`, or it writes all
chunks of the partition again as a new producer. It does so if `again` is set, which accepts duplicates, or if all rows
have unique keys and taken keys are ignored, which avoids duplicates. To make this possible, chunks are kept in a file
until it is certain that they are stored.

Some cases remain in which rows are stored twice, but never lost:

* A broker forgets a producer after seven days, or after 10,000 other producers in the topic partition. A task that is
  repeated later stores its rows again. (In the first 15 minutes the broker refuses such a task, because it knows that
  it may have forgotten it.)
* An attempt with different rows that still runs after Spark has given it up may store rows after those of the attempt
  that counts.
* If an attempt has no rows for a topic partition, it does not notice that an earlier attempt stored rows there.
* The comparison uses 32-bit checksums.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import anyio

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
from sandq.spark.sink.chunk_file import KeptChunks
from sandq.spark.sink.chunks import Chunk
from sandq.spark.sink.identity import Identity

log = logging.getLogger("sandq.spark")

RETRY_S: Final = 120.0
"""Time without a confirmed chunk after which the task fails, in s; until then chunks are sent again.

The five chunks in flight together stay below the broker's `producer_retry_ms`, also if they follow one after the other.
"""
COMPARED: Final = FIXED.producer_answers
"""Number of the latest chunks with which the broker compares a repeated chunk. Also the maximum number of chunks in
flight."""
PROBE_NUMBER: Final = MAX_NUMBER
"""A number that no chunk has. The broker refuses it, and the error names the next number that it expects."""
AGAIN_BYTES: Final = 16 << 20
"""Bytes of kept chunks that are read and sent again together."""
_HELP: Final = (
    "make the rows of each Spark partition the same in every attempt (sortWithinPartitions; no random values, no "
    "current time), or give them a unique_key column; with onChangedRows=again the rows of the task are written again, "
    "and some of them will be stored twice"
)


class ChangedRows(Conflict):
    """An attempt has different rows than an earlier attempt, which has stored some rows; `reason` in the details says
    why."""


class _SentChunk(NumberedBatch):
    """A chunk in flight."""

    __slots__ = ("chunk", "is_resent")

    def __init__(self, chunk: Chunk, base: int, identity: Identity) -> None:
        """`base`: number of the chunk that the broker counts as number 0."""
        super().__init__(anyio.current_time(), chunk.on_conflict)
        self.chunk = chunk
        self.is_resent = identity.resent
        self.data, self.epoch, self.sequence = chunk.data, identity.epoch, chunk.number - base

    def __len__(self) -> int:
        return self.chunk.rows

    def wire_sequence(self) -> int:
        sequence = sequence_of(self.sequence, self.chunk.chain)
        return sequence | RESENT if self.is_resent or self.sent_at != NEVER else sequence


class _Probe(NumberedBatch):
    """A batch that the broker always refuses, to read the next number that it expects from the error."""

    __slots__ = ()

    def __init__(self, chunk: Chunk, identity: Identity) -> None:
        super().__init__(anyio.current_time(), REJECT)
        self.data, self.epoch, self.sequence = Batch.parse(chunk.data).slice(0, 1), identity.epoch, PROBE_NUMBER

    def __len__(self) -> int:
        return 1

    def order(self) -> tuple[int, int]:
        return self.epoch, 0  # before the chunks, which wait for its result

    def wire_sequence(self) -> int:
        return PROBE_NUMBER

    def may_retry(self, error: SandqError) -> bool:
        return _expected_by(error) is None and super().may_retry(error)


def _expected_by(error: SandqError | None) -> int | None:
    """Return the number that the broker expects next, from an OutOfSequence error; None for other errors."""
    expected = error.details.get("expected") if isinstance(error, OutOfSequence) else None
    return expected if type(expected) is int else None


class PartitionSender(BatchSender[NumberedBatch]):
    """Sends the chunks of one topic partition, as the module's docstring describes.

    Call its methods in the client's event loop. All numbers are numbers of chunks.
    """

    def __init__(self, cluster: Cluster, topic: str, partition: int, identity: Identity, *, again: bool) -> None:
        """`again`: write changed rows again instead of raising ChangedRows."""
        options = replace(cluster.options, delivery_timeout_s=RETRY_S, in_flight_batches=COMPARED)
        self._changed = Signal()
        super().__init__(cluster, options, topic, partition, identity.producer_id, self._changed.set)
        self.already_stored = self.again = 0  # chunks
        self._identity = identity
        self._again = again
        self._base = 0  # number of the chunk that the broker counts as number 0
        self._known: int | None = None  # last number that the broker had stored when it was asked
        self._confirmed = 0  # last number that is certainly stored
        self._is_ignorable = True
        self._kept = KeptChunks()  # the chunks since `_is_certain` was true last

    async def deliver(self, chunks: list[Chunk]) -> None:
        """Store the next chunks; return when all are stored.

        Raises ChangedRows, a permanent error of a chunk, or the last temporary error after RETRY_S.
        """
        self._is_ignorable = self._is_ignorable and all([chunk.ignorable for chunk in chunks])
        # Keep chunks while an earlier attempt may have stored different ones: then all must be written again.
        try:
            await self._store(chunks)
        except ChangedRows as changed:
            await self._store_again(changed, chunks)
        if self._is_certain or not self._may_repeat:
            self._kept.clear()
        else:
            self._kept.add(chunks)

    async def finish(self) -> None:
        """End the attempt after the last chunk. Raises ChangedRows if an earlier attempt stored more chunks."""
        if self._known is not None and self._confirmed < self._known:
            more = f"an earlier attempt stored {self._known} chunks, and this one ends with {self._confirmed}"
            await self._store_again(self._changed_rows(more), [])
            self._kept.clear()

    @property
    def _is_certain(self) -> bool:
        """Whether this attempt has confirmed at least as many chunks as the broker had stored before.

        Until then an earlier attempt may have stored more chunks, with other rows: all may have to be written again.
        """
        return self._known is not None and self._confirmed >= self._known

    @property
    def _may_repeat(self) -> bool:
        return self._again or self._is_ignorable

    async def _store_again(self, changed: ChangedRows, chunks: list[Chunk]) -> None:
        """Write the kept chunks and `chunks` again, as a new producer."""
        if not self._may_repeat:
            raise changed
        how = "their unique keys prevent duplicates" if self._is_ignorable else "some will be stored twice"
        log.warning("%s: %s; the rows are written again: %s", self.where, changed.details["reason"], how)
        self._identity = self._identity.renewed()
        self.producer_id = self._identity.producer_id
        self._known = None
        for part in _parts(self._kept.read(self.topic, self.partition), chunks):
            if self._known is None:
                self._base = self._known = self._confirmed = part[0].number - 1
                self.already_stored = min(self.already_stored, self._base)
            await self._store(part)
            self.again += len(part)

    # -- sending --------------------------------------------------------------------------------------------------

    async def _store(self, chunks: list[Chunk]) -> None:
        left, in_flight = deque(chunks), deque[_SentChunk]()
        try:
            if self._known is None:
                self._known = await self._ask_last(chunks[0])
            while left or in_flight:
                if not in_flight and left[0].number <= self._known_now - COMPARED:
                    self._skip(left.popleft())
                    continue
                while left and len(in_flight) < COMPARED:
                    in_flight.append(_SentChunk(left.popleft(), self._base, self._identity))
                    self.add(in_flight[-1])
                sent = in_flight.popleft()
                await self._wait_for(sent)
                await self._confirm(sent)
                # RETRY_S counts from the last confirmed chunk.
                for batch in in_flight:
                    batch.opened_at = anyio.current_time()
        finally:
            self.abandon(lambda batch: ClosedError("the task was ended"))

    def may_send(self, batch: NumberedBatch) -> bool:
        """Return whether a batch may be sent.

        New chunks must wait until all known ones are confirmed. Otherwise rows of two different attempts could be
        stored next to each other.
        """
        is_new = isinstance(batch, _SentChunk) and batch.chunk.number > self._known_now
        return (not is_new or self._is_certain) and super().may_send(batch)

    def expired(self, batch: NumberedBatch, limit_s: float) -> SandqError:
        """Return the last error of a batch, with the number of its chunk."""
        name = f"chunk {batch.chunk.number}" if isinstance(batch, _SentChunk) else "the number of the last chunk"
        last = batch.returned_with or self.last_error
        if last is None and batch.unknown:
            last = TimedOut("no reply")
        elif last is None:
            last = Unavailable(f"the partition has no leader that can be reached{self.cluster.error_summary()}")
        return last.again(f"{name} was not confirmed in {limit_s:g} s; the last error: {last.message}")

    @property
    def _known_now(self) -> int:
        return self._known or 0

    async def _ask_last(self, chunk: Chunk) -> int:
        """Ask the broker for the number of the last chunk that it has stored. The probe contains a row of `chunk`."""
        probe = _Probe(chunk, self._identity)
        self.waiting.appendleft(probe)
        await self._wait_for(probe)
        if (expected := _expected_by(probe.error)) is not None:
            return self._base + expected - 1
        if probe.error is not None:
            raise self._explained(probe.error)
        raise ProtocolError(f"{self.where}: the broker accepted a batch with number {PROBE_NUMBER}")

    async def _wait_for(self, batch: NumberedBatch) -> None:
        """Send batches, also repeatedly, until `batch` is confirmed, refused or expired."""
        while True:
            now = anyio.current_time()
            self.expire(now)
            self.pump(now)
            if batch.done:
                return
            self.cluster.check_open()
            with anyio.move_on_after(self.next_time(now) - now):
                # Batches in flight get a reply. Without any, wait for the end of a pause, or for a leader.
                await (self._changed.wait() if self.in_flight else self.cluster.wait_for_change())

    # -- results --------------------------------------------------------------------------------------------------

    async def _confirm(self, sent: _SentChunk) -> None:
        """Process the result of a chunk. Raises its error, if it is not stored."""
        chunk = sent.chunk
        if isinstance(sent.error, AlreadyStored):
            # A concurrent attempt may have stored later chunks, so that this one was not compared.
            self._known = await self._ask_last(chunk)
            if chunk.number <= self._known - COMPARED:
                self._skip(chunk)
                return
            # The chunk was compared, but the broker did not keep the result, because it was too large.
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
        """Count a chunk as stored without sending it; the chains of later chunks prove that it is the same."""
        self._confirmed = chunk.number
        self.already_stored += 1

    def _taken(self, chunk: Chunk, offsets: Offsets) -> DuplicateKey:
        keys = Batch.parse(chunk.data).bytes_column(Column.UNIQUE_KEY) or ()
        first = min(offsets.conflicts)
        return DuplicateKey(
            f"{self.where}: {len(offsets.conflicts)} rows of a chunk have a unique key that is taken; the first "
            f"is {keys[first]!r}, of a message that is {offsets.conflicts[first]}. They were not stored, the others "
            "were; onConflict=ignore leaves such rows out"
        )

    def _explained(self, error: SandqError) -> SandqError:
        if isinstance(error, ProducerFenced):
            return error.again(
                f"{self.where}: a later micro-batch, or a second query with the same checkpoint, has written since; "
                f"this attempt has ended ({error.message})"
            )
        if type(error) is Conflict:
            return self._changed_rows(f"a chunk differs from the one that an earlier attempt stored ({error.message})")
        return error.again(f"{self.where}: {error.message}")

    def _changed_rows(self, reason: str) -> ChangedRows:
        where = f"{self.where}, Spark partition {self._identity.partition}"
        text = f"the rows differ between attempts of a task ({where}): {reason}. To write each row once, {_HELP}"
        return ChangedRows(text, reason=reason)


def _parts(kept: Iterator[Chunk], chunks: list[Chunk]) -> Iterator[list[Chunk]]:
    """Return the kept chunks in parts of about AGAIN_BYTES, then `chunks` as the last part."""
    part: list[Chunk] = []
    size = 0
    for chunk in kept:
        part.append(chunk)
        size += len(chunk.data)
        if size >= AGAIN_BYTES:
            yield part
            part, size = [], 0
    yield from [found for found in (part, chunks) if found]
