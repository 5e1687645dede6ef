"""The blocking producer. Messages are checked in the caller's thread, and queued for the event loop without waiting."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any, Concatenate, Final, ParamSpec, TypeVar, Unpack

from sandq.client.arguments import suggesting
from sandq.client.portal import Portal, bounded
from sandq.client.producer.batches import Batch, SendOutcome
from sandq.client.producer.batches import Receipt as AsyncReceipt
from sandq.client.producer.batches import Receipts as AsyncReceipts
from sandq.client.producer.producer import Producer as AsyncProducer
from sandq.client.producer.send_options import SendOptions, takes_send_options
from sandq.client.producer.validation import Headers, Push, Ready, Value
from sandq.model.errors import SandqError
from sandq.model.json_values import MISSING
from sandq.model.retries import Backoff, MaxAttempts
from sandq.model.times import Duration, Instant
from sandq.sync.wrappers import Blocks, BlockWrapper, Wrapper, blocking

S = TypeVar("S")
P = ParamSpec("P")
_AHEAD_MESSAGES: Final = 1000
_AHEAD_BYTES: Final = 256 * 1024
"""After this many queued messages (`_AHEAD_MESSAGES`) or bytes, a thread waits until the loop has processed them and
the buffer has free bytes."""


class Receipt:
    """The result of `send`: `receipt.wait()` returns the message's offset (26 characters) or raises the error.

    DuplicateKey means that another message has the unique key. With `on_conflict="ignore"`, the result is the id of the
    other message instead.
    """

    __slots__ = ("_batch", "_error", "_inner", "_portal", "_position")

    def __init__(self, portal: Portal) -> None:
        self._portal = portal
        self._batch: Batch | None = None
        self._position = 0
        self._inner: AsyncReceipt | None = None
        self._error: SandqError | None = None

    @classmethod
    def of(cls, portal: Portal, inner: AsyncReceipt) -> Receipt:
        """Build the receipt of a message that is already in a batch."""
        receipt = cls(portal)
        receipt._batch, receipt._position, receipt._inner = inner._batch, inner._position, inner
        return receipt

    @property
    def done(self) -> bool:
        """True if `wait` would not block for long."""
        return self._error is not None or (self._batch is not None and self._batch.done)

    @property
    def partition(self) -> int:
        """Number of the partition that the message goes to."""
        if self._batch is None and self._error is None:
            self._portal.do(lambda: None)  # returns once all jobs queued before are processed
        if self._error is not None:
            raise self._error
        assert self._batch is not None
        return self._batch.partition

    @property
    def outcome(self) -> SendOutcome | None:
        """The outcome of the message, available after `wait`; like `sandq.Receipt.outcome`."""
        return None if self._batch is None else self._batch.outcome(self._position)

    def wait(self, timeout: Duration | None = None) -> str:
        """Wait until the message is stored. Raises TimedOut after `timeout`; the message may still be stored later."""
        batch = self._batch
        if batch is not None and batch.done and batch.error_of(self._position) is None:
            self._portal.check()
            return batch.offset(self._position)
        return self._portal.call(lambda: bounded(self._result, timeout))

    async def _result(self) -> str:
        if self._error is not None:
            raise self._error
        assert self._batch is not None
        if self._inner is None:
            self._inner = AsyncReceipt(self._batch, self._position)
        return await self._inner

    def _put(self, producer: AsyncProducer, message: Ready) -> None:
        """Add the message to a batch. Call it in the event loop."""
        try:
            producer.check_open()
            self._batch, self._position, _ = producer.add(*message)
        except SandqError as error:
            self._error = error


def sending(
    method: Callable[Concatenate[S, P], Awaitable[AsyncReceipt]],
) -> Callable[Concatenate[Wrapper[S], P], Receipt]:
    """Make a blocking method that returns a receipt from an async method."""

    @functools.wraps(method)
    def send(wrapper: Wrapper[S], /, *args: P.args, **kwargs: P.kwargs) -> Receipt:
        inner, portal = wrapper._inner, wrapper._portal
        return Receipt.of(portal, portal.call(lambda: method(inner, *args, **kwargs)))

    return send


class Receipts:
    """The result of `send_many`: a sequence of receipts; `wait()` returns the list of offsets, or raises."""

    def __init__(self, portal: Portal, parts: list[AsyncReceipts]) -> None:
        self._portal = portal
        self._parts = parts

    def __len__(self) -> int:
        return sum(len(part) for part in self._parts)

    def __iter__(self) -> Iterator[Receipt]:
        for part in self._parts:
            for inner in part:
                yield Receipt.of(self._portal, inner)

    def wait(self, timeout: Duration | None = None) -> list[str]:
        """Wait until all messages are stored. Raises TimedOut after `timeout`; they may still be stored later."""
        return self._portal.call(lambda: bounded(self._result, timeout))

    async def _result(self) -> list[str]:
        return [offset for part in self._parts for offset in await part]


class _Part(list[Value | Mapping[str, Any]]):
    """A part of the messages of a `send_many`. `first_index`: index of its first message, for errors."""

    first_index = 0


@suggesting
class Producer(BlockWrapper[AsyncProducer]):
    """Sends messages to one topic. Created by `client.producer(topic)`; a context manager for any number of threads.

    Leaving the block sends the remaining messages, waits until each is stored or has failed, and raises failures that
    no receipt has raised. If Ctrl-C ends the block, unconfirmed messages are abandoned with a warning: it is unknown
    whether they are stored. In all other respects, it behaves like `sandq.Producer`.
    """

    def __init__(self, inner: AsyncProducer, portal: Portal, blocks: Blocks) -> None:
        super().__init__(inner, portal, blocks)
        self._ahead = 0  # queued bytes; each message adds a share, so that one number covers both limits

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self._inner.topic

    def send(
        self,
        value: Value | None = MISSING,
        *,
        json: Any = MISSING,
        key: Value | None = None,
        headers: Headers | None = None,
        deliver_at: Instant | None = None,
        delay: Duration | None = None,
        delay_ms: int | None = None,
        partition: int | None = None,
        ttl: Duration | None = None,
        unique_key: Value | None = None,
        on_conflict: str = "reject",
        max_wait: Duration | None = None,
        window: Duration | None = None,
        edge: str | None = None,
        priority: int | None = None,
        tenant: str | None = None,
        max_attempts: MaxAttempts | None = None,
        backoff: Backoff | None = None,
        cost: int | None = None,
        push: Push | None = None,
    ) -> Receipt:
        """Add a message to the next batch; waits only while the buffer is full.

        The arguments are those of `sandq.Producer.send`. If the message itself is invalid, `send` raises the error
        immediately. If it does not fit the topic (UnknownPartition, a tenant that the topic does not accept), the
        receipt raises the error.
        """
        inner, portal = self._inner, self._portal
        message = inner.checks.message(
            value, json, key, headers, deliver_at, delay, delay_ms, partition, ttl, unique_key, on_conflict, max_wait,
            window, edge, priority, tenant, max_attempts, backoff, cost, push,
        )  # fmt: skip
        inner.check_open()
        receipt = Receipt(portal)
        portal.post(partial(receipt._put, inner, message))
        # Threads may overwrite each other's counts: an approximate sum suffices.
        self._ahead += len(message[0] or b"") + _AHEAD_BYTES // _AHEAD_MESSAGES
        if self._ahead >= _AHEAD_BYTES:
            self._ahead = 0
            portal.call(inner.wait_for_capacity)
        return receipt

    @takes_send_options
    def send_many(self, messages: Iterable[Value | Mapping[str, Any]], **options: Unpack[SendOptions]) -> Receipts:
        """Send many messages: each is a value, or a mapping of `send`'s arguments ("value" or "json", "key", ...).

        The options given here apply to values, and to arguments that a mapping leaves out. An invalid message raises an
        error immediately, with its position in the text. The messages before it are sent nevertheless.
        """
        parts = []
        rest = iter(messages)
        index = 0
        while part := _Part(islice(rest, _AHEAD_MESSAGES)):
            part.first_index = index
            index += len(part)
            parts.append(self._portal.call(partial(self._inner.send_many, part, **options)))
        return Receipts(self._portal, parts)

    flush = blocking(AsyncProducer.flush)
