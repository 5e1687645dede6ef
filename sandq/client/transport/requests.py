"""Send single requests: choose the node to ask, and decide whether to retry.

A request is retried while its error is retriable and its time (`timeout_s`) is not over. A request that is not
idempotent is retried only if the error proves that nothing was done. Other errors are raised immediately and unchanged.
Each attempt picks a node: a given node, the leader of a partition, or, for a stale read, any replica of the partition.
"""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Protocol, TypeVar

import anyio

from sandq.client.transport.cluster import Cluster
from sandq.client.transport.connection import Build, Connection
from sandq.client.transport.on_behalf import asker
from sandq.model.errors import (
    CREATABLE,
    ConnectionLost,
    InvalidRequest,
    NotLeader,
    Overloaded,
    ProtocolError,
    QuotaExceeded,
    SandqError,
    Unavailable,
    UnknownPartition,
    UnknownTopic,
)
from sandq.protocol.frames import Frame
from sandq.protocol.replies import MetadataReply, TopicRecord
from sandq.protocol.request import PartitionRequest, Request, TopicRequest, unknown_request
from sandq.protocol.requests import Ack, AckThen, Extend, LeasePause, Metadata, Nack
from sandq.protocol.requests_admin import TopicEnsure

K = TypeVar("K")
V = TypeVar("V")

_NOTHING_DONE = (NotLeader, Overloaded, Unavailable)
_STALE = (NotLeader, ConnectionLost, Unavailable, UnknownTopic, UnknownPartition)
_LAST_SHARE = 0.02
"""Minimum remaining time for a retry, as a share of the request's time.

A retry with less time would probably time out, and that TimedOut would hide the error of the previous attempt.
"""
_AT_ONCE = 16
"""Maximum number of requests that one `each` runs at the same time."""

_REPLICA_SHARE = 0.2
"""Share of a stale read's time that one replica may take. After that, the next replica is asked."""


class _Route(Protocol):
    """Chooses the node for each attempt of a request."""

    share: float
    """Share of the request's time that the last picked node may take to reply."""

    def pick(self, attempt: int) -> Connection | None: ...

    def failed(self, error: SandqError) -> bool:
        """Handle the error of the last picked node. Return whether to ask the next node without a pause."""

    def is_moved(self, connection: Connection) -> bool:
        """Return whether another node should be asked by now, while `connection` has not replied."""


async def call(
    cluster: Cluster, request: Request | TopicRequest, *, node_id: str | None = None, idempotent: bool = True
) -> Frame:
    """Send a request to one node, or to any node if `node_id` is None."""
    return await _call(cluster, _Node(cluster, node_id), request.frame, idempotent)


async def call_leader(cluster: Cluster, request: PartitionRequest, *, idempotent: bool = True) -> Frame:
    """Send a request to the leader of its partition, even if leadership moves meanwhile."""
    return await _call(cluster, _Leader(cluster, request.topic, request.partition), request.frame, idempotent)


async def call_leader_until_closed(cluster: Cluster, request: PartitionRequest, *, wait_s: float) -> Frame:
    """Like `call_leader`, but retry until the client is closed or the error is not retriable.

    `wait_s`: how long the request asks the node to wait, in seconds.
    """
    leader = _Leader(cluster, request.topic, request.partition)
    return await _call(cluster, leader, request.frame, True, patience_s=math.inf, wait_s=wait_s)


async def call_replica(cluster: Cluster, request: PartitionRequest) -> Frame:
    """Send a request to the replicas of its partition, one after the other, until one replies. The leader is asked
    last."""
    return await _call(cluster, _Replica(cluster, request.topic, request.partition), request.frame, True)


async def settle(
    cluster: Cluster, topic: str, request: Ack | AckThen | Nack | Extend | LeasePause, *, idempotent: bool
) -> Frame:
    """Send a request about leases to the leader of their partition. The request names the group only by its number."""
    return await _call(cluster, _Leader(cluster, topic, request.partition), request.frame, idempotent)


async def ask_topic(cluster: Cluster, name: str) -> TopicRecord:
    """Return the record of a topic from a node's reply to METADATA."""
    reply = MetadataReply.parse(await call(cluster, Metadata([name])))
    for node in reply.nodes:  # a client that knows only one node may have to ask these leaders next
        cluster.introduce(node.node_id, (node.host, node.port))
    for record in reply.topics:
        if record.name == name:
            return record
    raise ProtocolError(f"METADATA reply: nothing about topic {name!r}")


async def fresh_topic(cluster: Cluster, name: str) -> TopicRecord:
    """Return a topic's record from a new reply, and store it. Partitions may have been added since the last reply."""
    generation = cluster.generation
    record = await ask_topic(cluster, name)
    cluster.learn(record, generation)
    return record


async def used_topic(cluster: Cluster, name: str) -> TopicRecord:
    """Return the record of a topic for a producer or a consumer.

    If the topic does not exist and the nodes create such topics (`auto_create_topics`), it is created first. Raises
    UnknownTopic, TooLarge, or the error that kept the cluster from answering.
    """
    try:
        return await cluster.topic(name)
    except UnknownTopic as error:
        if not error.details.get(CREATABLE):
            raise
    try:
        frame = await call(cluster, TopicEnsure(name))
    except InvalidRequest as error:
        if error.message != unknown_request(TopicEnsure.type):
            raise
        # The node that reported `creatable` was upgraded, or the current leader is an older version.
        raise Unavailable(
            f"topic {name!r} does not exist, and the node that creates topics now runs a version that cannot create "
            "them on demand: try again, or create the topic",
            topic=name,
        ) from None
    cluster.forget(name)
    record = TopicRecord.from_map(_topic_map(frame))
    cluster.learn(record, cluster.generation)
    return record


def _topic_map(frame: Frame) -> dict[str, object]:
    if len(frame) != 3 or type(frame[2]) is not dict:
        raise ProtocolError("TOPIC_ENSURE reply: a topic is expected")
    return frame[2]


async def each(work: Callable[[K], Awaitable[V]], items: Iterable[K]) -> list[V]:
    """Return the results of `work` for all items; several run at a time. The first error cancels the rest."""
    found: dict[int, V] = {}
    errors: list[SandqError] = []
    limiter = anyio.CapacityLimiter(_AT_ONCE)

    async def one(index: int, item: K) -> None:
        async with limiter:
            try:
                found[index] = await work(item)
            except SandqError as error:
                errors.append(error)
                tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        for index, item in enumerate(items):
            tasks.start_soon(one, index, item)
    if errors:
        raise errors[0]
    return [found[index] for index in sorted(found)]


class _Node:
    """A given node, or any connected node. If a node names the leader in a hint, the next attempt goes to the
    leader."""

    share = 1.0

    def __init__(self, cluster: Cluster, node_id: str | None) -> None:
        self._cluster = cluster
        self._node_id = node_id
        self._hint: str | None = None

    def pick(self, attempt: int) -> Connection | None:
        found = self._cluster.connections()
        if self._hint is not None and self._cluster.is_lost(self._hint):
            self._hint = None  # the node that gave the hint will also notice, and give a new hint
        wanted = self._hint or self._node_id
        if wanted is not None:
            found = [one for one in found if one.hello.node_id == wanted]
        return found[attempt % len(found)] if found else None

    def failed(self, error: SandqError) -> bool:
        self._hint = _hint(self._cluster, error) or self._hint
        return False

    def is_moved(self, connection: Connection) -> bool:
        return False


class _Leader:
    """The leader of a partition: once the node of the last hint, otherwise the leader in the metadata."""

    share = 1.0

    def __init__(self, cluster: Cluster, topic: str, partition: int) -> None:
        self._cluster = cluster
        self._topic = topic
        self._partition = partition
        self._hint: str | None = None

    def pick(self, attempt: int) -> Connection | None:
        hint, self._hint = self._hint, None
        hinted = self._cluster.connection(hint) if hint is not None else None
        if hinted is not None:
            return hinted
        missing = self._cluster.missing(self._topic)
        if missing is not None:
            raise missing.again()
        return self._cluster.leader(self._topic, self._partition)

    def failed(self, error: SandqError) -> bool:
        if isinstance(error, _STALE):
            self._cluster.refresh(self._topic)
        self._hint = _hint(self._cluster, error)
        return False

    def is_moved(self, connection: Connection) -> bool:
        return self._cluster.successor(self._topic, self._partition, connection.hello.node_id) is not None


class _Replica:
    """A random replica of a partition that was not asked yet. The leader, if all replicas were asked."""

    def __init__(self, cluster: Cluster, topic: str, partition: int) -> None:
        self._cluster = cluster
        self._topic = topic
        self._partition = partition
        self._leader = _Leader(cluster, topic, partition)
        self._asked: set[str] = set()
        self._is_last = False
        self.share = 1.0

    def pick(self, attempt: int) -> Connection | None:
        left = self._left()
        self._is_last = not left
        self.share = 1.0 if self._is_last else _REPLICA_SHARE
        if not left:
            return self._leader.pick(attempt)
        picked = random.choice(left)
        self._asked.add(picked.hello.node_id)
        return picked

    def failed(self, error: SandqError) -> bool:
        if self._is_last:
            return self._leader.failed(error)
        _hint(self._cluster, error)
        return True

    def is_moved(self, connection: Connection) -> bool:
        return self._is_last and self._leader.is_moved(connection)

    def _left(self) -> list[Connection]:
        record = self._cluster.record(self._topic)
        if record is None or self._partition >= len(record.partitions):
            return []
        nodes = [node for node in record.partitions[self._partition].nodes if node not in self._asked]
        return [found for node in nodes if (found := self._cluster.connection(node)) is not None]


def _hint(cluster: Cluster, error: SandqError) -> str | None:
    """Return the leader that a NotLeader error names, if it can be reached. The error contains the leader's address."""
    if not isinstance(error, NotLeader):
        return None
    node_id, host, port = (error.details.get(name) for name in ("node_id", "host", "port"))
    if not isinstance(node_id, str):
        return None
    if isinstance(host, str) and type(port) is int:
        cluster.introduce(node_id, (host, port))
    return node_id if cluster.knows(node_id) else None


async def _call(
    cluster: Cluster,
    route: _Route,
    build: Build,
    idempotent: bool,
    *,
    patience_s: float | None = None,
    wait_s: float = 0.0,
) -> Frame:
    """Send a request to the nodes that `route` picks, with retries, and return the reply.

    `patience_s`: time limit for all attempts, in s; None: the client's timeout. `wait_s`: how long the request asks the
    node to wait, in s."""
    timeout_s = cluster.options.timeout_s
    deadline = anyio.current_time() + (timeout_s if patience_s is None else patience_s)
    last: SandqError | None = None
    attempt, least_s = 0, 0.0
    while (left_s := deadline - anyio.current_time()) > least_s:
        connection = await _wait_for(cluster, route, attempt, left_s)
        if connection is None:
            break
        try:
            is_moved = partial(route.is_moved, connection) if idempotent else _never
            return await connection.call(
                build,
                timeout_s=min(max(left_s, 0.001), timeout_s * route.share),
                wait_s=wait_s,
                is_moved=is_moved,
                asker=asker(),
            )
        except SandqError as error:
            at_once = route.failed(error)
            if not error.retriable or not (idempotent or isinstance(error, _NOTHING_DONE)):
                raise
            if last is None and isinstance(error, QuotaExceeded) and not cluster.options.waits_for_quota:
                raise
            last, least_s = error, _LAST_SHARE * timeout_s
        if at_once:
            continue
        pause_s = cluster.options.pause_s(attempt, last)
        await anyio.sleep(min(pause_s, max(0.0, deadline - anyio.current_time())))
        attempt += 1
    if last is not None:
        raise last.again()
    raise Unavailable(f"no node could be reached in {timeout_s:g} s{cluster.error_summary()}")


def _never() -> bool:
    return False


async def _wait_for(cluster: Cluster, route: _Route, attempt: int, timeout_s: float) -> Connection | None:
    with anyio.move_on_after(timeout_s):
        while True:
            cluster.check_open()
            connection = route.pick(attempt)
            if connection is not None:
                return connection
            await cluster.wait_for_change()
    return None
