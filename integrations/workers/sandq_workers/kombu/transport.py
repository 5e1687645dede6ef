"""The classes that kombu calls: `Transport` (a connection), `Channel` and `QoS`.

A queue is a topic, and all workers are one group of it. A channel has one feed for all queues that it consumes, with
its prefetch count as credit, and a feed for each temporary queue. Threads of the feeds write a byte to a socket pair,
so that both Celery's event loop and `drain_events` can wait for messages.
"""

from __future__ import annotations

import logging
import select
import socket
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final
from uuid import uuid4

from amqp.protocol import queue_declare_ok_t
from kombu.exceptions import ChannelError
from kombu.transport import base, virtual

import sandq
from sandq.errors import (
    ClosedError,
    ConnectionLost,
    Forbidden,
    InvalidRequest,
    Retriable,
    Unauthenticated,
    UnknownTopic,
)
from sandq_workers.feed import CREDIT, Feed, Headed, Held, Leased, Terms, give_back
from sandq_workers.kombu.bindings import matches
from sandq_workers.kombu.envelope import Payload, incoming, route_of
from sandq_workers.kombu.revoking import MAILBOX, on_command
from sandq_workers.kombu.session import Session, acquire, release
from sandq_workers.urls import Address, masked, parse

log = logging.getLogger("sandq.workers")

GROUP: Final = "workers"
"""The group of all consumers of a queue, unless the transport option `group` names another."""
_AT_ONCE: Final = 100
"""Messages to deliver before the event loop does other work."""


@contextmanager
def channel_errors(method: str) -> Iterator[None]:
    """Raise kombu's error of a channel for requests that the broker refuses for good."""
    try:
        yield
    except InvalidRequest as error:
        raise ChannelError(str(error), (0, 0), method, "406") from error


class QoS:
    """The messages that a channel has delivered and that are not settled. Any thread may settle them."""

    def __init__(self, on_settled: Callable[[], None]) -> None:
        self.prefetch_count = 0
        self._on_settled = on_settled
        self._held: OrderedDict[str, tuple[Held, Feed | None]] = OrderedDict()

    def can_consume(self) -> bool:
        """Return whether the channel may deliver another message."""
        return not self.prefetch_count or len(self._held) < self.prefetch_count

    def append(self, message: Held, tag: str, feed: Feed | None = None) -> None:
        """Hold a message."""
        self._held[tag] = (message, feed)

    def ack(self, tag: str) -> None:
        """Ack a message. An unknown tag has no effect: the message was settled before."""
        self._settle(tag, lambda message: message.ack())

    def reject(self, tag: str, requeue: bool = False) -> None:
        """Make a message a dead letter, or ready for other consumers at once."""
        self._settle(tag, give_back if requeue else lambda message: message.dead("rejected by the worker"))

    def restore_unacked_once(self, stderr: object = None) -> None:
        """Give back all messages that are not settled."""
        for tag in list(self._held):
            self.reject(tag, requeue=True)

    restore_unacked = restore_unacked_once

    def _settle(self, tag: str, settle: Callable[[Held], object]) -> None:
        message, feed = self._held.pop(tag, (None, None))
        if message is None:
            return
        settle(message)
        if feed is not None:
            feed.settled()
        self._on_settled()


class Channel(base.StdChannel):
    """A channel. Its methods are those of AMQP, as kombu calls them."""

    Message = virtual.Message
    closed = False

    def __init__(self, connection: Transport) -> None:
        self.connection: Transport | None = connection
        self.channel_id = connection.next_channel_id()
        self.qos = QoS(self._settled)
        self._wake = connection.wake
        self._session: Session = connection.session
        self._options: Mapping[str, Any] = connection.client.transport_options
        self._consumers: dict[str, tuple[str, Callable[[Any], object], bool]] = {}
        """By consumer tag: the queue, the callback, and whether messages are acked at once."""
        self._work: Feed | None = None
        """The feed of all queues that are topics; None if it has to be opened."""
        self._temporary: dict[str, Feed] = {}
        self._retired: list[Feed] = []

    # Exchanges and queues.

    def prepare_queue_arguments(self, arguments: Any, **options: Any) -> Any:
        """Return the arguments of a queue with its options under the names that RabbitMQ has for them."""
        return base.to_rabbitmq_queue_arguments(arguments, **options)

    def exchange_declare(
        self, exchange: str | None = None, type: str = "direct", durable: bool = False, auto_delete: bool = False,
        arguments: Mapping[str, Any] | None = None, nowait: bool = False, passive: bool = False,
    ) -> None:  # fmt: skip
        """Declare an exchange. Raises ChannelError if it exists with another type."""
        kind, name = type or "direct", exchange or f"amq.{type or 'direct'}"
        known = self._session.bindings.exchanges.get(name)
        if passive:
            if known is None:
                raise _not_found("exchange", name, "Channel.exchange_declare")
            return
        if kind not in Transport.implements.exchange_type:
            raise ChannelError(f"exchange {name!r}: the type {kind!r} is not supported", (40, 10), "", "540")
        if known is not None and known.get("type", kind) != kind:
            raise ChannelError(
                f"exchange {name!r} has the type {known['type']!r}, not {kind!r}", (40, 10), "exchange_declare", "406"
            )
        record = {"type": kind, "durable": bool(durable), "auto_delete": bool(auto_delete)}
        with channel_errors("Channel.exchange_declare"):
            self._session.bindings.declare_exchange(name, record)

    def exchange_delete(self, exchange: str, if_unused: bool = False, nowait: bool = False) -> None:
        """Delete an exchange with its bindings."""
        self._session.bindings.delete_exchange(exchange)

    def queue_declare(
        self, queue: str | None = None, passive: bool = False, durable: bool = False, exclusive: bool = False,
        auto_delete: bool = False, arguments: Mapping[str, Any] | None = None, **_: object,
    ) -> Any:  # fmt: skip
        """Declare a queue: a topic, or a temporary queue if it is exclusive or deleted with its last consumer."""
        name = queue or f"amq.gen-{uuid4()}"
        is_ranked = "x-max-priority" in (arguments or {})
        with channel_errors("Channel.queue_declare"):
            if passive:
                if not self._session.exists(name):
                    raise _not_found("queue", name, "Channel.queue_declare")
                return queue_declare_ok_t(name, self._size(name), 0)
            if exclusive or (auto_delete and not durable):
                self._session.declare_temporary(name, is_exclusive=exclusive, is_ranked=is_ranked)
            else:
                ttl_ms = (arguments or {}).get("x-message-ttl")
                ttl = {} if ttl_ms is None else {"ttl": f"{ttl_ms}ms"}
                self._session.declare_queue(
                    name,
                    kind=self._options.get("kind") or ("priority" if is_ranked else "timer"),
                    partitions=self._options.get("partitions", 1),
                    settings={**ttl, **(self._options.get("settings") or {})},
                )
        return queue_declare_ok_t(name, 0, 0)

    def queue_bind(
        self, queue: str, exchange: str | None = None, routing_key: str = "", arguments: object = None, **_: object
    ) -> None:
        """Bind a queue to an exchange."""
        with channel_errors("Channel.queue_bind"):
            name = exchange or "amq.direct"
            if queue in self._session.temporary:
                self._session.bind_temporary(queue, name, routing_key or "")
            else:
                self._session.bindings.bind(queue, name, routing_key or "")

    def queue_unbind(
        self, queue: str, exchange: str | None = None, routing_key: str = "", arguments: object = None, **_: object
    ) -> None:
        """Remove a binding."""
        name = exchange or "amq.direct"
        if queue in self._session.temporary:
            self._session.temporary[queue].get(name, set()).discard(routing_key or "")
        else:
            self._session.bindings.unbind(queue, name, routing_key or "")

    def queue_purge(self, queue: str, **_: object) -> int:
        """Delete the messages of a queue that no worker holds; return their number."""
        if queue in self._session.temporary:
            return 0
        try:
            return self._session.client.messages(self._session.topic(queue)).cancel_all().done
        except UnknownTopic as error:
            raise _not_found("queue", queue, "Channel.queue_purge") from error

    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False, **_: object) -> None:
        """Delete a queue with its messages."""
        if if_empty and self._size(queue):
            return
        if (feed := self._temporary.pop(queue, None)) is not None:
            self._end(feed)
        self._session.delete_queue(queue)

    def after_reply_message_received(self, queue: str) -> None:
        """Delete the queue of a reply."""
        self.queue_delete(queue)

    def list_bindings(self) -> list[tuple[str, str, str]]:
        """Return all bindings: (queue, exchange, routing key)."""
        bound = self._session.bindings.bound
        return [(queue, exchange, key) for exchange, pairs in bound.items() for queue, key in pairs]

    def _size(self, queue: str) -> int:
        """Return the number of messages of a queue that are ready for workers."""
        if queue in self._session.temporary:
            feed = self._temporary.get(queue)
            return len(feed.inbox) if feed is not None else 0
        rows = self._session.client.admin.groups(self._session.topic(queue))
        group = self._options.get("group", GROUP)
        return sum(int(row.get("ready") or 0) for row in rows if row.get("group") == group)

    # Sending.

    def prepare_message(
        self, body: Any, priority: int | None = None, content_type: str | None = None,
        content_encoding: str | None = None, headers: dict[str, Any] | None = None,
        properties: dict[str, Any] | None = None,
    ) -> Payload:  # fmt: skip
        """Return the payload of a message."""
        properties = properties or {}
        properties.setdefault("delivery_info", {})
        properties.setdefault("priority", priority or 0)
        return {
            "body": body,
            "content-encoding": content_encoding,
            "content-type": content_type,
            "headers": headers or {},
            "properties": properties,
        }

    def basic_publish(self, message: Payload, exchange: str, routing_key: str, **_: object) -> None:
        """Store a message in the queues that it is routed to. Returns once it is safely stored."""
        with channel_errors("Channel.basic_publish"):
            if exchange.endswith(MAILBOX):
                on_command(self._session, message)
            self._session.publish(message, exchange=exchange or "", routing_key=routing_key or "")

    # Receiving.

    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False) -> None:
        """Limit the number of unsettled messages; 0 for no limit."""
        if prefetch_count != self.qos.prefetch_count:
            self.qos.prefetch_count = prefetch_count
            self._retire_work()
            self._wake()

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Callable[[Any], object], consumer_tag: str, **_: object
    ) -> None:
        """Consume a queue. The subscription begins at the next turn of the loop, when the prefetch count is known."""
        self._consumers[consumer_tag] = (queue, callback, bool(no_ack))
        if queue not in self._session.temporary:
            self._retire_work()
        self._wake()

    def basic_cancel(self, consumer_tag: str) -> None:
        """Stop consuming a queue: give back what was received and not delivered."""
        queue, _, _ = self._consumers.pop(consumer_tag, (None, None, None))
        if queue is None or queue in self._queues():
            return
        if (feed := self._temporary.pop(queue, None)) is not None:
            self._end(feed)
            self._session.drop_temporary(queue)
        else:
            self._retire_work()
            self._wake()

    def basic_get(self, queue: str, no_ack: bool = False, **_: object) -> Any:
        """Return the next message of a queue; None if it is empty."""
        terms = self._temporary_terms(queue) if queue in self._session.temporary else self._work_terms([queue])
        for topic in terms.queues:
            leases = self._session.client.leases(topic, terms.group)
            try:
                while taken := leases.take(lease=terms.lease):
                    if terms.accepts is None or terms.accepts(taken[0]):
                        return self._received(None, Leased(leases, taken[0]), no_ack)
                    leases.ack(taken)
            except UnknownTopic as error:
                raise _not_found("queue", queue, "Channel.basic_get") from error
        return None

    def basic_ack(self, delivery_tag: str, multiple: bool = False) -> None:
        """Ack a message."""
        self.qos.ack(delivery_tag)

    def basic_reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Reject a message: it becomes a dead letter, or is delivered again at once."""
        self.qos.reject(delivery_tag, requeue=requeue)

    def basic_recover(self, requeue: bool = False) -> None:
        """Give back all unsettled messages."""
        self.qos.restore_unacked_once()

    def flow(self, active: bool = True) -> None:
        """Raise ChannelError: a consumer that is cancelled receives nothing."""
        raise ChannelError("flow is not supported: cancel the consumer", (20, 20), "Channel.flow", "540")

    def message_to_python(self, raw_message: Any) -> Any:
        """Return kombu's message of a payload."""
        return raw_message if isinstance(raw_message, virtual.Message) else self.Message(raw_message, channel=self)

    def decode_body(self, body: Any, encoding: str | None = None) -> Any:
        """Return the body: it is stored as it is."""
        return body

    encode_body = decode_body

    def deliver_one(self) -> bool:
        """Call the consumer of the next message that has arrived; return False if there is none."""
        self._open_feeds()
        for feed in [*([self._work] if self._work is not None else ()), *self._temporary.values()]:
            if feed.error is not None:
                raise ConnectionLost(f"consuming {', '.join(feed.terms.queues.values())}: {feed.error}") from feed.error
            if feed is self._work and not self.qos.can_consume():
                continue
            found = feed.take()
            if found is None:
                continue
            queue, message = found
            consumer = next((each for each in self._consumers.values() if each[0] == queue), None)
            if consumer is None:
                give_back(message)
                feed.settled()
                continue
            _, callback, no_ack = consumer
            callback(self._received(feed, message, no_ack))
            return True
        return False

    def _received(self, feed: Feed | None, message: Held, no_ack: bool) -> Any:
        tag = str(uuid4())
        name = f"{message.topic}/{message.id}"
        payload = incoming(message.value, message.headers, tag=tag, attempt=message.attempt, name=name)
        found = self.Message(payload, channel=self)
        if no_ack:
            message.ack()
            if feed is not None:
                feed.settled()
        else:
            self.qos.append(message, tag, feed)
        return found

    def _queues(self) -> list[str]:
        return list(dict.fromkeys(queue for queue, _, _ in self._consumers.values()))

    def _open_feeds(self) -> None:
        """Subscribe to the queues that are consumed."""
        if not self._consumers:
            return
        work = []
        for queue in self._queues():
            if queue not in self._session.temporary:
                work.append(queue)
            elif queue not in self._temporary:
                self._temporary[queue] = Feed(self._session.client, self._temporary_terms(queue), self._wake)
        if work and self._work is None:
            self._work = Feed(self._session.client, self._work_terms(work), self._wake)

    def _work_terms(self, queues: list[str]) -> Terms:
        return Terms(
            queues={self._session.topic(queue): queue for queue in queues},
            group=self._options.get("group", GROUP),
            credit=self.qos.prefetch_count or CREDIT,
            lease=self._options.get("lease"),
        )

    def _temporary_terms(self, queue: str) -> Terms:
        self._session.bind_unbound()
        bound = self._session.temporary[queue]
        exchanges = self._session.bindings.exchanges
        kinds = {name: str(exchanges.get(name, {}).get("type", "direct")) for name in bound}

        def accepts(message: Headed) -> bool:
            name, key = route_of(message.headers)
            return any(matches(kinds.get(name, "direct"), each, key) for each in bound.get(name, ()))

        return Terms(
            queues={self._session.exchange_topic(name): queue for name in bound},
            group=self._session.group(queue),
            credit=CREDIT,
            lease=None,
            accepts=accepts,
        )

    def _settled(self) -> None:
        if self._work is not None and self._work.inbox:
            self._wake()

    def _retire_work(self) -> None:
        """End the feed of the queues. The next turn opens a new feed."""
        feed, self._work = self._work, None
        if feed is not None:
            feed.retire()
            self._retired = [each for each in [*self._retired, feed] if each.held]

    def _end(self, feed: Feed) -> None:
        if not self._session.is_foreign:
            feed.close()

    def close(self) -> None:
        """Close the channel: send queued acks, and give back everything that is not settled."""
        if self.closed:
            return
        self.closed = True
        for feed in [*([self._work] if self._work is not None else ()), *self._temporary.values(), *self._retired]:
            self._end(feed)
        self._consumers.clear()
        self._work, self._retired = None, []
        self._temporary.clear()
        if self.connection is not None:
            self.connection.close_channel(self)


class Transport(base.Transport):
    """A connection to a cluster. All connections of a process to the same cluster share one client."""

    can_parse_url = True
    default_port = 7170
    driver_type = "sandq"
    driver_name = "sandq"
    implements = base.Transport.implements.extend(
        asynchronous=True, exchange_type=frozenset({"direct", "topic", "fanout"}), heartbeats=False
    )
    connection_errors = (Retriable, ClosedError, Unauthenticated, Forbidden)
    channel_errors = (ChannelError,)
    recoverable_connection_errors = (Retriable, ClosedError)
    """Errors after which kombu connects again."""
    recoverable_channel_errors = ()

    def __init__(self, client: Any, **_: object) -> None:
        self.client = client
        self.channels: list[Channel] = []
        self._channel_id = 0
        self._session: Session | None = None
        self._reader: socket.socket
        self._writer: socket.socket

    @property
    def session(self) -> Session:
        """The session of this process. Raises ConnectionLost if the connection is closed."""
        if self._session is None or self._session.is_foreign:
            raise ConnectionLost("the connection is closed")
        return self._session

    @property
    def default_connection_params(self) -> dict[str, Any]:
        """The address of a node on this machine."""
        return {"hostname": "sandq://127.0.0.1", "port": self.default_port}

    def address(self) -> Address:
        """Return the address in the URL of the connection. Raises ValueError if it is wrong."""
        client = self.client
        url = client.hostname or ""
        more: dict[str, Any] = {name: client.transport_options.get(name) for name in ("timeout", "delivery_timeout")}
        if client.ssl:
            options = client.ssl if isinstance(client.ssl, dict) else {}
            more |= {"tls": True, "ca": options.get("ca_certs"), "cert": options.get("certfile"),
                     "key": options.get("keyfile")}  # fmt: skip
        try:
            return parse(url if "://" in url else f"sandq://{url}:{client.port or self.default_port}", more)
        except InvalidRequest as error:
            raise ValueError(str(error)) from error

    def establish_connection(self) -> Transport:
        """Connect. Raises one of `connection_errors`."""
        self._session = acquire(self.address())
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        return self

    def close_connection(self, connection: object) -> None:
        """Close all channels, and the client if nothing else uses it."""
        session, self._session = self._session, None
        for channel in list(self.channels):
            channel.close()
        if session is not None:
            self._reader.close()
            self._writer.close()
            release(session)

    def verify_connection(self, connection: object) -> bool:
        """Return whether this process can use the connection."""
        return self._session is not None and not self._session.is_foreign

    def create_channel(self, connection: Transport) -> Channel:
        """Create a channel of a connection: not always of this one, if the URL has alternatives and this one failed."""
        channel = Channel(connection)
        connection.channels.append(channel)
        return channel

    def close_channel(self, channel: Channel) -> None:
        """Forget a closed channel."""
        if channel in self.channels:
            self.channels.remove(channel)
        channel.connection = None

    def next_channel_id(self) -> int:
        """Return a number that no channel of this connection has had."""
        self._channel_id += 1
        return self._channel_id

    def wake(self) -> None:
        """Make `drain_events` or the event loop look for messages. May be called from any thread."""
        with suppress(OSError):  # the buffer is full, so that a wake-up is pending; or the connection is closed
            self._writer.send(b"\0")

    def drain_events(self, connection: object, timeout: float | None = None, **_: object) -> None:
        """Deliver one message; wait for it. Raises socket.timeout."""
        ends_at = None if timeout is None else time.monotonic() + timeout
        while not self._deliver(1):
            left_s = None if ends_at is None else ends_at - time.monotonic()
            if left_s is not None and left_s <= 0:
                raise TimeoutError
            poll = select.poll()
            poll.register(self._reader, select.POLLIN)
            poll.poll(None if left_s is None else left_s * 1000)
            self._read_wakes()

    def register_with_event_loop(self, connection: object, loop: Any) -> None:
        """Let the event loop of a Celery worker call `on_readable`."""
        loop.add_reader(self._reader.fileno(), self.on_readable, loop)
        self.wake()

    def unregister_from_event_loop(self, connection: object, loop: Any) -> None:
        """Undo `register_with_event_loop`."""
        loop.remove_reader(self._reader.fileno())

    def on_readable(self, loop: object) -> None:
        """Deliver the messages that have arrived."""
        self._read_wakes()
        if self._deliver(_AT_ONCE) == _AT_ONCE:
            self.wake()

    def as_uri(self, uri: str, include_password: bool = False, mask: str = "**") -> str:
        """Return the URL for display."""
        return uri if include_password else masked(uri, mask)

    def driver_version(self) -> str:
        """Return the version of sandq's client."""
        return sandq.__version__

    def _deliver(self, most: int) -> int:
        """Deliver up to `most` messages, in turns of the channels; return their number."""
        count = idle = 0
        while count < most and idle < len(self.channels):
            # The next turn begins with the next channel: one with many messages does not delay the others.
            channel = self.channels.pop(0)
            self.channels.append(channel)
            found = channel.deliver_one()
            count, idle = count + found, 0 if found else idle + 1
        return count

    def _read_wakes(self) -> None:
        with suppress(BlockingIOError):
            while self._reader.recv(4096):
                pass


def _not_found(what: str, name: str, method: str) -> ChannelError:
    return ChannelError(f"NOT_FOUND - no {what} {name!r}", (50, 10), method, "404")
