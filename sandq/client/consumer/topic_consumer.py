"""One topic of a subscription: its sessions on the nodes that lead partitions of it, and what it holds of each."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Final, Protocol

import anyio.abc

from sandq.client.consumer.chosen_partitions import chosen_of
from sandq.client.consumer.consumer_identity import ConsumerIdentity
from sandq.client.consumer.lease import Chunk, Lease
from sandq.client.consumer.node_session import Session
from sandq.client.consumer.partition_consumer import PartitionConsumer
from sandq.client.signals import Signal
from sandq.client.transport.cluster import Cluster
from sandq.client.transport.connection import Connection
from sandq.client.transport.requests import used_topic
from sandq.model.errors import ConsumerFenced, SandqError, UnknownPartition

log = logging.getLogger("sandq.client")

_LEASE_DEFAULT_MS: Final = 30_000  # a topic record always tells; this is for one that does not
_EXTEND_PART: Final = 3  # extended when a third of the lease is left


class ConsumerOwner(Protocol):
    """What the topics of one subscription ask and tell it."""

    cluster: Cluster
    group: str
    identity: ConsumerIdentity
    lease_ms: int | None
    start: str | int | bytes
    auto_extend: bool
    handlers: int
    due_at: float
    quiet: Signal

    @property
    def partitions(self) -> Sequence[int] | None: ...

    @property
    def is_starved(self) -> bool: ...

    def receive(self, chunk: Chunk, crossed: int) -> None: ...

    def freed(self, count: int) -> None: ...

    def sessions_changed(self) -> None: ...

    def hold_no_more(self) -> None: ...

    def outrank(self, error: ConsumerFenced) -> bool: ...

    def topic_failed(self, topic: str, error: SandqError) -> None: ...

    def tend_soon(self) -> None: ...

    def wake(self) -> None: ...


class TopicConsumer:
    """See the module's docstring. The sessions' owner."""

    def __init__(self, owner: ConsumerOwner, topic: str) -> None:
        self.topic = topic
        self.sessions: dict[str, Session] = {}
        self._owner = owner
        self._partition_consumers: dict[tuple[int, int], PartitionConsumer] = {}
        self._is_over = False
        # For sessions.
        self.cluster = owner.cluster
        self.group = owner.group
        self.lease_ms = owner.lease_ms
        self.start = owner.start
        self.partitions = owner.partitions
        self.wake: Callable[[], None] = owner.wake
        self.receive: Callable[[Chunk, int], None] = owner.receive
        self.freed: Callable[[int], None] = owner.freed
        self.outrank: Callable[[ConsumerFenced], bool] = owner.outrank
        self.sessions_changed: Callable[[], None] = owner.sessions_changed

    async def check(self, *, makes: bool) -> None:
        """Raises UnknownTopic, UnknownPartition, or what kept the cluster from answering. `makes`: a topic that is not
        there is made, if the nodes make such."""
        try:
            known = await (used_topic(self.cluster, self.topic) if makes else self.cluster.topic(self.topic))
            chosen_of(known, self.partitions)
        except UnknownPartition:
            chosen_of(await self.cluster.asked(self.topic), self.partitions)  # it may be new

    @property
    def is_ready(self) -> bool:
        """Whether all nodes that lead partitions have accepted the subscription."""
        return bool(self.sessions) and all(session.ready for session in self.sessions.values())

    @property
    def is_quiet(self) -> bool:
        """Whether no ack, nack or extension is queued or unanswered."""
        return all(consumer.is_quiet for consumer in self._partition_consumers.values())

    # What its sessions ask and tell.

    @property
    def consumer_id(self) -> str:
        """What the broker knows the consumer by."""
        return self._owner.identity.id

    @property
    def is_starved(self) -> bool:
        """Whether somebody waits for a message."""
        return self._owner.is_starved

    @property
    def handlers(self) -> int:
        """Messages that are worked on at the same time."""
        return self._owner.handlers

    def epoch_on(self, connection: Connection) -> int | None:
        """See `ConsumerIdentity.epoch_on`."""
        return self._owner.identity.epoch_on(connection)

    def partition_consumer(self, group_number: int, partition: int) -> PartitionConsumer:
        """Return the consumer of a partition, made when its first message comes."""
        place = (group_number, partition)
        found = self._partition_consumers.get(place)
        if found is None:
            found = PartitionConsumer(
                self.cluster,
                self.topic,
                partition,
                group_number,
                self._owner.quiet,
                self.wake,
                self._effective_lease_ms,
            )
            self._partition_consumers[place] = found
        return found

    def watch(self, lease: Lease) -> None:
        """Something was delivered under this lease: be there when it has to be extended, or ends."""
        if self._extend_at(lease) < self._owner.due_at:
            self._owner.tend_soon()

    def fail(self, error: SandqError) -> None:
        """It cannot go on."""
        self._owner.topic_failed(self.topic, error)

    def held_tokens(self) -> list[list[int]]:
        """The leases that need not be pushed again: everything of them has come."""
        return [list(lease.key) for _, lease in self.leases() if lease.complete or lease.superseded]

    def leases(self) -> Iterator[tuple[PartitionConsumer, Lease]]:
        """All that is held, by partition."""
        for partition_consumer in self._partition_consumers.values():
            for lease in list(partition_consumer.leases.values()):
                yield partition_consumer, lease

    # What the subscription's task has it do.

    def place_sessions(self, tasks: anyio.abc.TaskGroup) -> None:
        """Have a session on every node that leads a partition."""
        missing = self.cluster.missing(self.topic)
        if missing is not None:
            self.fail(missing)
            return
        record = self.cluster.record(self.topic)
        if record is None:
            return
        if record.settings.get("max_attempts") == 1:
            self._owner.hold_no_more()  # should this process die, what it holds is dead
        try:
            wanted = chosen_of(record, self.partitions)
        except UnknownPartition as error:
            self.fail(error)
            return
        leaders = {row.leader for row in wanted if row.leader is not None}
        if any(row.leader is None for row in wanted):
            self.cluster.refresh(self.topic)
        has_changed = False
        for node_id in [node_id for node_id in self.sessions if node_id not in leaders]:
            if leaders:
                has_changed = has_changed or not self.sessions[node_id].is_retired
                if self.sessions[node_id].retire():
                    del self.sessions[node_id]
        for node_id in sorted(leaders):
            session = self.sessions.get(node_id)
            if session is None:
                session = self.sessions[node_id] = Session(self, node_id)
                tasks.start_soon(session.run)
            elif not session.is_retired:
                continue
            session.is_retired = False
            has_changed = True
        if has_changed:
            self.sessions_changed()

    def tend(self, now: float) -> float:
        """Extend leases, let go of those that are over, send what had to wait; when to look again."""
        due_at = math.inf
        for partition_consumer in self._partition_consumers.values():
            partition_consumer.poke()
            due_at = min(due_at, partition_consumer.next_time(now))
        for partition_consumer, lease in self.leases():
            if lease.held and not lease.lost:  # also one that had lapsed, and was pushed again
                due_at = min(due_at, self._tend_lease(partition_consumer, lease, now))
        return due_at

    def _tend_lease(self, partition_consumer: PartitionConsumer, lease: Lease, now: float) -> float:
        if now >= lease.expires_at:
            log.warning(
                "topic %s partition %d: a lease of %d messages ended before they were settled",
                self.topic, partition_consumer.partition, lease.held,
            )  # fmt: skip
            partition_consumer.lapse(lease)
            return math.inf
        if not self._owner.auto_extend or lease.extending:
            return lease.expires_at
        extend_at = self._extend_at(lease)
        if now < extend_at:
            return extend_at
        partition_consumer.extend(lease, self._effective_lease_ms())
        return lease.expires_at

    def _extend_at(self, lease: Lease) -> float:
        """When something has to be done about a lease."""
        if not self._owner.auto_extend:
            return lease.expires_at
        return lease.expires_at - self._effective_lease_ms() / 1000 / _EXTEND_PART

    def _effective_lease_ms(self) -> int:
        if self.lease_ms is not None:
            return self.lease_ms
        record = self.cluster.record(self.topic)
        lease_ms = record.settings.get("lease_ms") if record else None
        return lease_ms if type(lease_ms) is int and lease_ms > 0 else _LEASE_DEFAULT_MS

    # Ends.

    def restart(self) -> None:
        """Subscribe anew everywhere, as the consumer has another epoch: what came before comes again."""
        self._lose_all()
        for session in self.sessions.values():
            session.restart()

    def leave(self, tasks: anyio.abc.TaskGroup) -> None:
        """Have every node take back what is held of it."""
        for session in self.sessions.values():
            tasks.start_soon(session.leave)

    def close(self, error: SandqError) -> None:
        """End all that goes on for it; what is still queued is not sent, and its messages say why."""
        for session in self.sessions.values():
            session.scope.cancel()
        for partition_consumer in self._partition_consumers.values():
            partition_consumer.give_up_all(error)

    def drop(self, error: SandqError) -> None:
        """The topic is gone, and the subscription goes on without it: what was held of it is lost."""
        self._lose_all()
        self.close(error)

    def _lose_all(self) -> None:
        for partition_consumer, lease in self.leases():
            with suppress(SandqError):
                partition_consumer.lose(lease)
