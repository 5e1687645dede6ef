"""Single messages that come one behind the other on a connection: stored as one batch, answered one by one.

Most of what a message costs it costs as a batch of its own: a command in the log, a row, an answer through all threads.
What one receive brought is all there at once, so that gathering it delays nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sandq.model import offsets
from sandq.model.batch import Column, encode, plain_single
from sandq.model.errors import SandqError
from sandq.partition.log import Stored
from sandq.protocol.frames import Frame, encode_reply
from sandq.protocol.requests import Produce

SINGLE_BYTES = 4096
"""A larger batch gains nothing from company."""
_VALUE_AT = len(encode({Column.VALUE: [b""]}))
"""In a batch of one value and nothing else."""

_TYPES = [int, int, str, int, int, int, int, int, bytes]
"""Of the fields of a PRODUCE request."""

Done = Callable[[Any], None]


class Singles:
    """PRODUCE requests of one receive, while they are alike.

    `produce` hands the batch of so many requests to the broker, and raises what refuses it; `reply` sends the answers
    to requests, in one piece; `refuse` answers a request that failed.
    """

    def __init__(
        self,
        produce: Callable[[Produce, int, Done], None],
        reply: Callable[[Sequence[int], bytes], None],
        refuse: Callable[[int, SandqError], None],
    ) -> None:
        self._produce = produce
        self._reply = reply
        self._refuse = refuse
        self._alike: list[Any] = []
        self._ids: list[int] = []
        self._batches: list[bytes] = []

    def add(self, frame: Frame) -> None:
        """Take a PRODUCE request in, behind those that came before. Raises InvalidRequest."""
        if self._ids and self._joins(frame):
            self._ids.append(frame[1])
            self._batches.append(frame[8])
            return
        self.flush()
        asked = Produce.parse(frame)
        if asked.producer_id or len(asked.batch) > SINGLE_BYTES:
            self._produce(asked, 1, self._done([frame[1]]))
        else:
            self._alike = frame[2:8]
            self._ids.append(frame[1])
            self._batches.append(asked.batch)

    def _joins(self, frame: Frame) -> bool:
        """Whether a request is as those before it, but for its message. (1.0 == 1 == True: what is odd goes the way on
        which it is refused.)"""
        return frame[2:8] == self._alike and [*map(type, frame)] == _TYPES and len(frame[8]) <= SINGLE_BYTES

    def flush(self) -> None:
        """Hand on what has gathered."""
        if not self._ids:
            return
        ids, self._ids = self._ids, []
        batches, self._batches = self._batches, []
        merged = _merged(batches) if len(ids) > 1 else None
        if merged is not None:
            try:
                self._produce(Produce._make([*self._alike, merged]), len(ids), self._done(ids))
                return
            except SandqError:
                pass  # whose fault it is they learn one by one
        for request_id, batch in zip(ids, batches, strict=True):
            try:
                self._produce(Produce._make([*self._alike, batch]), 1, self._done([request_id]))
            except SandqError as error:
                self._refuse(request_id, error)

    def _done(self, ids: list[int]) -> Done:
        """What answers these requests, each with its part of what became of the whole."""

        def done(result: Any) -> None:
            if isinstance(result, SandqError):
                for request_id in ids:
                    self._refuse(request_id, result)
            elif len(ids) == 1:
                self._reply(ids, encode_reply(ids[0], *_told(result)))
            else:
                parts = zip(ids, _parts(result, len(ids)), strict=True)
                self._reply(ids, b"".join([encode_reply(request_id, *part) for request_id, part in parts]))

        return done


def _told(result: tuple[bytes, int] | Stored) -> tuple[Any, Any]:
    """What the answer says of a batch that was stored."""
    return (result.offsets, result.refused or None) if isinstance(result, Stored) else (result, None)


def _parts(result: tuple[bytes, int] | Stored, count: int) -> list[tuple[Any, Any]]:
    """And of each of its messages, as if that had been a batch."""
    if not isinstance(result, Stored):
        return [((base, 1), None) for base in offsets.run(result[0], count)]
    size, refused = offsets.OFFSET_BYTES, dict(result.refused)
    return [
        (result.offsets[at * size : at * size + size], [(0, refused[at])] if at in refused else None)
        for at in range(count)
    ]


def _merged(batches: Sequence[bytes]) -> bytes | None:
    """One batch of all of them; None: some are more than a value."""
    values: list[bytes] = []
    for batch in batches:
        size = plain_single(batch)
        if size is None:
            return None
        values.append(batch[_VALUE_AT : _VALUE_AT + size])
    return encode({Column.VALUE: values})
