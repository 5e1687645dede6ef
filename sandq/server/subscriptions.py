"""Subscriptions and LEASE requests of one connection."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Final

import trio

from sandq.broker.broker import Broker
from sandq.broker.event_loop import TimeSlice
from sandq.broker.leader.subscription import Subscription
from sandq.broker.replication.replica import Delivery
from sandq.model.errors import Conflict, InvalidRequest, NotFound, SandqError, TooLarge
from sandq.model.names import check_name
from sandq.protocol.frames import encode_reply
from sandq.protocol.replies import encode_deliver
from sandq.protocol.requests import Credit, Lease, Subscribe, Unsubscribe
from sandq.server.connection import Connection

LEASES_KEPT = 1000
"""Number of answered LEASE requests that are remembered: a cancellation that crosses the reply still returns their
messages."""
PARTITIONS_OF_WORK: Final = 4
"""Partitions of a topic that can be visited with one unit of work."""
LISTENING_BYTES = 256
"""Approximate memory of a waiting LEASE request for each partition, in bytes."""


def _deliver(connection: Connection, number: int, delivery: Delivery, *, reports: bool = False) -> None:
    """Push a lease to a subscription or a LEASE request.

    `reports`: whether the consumer reports which messages it begins to handle. A consumer that does not report may get
    a lease of an earlier consumer with the same id that did report."""
    for frame in encode_deliver(number, delivery, reports=reports):
        connection.send(frame)


class _ConnectionReceiver:
    """Receives the messages of a subscription and sends them to the client. Implements `DeliveryReceiver`."""

    def __init__(
        self, connection: Connection, subscriptions: dict[int, tuple[str, Subscription]], request: Subscribe
    ) -> None:
        """`subscriptions`: all subscriptions of the connection, by id."""
        self._connection = connection
        self._subscriptions = subscriptions
        self._id = request.subscription_id
        self._reports = bool(request.handlers)

    @property
    def congested(self) -> bool:
        """Whether the connection accepts no more frames now."""
        return self._connection.congested

    def push(self, delivery: Delivery) -> None:
        """Send a lease."""
        _deliver(self._connection, self._id, delivery, reports=self._reports)

    def ended(self, error: SandqError) -> None:
        """Report to the client that its subscription has ended."""
        self._subscriptions.pop(self._id, None)
        self._connection.send_error(self._id, error)


class Subscriptions:
    """Handles SUBSCRIBE, UNSUBSCRIBE, LEASE and CREDIT, and pushes leased messages."""

    def __init__(self, broker: Broker, connection: Connection) -> None:
        self._broker = broker
        self._connection = connection
        self._subscriptions: dict[int, tuple[str, Subscription]] = {}
        self._opening: dict[int, trio.Event] = {}
        self._leasing: dict[int, trio.CancelScope] = {}
        """LEASE requests in progress, by request id."""
        self._answered_leases: dict[int, tuple[Lease, set[int]]] = {}
        """The last answered LEASE requests, and the partitions of their leases, by request id.

        If a client cancels one before it has seen the reply, its leases are returned."""

    def notify_credit(self) -> None:
        """Resume deliveries. Called when the connection accepts frames again after it was congested."""
        for _, subscription in self._subscriptions.values():
            subscription.notify_credit()

    async def close(self) -> None:
        """Detach the subscriptions of a closed connection. Leases run until they expire."""
        subscriptions = list(self._subscriptions.values())
        self._subscriptions.clear()
        for _, subscription in subscriptions:
            subscription.closed = True
        time_slice = TimeSlice()
        for topic, subscription in subscriptions:
            left = self._broker.detach(topic, subscription)
            await time_slice.spend(1 + len(left) // PARTITIONS_OF_WORK)

    def subscribe(self, request_id: int, request: Subscribe) -> None:
        """Open a subscription. Raise SandqError if the request is invalid, or exceeds a limit."""
        if request.subscription_id in self._subscriptions or request.subscription_id in self._opening:
            raise Conflict(f"subscription {request.subscription_id} exists already on this connection")
        check_name("group", request.group)
        limits = self._broker.limits
        if not 0 < len(request.consumer_id) <= limits.consumer_id_chars:
            raise InvalidRequest(f"a consumer id has 1 to {limits.consumer_id_chars} characters")
        most = limits.subscriptions_per_connection
        if len(self._subscriptions) + len(self._opening) >= most:
            raise TooLarge(
                f"this connection has {most} subscriptions (limits.subscriptions_per_connection): "
                "open another connection",
                limit="subscriptions_per_connection",
                maximum=most,
            )
        if request.credit > limits.credit_max:
            raise InvalidRequest(f"a credit of {request.credit} is too large: it may be at most {limits.credit_max}")
        self._count_work(request.topic)
        # Reserve the id before anything is awaited. An UNSUBSCRIBE that comes meanwhile waits for the event.
        opened = self._opening[request.subscription_id] = trio.Event()

        async def work() -> bytes:
            """Subscribe, and note that the subscription is no longer being opened."""
            try:
                return await self._subscribed(request_id, request)
            finally:
                del self._opening[request.subscription_id]
                opened.set()

        try:
            self._connection.start(request_id, work)
        except SandqError:
            del self._opening[request.subscription_id]
            raise

    async def _subscribed(self, request_id: int, request: Subscribe) -> bytes:
        """Subscribe to a group, and return the reply with the partitions."""
        receiver = _ConnectionReceiver(self._connection, self._subscriptions, request)
        subscription, partitions = await self._broker.subscribe(request, self._connection.caller, receiver)
        self._subscriptions[request.subscription_id] = (request.topic, subscription)
        return encode_reply(request_id, partitions)

    def lease(self, request_id: int, request: Lease) -> None:
        """Lease messages once (LEASE): wait for them if the request says so, push them, and reply with their number."""
        if request_id in self._leasing:
            raise Conflict(f"request {request_id} is in progress already on this connection")
        self._count_work(request.topic)

        async def work() -> bytes:
            """Lease messages, send them, and return the reply with their number."""
            taken: list[Delivery] = []
            try:
                with self._waits(request), scope:
                    taken = await self._broker.take(
                        request, self._connection.caller, lambda: self._connection.congested
                    )
            finally:
                del self._leasing[request_id]
            if taken and not request.ack:
                self._answered_leases[request_id] = request, {delivery.partition for delivery in taken}
                if len(self._answered_leases) > LEASES_KEPT:
                    del self._answered_leases[next(iter(self._answered_leases))]
            for delivery in taken:
                _deliver(self._connection, request_id, delivery)
            return encode_reply(request_id, sum(delivery.count for delivery in taken))

        scope = self._leasing[request_id] = trio.CancelScope()
        try:
            self._connection.start(request_id, work, request.wait_ms / 1000)
        except SandqError:
            del self._leasing[request_id]
            raise

    def _count_work(self, topic: str) -> None:
        """Count the work of visiting all partitions of a topic, as SUBSCRIBE and LEASE do. Raise UnknownTopic."""
        self._connection.time_slice.left -= (
            len(self._broker.catalog.topic(topic).record.partitions) // PARTITIONS_OF_WORK
        )

    def _waits(self, request: Lease) -> AbstractContextManager[None]:
        """Count the memory of a LEASE request that may wait on every partition. Raise UnknownTopic or Overloaded."""
        if not request.wait_ms:
            return nullcontext()
        partitions = self._broker.catalog.topic(request.topic).record.partitions
        return self._connection.waits(LISTENING_BYTES * len(partitions))

    def unsubscribe(self, request_id: int, request: Unsubscribe) -> None:
        """End a subscription, or a LEASE with this request id.

        Cancel a LEASE in progress. Give back the messages of a LEASE that is already answered. If a subscription is
        still being opened, wait until it is open, then end it."""
        take = self._leasing.get(request.subscription_id)
        if take is not None:
            take.cancel()
            self._connection.reply(request_id, encode_reply(request_id))
            return
        leased = self._answered_leases.pop(request.subscription_id, None)
        if leased is not None:
            self._broker.give_back(*leased)
            self._connection.reply(request_id, encode_reply(request_id))
            return
        opening = self._opening.get(request.subscription_id)
        if opening is None:
            self._subscription(request.subscription_id)

        async def leave() -> bytes:
            """End a subscription, once it is open, and return the reply."""
            if opening is not None:
                await opening.wait()
            topic, subscription = self._subscription(request.subscription_id)
            del self._subscriptions[request.subscription_id]
            await self._broker.unsubscribe(topic, subscription)
            return encode_reply(request_id)

        self._connection.start(request_id, leave)

    def add_credit(self, request: Credit) -> None:
        """Add credit to a subscription."""
        found = self._subscriptions.get(request.subscription_id)
        if found is not None:  # None: the subscription ended while the CREDIT was in transit
            self._broker.add_credit(found[1], request.more)

    def _subscription(self, subscription_id: int) -> tuple[str, Subscription]:
        """Return (topic, subscription). Raise NotFound if there is none with this id."""
        found = self._subscriptions.get(subscription_id)
        if found is None:
            raise NotFound(f"there is no subscription {subscription_id} on this connection")
        return found
