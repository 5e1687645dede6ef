"""Requests about the keys of a compacted topic. They are written by PRODUCE.

    KV_GET      64 [topic, partition, [key...]]
    KV_SCAN     65 [topic, partition, start, stop | nil, limit, max_bytes]

Answers, a value being `<B 3x I q 16s` (flags: 1 with headers; bytes of the headers; expires_ms, 0 for never; version),
then headers and value:

    KV_GET      [[value | nil...]]: of the first keys, one at least; the rest is to be asked for again
    KV_SCAN     [[key, value, key, value...], next start | nil]
"""

from __future__ import annotations

from typing import Final, NamedTuple

from sandq.model.errors import InvalidRequest
from sandq.model.offsets import PARTITION_MAX

from .fields import Field, Shape
from .frames import Frame, Type, encode_frame

KEYS_MOST: Final = 10_000
"""Of one request."""
ANSWER_BYTES: Final = 8 << 20
"""An answer ends with the value that reaches this."""

_TOPIC: Final = Field("topic", str)
_PARTITION: Final = Field("partition", int, maximum=PARTITION_MAX)
_GET = Shape("KV_GET", _TOPIC, _PARTITION, Field("keys", list))
_SCAN = Shape(
    "KV_SCAN",
    _TOPIC,
    _PARTITION,
    Field("start", bytes),
    Field("stop", bytes, optional=True),
    Field("limit", int, minimum=1, maximum=KEYS_MOST),
    Field("max_bytes", int, minimum=1, maximum=ANSWER_BYTES),
)


class KvGet(NamedTuple):
    """What keys have."""

    topic: str
    partition: int
    keys: list[bytes]

    @classmethod
    def parse(cls, frame: Frame) -> KvGet:
        _GET.check(frame)
        keys = frame[4]
        if not 0 < len(keys) <= KEYS_MOST or not all(type(key) is bytes for key in keys):
            raise InvalidRequest(f"KV_GET: 1 to {KEYS_MOST} keys are asked for, as bytes")
        return cls._make(frame[2:])

    def frame(self, request_id: int) -> bytes:
        return encode_frame(Type.KV_GET, request_id, *self)


class KvScan(NamedTuple):
    """Keys from `start` up to, without, `stop` (None: to the last) and what they have, in order."""

    topic: str
    partition: int
    start: bytes
    stop: bytes | None
    limit: int
    max_bytes: int

    @classmethod
    def parse(cls, frame: Frame) -> KvScan:
        _SCAN.check(frame)
        return cls._make(frame[2:])

    def frame(self, request_id: int) -> bytes:
        return encode_frame(Type.KV_SCAN, request_id, *self)
