"""The blocking producer. Messages are checked where they are sent, and queued for the event loop without waiting."""

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
from sandq.client.producer.validation import Headers, Ready, Value
from sandq.model.errors import SandqError
from sandq.model.json_values import MISSING
from sandq.model.times import Duration, Instant
from sandq.sync.wrappers import Blocks, BlockWrapper, Wrapper, blocking

S = TypeVar("S")
P = ParamSpec("P")
_AHEAD_MESSAGES: Final = 1000
_AHEAD_BYTES: Final = 256 * 1024
"""After so much a thread waits until the loop has taken it, and has room for more."""


class Receipt:
    """What `send` returns: `receipt.wait()` gives the message's offset (26 characters) or raises what went wrong.

    DuplicateKey: a message has its unique key already; with `on_conflict="ignore"` the offset is that one's id instead.
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
        """That of a message that was put into its batch."""
        receipt = cls(portal)
        receipt._batch, receipt._position, receipt._inner = inner._batch, inner._position, inner
        return receipt

    @property
    def done(self) -> bool:
        """Whether waiting for it would not take long."""
        return self._error is not None or (self._batch is not None and self._batch.done)

    @property
    def partition(self) -> int:
        """The partition that the message goes to."""
        if self._batch is None and self._error is None:
            self._portal.do(lambda: None)  # what was queued before this is through then
        if self._error is not None:
            raise self._error
        assert self._batch is not None
        return self._batch.partition

    @property
    def outcome(self) -> SendOutcome | None:
        """What became of the message, once it was waited for; as `sandq.Receipt.outcome`."""
        return None if self._batch is None else self._batch.outcome(self._position)

    def wait(self, timeout: Duration | None = None) -> str:
        """Until the message is stored. TimedOut: not known after `timeout`; it may still be stored."""
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
        """In the loop."""
        try:
            producer.check_open()
            self._batch, self._position, _ = producer.add(*message)
        except SandqError as error:
            self._error = error


def sending(
    method: Callable[Concatenate[S, P], Awaitable[AsyncReceipt]],
) -> Callable[Concatenate[Wrapper[S], P], Receipt]:
    """The method of a face that gives a receipt, as an async method of what is behind it does."""

    @functools.wraps(method)
    def send(wrapper: Wrapper[S], /, *args: P.args, **kwargs: P.kwargs) -> Receipt:
        inner, portal = wrapper._inner, wrapper._portal
        return Receipt.of(portal, portal.call(lambda: method(inner, *args, **kwargs)))

    return send


class Receipts:
    """What `send_many` returns: a sequence of receipts; `wait()` gives the list of offsets, or raises."""

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
        """Until all are stored. TimedOut: not known of all after `timeout`; they may still be stored."""
        return self._portal.call(lambda: bounded(self._result, timeout))

    async def _result(self) -> list[str]:
        return [offset for part in self._parts for offset in await part]


class _Part(list[Value | Mapping[str, Any]]):
    """Some of the messages of a `send_many`; `first_index` is that of the first of them, for errors."""

    first_index = 0


@suggesting
class Producer(BlockWrapper[AsyncProducer]):
    """Sends messages to one topic; made by `client.producer(topic)` and used as a context manager, by any number of
    threads.

    Leaving the block sends what is left and waits until all of it is stored or has failed; what failed and was not
    raised through a receipt is raised then. When the block is left by Ctrl-C, what is not confirmed yet is given up
    with a warning: it may or may not be stored. Otherwise as `sandq.Producer`.
    """

    def __init__(self, inner: AsyncProducer, portal: Portal, blocks: Blocks) -> None:
        super().__init__(inner, portal, blocks)
        self._ahead = 0  # bytes, and _AHEAD_BYTES / _AHEAD_MESSAGES a message

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
        priority: int | None = None,
        tenant: str | None = None,
    ) -> Receipt:
        """Put a message into the next batch; waits only while the buffer is full. The arguments are those of
        `sandq.Producer.send`.

        What is wrong with the message itself is raised at once; what does not fit the topic (UnknownPartition, a tenant
        where it takes none) by the receipt.
        """
        inner, portal = self._inner, self._portal
        message = inner.checks.message(
            value, json, key, headers, deliver_at, delay, delay_ms, partition, ttl, unique_key, on_conflict, priority,
            tenant,
        )  # fmt: skip
        inner.check_open()
        receipt = Receipt(portal)
        portal.post(partial(receipt._put, inner, message))
        # Threads may lose each other's counts; it need not be exact.
        self._ahead += len(message[0] or b"") + _AHEAD_BYTES // _AHEAD_MESSAGES
        if self._ahead >= _AHEAD_BYTES:
            self._ahead = 0
            portal.call(inner.wait_for_capacity)
        return receipt

    @takes_send_options
    def send_many(self, messages: Iterable[Value | Mapping[str, Any]], **options: Unpack[SendOptions]) -> Receipts:
        """Send many: each is a value, or a mapping of `send`'s arguments ("value" or "json", "key", ...).

        The options given here hold for values and for what a mapping does not name. A mistake in one
        raises at once, naming its place; those before it are sent all the same.
        """
        parts = []
        rest = iter(messages)
        place = 0
        while part := _Part(islice(rest, _AHEAD_MESSAGES)):
            part.first_index = place
            place += len(part)
            parts.append(self._portal.call(partial(self._inner.send_many, part, **options)))
        return Receipts(self._portal, parts)

    flush = blocking(AsyncProducer.flush)
