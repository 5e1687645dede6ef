"""Merge small PRODUCE batches that one receive brings for one partition into one batch, and answer each request.

Most of the cost of a message is the cost of its batch: a log entry, a row, and a reply that passes all threads. All
requests of one receive arrive at the same time, so merging them delays no request.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any, Final, TypeVar

import trio

from sandq.broker.broker import Broker
from sandq.broker.replication.requests import Done
from sandq.model import offsets
from sandq.model.batch import TYPE_INT64, Batch, Column, encode, plain_single
from sandq.model.batch_format import HEADER_BYTES, TYPE_OF, count_of, stored_bytes_of
from sandq.model.errors import InvalidRequest, QuotaExceeded, SandqError
from sandq.partition.log.appends import Stored
from sandq.partition.produce_validation import check_ratio
from sandq.protocol.frames import Frame, LargeFrame, Type, encode_replies, encode_reply
from sandq.protocol.requests import Produce
from sandq.server.connection import Connection
from sandq.server.delays import AT_ONCE, ahead_of_batch
from sandq.server.request_checks import RequestChecks

SMALL_BYTES = 4096
"""Size of the largest batch that is merged, in bytes. Merging larger batches would save nothing."""
TOGETHER: Final = 512
"""Maximum number of requests that are merged. If the merged batch is refused, they are handled one by one without a
pause, so a higher number could block the loop."""
ALONE_WORK: Final = 16
"""Units of work of a batch that is not merged, in addition to its bytes."""
COLUMNS_WORK: Final = 12
"""Units of work of a merged batch that has columns other than the value: its cells are read one by one."""
_COLUMNS_AT = HEADER_BYTES
"""Position of the low byte of the number of columns."""
_VALUE_AT = len(encode({Column.VALUE: [b""]}))
"""Position of the value in a batch of one value and nothing else."""
_CODEC_AND_FLAGS = slice(9, 12)
_ALIKE = (b"\0\0\0", b"\0\1\0")
"""Codec and flags of batches that can be merged: not compressed, and without unknown flags."""

_TYPES = [int, int, str, int, int, int, int, int, bytes]
"""Types of the fields of a PRODUCE frame."""

_REQUEST_ID, _TOPIC, _PARTITION, _PRODUCER_ID, _BATCH = 1, 2, 3, 4, 8
"""Positions of fields in a PRODUCE frame. No object is made of the frame, because this would double the cost of a small
message."""
_BEFORE_BATCH = slice(_TOPIC, _BATCH)

_PRODUCE: Final = int(Type.PRODUCE)

M = TypeVar("M")


@dataclass(slots=True)
class _Gathered:
    """Requests that can be merged: they differ only in their messages."""

    alike: tuple[list[Any], bytes]
    """The fields before the batch, and the batch's codec and flags. All gathered requests have the same."""
    ids: list[int]
    batches: list[bytes]


class ProduceCoalescer:
    """Merges the PRODUCE requests of one receive by partition. Requests for a partition take effect in order."""

    def __init__(self, broker: Broker, connection: Connection, checks: RequestChecks) -> None:
        self._broker = broker
        self._connection = connection
        self._checks = checks
        self._gathered: dict[tuple[str, int], _Gathered] = {}

    def add(self, frame: Frame) -> Awaitable[None] | None:
        """Gather or produce a PRODUCE request. Await the result, if any, before the next request. Raise
        InvalidRequest."""
        if not _is_small(frame):
            self.flush()
            request = Produce.parse(frame)
            done = self._done([frame[_REQUEST_ID]], [0])
            if self._broker.is_large(request):
                return self._produce_large(request, done)
            work = ALONE_WORK + (stored_bytes_of(request.batch) >> 12) + _messages_work(request.batch)
            self._connection.time_slice.left -= work
            self._produce(request, 1, done)
            return None
        partition, batch = (frame[_TOPIC], frame[_PARTITION]), frame[_BATCH]
        if len(batch) > _VALUE_AT and batch[_COLUMNS_AT] != 1:
            self._connection.time_slice.left -= COLUMNS_WORK
        alike = (frame[_BEFORE_BATCH], batch[_CODEC_AND_FLAGS])
        gathered = self._gathered.get(partition)
        if gathered is not None and gathered.alike == alike:
            gathered.ids.append(frame[_REQUEST_ID])
            gathered.batches.append(batch)
            if len(gathered.ids) >= TOGETHER:
                self.flush()
            return None
        if gathered is not None:
            self.flush()
        Produce.parse(frame)  # validate the fields once for all requests that have equal fields
        self._gathered[partition] = _Gathered(alike, [frame[_REQUEST_ID]], [batch])
        return None

    def gather(
        self, frames: Sequence[Frame | LargeFrame], first: int, most: int, requests: dict[int, M], mark: M
    ) -> int:
        """Gather at most `most` requests from `frames[first]` on, as long as they can be merged with gathered ones.

        Note each of them in `requests`, with `mark`. Return their number. Most of the cost of small requests is the
        cost of this loop, so the loop does only what all of them need."""
        alike, gathered = None, None
        stop = max(first, min(first + most, len(frames)))
        for at in range(first, stop):
            frame = frames[at]
            if type(frame) is not list or [*map(type, frame)] != _TYPES or frame[0] != _PRODUCE:
                break
            request_id, batch = frame[_REQUEST_ID], frame[_BATCH]
            if len(batch) > SMALL_BYTES or request_id in requests:
                break
            if len(batch) > _VALUE_AT and batch[_COLUMNS_AT] != 1:
                break  # its work is counted in `add`
            this = (frame[_BEFORE_BATCH], batch[_CODEC_AND_FLAGS])
            if this != alike:
                gathered = self._gathered.get((frame[_TOPIC], frame[_PARTITION]))
                if gathered is None or gathered.alike != this:
                    break
                alike = this
            assert gathered is not None
            if len(gathered.ids) >= TOGETHER - 1:
                break  # the last request of a merge goes through `add`, which flushes
            gathered.ids.append(request_id)
            gathered.batches.append(batch)
            requests[request_id] = mark
        else:
            return stop - first
        return at - first

    def flush(self) -> None:
        """Produce the gathered batches."""
        if self._gathered:
            gathered, self._gathered = self._gathered, {}
            for of_partition in gathered.values():
                self._hand_on(of_partition)

    def _hand_on(self, gathered: _Gathered) -> None:
        """Produce gathered batches as one merged batch. If that fails, produce each batch separately."""
        fields, ids = gathered.alike[0], gathered.ids
        if len(ids) > 1:
            try:
                merged, counts = _merged(gathered.batches)
                self._produce(Produce._make([*fields, merged]), len(ids), self._done(ids, counts))
                return
            except SandqError:
                pass  # produced one by one below, so that each request gets its own error
        for request_id, batch in zip(ids, gathered.batches, strict=True):
            try:
                self._produce(Produce._make([*fields, batch]), 1, self._done([request_id], [0]))
            except SandqError as error:
                self._connection.refuse(request_id, error)

    # -- to the broker --------------------------------------------------------------------------------------------

    def _produce(self, request: Produce, requests: int, done: Done) -> None:
        """Produce the batch of `requests` requests. Raise the error that refuses it."""
        if requests > 1 and not self._checks.admits(requests):
            raise QuotaExceeded("not all of them at once")  # the caller then produces them one by one
        self._checks.check_rate(request.topic, requests)
        self._checks.count_produce(request, requests)
        caller = self._connection.caller
        if not _is_compressed(request.batch):
            self._broker.produce(request, caller, done, requests=requests)
            return
        with self._held(request, done) as answer:
            self._broker.produce(request, caller, answer, requests=requests)

    async def _produce_large(self, request: Produce, done: Done) -> None:
        """Produce a batch that takes long to validate. Raise the error that refuses it."""
        self._checks.check_rate(request.topic)
        check_ratio(request.batch)  # before it is decompressed, and before quotas count the size that it claims
        ahead = AT_ONCE
        if self._checks.needs_delay(request.topic):
            # Reading the delivery times takes long: a thread does it, so that the loop goes on.
            ahead = await trio.to_thread.run_sync(ahead_of_batch, request.batch, self._broker.clock.now_ms())
        self._checks.count_produce(request, 1, ahead)
        with self._held(request, done) as answer:
            caller = self._connection.caller
            checked = await self._broker.check_large(request, caller)
            self._broker.produce(request, caller, answer, checked=checked)

    @contextmanager
    def _held(self, request: Produce, done: Done) -> Iterator[Done]:
        """Count the bytes that a compressed batch has in addition to its frame, until it is refused or answered."""
        more = stored_bytes_of(request.batch) - len(request.batch)
        if not more:
            yield done
            return

        def answer(result: Any) -> None:
            """Release the memory of the batch, and pass the result on."""
            self._connection.hold_request(-more)
            done(result)

        self._connection.hold_request(more)
        try:
            yield answer
        except BaseException:
            self._connection.hold_request(-more)
            raise

    def _done(self, ids: list[int], counts: list[int]) -> Done:
        """Return the callback that answers these requests. `counts`: number of messages of each in the merged batch."""

        def done(result: Any) -> None:
            """Reply to each request of the batch with its part of the result."""
            if isinstance(result, SandqError):
                for request_id in ids:
                    self._connection.refuse(request_id, result)
            elif len(ids) == 1:
                self._connection.reply_each(ids, encode_reply(ids[0], *_reply_fields(result)))
            else:
                self._connection.reply_each(ids, encode_replies(_parts(result, ids, counts)))

        return done


def _is_compressed(raw: bytes) -> bool:
    """Return whether a batch has more bytes than its frame shows, judging by its header."""
    return raw[9:10] > b"\0"


def _messages_work(raw: bytes) -> int:
    """Return the work of the messages of a batch, in addition to its bytes."""
    return count_of(raw) >> 6 if len(raw) >= HEADER_BYTES else 0


def _is_small(frame: Frame) -> bool:
    """Return whether a request may be merged: valid field types, a small uncompressed batch, and no sequence number."""
    return (
        [*map(type, frame)] == _TYPES
        and not frame[_PRODUCER_ID]
        and len(frame[_BATCH]) <= SMALL_BYTES
        and frame[_BATCH][_CODEC_AND_FLAGS] in _ALIKE
    )


def _merged(raws: Sequence[bytes]) -> tuple[bytes, list[int]]:
    """Return one batch of all messages, and the number of messages of each.

    Raise InvalidRequest if a batch is damaged, or if a column would be lost."""
    sizes = [plain_single(raw) for raw in raws]
    if None not in sizes:
        values = [raw[_VALUE_AT : _VALUE_AT + size] for raw, size in zip(raws, sizes, strict=True) if size is not None]
        return encode({Column.VALUE: values}), [1] * len(raws)
    batches = [Batch.parse(raw) for raw in raws]
    columns = {column: _column(batches, column) for column in sorted({c for batch in batches for c in batch.columns})}
    return encode(columns, relative=batches[0].relative), [batch.count for batch in batches]


def _column(batches: Sequence[Batch], column: int) -> list[Any]:
    """Return the cells of a column in all batches. If a batch lacks the column, its cells are nulls, which mean the
    same."""
    if column not in TYPE_OF:
        raise InvalidRequest(f"batch: column {column} is not known here")
    read = Batch.int_column if TYPE_OF[column] == TYPE_INT64 else Batch.bytes_column
    cells = [*chain.from_iterable([read(batch, column) or [None] * batch.count for batch in batches])]
    if column != Column.VALUE and cells.count(None) == len(cells):
        raise InvalidRequest(f"batch: {column} has only nulls, and would be left out although it may be invalid")
    return cells


def _reply_fields(result: tuple[bytes, int] | Stored) -> tuple[Any, ...]:
    """Return the fields of the reply for a stored batch."""
    if not isinstance(result, Stored):
        return result, None
    fields = result.offsets, result.refused or None
    return fields if result.outcomes is None else (*fields, result.outcomes)


def _parts(result: tuple[bytes, int] | Stored, ids: Sequence[int], counts: Sequence[int]) -> list[tuple[Any, ...]]:
    """Return the reply fields of each merged request: its part of the result, as if it had been a batch of its own."""
    parts = zip(ids, accumulate(counts, initial=0), counts, strict=False)
    if not isinstance(result, Stored):
        bases = offsets.run(result[0], result[1])
        return [(request_id, (bases[start], count), None) for request_id, start, count in parts]
    size = offsets.OFFSET_BYTES
    refused, outcomes = dict(result.refused), {at: fields for at, *fields in result.outcomes or ()}
    return [
        (
            request_id,
            result.offsets[start * size : (start + count) * size],
            ([(at, refused[start + at]) for at in range(count) if start + at in refused] or None) if refused else None,
            *_outcome_fields(result, outcomes, start, count),
        )
        for request_id, start, count in parts
    ]


def _outcome_fields(result: Stored, outcomes: Mapping[int, Sequence[Any]], start: int, count: int) -> tuple[Any, ...]:
    """Return the outcomes of the unique keys of `count` messages, as reply fields; nothing if the batch has none."""
    if result.outcomes is None:
        return ()
    return ([(at, *outcomes[start + at]) for at in range(count) if start + at in outcomes],)
