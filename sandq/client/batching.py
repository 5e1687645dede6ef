"""What a producer collects: messages checked and put into columns, batches, receipts. No network in here.

A batch is *open* while messages are added, *sealed* once it is encoded, *done* once it has offsets or an
error. Messages of three kinds never share a batch: without a time (the broker then stores the batch
whole), at an instant, after a delay (times relative to the leader's clock).
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from enum import IntEnum
from typing import Any

import anyio

from sandq.client.options import again
from sandq.model import offsets as offset_model
from sandq.model.batch import Column, encode, headers_pack
from sandq.model.errors import InvalidRequest, SandqError, TooLarge
from sandq.model.headers import HeaderValue
from sandq.model.limits import DEFAULT
from sandq.model.times import Duration, Instant, duration_ms, instant_ms
from sandq.protocol.replies import Offsets

Value = bytes | bytearray | memoryview | str
Headers = Mapping[str, HeaderValue]

MESSAGE_OVERHEAD_BYTES = 32
"""Counted for each message beside its bytes: its cells' offsets, its receipt."""


class Kind(IntEnum):
    """What a message says about its time."""

    NOW = 0
    AT = 1
    DELAY = 2


class Batch:
    """Messages of one kind for one partition, and what became of them."""

    __slots__ = (
        "data",
        "epoch",
        "error",
        "event",
        "headers",
        "keys",
        "kind",
        "offsets",
        "opened_at",
        "partition",
        "raised",
        "sequence",
        "size_bytes",
        "times",
        "unknown",
        "values",
    )

    def __init__(self, kind: Kind, partition: int, opened_at: float) -> None:
        self.kind = kind
        self.partition = partition
        self.opened_at = opened_at
        self.values: list[bytes] = []
        self.keys: list[bytes | None] = []
        self.headers: list[bytes | None] = []
        self.times: list[int] = []
        self.size_bytes = 0
        self.data: bytes | None = None  # once sealed
        self.epoch = self.sequence = 0  # once sent
        self.unknown = False  # whether it may have been stored although no answer came
        self.offsets: Offsets | None = None
        self.error: SandqError | None = None
        self.event: anyio.Event | None = None
        self.raised = 0  # receipts that raised the error already

    def __len__(self) -> int:
        return len(self.values)

    @property
    def done(self) -> bool:
        return self.offsets is not None or self.error is not None

    def order(self) -> tuple[int, int]:
        """Its place among the sent ones of its partition."""
        return self.epoch, self.sequence

    def seal(self) -> bytes:
        """The encoded batch; nothing is added any more."""
        if self.data is None:
            columns: dict[int, Any] = {
                Column.VALUE: self.values,
                Column.KEY: self.keys,
                Column.HEADERS: self.headers,
            }
            if self.kind is not Kind.NOW:
                columns[Column.DELIVER_MS] = self.times
            self.data = encode(columns, relative=self.kind is Kind.DELAY)
            self.keys = self.headers = []
        return self.data

    def finish(self, offsets: Offsets | None, error: SandqError | None) -> None:
        """Offsets or an error; whoever awaits a receipt is woken."""
        self.offsets, self.error = offsets, error
        self.data = b""
        if self.event is not None:
            self.event.set()

    async def wait(self) -> None:
        if not self.done:
            if self.event is None:
                self.event = anyio.Event()
            await self.event.wait()

    def offset(self, position: int) -> str:
        """The text of a message's offset; raises the batch's error."""
        if self.error is not None:
            raise again(self.error)
        assert self.offsets is not None
        base, _, column = self.offsets
        if column is None:
            return offset_model.to_text(offset_model.shift(base, position))
        start = position * offset_model.OFFSET_BYTES
        return offset_model.to_text(column[start : start + offset_model.OFFSET_BYTES])


class Receipt:
    """What `send` returns: `await receipt` gives the message's offset (26 characters) or raises what went wrong."""

    __slots__ = ("_batch", "_position", "_raised")

    def __init__(self, batch: Batch, position: int) -> None:
        self._batch = batch
        self._position = position
        self._raised = False

    @property
    def done(self) -> bool:
        """Whether awaiting it would not wait."""
        return self._batch.done

    @property
    def partition(self) -> int:
        """The partition that the message goes to."""
        return self._batch.partition

    def __await__(self) -> Generator[Any, Any, str]:
        return self._wait().__await__()

    async def _wait(self) -> str:
        batch = self._batch
        await batch.wait()
        if batch.error is not None and not self._raised:
            self._raised = True
            batch.raised += 1
        return batch.offset(self._position)


class Receipts:
    """What `send_many` returns: a sequence of receipts; `await receipts` gives the list of offsets, or raises."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: list[tuple[Batch, int, int]] = []  # batch, first position, count

    def add(self, batch: Batch, position: int) -> None:
        """The next message is at this position."""
        if self._parts:
            last, first, count = self._parts[-1]
            if last is batch and first + count == position:
                self._parts[-1] = (batch, first, count + 1)
                return
        self._parts.append((batch, position, 1))

    def __len__(self) -> int:
        return sum(count for _, _, count in self._parts)

    def __iter__(self) -> Iterator[Receipt]:
        for batch, first, count in self._parts:
            for position in range(first, first + count):
                yield Receipt(batch, position)

    def __await__(self) -> Generator[Any, Any, list[str]]:
        return self._wait().__await__()

    async def _wait(self) -> list[str]:
        return [await receipt for receipt in self]


# Checks of single messages.


def as_bytes(what: str, value: object) -> bytes:
    """Bytes of a value or key: bytes-like as they are, text as UTF-8."""
    if type(value) is bytes:
        return value
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(f"{what}: the text cannot be encoded as UTF-8: {error.reason}") from None
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise InvalidRequest(f"{what}: bytes or str is expected, not {type(value).__name__}")


class Checks:
    """The limits that messages are held to: the server's, or the defaults where it says nothing."""

    __slots__ = ("batch_bytes", "headers_bytes", "key_bytes", "message_bytes")

    def __init__(self, limits: Mapping[str, int]) -> None:
        self.message_bytes = limits.get("message_bytes", DEFAULT.message_bytes)
        self.key_bytes = limits.get("key_bytes", DEFAULT.key_bytes)
        self.headers_bytes = limits.get("headers_bytes", DEFAULT.headers_bytes)
        self.batch_bytes = limits.get("batch_bytes", DEFAULT.batch_bytes)

    def value(self, value: Value) -> bytes:
        data = value if type(value) is bytes else as_bytes("value", value)
        if len(data) > self.message_bytes:
            raise _too_large("value", "message_bytes", self.message_bytes, len(data))
        return data

    def key(self, key: Value | None) -> bytes | None:
        if key is None:
            return None
        data = as_bytes("key", key)
        if len(data) > self.key_bytes:
            raise _too_large("key", "key_bytes", self.key_bytes, len(data))
        return data

    def headers(self, headers: Headers | None) -> bytes | None:
        if not headers:
            return None
        if not isinstance(headers, Mapping):
            raise InvalidRequest(f"headers: a mapping is expected, not {type(headers).__name__}")
        return headers_pack(headers, max_bytes=self.headers_bytes)


def _too_large(what: str, limit: str, maximum: int, size: int) -> TooLarge:
    return TooLarge(
        f"{what} of {size} bytes: {maximum} is the limit ({limit})", limit=limit, maximum=maximum, size=size
    )


def time_of(deliver_at: Instant | None, delay: Duration | None) -> tuple[Kind, int]:
    """The kind of a message, and its time: an instant (epoch ms), a delay (ms), or 0."""
    if delay is not None:
        if deliver_at is not None:
            raise InvalidRequest("deliver_at and delay: one of them, not both")
        delay_ms = duration_ms(delay)
        return (Kind.DELAY, delay_ms) if delay_ms else (Kind.NOW, 0)
    if deliver_at is not None:
        return Kind.AT, instant_ms(deliver_at)
    return Kind.NOW, 0


def refuse_later(options: Mapping[str, object]) -> None:
    """Options that the design has and this version has not: refused, never ignored."""
    for name, value in options.items():
        if value is not None:
            raise InvalidRequest(f"{name}: not supported by this version yet", option=name)


def failure_of(topic: str, batches: Iterable[Batch]) -> SandqError | None:
    """One error for the batches that failed, as far as no receipt has raised it: the first, and how many."""
    failed = [batch for batch in batches if batch.error is not None and batch.raised < len(batch)]
    if not failed:
        return None
    first = failed[0].error
    assert first is not None
    messages = sum(len(batch) - batch.raised for batch in failed)
    unknown = sum(len(batch) - batch.raised for batch in failed if batch.unknown)
    text = first.message
    if messages > 1:
        maybe = f" (the outcome of {unknown} is unknown)" if unknown else ""
        text = f"{messages} messages to topic {topic!r} were not produced{maybe}; the first: {text}"
    failure = again(first, text)
    for note in sorted({f"{batch.error.code}: {batch.error.message}" for batch in failed[1:] if batch.error}):
        if note != f"{first.code}: {first.message}":
            failure.add_note(note)
    return failure
