"""Single requests: whom to ask, and when to ask again.

A request is tried again while its error is retriable and there is time (`timeout_s`); one that is not idempotent only
when it is certain that nothing was done. What fails for good is raised at once, as it is. A node is picked for each
attempt: a certain one, the leader of a partition, or for a stale read any that holds the partition.
"""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Protocol, TypeVar

import anyio

from sandq.client.options import again
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
from sandq.protocol.requests import Ack, AckThen, Extend, Metadata, Nack
from sandq.protocol.requests_admin import TopicEnsure

K = TypeVar("K")
V = TypeVar("V")

_NOTHING_DONE = (NotLeader, Overloaded, Unavailable)
_STALE = (NotLeader, ConnectionLost, Unavailable, UnknownTopic, UnknownPartition)
_LAST_SHARE = 0.02
"""Of the time that a request has: with less than that left it is not sent again. Hardly answered in time, it would hide
the answer that there was behind one that was not waited for."""
_AT_ONCE = 16
"""Requests of one `each` that are under way together."""


_REPLICA_SHARE = 0.2
"""Who holds a partition and hangs costs a stale read so much of its time, not all: there are others to ask."""


class _Route(Protocol):
    """Where a request goes."""

    share: float
    """Of the time for an answer, what the node that was picked last may take."""

    def pick(self, attempt: int) -> Connection | None: ...

    def failed(self, error: SandqError) -> bool:
        """What was picked last failed; whether another one can be asked without a pause."""

    def is_moved(self, connection: Connection) -> bool:
        """It says nothing: whether another node is known to be the right one by now."""


async def call(
    cluster: Cluster, request: Request | TopicRequest, *, node_id: str | None = None, idempotent: bool = True
) -> Frame:
    """Ask a node, or any."""
    return await _call(cluster, _Node(cluster, node_id), request.frame, idempotent)


async def call_leader(cluster: Cluster, request: PartitionRequest, *, idempotent: bool = True) -> Frame:
    """Ask the node that leads the request's partition, wherever it moves meanwhile."""
    return await _call(cluster, _Leader(cluster, request.topic, request.partition), request.frame, idempotent)


async def call_leader_for_ever(cluster: Cluster, request: PartitionRequest, *, wait_s: float) -> Frame:
    """The same, tried again for as long as the client is open, unless the error is one that stays. `wait_s`: for so
    long the request asks to wait."""
    leader = _Leader(cluster, request.topic, request.partition)
    return await _call(cluster, leader, request.frame, True, patience_s=math.inf, wait_s=wait_s)


async def call_replica(cluster: Cluster, request: PartitionRequest) -> Frame:
    """Ask any node that holds the request's partition: one after the other until one answers, the leader at last."""
    return await _call(cluster, _Replica(cluster, request.topic, request.partition), request.frame, True)


async def settle(cluster: Cluster, topic: str, request: Ack | AckThen | Nack | Extend, *, idempotent: bool) -> Frame:
    """Ask the node that leads the partition of leases; the request names their group by its number alone."""
    return await _call(cluster, _Leader(cluster, topic, request.partition), request.frame, idempotent)


async def ask_topic(cluster: Cluster, name: str) -> TopicRecord:
    """A topic as a node knows it now."""
    reply = MetadataReply.parse(await call(cluster, Metadata([name])))
    for node in reply.nodes:  # its leaders may be asked next, by a client that has met only one of them
        cluster.introduce(node.node_id, (node.host, node.port))
    for record in reply.topics:
        if record.name == name:
            return record
    raise ProtocolError(f"METADATA reply: nothing about topic {name!r}")


async def fresh_topic(cluster: Cluster, name: str) -> TopicRecord:
    """The same, for what is about all of its partitions: it may have more than this client has known."""
    asked = cluster.forgotten
    record = await ask_topic(cluster, name)
    cluster.learn(record, asked)
    return record


async def used_topic(cluster: Cluster, name: str) -> TopicRecord:
    """A topic's record, for who produces to it or takes messages of it: it is made first where there is none and the
    nodes make such topics (`auto_create_topics`). Raises UnknownTopic, TooLarge, or what kept the cluster from
    answering."""
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
        # It was upgraded since, or another node leads by now.
        raise Unavailable(
            f"topic {name!r} is not there, and the node that makes such topics at present is of a version that "
            "cannot: ask again, or create it",
            topic=name,
        ) from None
    cluster.forget(name)
    record = TopicRecord.from_map(_topic_map(frame))
    cluster.learn(record, cluster.forgotten)
    return record


def _topic_map(frame: Frame) -> dict[str, object]:
    if len(frame) != 3 or type(frame[2]) is not dict:
        raise ProtocolError("TOPIC_ENSURE reply: a topic is expected")
    return frame[2]


async def each(work: Callable[[K], Awaitable[V]], items: Iterable[K]) -> list[V]:
    """`work` done for every item, several at a time; the first error ends the rest and is raised as it is."""
    found: dict[int, V] = {}
    errors: list[SandqError] = []
    limiter = anyio.CapacityLimiter(_AT_ONCE)

    async def one(place: int, item: K) -> None:
        async with limiter:
            try:
                found[place] = await work(item)
            except SandqError as error:
                errors.append(error)
                tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        for place, item in enumerate(items):
            tasks.start_soon(one, place, item)
    if errors:
        raise errors[0]
    return [found[place] for place in sorted(found)]


class _Node:
    """One node, or whichever is connected; a node that names another is believed."""

    share = 1.0

    def __init__(self, cluster: Cluster, node_id: str | None) -> None:
        self._cluster = cluster
        self._node_id = node_id
        self._hint: str | None = None

    def pick(self, attempt: int) -> Connection | None:
        found = self._cluster.connections()
        if self._hint is not None and self._cluster.is_lost(self._hint):
            self._hint = None  # who named it will hear that it is gone, and name another one
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
    """The leader of a partition: the one that was hinted at last, once, else what metadata says."""

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
            raise again(missing)
        return self._cluster.leader(self._topic, self._partition)

    def failed(self, error: SandqError) -> bool:
        if isinstance(error, _STALE):
            self._cluster.refresh(self._topic)
        self._hint = _hint(self._cluster, error)
        return False

    def is_moved(self, connection: Connection) -> bool:
        return self._cluster.successor(self._topic, self._partition, connection.hello.node_id) is not None


class _Replica:
    """A node that holds a partition and was not asked yet, picked at random; without any, the leader."""

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
    """The node that one which does not lead names, if it can be reached: it tells the address, too."""
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
        raise again(last)
    raise Unavailable(f"no node could be reached in {timeout_s:g} s{cluster.why()}")


def _never() -> bool:
    return False


async def _wait_for(cluster: Cluster, route: _Route, attempt: int, timeout_s: float) -> Connection | None:
    with anyio.move_on_after(timeout_s):
        while True:
            cluster.check_open()
            connection = route.pick(attempt)
            if connection is not None:
                return connection
            await cluster.change()
    return None
