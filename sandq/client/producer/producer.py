"""The producer that callers see: checks messages, has them put into batches, gives receipts, and waits for the rest."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, Final, Unpack

import anyio
import anyio.abc

from sandq.client.arguments import did_you_mean, suggesting
from sandq.client.options import again
from sandq.client.producer.batch_accumulator import BatchAccumulator
from sandq.client.producer.batches import Batch, Receipt, Receipts, failure_of
from sandq.client.producer.send_options import SendOptions, takes_send_options
from sandq.client.producer.validation import (
    RANK_BIT,
    Headers,
    MessageValidation,
    Rank,
    Ready,
    Value,
    delay_of,
    rank_of,
)
from sandq.client.signals import Signal
from sandq.client.tracing import creating
from sandq.client.transport.cluster import Cluster
from sandq.client.transport.requests import fresh_topic, used_topic
from sandq.model.errors import ClosedError, InvalidRequest, SandqError, UnknownPartition
from sandq.model.json_values import MISSING
from sandq.model.times import Duration, Instant

log = logging.getLogger("sandq.client")

_ARGUMENTS = ("value", "json", *SendOptions.__annotations__)
"""Of `send`: what a message given as a mapping may name."""
_CONTENT = ("value", "json")
_NO_TIME: Final = {"deliver_at": None, "delay": None, "delay_ms": None}
_TIMES: Final = _NO_TIME.keys()


@suggesting
class Producer:
    """Sends messages to one topic; made by `client.producer(topic)` and used as an async context manager.

    Resource handling: leaving the block sends what is left and waits until all of it is stored or has
    failed; what failed and was not raised through a receipt is raised then. When the block is left by
    cancellation, what is not confirmed yet is given up with a warning: it may or may not be stored.

    Error handling: `send` raises at once what is wrong with the message itself. What goes wrong later is raised by
    its receipt: retriable errors only after `delivery_timeout`, and then the message says whether the outcome is
    unknown. However often a message is sent again after lost answers, it is stored once.

    Messages of one partition are stored in the order of their `send`, except that those without a time, those with an
    instant and those with a delay travel in batches apart, and so do those with a ttl, those with a unique key (for
    each `on_conflict`) and those with a priority or a tenant. In a compacted topic a message is a write to its key,
    and one whose value is None deletes it.
    """

    def __init__(
        self,
        cluster: Cluster,
        tasks: anyio.abc.TaskGroup,
        topic: str,
        *,
        linger_s: float,
        keep_failures: bool = True,
    ) -> None:
        self.topic = topic
        self._cluster = cluster
        self._tasks = tasks
        options = replace(cluster.options, linger_s=linger_s)
        self._traced = creating(options.tracing, topic)
        self._checks = MessageValidation(cluster.limits, traced=self._traced)
        self._wake = Signal()
        self._room = Signal()
        self._idle = Signal()
        self._accumulator = BatchAccumulator(
            cluster, options, topic, self._checks.batch_bytes // 2, self._wake.set, self._on_done
        )
        self._partitioner = self._accumulator.partitioner
        self.add = self._accumulator.add
        """Put a message in without a check, an await or a receipt: see `BatchAccumulator.add`."""
        self._buffer_bytes = options.buffer_bytes
        self._keep_failures = keep_failures
        self._failed: list[Batch] = []
        self._scope = anyio.CancelScope()
        self._is_open = False
        self._entered = False

    @property
    def checks(self) -> MessageValidation:
        """What messages are held to: the limits of the nodes, and of the topic as far as it is known."""
        record = self._cluster.record(self.topic)
        if record is not None and record.settings is not self._checks.of_topic:
            self._checks = MessageValidation(self._cluster.limits, record.settings, self._traced)
        return self._checks

    async def __aenter__(self) -> Producer:
        if self._entered:
            raise ClosedError("a producer is entered once; make another one with client.producer(topic)")
        self._entered = True
        self._cluster.check_open()
        self._partitioner.update(await used_topic(self._cluster, self.topic))
        self._cluster.on_change[self._look] = None
        self._tasks.start_soon(self._run)
        self._is_open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_open = False
        self._room.set()
        try:
            if error is None or isinstance(error, Exception):
                await self._drain()
        finally:
            self._stop()
        failure = self._failure()
        if failure is not None:
            if error is None:
                raise failure
            log.warning("topic %s: %s", self.topic, failure)
            error.add_note(f"Besides: {failure.message}")

    async def send(
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
        """Put a message into the next batch; waits only while the buffer is full.

        `json` is sent in place of a value, as its compact text, with the header `content-type: application/json` unless
        the headers have a content type; consumers get it by `message.json()`. InvalidRequest for what is no JSON.

        `sandq.SendOptions` describes the options.
        """
        if self._accumulator.buffered_bytes >= self._buffer_bytes or not self._is_open:
            await self.wait_for_room()
        message = self.checks.message(
            value, json, key, headers, deliver_at, delay, delay_ms, partition, ttl, unique_key, on_conflict, priority,
            tenant,
        )  # fmt: skip
        if message[-1] is not None:
            await self._look_for_kind(message[-1])
        try:
            batch, position, sealed = self.add(*message)
        except UnknownPartition:
            await self._look_for_more()
            batch, position, sealed = self.add(*message)
        if sealed:
            await anyio.lowlevel.checkpoint()  # so that a loop of sends lets the batches leave
        return Receipt(batch, position)

    async def send_ready(self, messages: Iterable[Ready]) -> Receipts:
        """Send messages that `checks.message` has returned; they are not checked again.

        Raises UnknownPartition; those before are sent all the same."""
        receipts = Receipts()
        for message in messages:
            if self._accumulator.buffered_bytes >= self._buffer_bytes or not self._is_open:
                await self.wait_for_room()
            if message[-1] is not None:
                await self._look_for_kind(message[-1])
            try:
                batch, position, sealed = self.add(*message)
            except UnknownPartition:
                await self._look_for_more()
                batch, position, sealed = self.add(*message)
            receipts.add(batch, position)
            if sealed:
                await anyio.lowlevel.checkpoint()
        return receipts

    @takes_send_options
    async def send_many(
        self, messages: Iterable[Value | Mapping[str, Any]], **options: Unpack[SendOptions]
    ) -> Receipts:
        """Send many: each is a value, or a mapping of `send`'s arguments ("value" or "json", "key", ...).

        The options given here hold for values and for what a mapping does not name. A mistake in one
        raises at once, naming its place; those before it are sent all the same.
        """
        checks = self.checks
        key, partition, delay = options.get("key"), options.get("partition"), options.get("delay")
        if partition is not None and type(partition) is int and partition >= self._partitioner.partitions:
            await self._look_for_more()
        if (delay_ms := options.get("delay_ms")) is not None:
            delay = delay_of(delay, delay_ms)
        lot, time = checks.time(options.get("deliver_at"), delay)
        key_bytes, packed = checks.key(key), checks.headers(options.get("headers"))
        extras: tuple[int | None, bytes | None, Rank | None] | None = None  # of what is no mapping
        receipts = Receipts()
        place = 0
        try:
            for place, message in enumerate(messages, getattr(messages, "first_place", 0)):  # noqa: B007 - named below
                if isinstance(message, Mapping):
                    receipt = await self._send_mapping(message, options)
                    receipts.append(receipt)
                    continue
                if self._accumulator.buffered_bytes >= self._buffer_bytes or not self._is_open:
                    await self.wait_for_room()
                data = checks.value(message)
                if extras is None:
                    on_conflict = options.get("on_conflict", "reject")
                    more, ttl_ms, unique = checks.extras(
                        options.get("ttl"), options.get("unique_key"), on_conflict, key_bytes
                    )
                    lot |= more
                    priority, tenant, rank = options.get("priority"), options.get("tenant"), None
                    if priority is not None or tenant is not None:
                        rank = rank_of(priority, tenant)
                        lot |= RANK_BIT
                        await self._look_for_kind(rank)
                    extras = ttl_ms, unique, rank
                batch, position, sealed = self.add(data, key_bytes, packed, lot, time, partition, *extras)
                receipts.add(batch, position)
                if sealed:
                    await anyio.lowlevel.checkpoint()
        except (InvalidRequest, UnknownPartition) as error:
            raise again(error, f"message {place} of send_many: {error.message}") from None
        return receipts

    async def flush(self) -> None:
        """Send what is buffered and wait until all of it is stored; raises what failed and was not raised yet."""
        self.check_open()
        await self._drain()
        failure = self._failure()
        if failure is not None:
            raise failure

    # Below: how.

    def _look(self) -> None:
        """What is known of the cluster has changed: nobody is to send by what was before."""
        self._accumulator.look()
        self._wake.set()

    async def _look_for_more(self) -> None:
        """Partitions may have been added."""
        known = self._cluster.record(self.topic)
        if known is None or len(known.partitions) <= self._partitioner.partitions:
            known = await fresh_topic(self._cluster, self.topic)
        self._partitioner.update(known)

    async def _look_for_kind(self, rank: Rank) -> None:
        """Ask for the topic where it does not take such a rank: it may have been made anew, as one of another kind."""
        if not self._partitioner.takes(rank):
            await self._look_for_more()

    async def _send_mapping(self, message: Mapping[str, Any], common: Mapping[str, Any]) -> Receipt:
        content = {name: message[name] for name in _CONTENT if name in message}
        if not content:
            raise InvalidRequest('a message given as a mapping needs a "value", or "json"')
        unknown = next((name for name in message if name not in _ARGUMENTS), None)
        if unknown is not None:
            raise InvalidRequest(f"{unknown!r:.60}: no such argument of a message{did_you_mean(unknown, _ARGUMENTS)}")
        given = {name: value for name, value in message.items() if value is not None and name not in _CONTENT}
        if not _TIMES.isdisjoint(given):
            common = {**common, **_NO_TIME}
        return await self.send(**content, **{**common, **given})

    def check_open(self) -> None:
        """ClosedError outside of its block."""
        if not self._is_open:
            raise ClosedError(
                f"the producer of topic {self.topic!r} is closed"
                if self._entered
                else "a producer is used as `async with client.producer(topic) as producer:`"
            )

    async def wait_for_room(self) -> None:
        """Until the buffer takes more; ClosedError when the producer was left."""
        self.check_open()
        while self._accumulator.buffered_bytes >= self._buffer_bytes:
            self._accumulator.seal_all()
            await self._room.wait()
            self.check_open()

    def _on_done(self, batch: Batch) -> None:
        if self._keep_failures and batch.failures:
            self._failed.append(batch)
        self._room.set()
        if not self._accumulator.outstanding:
            self._idle.set()

    async def _drain(self) -> None:
        self._accumulator.seal_all()
        while self._accumulator.outstanding:
            await self._idle.wait()
            self._accumulator.seal_all()

    async def _run(self) -> None:
        try:
            with self._scope:
                while True:
                    due_at = self._accumulator.tick(anyio.current_time())
                    await self._wake.wait(due_at - anyio.current_time())
        finally:
            if self._is_open:  # the client was closed first
                self._is_open = False
                self._room.set()
                self._give_up()

    def _stop(self) -> None:
        """End the task; give up what is not done (after cancellation)."""
        self._scope.cancel()
        self._cluster.on_change.pop(self._look, None)
        if self._accumulator.outstanding:
            self._give_up()
            self._failed.clear()

    def _give_up(self) -> None:
        messages = self._accumulator.unconfirmed
        if messages:
            log.warning("topic %s: %d messages were not confirmed; they may be stored", self.topic, messages)
        self._accumulator.abandon(_given_up)

    def _failure(self) -> SandqError | None:
        """One error for all that failed and was not raised yet."""
        failed, self._failed = self._failed, []
        return failure_of(self.topic, failed)


def _given_up(batch: Batch) -> SandqError:
    maybe = "it may have been stored" if batch.unknown else "it was not sent"
    return ClosedError(f"the producer was left before the message was confirmed: {maybe}")
