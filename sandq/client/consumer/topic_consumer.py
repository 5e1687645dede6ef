"""One topic of a subscription: its sessions on the nodes that lead its partitions, and the held messages of each
partition."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import anyio
import anyio.abc

from sandq.client.consumer.chosen import chosen_of
from sandq.client.consumer.consumer_identity import ConsumerIdentity
from sandq.client.consumer.deliveries import DeliveredChunk
from sandq.client.consumer.held_messages import HeldMessages
from sandq.client.consumer.intake import Intake, NodeCredit, Wakeups
from sandq.client.consumer.lease import HELD, Lease
from sandq.client.consumer.partition_consumer import PartitionConsumer
from sandq.client.signals import Signal
from sandq.client.transport.cluster import Cluster
from sandq.client.transport.connection import Connection
from sandq.client.transport.requests import used_topic
from sandq.model.errors import (
    ConsumerFenced,
    InvalidRequest,
    ProtocolError,
    SandqError,
    Unavailable,
    UnknownPartition,
)
from sandq.protocol.frames import ITEMS_MAX, Frame
from sandq.protocol.replies import Deliver
from sandq.protocol.requests import Subscribe, Unsubscribe

log = logging.getLogger("sandq.client")

_LEASE_DEFAULT_MS: Final = 30_000  # fallback: every topic record has a lease
_EXTEND_PART: Final = 3  # a lease is extended when a third of it remains


@dataclass(frozen=True, kw_only=True)
class Terms:
    """The parameters of a subscription, the same for all its topics."""

    group: str
    identity: ConsumerIdentity
    lease_ms: int | None
    """How long messages are held, in ms; None for the topic's setting."""
    start: str | int | bytes
    partitions: Sequence[int] | None
    """Numbers of the partitions to consume; None for all."""
    auto_extend: bool
    handlers: int
    """Usual number of messages that are processed at the same time."""


class TopicConsumer:
    """The sessions of one topic, and the consumers of its partitions."""

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        terms: Terms,
        intake: Intake,
        wakeups: Wakeups,
        *,
        on_failed: Callable[[str, SandqError], None],
        on_fenced: Callable[[ConsumerFenced], bool],
    ) -> None:
        """`on_failed(topic, error)` is called when the topic cannot continue.

        `on_fenced(error)` is called when a node knows a later process of this consumer. It returns whether to subscribe
        again, with an even later epoch.
        """
        self.topic = topic
        self.cluster = cluster
        self.terms = terms
        self.intake = intake
        self.wakeups = wakeups
        self.sessions: dict[str, Session] = {}
        self.on_fenced = on_fenced
        self._on_failed = on_failed
        self._partition_consumers: dict[tuple[int, int], PartitionConsumer] = {}

    async def check(self, *, makes: bool) -> None:
        """Check that the topic and its partitions exist. `makes`: create a missing topic, if the nodes create topics on
        demand.

        Raises UnknownTopic, UnknownPartition, or the error that kept the cluster from answering.
        """
        try:
            known = await (used_topic(self.cluster, self.topic) if makes else self.cluster.topic(self.topic))
            chosen_of(known, self.terms.partitions)
        except UnknownPartition:
            chosen_of(await self.cluster.fetch_topic(self.topic), self.terms.partitions)  # the partition may be new

    @property
    def is_ready(self) -> bool:
        """True if all nodes that lead partitions have accepted the subscription."""
        return bool(self.sessions) and all(session.credit.is_accepted for session in self.sessions.values())

    @property
    def is_quiet(self) -> bool:
        """True if no ack, nack or extension is queued or unanswered."""
        return all(consumer.sender.is_quiet for consumer in self._partition_consumers.values())

    # The sessions call these.

    def partition_consumer(self, group_number: int, partition: int) -> PartitionConsumer:
        """Return the consumer of a partition. The first call for a partition creates it."""
        found = self._partition_consumers.get((group_number, partition))
        if found is None:
            found = self._partition_consumers[group_number, partition] = PartitionConsumer(
                self.cluster,
                self.topic,
                self.terms.group,
                partition,
                group_number,
                self.wakeups.quiet,
                self.wakeups.wake,
                self._effective_lease_ms,
            )
        return found

    def watch(self, lease: Lease) -> None:
        """Run the subscription's task in time to extend this lease, or to handle its end."""
        if self._extend_at(lease) < self.wakeups.due_at:
            self.wakeups.task.set()

    def fail(self, error: SandqError) -> None:
        """Report a permanent error of the topic."""
        self._on_failed(self.topic, error)

    def held_tokens(self) -> list[list[int]]:
        """Return the leases whose messages have all arrived: the nodes need not push them again."""
        return [list(lease.key) for _, lease in self.leases() if lease.complete or lease.superseded]

    def leases(self) -> Iterator[tuple[PartitionConsumer, Lease]]:
        """Yield all held leases, with the consumer of their partition."""
        for partition_consumer in self._partition_consumers.values():
            for lease in list(partition_consumer.held.leases.values()):
                yield partition_consumer, lease

    # The subscription's task calls these.

    def update_sessions(self, tasks: anyio.abc.TaskGroup) -> None:
        """Open a session on each node that leads a partition, and retire all other sessions."""
        missing = self.cluster.missing(self.topic)
        if missing is not None:
            self.fail(missing)
            return
        record = self.cluster.record(self.topic)
        if record is None:
            return
        if record.settings.get("max_attempts") == 1:
            self.intake.hold_no_more()  # with one attempt, messages held at a crash would be dead
        try:
            wanted = chosen_of(record, self.terms.partitions)
        except UnknownPartition as error:
            self.fail(error)
            return
        leaders = {row.leader for row in wanted if row.leader is not None}
        if any(row.leader is None for row in wanted):
            self.cluster.refresh(self.topic)
        has_changed = False
        for node_id in [node_id for node_id in self.sessions if node_id not in leaders]:
            if leaders:
                has_changed = has_changed or not self.sessions[node_id].credit.is_retired
                if self.sessions[node_id].retire():
                    del self.sessions[node_id]
        for node_id in sorted(leaders):
            session = self.sessions.get(node_id)
            if session is None:
                session = self.sessions[node_id] = Session(self, node_id)
                tasks.start_soon(session.run)
            elif not session.credit.is_retired:
                continue
            session.credit.is_retired = False
            has_changed = True
        if has_changed:
            self.intake.nodes_changed()

    def tend(self, now: float) -> float:
        """Extend leases, drop expired leases, and send delayed requests. Return the time of the next call."""
        due_at = math.inf
        for partition_consumer in self._partition_consumers.values():
            partition_consumer.sender.poke()
            due_at = min(due_at, partition_consumer.sender.next_time(now))
        for partition_consumer, lease in self.leases():
            if lease.held and not lease.lost:  # this includes lapsed leases that were pushed again
                due_at = min(due_at, self._tend_lease(partition_consumer, lease, now))
        return due_at

    def _tend_lease(self, partition_consumer: PartitionConsumer, lease: Lease, now: float) -> float:
        if now >= lease.expires_at:
            log.warning(
                "topic %s partition %d: a lease of %d messages ended before they were settled",
                self.topic, partition_consumer.partition, lease.held,
            )  # fmt: skip
            partition_consumer.held.lapse(lease)
            return math.inf
        if not self.terms.auto_extend or lease.extending:
            return lease.expires_at
        extend_at = self._extend_at(lease)
        if now < extend_at:
            return extend_at
        partition_consumer.extend(lease, self._effective_lease_ms())
        return lease.expires_at

    def _extend_at(self, lease: Lease) -> float:
        """Return the next time at which a lease must be extended or dropped."""
        if not self.terms.auto_extend:
            return lease.expires_at
        return lease.expires_at - self._effective_lease_ms() / 1000 / _EXTEND_PART

    def _effective_lease_ms(self) -> int:
        if self.terms.lease_ms is not None:
            return self.terms.lease_ms
        record = self.cluster.record(self.topic)
        lease_ms = record.settings.get("lease_ms") if record else None
        return lease_ms if type(lease_ms) is int and lease_ms > 0 else _LEASE_DEFAULT_MS

    # Ends.

    def restart(self) -> None:
        """Subscribe again on all nodes with the new epoch; earlier messages are delivered again."""
        self._lose_all()
        for session in self.sessions.values():
            session.restart()

    def leave(self, tasks: anyio.abc.TaskGroup) -> None:
        """Give back the held messages on every node."""
        for session in self.sessions.values():
            tasks.start_soon(session.leave)

    def close(self, error: SandqError) -> None:
        """End the sessions; fail the queued requests with this error."""
        for session in self.sessions.values():
            session.scope.cancel()
        for partition_consumer in self._partition_consumers.values():
            partition_consumer.give_up_all(error)

    def drop(self, error: SandqError) -> None:
        """Drop the topic while the subscription continues without it; its held messages are lost."""
        for session in self.sessions.values():
            session.credit.drop()
        self._lose_all()
        self.close(error)

    def _lose_all(self) -> None:
        for partition_consumer, lease in self.leases():
            with suppress(SandqError):
                partition_consumer.held.lose(lease)


class Session:
    """The subscription to the topic on one node: sends SUBSCRIBE and receives what the node pushes. `run` is its
    task."""

    def __init__(self, consumer: TopicConsumer, node_id: str) -> None:
        self.node_id = node_id
        self.credit = NodeCredit(consumer.intake)
        self.scope = anyio.CancelScope()
        self._consumer = consumer
        self._connection: Connection | None = None
        self._id = 0
        self._ended: SandqError | None = None
        self._left = False
        self._wake = Signal()
        self._last_tokens: dict[tuple[int, int], int] = {}

    async def run(self) -> None:
        """Stay subscribed on the node whenever it is reachable. Returns when the subscription has failed."""
        cluster, options = self._consumer.cluster, self._consumer.cluster.options
        attempt = 0
        cluster.on_change[self._wake.set] = None
        try:
            with self.scope:
                while True:
                    connection = cluster.connection(self.node_id)
                    if connection is None:
                        # Refresh even if the node is known: the node that named it may not have noticed that it is
                        # gone.
                        cluster.refresh(self._consumer.topic)
                        await self._wake.wait()
                        continue
                    started_at = anyio.current_time()
                    error = await self._serve(connection)
                    if isinstance(error, ConsumerFenced) and self._consumer.on_fenced(error):
                        # Two processes that start at the same time may outrank each other alternately. The pause limits
                        # the rate.
                        await anyio.sleep(options.back_off_s(attempt))
                        attempt += 1
                        continue
                    if not error.retriable:
                        self._consumer.fail(error)
                        return
                    log.info("subscription to %s on %s: %s", self._consumer.topic, self.node_id, error)
                    cluster.refresh(self._consumer.topic, self.node_id)
                    self._consumer.wakeups.wake()  # the node may no longer lead any partition
                    if anyio.current_time() - started_at > options.back_off_max_s:
                        attempt = 0
                    await anyio.sleep(options.back_off_s(attempt))
                    attempt += 1
        finally:
            cluster.on_change.pop(self._wake.set, None)

    async def _serve(self, connection: Connection) -> SandqError:
        """Subscribe on this connection and stay until the subscription ends; return the reason."""
        consumer, terms = self._consumer, self._consumer.terms
        self._ended = None
        self._id = connection.new_id()
        self._connection = connection
        connection.listeners[self._id] = self
        request = Subscribe(
            self._id,
            consumer.topic,
            terms.group,
            terms.identity.id,
            self.credit.begin(connection, self._id),
            terms.lease_ms,
            terms.start,
            consumer.held_tokens()[:ITEMS_MAX],
            terms.identity.epoch_on(connection),
            terms.partitions,
            terms.handlers,
        )
        try:
            await connection.call(request.frame, timeout_s=consumer.cluster.options.timeout_s)
            self.credit.accepted()
            consumer.wakeups.wake()
            self.credit.aim(self.credit.target)
            while self._ended is None:
                await self._wake.wait()
            return self._ended
        except SandqError as error:
            # If a SUBSCRIBE got no reply, the next SUBSCRIBE replaces it. UNSUBSCRIBE would give back the held
            # messages.
            self._ended = error if self.credit.held or error.code != "TIMED_OUT" else None
            return error
        finally:
            connection.listeners.pop(self._id, None)
            if self._ended is None and not self._left:  # the node may still consider this client subscribed
                connection.post(Unsubscribe(self._id).frame(connection.new_id()))
            self._connection = None
            self.credit.end()
            for group_number, partition in self._last_tokens:
                consumer.partition_consumer(group_number, partition).held.cut()
            self._last_tokens.clear()

    def retire(self) -> bool:
        """Give the node no more credit, because it seems to lead no partition of the topic. Return whether the session
        ended.

        The session ends immediately if there is no subscription on the node. Otherwise it stays: unsubscribing would
        give back the messages that the node has pushed, and the node may only seem to have lost leadership for a
        moment. If a node stops leading, it ends the subscription itself.
        """
        self.credit.target, self.credit.is_retired = 0, True
        if self._connection is not None:
            return False
        self.credit.drop()
        self.scope.cancel()
        return True

    async def leave(self) -> None:
        """Give back the messages that this node has leased to the client. Returns when the node has done so, or cannot
        be reached."""
        connection = self._connection
        if connection is not None and connection.is_open:
            self._left = True
            connection.listeners.pop(self._id, None)
            try:
                await connection.call(Unsubscribe(self._id).frame)
            except SandqError as error:
                log.debug("unsubscribing from %s: %s", self.node_id, error)

    # The connection calls these.

    def on_deliver(self, frame: Frame) -> None:
        """Process pushed messages. Raises ProtocolError for an invalid frame, which closes the connection."""
        consumer, connection = self._consumer, self._connection
        assert connection is not None, "delivery for a session that has no connection"
        deliver = Deliver.parse(frame)
        expires_at = connection.local_time(deliver.deadline_ms)
        partition_consumer = consumer.partition_consumer(deliver.group_number, deliver.partition)
        held = partition_consumer.held
        self._supersede(held, deliver.token)
        lease = held.lease(deliver.token, deliver.attempt, expires_at)
        try:
            chunk = DeliveredChunk(partition_consumer, lease, deliver, self.credit.give_back)
        except InvalidRequest as error:
            raise ProtocolError(f"DELIVER: {error.message}") from None
        pushed = chunk.state.count(HELD)
        count = held.deliver(chunk)
        lease.complete, lease.begin_first = lease.complete or deliver.last, deliver.begin_first
        self.credit.pushed(pushed, count)
        if count and anyio.current_time() >= lease.expires_at:
            held.lapse(lease)  # the frame was in transit for long: another consumer may have leased the messages by now
        elif count:
            consumer.intake.receive(chunk, self.credit.crossed(count))
        if count < pushed:
            self.credit.top_up()  # messages that were pushed before do not count twice, so send their credit again
        consumer.watch(lease)
        if not self.credit.is_busy and pushed:
            self.credit.is_busy = True
            consumer.intake.nodes_changed()

    def on_end(self, error: SandqError) -> None:
        """Record that the connection is lost or that the node ended the subscription."""
        self._ended = error
        self._wake.set()

    def restart(self) -> None:
        """Subscribe again: the consumer has a new epoch."""
        if self._connection is not None:
            self.on_end(Unavailable("the consumer has a later epoch now"))

    def _supersede(self, held: HeldMessages, token: int) -> None:
        """Mark the previous lease of the partition as superseded: all its frames have arrived."""
        partition = (held.group_number, held.partition)
        last = self._last_tokens.get(partition)
        if last is not None and last != token and (lease := held.leases.get(last)) is not None:
            lease.superseded = True
        self._last_tokens[partition] = token
