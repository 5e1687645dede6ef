"""One subscription on one node: SUBSCRIBE, what the node pushes, and its credit.

    credit      what the node may still push: given by SUBSCRIBE, raised by CREDIT, spent by each message
    held        messages from this node that are neither settled nor lost
    target      this node's share of the subscription's credit: credit + held is kept at it

A message that is acked, nacked or lost frees its place. The credit for it leaves after the acks, with the next send: at
once while somebody waits for a message, otherwise when a quarter of the target is free. Given back in crumbs it would
come back as crumbs: leases get as small as what is free when they are made (RFC 1122, 4.2.3.3, of the windows of TCP).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Final, Protocol

import anyio

from sandq.client.consumer.lease import HELD, Chunk, Lease
from sandq.client.consumer.partition_consumer import PartitionConsumer
from sandq.client.signals import Signal
from sandq.client.transport.cluster import Cluster
from sandq.client.transport.connection import Connection
from sandq.model.errors import (
    ClosedError,
    ConsumerFenced,
    InvalidRequest,
    ProtocolError,
    SandqError,
    Unavailable,
)
from sandq.model.limits import DEFAULT
from sandq.protocol.frames import ITEMS_MAX, Frame
from sandq.protocol.replies import Deliver
from sandq.protocol.requests import Credit, Subscribe, Unsubscribe

log = logging.getLogger("sandq.client")

LUMPS: Final = 4
"""Credit is given back in so many parts of the target at most, while nobody waits."""


class SessionOwner(Protocol):
    """What the sessions of one subscription ask and tell it."""

    topic: str
    group: str
    cluster: Cluster
    lease_ms: int | None
    start: str | int | bytes

    @property
    def consumer_id(self) -> str: ...

    @property
    def partitions(self) -> Sequence[int] | None: ...

    @property
    def handlers(self) -> int: ...

    @property
    def is_starved(self) -> bool: ...

    def epoch_on(self, connection: Connection) -> int | None: ...

    def outrank(self, error: ConsumerFenced) -> bool: ...

    def held_tokens(self) -> list[list[int]]: ...

    def partition_consumer(self, group_number: int, partition: int) -> PartitionConsumer: ...

    def receive(self, chunk: Chunk, crossed: int) -> None: ...

    def sessions_changed(self) -> None: ...

    def freed(self, count: int) -> None: ...

    def watch(self, lease: Lease) -> None: ...

    def fail(self, error: SandqError) -> None: ...

    def wake(self) -> None: ...


class Session:
    """See the module's docstring; `run` is its task."""

    def __init__(self, subscription: SessionOwner, node_id: str) -> None:
        self.node_id = node_id
        self.target = 0
        self.held = 0
        self.is_retired = False  # the node seems to lead nothing of the topic
        self.ready = False  # the node has accepted the subscription
        self.is_busy = False  # it has given something lately, or is holding something
        self.came_at = -math.inf  # when something came last
        self.scope = anyio.CancelScope()
        self._subscription = subscription
        self._connection: Connection | None = None
        self._id = 0
        self._credit = 0
        self._ended: SandqError | None = None
        self._left = False
        self._credit_queued = False
        self._taken_back = 0  # of the credit, on this connection
        self._wake = Signal()
        self._last_tokens: dict[tuple[int, int], int] = {}

    async def run(self) -> None:
        """Be subscribed on the node whenever it can be reached; returns when the subscription has failed."""
        cluster, options = self._subscription.cluster, self._subscription.cluster.options
        attempt = 0
        cluster.on_change[self._wake.set] = None
        try:
            with self.scope:
                while True:
                    connection = cluster.connection(self.node_id)
                    if connection is None:
                        # Whoever named this node may not have noticed yet that it is gone.
                        cluster.refresh(self._subscription.topic)
                        await self._wake.wait()
                        continue
                    started_at = anyio.current_time()
                    error = await self._serve(connection)
                    if isinstance(error, ConsumerFenced) and self._subscription.outrank(error):
                        # Of two that come at the same time each may outrank the other: not at the speed of the network.
                        await anyio.sleep(options.back_off_s(attempt))
                        attempt += 1
                        continue
                    if not error.retriable:
                        self._subscription.fail(error)
                        return
                    log.info("subscription to %s on %s: %s", self._subscription.topic, self.node_id, error)
                    cluster.refresh(self._subscription.topic, self.node_id)
                    self._subscription.wake()  # it may have nothing to do there any more
                    if anyio.current_time() - started_at > options.back_off_max_s:
                        attempt = 0
                    await anyio.sleep(options.back_off_s(attempt))
                    attempt += 1
        finally:
            cluster.on_change.pop(self._wake.set, None)

    async def _serve(self, connection: Connection) -> SandqError:
        """Subscribe on this connection and stay until it ends; why it ended."""
        subscription = self._subscription
        self._ended = None
        self._id = connection.new_id()
        self._credit = max(0, self.target - self.held)
        self._credit_queued, self._taken_back = False, 0
        self._connection = connection
        connection.listeners[self._id] = self
        request = Subscribe(
            self._id,
            subscription.topic,
            subscription.group,
            subscription.consumer_id,
            self._credit,
            subscription.lease_ms,
            subscription.start,
            subscription.held_tokens()[:ITEMS_MAX],
            subscription.epoch_on(connection),
            subscription.partitions,
            subscription.handlers,
        )
        try:
            await connection.call(request.frame, timeout_s=subscription.cluster.options.timeout_s)
            self.ready = True
            subscription.wake()
            self.aim(self.target)
            while self._ended is None:
                await self._wake.wait()
            return self._ended
        except SandqError as error:
            # The next SUBSCRIBE takes the place of one without an answer; UNSUBSCRIBE would give back what is held.
            self._ended = error if self.held or error.code != "TIMED_OUT" else None
            return error
        finally:
            connection.listeners.pop(self._id, None)
            if self._ended is None and not self._left:  # the node may still think that somebody listens
                connection.post(Unsubscribe(self._id).frame(connection.new_id()))
            self._connection = None
            self.ready = False
            for group_number, partition in self._last_tokens:
                subscription.partition_consumer(group_number, partition).cut()
            self._last_tokens.clear()

    def retire(self) -> bool:
        """Give the node no more credit, as it seems to lead nothing of the topic; end the session, if there is no
        subscription on the node. Returns whether it has ended.

        To unsubscribe would give back what is held of the node, and what seems so may be wrong: its leaders may only
        not be known for a moment. A node that ceases to lead ends the subscription itself.
        """
        self.target, self.is_retired = 0, True
        if self._connection is not None:
            return False
        self.scope.cancel()
        return True

    async def leave(self) -> None:
        """Give back what is leased here; returns when the node has done it (or cannot be reached)."""
        connection = self._connection
        if connection is not None and connection.is_open:
            self._left = True
            connection.listeners.pop(self._id, None)
            try:
                await connection.call(Unsubscribe(self._id).frame)
            except SandqError as error:
                log.debug("unsubscribing from %s: %s", self.node_id, error)

    # What the connection tells.

    def on_deliver(self, frame: Frame) -> None:
        """Messages: raises ProtocolError when the frame makes no sense, which closes the connection."""
        subscription, connection = self._subscription, self._connection
        assert connection is not None, "pushed to a session that listens to no connection"
        deliver = Deliver.parse(frame)
        expires_at = connection.local_time(deliver.deadline_ms)
        partition_consumer = subscription.partition_consumer(deliver.group_number, deliver.partition)
        self._supersede(partition_consumer, deliver.token)
        lease = partition_consumer.lease(deliver.token, deliver.attempt, expires_at)
        try:
            chunk = Chunk(lease, deliver, self.give_back)
        except InvalidRequest as error:
            raise ProtocolError(f"DELIVER: {error.message}") from None
        pushed = chunk.state.count(HELD)
        count = partition_consumer.deliver(chunk)
        lease.complete, lease.begin_first = lease.complete or deliver.last, deliver.begin_first
        self._credit -= pushed
        self.held += count
        self.came_at = anyio.current_time()
        if count and anyio.current_time() >= lease.expires_at:
            partition_consumer.lapse(lease)  # long on its way: another consumer may have it by now
        elif count:
            subscription.receive(chunk, min(count, self._taken_back, max(-self._credit, 0)))
        if count < pushed:
            self.top_up()  # what had been pushed before takes no place, so the credit it cost goes back
        subscription.watch(lease)
        if not self.is_busy and pushed:
            self.is_busy = True
            subscription.sessions_changed()

    def on_end(self, error: SandqError) -> None:
        """The connection is lost, or the node ended the subscription."""
        self._ended = error
        self._wake.set()

    def restart(self) -> None:
        """Subscribe anew, as the consumer has another epoch now."""
        if self._connection is not None:
            self.on_end(Unavailable("the consumer has a later epoch now"))

    def _supersede(self, partition_consumer: PartitionConsumer, token: int) -> None:
        """A later lease of the partition: the frames of the one before have all come."""
        place = (partition_consumer.group_number, partition_consumer.partition)
        last = self._last_tokens.get(place)
        if last is not None and last != token and (lease := partition_consumer.leases.get(last)) is not None:
            lease.superseded = True
        self._last_tokens[place] = token

    # Credit.

    def give_back(self, count: int) -> None:
        """Messages left the held ones; below zero: so many are held again, beyond the target if need be."""
        self.held -= count
        if count > 0:
            self._subscription.freed(count)
            self.top_up()

    def aim(self, target: int, *, takes_back: bool = False) -> None:
        """Let the node push up to another target. `takes_back`: what it may push beyond it is taken back."""
        self.target = target
        connection = self._connection
        beyond = min(self.held + self._credit - target, self._credit)
        if beyond <= 0:
            self.top_up()
        elif takes_back and self.ready and connection is not None and connection.takes_credit_back:
            self._credit -= beyond
            self._taken_back += beyond
            connection.post(Credit(self._id, -beyond).frame())

    def top_up(self) -> None:
        """Let the node push up to the target again, if that is worth it."""
        connection = self._connection
        if connection is None or not self.ready or self._credit_queued:
            return  # before the node has accepted the subscription, credit for it is for nobody
        free = self.target - self.held - self._credit
        if free > 0 and (free * LUMPS >= self.target or self._subscription.is_starved):
            self._credit_queued = True
            connection.flush_soon(self._send_credit, last=True)

    def _send_credit(self) -> None:
        connection = self._connection
        self._credit_queued = False
        more = min(self.target - self.held - self._credit, DEFAULT.credit_max)
        if connection is not None and self.ready and more > 0:
            self._credit += more
            connection.post(Credit(self._id, more).frame())


def closed(topic: str) -> ClosedError:
    """The error of using a subscription that was left."""
    return ClosedError(f"the subscription to topic {topic!r} is closed")
