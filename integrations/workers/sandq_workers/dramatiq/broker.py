"""The broker of Dramatiq: a queue is a topic, and all workers are one group of it.

A delay is the delivery time of a message. Dramatiq's own delay queues, which keep such messages in the memory of
workers, are not declared. The id of a message is its unique key: `cancel`, `move` and `why` use it.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar

import dramatiq
from dramatiq.errors import ConnectionClosed, DecodeError, QueueJoinTimeout, QueueNotFound

from sandq.errors import NotFound, Retriable, TooLate, TopicExists, UnknownTopic
from sandq.sync import Client
from sandq.sync import Message as SandqMessage
from sandq_workers import clients
from sandq_workers.feed import Feed, Terms, give_back
from sandq_workers.key_topic import naps
from sandq_workers.names import decoded, encoded
from sandq_workers.urls import Address, parse

log = logging.getLogger("sandq.workers")

GROUP: Final = "workers"
_SETTINGS: Final[dict[str, Any]] = {"max_attempts": "none"}
"""Settings of topics that are created. Dramatiq's middleware counts the attempts."""
_JOIN_NAP_S: Final = 0.1
R = TypeVar("R")


class SandqBroker(dramatiq.Broker):
    """A broker for `dramatiq.set_broker`.

    `url`: see `sandq_workers.urls`. `max_priority`: queues are topics with priorities; the option `broker_priority` of
    a message (0 to `max_priority`, higher first) is its priority. `lease`: how long the messages of a killed worker
    stay leased. `settings`: of topics that are created.
    """

    def __init__(
        self,
        url: str = "sandq://127.0.0.1:7170",
        *,
        middleware: list[dramatiq.Middleware] | None = None,
        max_priority: int | None = None,
        group: str = GROUP,
        lease: str | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(middleware)
        self.actor_options.add("broker_priority")
        self.queues: set[str] = set()
        self.group = group
        self.lease = lease
        self._address: Address = parse(url)
        self._max_priority = max_priority
        self._settings = {**_SETTINGS, **(settings or {})}
        self._pid = 0
        self._client: Client
        self._created: set[str] = set()

    @property
    def client(self) -> Client:
        """The client of this process. Raises ConnectionClosed if the cluster cannot be reached."""
        if self._pid != os.getpid():
            with _connection_errors():
                self._client = clients.acquire(self._address)
            self._pid = os.getpid()
        return self._client

    def close(self) -> None:
        """Close the client of this process, unless something else uses it."""
        if self._pid == os.getpid():
            self._pid = 0
            clients.release(self._address)

    def topic(self, queue_name: str) -> str:
        """Return the topic of a queue."""
        return encoded(queue_name, prefix=self._address.prefix)

    # Queues.

    def declare_queue(self, queue_name: str) -> None:
        """Declare a queue. Its topic is created when it is first used."""
        if queue_name not in self.queues:
            self.emit_before("declare_queue", queue_name)
            self.queues.add(queue_name)
            self.emit_after("declare_queue", queue_name)

    def get_declared_queues(self) -> set[str]:
        """Return the names of the declared queues."""
        return self.queues.copy()

    def create_topic(self, queue_name: str) -> None:
        """Create the topic of a queue unless it exists."""
        topic = self.topic(queue_name)
        if topic not in self._created:
            kind = "timer" if self._max_priority is None else "priority"
            with suppress(TopicExists):
                self.client.admin.create_topic(topic, kind=kind, **self._settings)
            self._created.add(topic)

    def flush(self, queue_name: str) -> None:
        """Delete all messages of a queue that no worker holds."""
        self._check(queue_name)
        with suppress(UnknownTopic), _connection_errors():
            self.client.messages(self.topic(queue_name)).cancel_all()

    def flush_all(self) -> None:
        """Delete the messages of all declared queues."""
        for queue_name in self.get_declared_queues():
            self.flush(queue_name)

    def join(self, queue_name: str, *, timeout: int | None = None) -> None:
        """Wait until a queue has no messages, also none with a delay. For tests. Raises QueueJoinTimeout after
        `timeout` milliseconds, and QueueNotFound."""
        self._check(queue_name)
        ends_at = None if timeout is None else time.monotonic() + timeout / 1000
        pauses = naps(_JOIN_NAP_S)
        while self._has_messages(queue_name):
            nap_s = next(pauses)
            if ends_at is not None and time.monotonic() + nap_s > ends_at:
                raise QueueJoinTimeout(queue_name)
            time.sleep(nap_s)

    def _has_messages(self, queue_name: str) -> bool:
        messages = self.client.messages(self.topic(queue_name))
        with suppress(UnknownTopic):
            return any(True for _ in messages.list(limit=1))
        return False

    def _check(self, queue_name: str) -> None:
        if queue_name not in self.queues:
            raise QueueNotFound(queue_name)

    # Messages.

    def enqueue(self, message: dramatiq.Message[Any], *, delay: int | None = None) -> dramatiq.Message[Any]:
        """Store a message, to be delivered after `delay` milliseconds. Returns once it is safely stored.

        A message that is enqueued again under its id while it waits replaces the first one; a retry does not, because a
        worker holds the first one. Raises QueueNotFound, and ConnectionClosed if no node accepts the message.
        """
        self._check(message.queue_name)
        self.emit_before("enqueue", message, delay)
        options: dict[str, Any] = {"unique_key": message.message_id, "on_conflict": "debounce"}
        if delay is not None:
            options["delay_ms"] = max(delay, 0)
        if self._max_priority is not None:
            priority = message.options.get("broker_priority", 0)
            options["priority"] = self._max_priority - min(max(priority, 0), self._max_priority)
        with _connection_errors():
            self.create_topic(message.queue_name)
            self.client.produce(self.topic(message.queue_name), message.encode(), **options)
        self.emit_after("enqueue", message, delay)
        return message

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 5000) -> dramatiq.Consumer:
        """Return a consumer of a queue. `prefetch`: maximum number of messages that it holds; `timeout`: time in
        milliseconds for which it waits for a message. Raises QueueNotFound, ConnectionClosed."""
        self._check(queue_name)
        with _connection_errors():
            self.create_topic(queue_name)
            return _Consumer(self, queue_name, prefetch, timeout)

    def cancel(self, message_id: str) -> str:
        """Cancel a message that waits: no worker gets it. Return "cancelled", or why it cannot be cancelled any more:
        "leased", "acked", "dead" or "gone". Raises NotFound if no queue knows the message."""

        def cancel(topic: str) -> str:
            try:
                self.client.messages(topic).cancel(unique_key=message_id)
                return "cancelled"
            except TooLate as error:
                return str(error.details.get("state"))

        return self._find(message_id, cancel)

    def move(self, message_id: str, *, delay: int) -> None:
        """Change the time of a message that waits, to `delay` milliseconds from now. Raises TooLate, NotFound."""
        self._find(
            message_id, lambda topic: self.client.messages(topic).move(unique_key=message_id, delay_ms=max(delay, 0))
        )

    def why(self, message_id: str) -> dict[str, Any]:
        """Return the `queue` of a message, and the fields of `Messages.why`, which explain what it waits for. Raises
        NotFound."""

        def why(topic: str) -> dict[str, Any]:
            found = self.client.messages(topic).why(unique_key=message_id)
            return {"queue": decoded(topic, prefix=self._address.prefix), **found}

        return self._find(message_id, why)

    def _find(self, message_id: str, call: Callable[[str], R]) -> R:
        """Return the result of a call for the first topic that knows the message."""
        for queue_name in sorted(self.queues):
            with suppress(NotFound):
                return call(self.topic(queue_name))
        raise NotFound(f"no declared queue knows the message {message_id!r}: it is done, or was never enqueued")


class _Proxy(dramatiq.MessageProxy):
    """A message with the lease that holds it."""

    def __init__(self, message: dramatiq.Message[Any], held: SandqMessage) -> None:
        super().__init__(message)
        self.held = held


class _Consumer(dramatiq.Consumer):
    """Takes messages from a feed, which another thread fills."""

    def __init__(self, broker: SandqBroker, queue_name: str, prefetch: int, timeout: int) -> None:
        self._timeout_s = timeout / 1000
        self._arrived = threading.Event()
        terms = Terms(
            queues={broker.topic(queue_name): queue_name}, group=broker.group, credit=prefetch, lease=broker.lease
        )
        self._feed = Feed(broker.client, terms, self._arrived.set)

    def __next__(self) -> dramatiq.MessageProxy | None:
        """Return the next message; None if none arrives in time. Raises ConnectionClosed once the feed has ended."""
        if not self._feed.inbox and self._feed.error is None:
            self._arrived.wait(self._timeout_s)
        self._arrived.clear()
        found = self._feed.take()
        if found is None:
            if self._feed.error is not None:
                raise ConnectionClosed(self._feed.error)
            return None
        _, held = found
        try:
            return _Proxy(dramatiq.Message.decode(held.value), held)
        except DecodeError as error:
            log.exception("message %s cannot be decoded, and becomes a dead letter", held.id)
            held.dead(error)
            self._feed.settled()
            return None

    def ack(self, message: dramatiq.MessageProxy) -> None:
        """Ack a message."""
        message.held.ack()
        self._feed.settled()

    def nack(self, message: dramatiq.MessageProxy) -> None:
        """Make a message a dead letter."""
        message.held.dead(message._exception or "rejected by the worker")
        self._feed.settled()

    def requeue(self, messages: Iterable[dramatiq.MessageProxy]) -> None:
        """Make messages ready for other workers at once."""
        for message in messages:
            give_back(message.held)
            self._feed.settled()

    def close(self) -> None:
        """Send queued acks, and give back all messages that were not settled."""
        self._feed.close()


@contextmanager
def _connection_errors() -> Iterator[None]:
    """Raise Dramatiq's error for a cluster that cannot be reached."""
    try:
        yield
    except Retriable as error:
        raise ConnectionClosed(error) from error
