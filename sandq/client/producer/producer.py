"""The producer that callers use: it checks messages, adds them to batches, returns receipts, and waits for outcomes."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, Final, Unpack

import anyio
import anyio.abc

from sandq.client.arguments import did_you_mean, suggesting
from sandq.client.producer.batch_accumulator import BatchAccumulator
from sandq.client.producer.batches import Batch, Receipt, Receipts, failure_of
from sandq.client.producer.send_options import SendOptions, takes_send_options
from sandq.client.producer.validation import (
    PUSH_BIT,
    RANK_AT,
    RANK_BIT,
    RULES_BIT,
    Headers,
    MessageValidation,
    Push,
    Rank,
    Ready,
    Value,
    delay_of,
    max_wait_traits,
    rank_of,
    rules_of,
    window_traits,
)
from sandq.client.signals import Signal
from sandq.client.tracing import creating
from sandq.client.transport.cluster import Cluster
from sandq.client.transport.requests import fresh_topic, used_topic
from sandq.model.errors import ClosedError, InvalidRequest, SandqError, UnknownPartition
from sandq.model.json_values import MISSING
from sandq.model.message_targets import with_target
from sandq.model.retries import Backoff, MaxAttempts, MessageRules
from sandq.model.times import Duration, Instant

log = logging.getLogger("sandq.client")

_ARGUMENTS = ("value", "json", *SendOptions.__annotations__)
"""Keys that a message given as a mapping may have: the arguments of `send`."""
_CONTENT = ("value", "json")
_NO_TIME: Final = {"deliver_at": None, "delay": None, "delay_ms": None}
_TIMES: Final = _NO_TIME.keys()


@suggesting
class Producer:
    """Sends messages to one topic. Created by `client.producer(topic)` and used as an async context manager.

    Leaving the block sends the remaining messages, waits until each is stored or has failed, and raises failures that
    no receipt has raised. If the block is cancelled, unconfirmed messages are abandoned with a warning: it is unknown
    whether they are stored.

    `send` raises an error immediately if the message itself is invalid. Its receipt raises later errors. Retriable
    errors are raised only after `delivery_timeout`, and the text says whether the outcome is unknown. A message is
    stored once, even if it is retried after lost replies.

    Messages of one partition are stored in the order of their `send`, except that different kinds travel in separate
    batches: without a time, with an instant, with a delay, with a ttl, with a unique key (for each `on_conflict` and
    `max_wait`), with a priority or a tenant, and with rules or a cost. In a compacted topic a message is a write to its
    key; a value of None deletes the key.
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
        self._capacity_freed = Signal()
        self._idle = Signal()
        self._accumulator = BatchAccumulator(
            cluster, options, topic, self._checks.batch_bytes // 2, self._wake.set, self._on_done
        )
        self._partitioner = self._accumulator.partitioner
        self.add = self._accumulator.add
        """Add a checked message without waiting and without a receipt: see `BatchAccumulator.add`."""
        self._buffer_bytes = options.buffer_bytes
        self._keep_failures = keep_failures
        self._failed: list[Batch] = []
        self._scope = anyio.CancelScope()
        self._is_open = False
        self._entered = False

    @property
    def checks(self) -> MessageValidation:
        """The checks for messages: the limits of the nodes, and of the topic if it is known."""
        record = self._cluster.record(self.topic)
        if record is not None and record.settings is not self._checks.of_topic:
            self._checks = MessageValidation(self._cluster.limits, record.settings, self._traced)
        return self._checks

    async def __aenter__(self) -> Producer:
        if self._entered:
            raise ClosedError("a producer is entered once; make a new one with client.producer(topic)")
        self._entered = True
        self._cluster.check_open()
        self._partitioner.update(await used_topic(self._cluster, self.topic))
        self._cluster.on_change[self._on_cluster_change] = None
        self._tasks.start_soon(self._run)
        self._is_open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_open = False
        self._capacity_freed.set()
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

        `json`: a value to send as compact JSON, with the header `content-type: application/json` unless the headers
        have a content type. Consumers read it with `message.json()`. Raises InvalidRequest if JSON cannot represent the
        value.

        `sandq.SendOptions` describes the options.
        """
        if self._accumulator.buffered_bytes >= self._buffer_bytes or not self._is_open:
            await self.wait_for_capacity()
        message = self.checks.message(
            value, json, key, headers, deliver_at, delay, delay_ms, partition, ttl, unique_key, on_conflict, max_wait,
            window, edge, priority, tenant, max_attempts, backoff, cost, push,
        )  # fmt: skip
        if message[RANK_AT] is not None:
            await self._refresh_kind(message[RANK_AT])
        try:
            batch, position, sealed = self.add(*message)
        except UnknownPartition:
            await self._refresh_partitions()
            batch, position, sealed = self.add(*message)
        if sealed:
            # Let the connection task send the sealed batch, even if the caller sends in a loop.
            await anyio.lowlevel.checkpoint()
        return Receipt(batch, position)

    async def send_ready(self, messages: Iterable[Ready]) -> Receipts:
        """Send messages that `checks.message` has returned. They are not checked again.

        Raises UnknownPartition. The messages before the wrong one are sent nevertheless.
        """
        receipts = Receipts()
        for message in messages:
            if self._accumulator.buffered_bytes >= self._buffer_bytes or not self._is_open:
                await self.wait_for_capacity()
            if message[RANK_AT] is not None:
                await self._refresh_kind(message[RANK_AT])
            try:
                batch, position, sealed = self.add(*message)
            except UnknownPartition:
                await self._refresh_partitions()
                batch, position, sealed = self.add(*message)
            receipts.add(batch, position)
            if sealed:
                await anyio.lowlevel.checkpoint()
        return receipts

    @takes_send_options
    async def send_many(
        self, messages: Iterable[Value | Mapping[str, Any]], **options: Unpack[SendOptions]
    ) -> Receipts:
        """Send many messages: each is a value, or a mapping of `send`'s arguments ("value" or "json", "key", ...).

        The options given here apply to values, and to arguments that a mapping leaves out. An invalid message raises an
        error immediately, with its position in the text. The messages before it are sent nevertheless.
        """
        checks = self.checks
        key, partition, delay = options.get("key"), options.get("partition"), options.get("delay")
        if partition is not None and type(partition) is int and partition >= self._partitioner.partitions:
            await self._refresh_partitions()
        if (delay_ms := options.get("delay_ms")) is not None:
            delay = delay_of(delay, delay_ms)
        traits, time = checks.time(options.get("deliver_at"), delay)
        headers = options.get("headers")
        if (push := options.get("push")) is not None:
            headers = with_target(headers, push)
        key_bytes, packed = checks.key(key), checks.headers(headers)
        # Values of messages that are not mappings.
        extras: tuple[int | None, bytes | None, Rank | None, MessageRules | None] | None = None
        receipts = Receipts()
        index = 0
        try:
            for index, message in enumerate(messages, getattr(messages, "first_index", 0)):  # noqa: B007 - named below
                if isinstance(message, Mapping):
                    receipt = await self._send_mapping(message, options)
                    receipts.append(receipt)
                    continue
                if self._accumulator.buffered_bytes >= self._buffer_bytes or not self._is_open:
                    await self.wait_for_capacity()
                data = checks.value(message)
                if extras is None:
                    on_conflict = options.get("on_conflict", "reject")
                    more, ttl_ms, unique = checks.extras(
                        options.get("ttl"), options.get("unique_key"), on_conflict, key_bytes
                    )
                    traits |= more
                    if (max_wait := options.get("max_wait")) is not None:
                        traits |= max_wait_traits(max_wait, on_conflict, traits, time)
                    window, edge = options.get("window"), options.get("edge")
                    if window is not None or edge is not None or on_conflict == "throttle":
                        traits |= window_traits(window, edge, on_conflict, traits)
                    priority, tenant, rank = options.get("priority"), options.get("tenant"), None
                    if priority is not None or tenant is not None:
                        rank = rank_of(priority, tenant)
                        traits |= RANK_BIT
                        await self._refresh_kind(rank)
                    rules = rules_of(options.get("max_attempts"), options.get("backoff"), options.get("cost"))
                    traits |= 0 if rules is None else RULES_BIT
                    traits |= 0 if push is None else PUSH_BIT
                    extras = ttl_ms, unique, rank, rules
                batch, position, sealed = self.add(data, key_bytes, packed, traits, time, partition, *extras)
                receipts.add(batch, position)
                if sealed:
                    await anyio.lowlevel.checkpoint()
        except (InvalidRequest, UnknownPartition) as error:
            raise error.again(f"message {index} of send_many: {error.message}") from None
        return receipts

    async def flush(self) -> None:
        """Send the buffered messages and wait until all are stored. Raises failures that were not raised yet."""
        self.check_open()
        await self._drain()
        failure = self._failure()
        if failure is not None:
            raise failure

    # Private methods.

    def _on_cluster_change(self) -> None:
        """Update the partitioner after a change of the known cluster, so that old metadata routes no message."""
        self._accumulator.update_topic()
        self._wake.set()

    async def _refresh_partitions(self) -> None:
        """Ask for the topic again, because partitions may have been added."""
        known = self._cluster.record(self.topic)
        if known is None or len(known.partitions) <= self._partitioner.partitions:
            known = await fresh_topic(self._cluster, self.topic)
        self._partitioner.update(known)

    async def _refresh_kind(self, rank: Rank) -> None:
        """Ask for the topic again if it rejects such a rank: it may have been recreated as another kind."""
        if not self._partitioner.takes(rank):
            await self._refresh_partitions()

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
        """Raise ClosedError outside of the producer's block."""
        if not self._is_open:
            raise ClosedError(
                f"the producer of topic {self.topic!r} is closed"
                if self._entered
                else "a producer is used as `async with client.producer(topic) as producer:`"
            )

    async def wait_for_capacity(self) -> None:
        """Wait until the buffer has free bytes. Raises ClosedError if the producer's block is left."""
        self.check_open()
        while self._accumulator.buffered_bytes >= self._buffer_bytes:
            self._accumulator.seal_all()
            await self._capacity_freed.wait()
            self.check_open()

    def _on_done(self, batch: Batch) -> None:
        if self._keep_failures and batch.failures:
            self._failed.append(batch)
        self._capacity_freed.set()
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
                self._capacity_freed.set()
                self._give_up()

    def _stop(self) -> None:
        """End the task. Abandon unfinished messages, which exist only after a cancellation."""
        self._scope.cancel()
        self._cluster.on_change.pop(self._on_cluster_change, None)
        if self._accumulator.outstanding:
            self._give_up()
            self._failed.clear()

    def _give_up(self) -> None:
        messages = self._accumulator.unconfirmed
        if messages:
            log.warning("topic %s: %d messages were not confirmed; they may be stored", self.topic, messages)
        self._accumulator.abandon(_given_up)

    def _failure(self) -> SandqError | None:
        """Return one error for all failures that were not raised yet, or None."""
        failed, self._failed = self._failed, []
        return failure_of(self.topic, failed)


def _given_up(batch: Batch) -> SandqError:
    maybe = "it may have been stored" if batch.unknown else "it was not sent"
    return ClosedError(f"the producer was left before the message was confirmed: {maybe}")
