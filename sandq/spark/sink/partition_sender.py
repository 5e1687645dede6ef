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
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

import anyio

from sandq.client.options import again
from sandq.client.transport.cluster import Cluster
from sandq.client.transport.connection import Connection
from sandq.model.batch import Batch, Column
from sandq.model.errors import (
    AlreadyStored,
    Conflict,
    DuplicateKey,
    OutOfSequence,
    Overloaded,
    ProducerFenced,
    ProtocolError,
    SandqError,
    TimedOut,
    Unavailable,
    UnknownPartition,
)
from sandq.model.limits import FIXED
from sandq.model.sequence import MAX_NUMBER, RESENT, sequence_of
from sandq.protocol.frames import Frame
from sandq.protocol.replies import Offsets
from sandq.protocol.requests import IGNORE, REJECT, Produce
from sandq.spark.sink.chunk_file import Kept
from sandq.spark.sink.chunks import Chunk
from sandq.spark.sink.identity import Identity

log = logging.getLogger("sandq.spark")

RETRY_S: Final = 120.0
"""A chunk is sent again for so long; then the task fails. Five of them, one behind the other, stay below the broker's
`producer_retry_ms`."""
COMPARED: Final = FIXED.producer_answers
"""The broker compares the last so many; and so many are under way at once."""
QUESTION: Final = MAX_NUMBER
"""A number that no chunk ever has: the broker answers which one is next."""
AGAIN_BYTES: Final = 16 << 20
"""Of kept chunks that are read, and sent again, at once."""
_QUIET: Final = (Overloaded, TimedOut, OutOfSequence)
"""They tell nothing about who leads."""
_HELP: Final = (
    "make the rows of each Spark partition the same in every attempt (sortWithinPartitions; no random values, no "
    "current time), or give them a unique_key column; with onChangedRows=again the rows of the task are written again, "
    "and some of them will be there twice"
)


class ChangedRows(Conflict):
    """An attempt has other rows than an earlier one that stored some; details: the `reason` to think so."""


class PartitionSender:
    """See the module's docstring. Its methods are of the client's event loop; numbers are those of the chunks."""

    def __init__(self, cluster: Cluster, topic: str, partition: int, identity: Identity, *, again: bool) -> None:
        """`again`: write changed rows again."""
        self.already_stored = self.again = 0  # chunks
        self._cluster = cluster
        self._topic = topic
        self._partition = partition
        self._identity = identity
        self._again = again
        self._base = 0  # the broker counts from here
        self._known: int | None = None  # the last number that the broker had, when it was asked
        self._confirmed = 0  # the last number that is stored
        self._sent = 0  # the last number that was sent in this attempt
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
            await self._store_again(self._changed(more), [])
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
        log.warning("%s: %s; the rows are written again: %s", self._where, changed.details["reason"], how)
        self._identity = self._identity.another()
        self._known = None
        for part in _parts(self._kept.read(self._topic, self._partition), chunks):
            if self._known is None:
                self._base = self._known = self._confirmed = self._sent = part[0].number - 1
                self.already_stored = min(self.already_stored, self._base)
            await self._store(part)
            self.again += len(part)

    async def _store(self, chunks: list[Chunk]) -> None:
        left = deque(chunks)
        while left:
            await self._persist(lambda: self._pass(left))

    # One attempt after the other.

    async def _persist(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do it, and again while its errors may pass, until nothing was stored for RETRY_S."""
        confirmed, failures = self._confirmed, 0
        since = anyio.current_time()
        while True:
            try:
                await work()
                return
            except SandqError as error:
                if not (error.retriable or isinstance(error, UnknownPartition)):
                    raise
                problem = error
            if self._confirmed > confirmed:
                confirmed, failures, since = self._confirmed, 0, anyio.current_time()
            pause_s = self._cluster.options.back_off_s(failures)
            failures += 1
            if anyio.current_time() + pause_s - since > RETRY_S:
                text = f"chunk {confirmed + 1} was not confirmed in {RETRY_S:g} s"
                raise again(problem, f"{self._where}: {text}; the last: {problem.message}")
            if not isinstance(problem, _QUIET):
                self._cluster.refresh(self._topic)
            await anyio.sleep(pause_s)

    async def _pass(self, left: deque[Chunk]) -> None:
        """Send what is left through one connection; what is confirmed is taken out."""
        connection = await self._leader()
        if self._known is None:
            self._known = await self._ask(connection, left[0])
        flying: deque[_Answer] = deque()
        try:
            while left:
                if not flying and left[0].number <= self._known - COMPARED:
                    self._skip(left.popleft())
                    continue
                while len(flying) < min(COMPARED, len(left)) and self._may_send(left[len(flying)]):
                    flying.append(self._send(connection, left[len(flying)]))
                reply = await flying[0].wait()
                flying.popleft()
                await self._confirm(connection, left[0], reply)
                left.popleft()
        finally:
            for answer in flying:
                answer.forget()

    async def _leader(self) -> Connection:
        with anyio.move_on_after(RETRY_S):
            while True:
                self._cluster.check_open()
                missing = self._cluster.missing(self._topic)
                if missing is not None:
                    raise again(missing)
                connection = self._cluster.leader(self._topic, self._partition)
                if connection is not None:
                    return connection
                await self._cluster.change()
        raise Unavailable(f"the partition has no leader that can be reached{self._cluster.why()}")

    # What is sent.

    def _may_send(self, chunk: Chunk) -> bool:
        """Nothing new before all that is known is confirmed: what was changed must not be stored beside it."""
        return chunk.number <= self._known_now or self._is_sure

    @property
    def _known_now(self) -> int:
        return self._known or 0

    def _send(self, connection: Connection, chunk: Chunk) -> _Answer:
        sequence = sequence_of(chunk.number - self._base, chunk.chain)
        if self._identity.resent or chunk.number <= self._sent:
            sequence |= RESENT
        self._sent = max(self._sent, chunk.number)
        return _Answer(connection, self._produce(sequence, chunk.on_conflict, chunk.data))

    async def _ask(self, connection: Connection, chunk: Chunk) -> int:
        """The last number that the broker has."""
        one = Batch.parse(chunk.data).slice(0, 1)
        reply = await _Answer(connection, self._produce(QUESTION, REJECT, one)).wait()
        if isinstance(reply, OutOfSequence) and type(expected := reply.details.get("expected")) is int:
            return self._base + expected - 1
        if isinstance(reply, SandqError):
            raise self._explained(reply)
        raise ProtocolError(f"{self._where}: the broker took a batch with number {QUESTION}")

    def _produce(self, sequence: int, on_conflict: int, data: bytes) -> Produce:
        identity = self._identity
        return Produce(self._topic, self._partition, identity.producer_id, identity.epoch, sequence, on_conflict, data)

    # What is answered.

    async def _confirm(self, connection: Connection, chunk: Chunk, reply: Frame | SandqError) -> None:
        if isinstance(reply, AlreadyStored):
            self._known = await self._ask(connection, chunk)
            if chunk.number <= self._known - COMPARED:
                self._skip(chunk)
                return
            # It was compared, and its answer is too large for the broker to be kept.
            if chunk.on_conflict != IGNORE:
                raise DuplicateKey(f"{self._where}: over {FIXED.answer_ids} rows have a unique key that is taken")
        elif isinstance(reply, SandqError):
            raise self._explained(reply)
        else:
            self._check_reply(chunk, Offsets.parse(reply))
        if chunk.number <= self._known_now:
            self.already_stored += 1
        self._confirmed = chunk.number

    def _skip(self, chunk: Chunk) -> None:
        """The broker has one with its number; the chains of those behind it tell that it is this one."""
        self._confirmed = chunk.number
        self.already_stored += 1

    def _check_reply(self, chunk: Chunk, offsets: Offsets) -> None:
        if offsets.messages != chunk.rows:
            raise ProtocolError(f"{self._where}: {offsets.messages} offsets for a batch of {chunk.rows} messages")
        if offsets.conflicts:
            keys = Batch.parse(chunk.data).bytes_column(Column.UNIQUE_KEY) or ()
            first = min(offsets.conflicts)
            raise DuplicateKey(
                f"{self._where}: {len(offsets.conflicts)} rows of a chunk have a unique key that is taken; the first "
                f"is {keys[first]!r}, of a message that is {offsets.conflicts[first]}. They were not stored, others "
                "were; onConflict=ignore leaves such rows out"
            )

    def _explained(self, error: SandqError) -> SandqError:
        if isinstance(error, ProducerFenced):
            return again(
                error,
                f"{self._where}: a later micro-batch, or another query of the same checkpoint, has written since; this "
                f"attempt is over ({error.message})",
            )
        if type(error) is Conflict:
            return self._changed(f"a chunk is not what an earlier attempt stored in its place ({error.message})")
        return again(error, f"{self._where}: {error.message}")

    def _changed(self, what: str) -> ChangedRows:
        where = f"{self._where}, Spark partition {self._identity.partition}"
        text = f"the rows differ between attempts of a task ({where}): {what}. To be exactly once, {_HELP}"
        return ChangedRows(text, reason=what)

    @property
    def _where(self) -> str:
        return f"topic {self._topic!r}, partition {self._partition}"


class _Answer:
    """A request that was sent, and its answer once it is there."""

    def __init__(self, connection: Connection, request: Produce) -> None:
        self._connection = connection
        self._came = anyio.Event()
        self._reply: Frame | SandqError | None = None
        self._id = connection.request(request.frame, self._take)

    def _take(self, reply: Frame | SandqError) -> None:
        self._reply = reply
        self._came.set()

    async def wait(self) -> Frame | SandqError:
        """TimedOut after RETRY_S."""
        with anyio.move_on_after(RETRY_S):
            await self._came.wait()
        if self._reply is None:
            self.forget()
            raise TimedOut(f"no answer in {RETRY_S:g} s; the outcome is unknown")
        return self._reply

    def forget(self) -> None:
        self._connection.forget(self._id)


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
