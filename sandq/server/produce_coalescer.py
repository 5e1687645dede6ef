"""Store small batches that come in one receive for one partition as one batch, and answer them one by one.

Most of what a message costs its batch costs: a command in the log, a row, an answer through all threads. What one
receive brought is all there at once, so that gathering it delays nobody.
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
from sandq.partition.produce_validation import check_ratio, is_much
from sandq.protocol.frames import Frame, LargeFrame, Type, encode_replies, encode_reply
from sandq.protocol.requests import Produce
from sandq.server.connection import Connection
from sandq.server.delays import AT_ONCE, ahead_of_batch
from sandq.server.request_checks import RequestChecks

SMALL_BYTES = 4096
"""A larger batch gains nothing from company."""
TOGETHER: Final = 512
"""Requests that are handed on as one: where that is refused they are looked at, and answered, one by one in one go."""
ALONE_WORK: Final = 16
"""Of a batch that does not go with others, beside its bytes."""
COLUMNS_WORK: Final = 12
"""Of one that does, and has more than values: its cells are read one by one."""
_COLUMNS_AT = HEADER_BYTES
"""Where the low byte of the number of columns stands."""
_VALUE_AT = len(encode({Column.VALUE: [b""]}))
"""In a batch of one value and nothing else."""
_CODEC_AND_FLAGS = slice(9, 12)
_ALIKE = (b"\0\0\0", b"\0\1\0")
"""Of batches that are not compressed, and known."""

_TYPES = [int, int, str, int, int, int, int, int, bytes]
"""Of the fields of a PRODUCE request."""

_REQUEST_ID, _TOPIC, _PARTITION, _PRODUCER_ID, _BATCH = 1, 2, 3, 4, 8
"""Positions of fields in the frame of a PRODUCE request. It is not made an object: that costs as much as all else."""
_BEFORE_BATCH = slice(_TOPIC, _BATCH)

_PRODUCE: Final = int(Type.PRODUCE)

M = TypeVar("M")


@dataclass(slots=True)
class _Gathered:
    """Requests that differ in their messages alone."""

    alike: tuple[list[Any], bytes]
    """The fields before the batch, and what kind of batch."""
    ids: list[int]
    batches: list[bytes]


class ProduceCoalescer:
    """The PRODUCE requests of one receive, by partition; those of a partition take effect in their order."""

    def __init__(self, broker: Broker, connection: Connection, checks: RequestChecks) -> None:
        self._broker = broker
        self._connection = connection
        self._checks = checks
        self._gathered: dict[tuple[str, int], _Gathered] = {}

    def add(self, frame: Frame) -> Awaitable[None] | None:
        """Take a PRODUCE request in, behind those that came before; what is returned is to be awaited before the next
        one. Raises InvalidRequest."""
        if not _is_small(frame):
            self.flush()
            asked = Produce.parse(frame)
            done = self._done([frame[_REQUEST_ID]], [0])
            if is_much(asked.batch):
                return self._produce_large(asked, done)
            work = ALONE_WORK + (stored_bytes_of(asked.batch) >> 12) + _messages_work(asked.batch)
            self._connection.turn.left -= work
            self._produce(asked, 1, done)
            return None
        partition, batch = (frame[_TOPIC], frame[_PARTITION]), frame[_BATCH]
        if len(batch) > _VALUE_AT and batch[_COLUMNS_AT] != 1:
            self._connection.turn.left -= COLUMNS_WORK
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
        Produce.parse(frame)  # checks the fields, once for all that are alike
        self._gathered[partition] = _Gathered(alike, [frame[_REQUEST_ID]], [batch])
        return None

    def gather(
        self, frames: Sequence[Frame | LargeFrame], first: int, most: int, requests: dict[int, M], mark: M
    ) -> int:
        """Take in so many requests from the `first` on, as long as they are just like some that have gathered, and note
        them among those that are not answered yet: how many. Of many small ones this is most of what they cost."""
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
                break  # that is more work
            this = (frame[_BEFORE_BATCH], batch[_CODEC_AND_FLAGS])
            if this != alike:
                gathered = self._gathered.get((frame[_TOPIC], frame[_PARTITION]))
                if gathered is None or gathered.alike != this:
                    break
                alike = this
            assert gathered is not None
            if len(gathered.ids) >= TOGETHER - 1:
                break  # the last of them
            gathered.ids.append(request_id)
            gathered.batches.append(batch)
            requests[request_id] = mark
        else:
            return stop - first
        return at - first

    def flush(self) -> None:
        """Hand on what has gathered."""
        if self._gathered:
            gathered, self._gathered = self._gathered, {}
            for of_partition in gathered.values():
                self._hand_on(of_partition)

    def _hand_on(self, gathered: _Gathered) -> None:
        fields, ids = gathered.alike[0], gathered.ids
        if len(ids) > 1:
            try:
                merged, counts = _merged(gathered.batches)
                self._produce(Produce._make([*fields, merged]), len(ids), self._done(ids, counts))
                return
            except SandqError:
                pass  # whose fault it is they learn one by one
        for request_id, batch in zip(ids, gathered.batches, strict=True):
            try:
                self._produce(Produce._make([*fields, batch]), 1, self._done([request_id], [0]))
            except SandqError as error:
                self._connection.refuse(request_id, error)

    # -- to the broker --------------------------------------------------------------------------------------------

    def _produce(self, request: Produce, requests: int, done: Done) -> None:
        """Store the batch of `requests` requests. Raise the error that refuses it."""
        if requests > 1 and not self._checks.has_room(requests):
            raise QuotaExceeded("not all of them at once")  # so they come one by one
        self._checks.check_rate(request.topic, requests)
        self._checks.count_produce(request, requests)
        caller = self._connection.caller
        if not _is_compressed(request.batch):
            self._broker.produce(request, caller, done, requests=requests)
            return
        with self._held(request, done) as answer:
            self._broker.produce(request, caller, answer, requests=requests)

    async def _produce_large(self, request: Produce, done: Done) -> None:
        """Store a batch that takes long to check. Raise the error that refuses it."""
        self._checks.check_rate(request.topic)
        check_ratio(request.batch)  # before anything decompresses it, and before quotas count what it claims
        ahead = AT_ONCE
        if self._checks.looks_ahead(request.topic):
            # It takes long, and others are not to wait for that.
            ahead = await trio.to_thread.run_sync(ahead_of_batch, request.batch, self._broker.clock.now_ms())
        self._checks.count_produce(request, 1, ahead)
        with self._held(request, done) as answer:
            checked = await self._broker.check_large(request)
            self._broker.produce(request, self._connection.caller, answer, checked=checked)

    @contextmanager
    def _held(self, request: Produce, done: Done) -> Iterator[Done]:
        """Count the bytes that a compressed batch has beyond its frame, until it is refused or answered."""
        more = stored_bytes_of(request.batch) - len(request.batch)
        if not more:
            yield done
            return

        def answer(result: Any) -> None:
            self._connection.hold_request(-more)
            done(result)

        self._connection.hold_request(more)
        try:
            yield answer
        except BaseException:
            self._connection.hold_request(-more)
            raise

    def _done(self, ids: list[int], counts: list[int]) -> Done:
        """What answers these requests, each with its part (so many messages) of what became of the whole."""

        def done(result: Any) -> None:
            if isinstance(result, SandqError):
                for request_id in ids:
                    self._connection.refuse(request_id, result)
            elif len(ids) == 1:
                self._connection.reply_each(ids, encode_reply(ids[0], *_told(result)))
            else:
                self._connection.reply_each(ids, encode_replies(_parts(result, ids, counts)))

        return done


def _is_compressed(raw: bytes) -> bool:
    """Return whether a batch has more bytes than its frame says, as far as its header is there."""
    return raw[9:10] > b"\0"


def _messages_work(raw: bytes) -> int:
    """Return the work of the messages of a batch, beside its bytes."""
    return count_of(raw) >> 6 if len(raw) >= HEADER_BYTES else 0


def _is_small(frame: Frame) -> bool:
    """Whether a request may go with others: it has the right fields, a small batch that is not compressed, and no
    sequence number."""
    return (
        [*map(type, frame)] == _TYPES
        and not frame[_PRODUCER_ID]
        and len(frame[_BATCH]) <= SMALL_BYTES
        and frame[_BATCH][_CODEC_AND_FLAGS] in _ALIKE
    )


def _merged(raws: Sequence[bytes]) -> tuple[bytes, list[int]]:
    """One batch of all of them, and how many messages are from each. InvalidRequest when one is damaged, or a column
    would be lost."""
    sizes = [plain_single(raw) for raw in raws]
    if None not in sizes:
        values = [raw[_VALUE_AT : _VALUE_AT + size] for raw, size in zip(raws, sizes, strict=True) if size is not None]
        return encode({Column.VALUE: values}), [1] * len(raws)
    batches = [Batch.parse(raw) for raw in raws]
    columns = {column: _column(batches, column) for column in sorted({c for batch in batches for c in batch.columns})}
    return encode(columns, relative=batches[0].relative), [batch.count for batch in batches]


def _column(batches: Sequence[Batch], column: int) -> list[Any]:
    """Its cells in all batches. A batch without it has nulls there, which say the same."""
    if column not in TYPE_OF:
        raise InvalidRequest(f"batch: column {column} is not known here")
    read = Batch.int_column if TYPE_OF[column] == TYPE_INT64 else Batch.bytes_column
    cells = [*chain.from_iterable([read(batch, column) or [None] * batch.count for batch in batches])]
    if column != Column.VALUE and cells.count(None) == len(cells):
        raise InvalidRequest(f"batch: {column} holds nothing, and would be left out: it may be what is refused")
    return cells


def _told(result: tuple[bytes, int] | Stored) -> tuple[Any, ...]:
    """What the answer says of a batch that was stored."""
    if not isinstance(result, Stored):
        return result, None
    told = result.offsets, result.refused or None
    return told if result.outcomes is None else (*told, result.outcomes)


def _parts(result: tuple[bytes, int] | Stored, ids: Sequence[int], counts: Sequence[int]) -> list[tuple[Any, ...]]:
    """And of each part of it, the request's, as if that had been a batch."""
    parts = zip(ids, accumulate(counts, initial=0), counts, strict=False)
    if not isinstance(result, Stored):
        bases = offsets.run(result[0], result[1])
        return [(request_id, (bases[start], count), None) for request_id, start, count in parts]
    size = offsets.OFFSET_BYTES
    refused, outcomes = dict(result.refused), {at: told for at, *told in result.outcomes or ()}
    return [
        (
            request_id,
            result.offsets[start * size : (start + count) * size],
            ([(at, refused[start + at]) for at in range(count) if start + at in refused] or None) if refused else None,
            *_told_part(result, outcomes, start, count),
        )
        for request_id, start, count in parts
    ]


def _told_part(result: Stored, outcomes: Mapping[int, Sequence[Any]], start: int, count: int) -> tuple[Any, ...]:
    """What is told of unique keys that were taken, of so many messages; nothing, where that is not told."""
    if result.outcomes is None:
        return ()
    return ([(at, *outcomes[start + at]) for at in range(count) if start + at in outcomes],)
