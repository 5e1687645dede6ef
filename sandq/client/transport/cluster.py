"""Keep the client's view of the cluster up to date: one connection per node, the topics, and the partition leaders.

    servers --connect--> link (node id, addresses, connection) --METADATA--> topic: partitions, their leaders

A link reconnects with a bounded back-off, until its node leaves the metadata or the client is closed. The client asks
for a topic again periodically, and after `refresh` (a node was not the leader, a partition was unknown, a connection
was lost). After each change, `Cluster` calls the functions in `on_change`, which only wake tasks. The id identifies a
node, not an address. A link keeps the advertised address, and each other address that worked.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence

import anyio
import anyio.abc

from sandq.client.options import Options
from sandq.client.signals import Signal
from sandq.client.transport.connection import Connection
from sandq.client.transport.topology import Address, Known, Link
from sandq.model.errors import (
    ClosedError,
    ConnectionLost,
    Forbidden,
    ForkedError,
    InvalidRequest,
    NotFound,
    SandqError,
    Unauthenticated,
    Unavailable,
    UnknownTopic,
)
from sandq.protocol.replies import MetadataReply, TopicRecord
from sandq.protocol.requests import Metadata

log = logging.getLogger("sandq.client")

_REFUSALS = 3  # number of consecutive refusals of a token function's tokens after which callers get the error
_ASK_AGAIN_S = 0.5  # maximum pause between two METADATA requests; a new leader usually exists within about a second
_ASK_TIMEOUT_S = 1.0  # timeout of the first METADATA request; doubles, since a hung node may not answer but others will


class Cluster:
    """The nodes, topics and leaders that a client knows. Call `start` once, in the client's task group."""

    def __init__(self, servers: Sequence[Address], client_name: str, options: Options) -> None:
        self.options = options
        self.on_change: dict[Callable[[], None], None] = {}
        self.cluster_uuid = ""
        self.limits: dict[str, int] = {}
        self._servers = servers
        self._client_name = client_name
        self._links: dict[str, Link] = {}
        self._topics: dict[str, Known] = {}
        self.generation = 0
        """Number of times that a topic was dropped from this view, for example because this client created or deleted
        it."""
        self._asking: str | None = None
        """Topic of the METADATA request in progress. None if this client has created or deleted the topic meanwhile."""
        self._wanted: dict[str, str | None] = {}  # topics to ask for, in order; value: the node to ask first
        self._serial = 0
        self._unanswered: SandqError | None = None
        self._refused: SandqError | None = None
        """The error with which the last node rejected this client. None if the last attempt succeeded."""
        self._refusal_count = 0
        self._changed = Signal()
        self._refresh_now = Signal()
        self._pid = os.getpid()
        self._failure: SandqError | None = None
        """The error of all requests, if they can never succeed again."""
        self._closed = False
        self._tasks: anyio.abc.TaskGroup

    async def start(self, tasks: anyio.abc.TaskGroup) -> None:
        """Connect to the first server that answers and belongs to a cluster.

        If no server belongs to a cluster, connect to the servers that reply. If all servers fail, raise one error that
        lists the message of each server, or, with a single server, its error.
        """
        self._tasks = tasks
        if self.options.starts_alone:
            tasks.start_soon(self._find_first_node)
            tasks.start_soon(self._refresh)
            return
        errors = []
        for server in self._servers:
            try:
                await self._try_server(server)
            except SandqError as error:
                errors.append(error)
            if self.cluster_uuid:
                break
        if len(errors) == len(self._servers):
            if len(errors) == 1 or all(isinstance(error, Unauthenticated) for error in errors):
                raise errors[0]
            messages = dict.fromkeys(error.message for error in errors)
            raise ConnectionLost("no server can be reached: " + "; ".join(messages))
        tasks.start_soon(self._refresh)

    def close(self) -> None:
        """Close the view: every wait in it ends with ClosedError."""
        self._closed = True
        self._notify()

    def fail(self, error: SandqError) -> None:
        """Let all requests fail with `error` from now on, because the nodes will never answer again."""
        self._failure = error
        self._notify()

    async def aclose(self) -> None:
        """Close the sockets of connections whose task never began. Call after the task group has ended."""
        for link in self._links.values():
            if link.connection is not None:
                link.connection.close()
                await link.connection.run()

    # Used by other modules.

    def record(self, topic: str) -> TopicRecord | None:
        """Return the last known record of a topic, or None."""
        known = self._topics.get(topic)
        return known.record if known else None

    def missing(self, topic: str) -> SandqError | None:
        """Return the error with which requests for this topic must fail now, or None.

        The topic may be deleted or never created, this client may not use it, or no node accepts this client. None if
        the topic exists, or if its state is not known.
        """
        if self.refusal is not None:
            return self.refusal
        known = self._topics.get(topic)
        return known.error if known else None

    def leader_id(self, topic: str, partition: int) -> str | None:
        """Return the id of the last known leader of a partition, or None."""
        record = self.record(topic)
        return record.partitions[partition].leader if record and partition < len(record.partitions) else None

    def leader(self, topic: str, partition: int) -> Connection | None:
        """Return an open connection to the partition's leader.

        If there is none, return None and ask for the topic again; `on_change` reports the result.
        """
        node_id = self.leader_id(topic, partition)
        found = self.connection(node_id) if node_id is not None else None
        if found is None:
            # Ask even if a leader is known: the node that named this leader may not have noticed that it is gone.
            self.refresh(topic)
        return found

    def connection(self, node_id: str) -> Connection | None:
        """Return an open connection to a node, or None."""
        link = self._links.get(node_id)
        return link.open_connection if link else None

    def connections(self) -> list[Connection]:
        """Return all open connections. Connections to nodes that belonged to no cluster at that time come last."""
        found = [link.connection for link in self._links.values() if link.connection and link.connection.is_open]
        return sorted(found, key=lambda one: not one.hello.cluster_uuid)

    def forget(self, topic: str) -> None:
        """Drop a topic from this view, because this client has just created or deleted it. Replies in transit are
        ignored, too."""
        self.generation += 1
        if self._asking == topic:
            self._asking = None
        self._topics.pop(topic, None)

    def forget_if_unknown(self, topic: str, error: SandqError) -> None:
        """Drop a topic from this view if `error` says that it does not exist.

        The next user of the topic asks for it, and creates it again if that is allowed.
        """
        if isinstance(error, UnknownTopic) and self.record(topic) is not None:
            self.forget(topic)
            self.refresh(topic)

    def learn(self, record: TopicRecord, generation: int) -> None:
        """Store a topic record that a node returned.

        `generation`: `self.generation` when the request was sent. If this client has created or deleted a topic since
        then, the record may describe the old topic, and is ignored.
        """
        if generation != self.generation:
            return
        self._serial += 1
        self._topics[record.name] = Known(record, None, self._serial, self._serial)
        self._notify()

    def learn_all(self, records: Sequence[TopicRecord], generation: int) -> None:
        """Update the known topics from a listing of all topics. `generation`: as in `learn`.

        Topics that the listing lacks are forgotten, because other clients may have deleted or recreated them. Unknown
        topics are not added. A record that differs only in its leaders is not stored.
        """
        if generation != self.generation:
            return
        by_name = {record.name: record for record in records}
        for name, known in list(self._topics.items()):
            record = by_name.get(name)
            if record is None:
                self.forget(name)
            elif known.record is None or _is_newer(record, known.record):
                self._serial += 1
                self._topics[name] = Known(record, None, self._serial, self._serial)
        self._notify()

    def refresh(self, topic: str, node_id: str | None = None) -> None:
        """Ask for a topic again soon. `node_id`: ask this node first, if it is connected, because it may know more."""
        if topic not in self._wanted:
            self._wanted[topic] = node_id
            self._refresh_now.set()

    def successor(self, topic: str, partition: int, node_id: str) -> Connection | None:
        """Return a connection to the partition's new leader, unless that is the silent node `node_id`.

        If no other leader is known, return None and ask another node.
        """
        leader = self.leader_id(topic, partition)
        found = self.connection(leader) if leader is not None and leader != node_id else None
        if found is None:
            others = [link.node_id for link in self._links.values() if link.open_connection is not None]
            self.refresh(topic, next((other for other in others if other != node_id), None))
        return found

    async def topic(self, name: str) -> TopicRecord:
        """Return the topic's record. If it is not known, ask a node.

        Raises UnknownTopic, or the error that kept the cluster from answering.
        """
        if (record := self.record(name)) is not None:
            return record
        return await self.fetch_topic(name)

    async def fetch_topic(self, name: str) -> TopicRecord:
        """Return the topic's record from a reply that arrives after this call. Raises the errors of `topic`."""
        before = self._serial
        with anyio.move_on_after(self.options.timeout_s):
            while True:
                self.check_open()
                known = self._topics.get(name)
                if known is not None and known.serial > before:
                    if known.record is not None:
                        return known.record
                    # Ignore a "no such topic" in a reply to an older request: the topic may have been created since.
                    if known.asked > before and known.error is not None:
                        raise known.error.again()
                self.refresh(name)
                await self._changed.wait()
        raise Unavailable(
            f"no node answered about topic {name!r} in {self.options.timeout_s:g} s{self.error_summary()}"
        )

    def is_lost(self, node_id: str) -> bool:
        """Return whether a node is unreachable: the client tried to connect, and there is no connection."""
        link = self._links.get(node_id)
        return link is None or (link.error is not None and link.open_connection is None)

    def knows(self, node_id: str) -> bool:
        """Return whether this client has a link to the node."""
        return node_id in self._links

    async def wait_for_change(self) -> None:
        """Wait until any part of this view changes."""
        await self._changed.wait()

    @property
    def refusal(self) -> SandqError | None:
        """The error with which all nodes rejected this client. None if a node accepted it, or if no node was
        reachable. It is also the error of `fail`."""
        if self._failure is not None:
            return self._failure
        return None if self._refused is None or self.connections() else self._refused

    def check_open(self) -> None:
        """Raise the errors of `check_usable`, or the refusal if no node accepts the client."""
        self.check_usable()
        if (refusal := self.refusal) is not None:
            raise refusal.again()

    def check_usable(self) -> None:
        """Raise ClosedError if the client is closed, or ForkedError in a forked process."""
        if self._closed:
            raise ClosedError("the client is closed")
        if os.getpid() != self._pid:
            raise ForkedError(f"the client was made in another process (pid {self._pid}); make one after the fork")

    def _note_refusal(self, error: Unauthenticated) -> None:
        """Record that a node rejected this client.

        If a function creates a token for each connection, the first few refusals are ignored, because nodes may learn
        of a new token a moment later.
        """
        self._refusal_count += 1
        if callable(self.options.token) and self._refusal_count < _REFUSALS:
            return
        self._refused = error
        if self.options.starts_alone:
            self._refused = Unavailable(f"the cluster does not let this gateway in: {error.message}")
        self._notify()

    @property
    def refused(self) -> SandqError | None:
        """The error with which the last node rejected this client. None if the last attempt succeeded."""
        return self._refused

    def error_summary(self) -> str:
        """Return the last errors of the links and of the METADATA requests, as a suffix for an error message."""
        errors = [link.error.message for link in self._links.values() if link.error is not None]
        errors += [self._unanswered.message] if self._unanswered is not None else []
        return ": " + "; ".join(errors) if errors else ""

    def _notify(self) -> None:
        self._changed.set()
        for wake in list(self.on_change):
            wake()

    # Links.

    async def _try_server(self, server: Address) -> None:
        """Connect to a configured address. Add a link to the node at this address, or add the address to the node's
        link."""
        timeout_s = self.options.connect_timeout_s / len(self._servers)
        connection = await self._open(server, timeout_s)
        node_id = connection.hello.node_id
        link = self._links.get(node_id)
        if link is None:
            link = self._links[node_id] = Link(node_id)
            link.connection = connection
            self._tasks.start_soon(self._keep, link)
        else:
            connection.close()
            await connection.run()
        link.add(server)

    async def _find_first_node(self) -> None:
        """Try the configured servers until one answers."""
        attempt = 0
        while True:
            await self._try_servers()
            if self._links:
                self._notify()
                return
            is_refused = self.refusal is not None
            await anyio.sleep(self.options.refused_pause_s if is_refused else self.options.back_off_s(attempt))
            attempt += 1

    async def _open(self, address: Address, timeout_s: float) -> Connection:
        host, port = address
        try:
            connection = await Connection.open(
                host, port, client_name=self._client_name, timeout_s=timeout_s, options=self.options
            )
        except Unauthenticated as error:
            self._note_refusal(error)
            raise
        self._refused, self._refusal_count = None, 0
        uuid = connection.hello.cluster_uuid
        if self.cluster_uuid and uuid != self.cluster_uuid:
            connection.close()
            await connection.run()
            other = f"cluster {uuid}" if uuid else "no cluster yet"
            raise Unavailable(f"{connection.address} belongs to {other}, this client to {self.cluster_uuid}")
        self.cluster_uuid = uuid
        self.limits = {
            name: value for name, value in connection.hello.limits.items() if type(value) is int and value > 0
        }
        return connection

    def introduce(self, node_id: str, address: Address) -> None:
        """Add a node that another node named, unless it is known."""
        if node_id not in self._links:
            self._add_address(node_id, address)

    def _add_address(self, node_id: str, address: Address) -> None:
        """Add an address to the link of a node; create the link if there is none."""
        link = self._links.get(node_id)
        if link is None:
            link = self._links[node_id] = Link(node_id)
            self._tasks.start_soon(self._keep, link)
        link.add(address)

    async def _keep(self, link: Link) -> None:
        """Keep a link connected until its scope is cancelled."""
        attempt = 0
        with link.scope:
            while True:
                connection = link.connection or await self._reach(link)
                started_at = anyio.current_time()
                if connection is not None:
                    link.connection, link.error = connection, None
                    self._notify()
                    try:
                        await connection.run()
                    finally:
                        link.connection = None
                    link.error = connection.error
                    if not self._closed:
                        log.warning("%s; connecting again", connection.error)
                    for topic in self._topics:
                        self.refresh(topic)
                    self._notify()
                if anyio.current_time() - started_at > self.options.back_off_max_s:
                    # Reset the back-off only after a connection that lasted, because a node may accept connections and
                    # drop them immediately.
                    attempt = 0
                is_refused = self.refusal is not None
                await anyio.sleep(self.options.refused_pause_s if is_refused else self.options.back_off_s(attempt))
                attempt += 1

    async def _reach(self, link: Link) -> Connection | None:
        """Try each address of a node once, beginning with the address that worked last."""
        for address in list(link.addresses):
            try:
                connection = await self._open(address, self.options.connect_timeout_s)
            except SandqError as error:
                link.error = error
                continue
            if connection.hello.node_id == link.node_id:
                link.addresses.remove(address)
                link.addresses.insert(0, address)
                return connection
            node_id = connection.hello.node_id
            link.error = Unavailable(f"{connection.address} is node {node_id}, not {link.node_id}")
            connection.close()
            await connection.run()
            self._add_address(node_id, address)
        self._notify()
        return None

    # Metadata.

    async def _refresh(self) -> None:
        """Send one METADATA request per wanted topic, so that an unknown topic does not affect the reply about
        others."""
        attempt = 0
        while True:
            if not self._wanted:
                attempt = 0
                with anyio.move_on_after(self.options.metadata_interval_s) as scope:
                    await self._refresh_now.wait()
                if scope.cancelled_caught:
                    self._wanted.update(dict.fromkeys(self._topics))
                    continue
            wanted, self._wanted = self._wanted, {}
            connections = self.connections()
            if not connections:
                self._wanted.update(wanted)
            if not connections or (self._unanswered is not None and not self.cluster_uuid):
                await self._try_servers()
            for topic, node_id in wanted.items() if connections else ():
                timeout_s = min(self.options.timeout_s, _ASK_TIMEOUT_S * 2.0 ** min(attempt, 10))
                first = self.connection(node_id) if node_id is not None else None
                if not await self._ask(first or connections[attempt % len(connections)], topic, timeout_s):
                    self._wanted[topic] = None
            self._notify()
            # Pause after a reply as well, because a caller may ask in a loop until there is a leader.
            await anyio.sleep(min(self.options.back_off_s(attempt), _ASK_AGAIN_S))
            attempt += 1

    async def _try_servers(self) -> None:
        """Try the configured servers that no link covers, when no connected node belongs to a cluster."""
        known = {address for link in self._links.values() for address in link.addresses}
        for server in self._servers:
            if server in known:
                continue  # a link to this server is already connecting
            try:
                await self._try_server(server)
                return
            except SandqError as error:
                log.debug("%s", error)

    async def _ask(self, connection: Connection, topic: str, timeout_s: float) -> bool:
        """Ask a node about a topic. Return whether the reply contains the topic and is still current."""
        self._serial += 1
        asked = self._serial
        self._asking = topic
        try:
            frame = await connection.call(Metadata([topic]).frame, timeout_s=timeout_s)
            reply = MetadataReply.parse(frame)
            found = [record for record in reply.topics if record.name == topic]
            if not found:
                raise NotFound(f"the reply does not contain topic {topic!r}")
        except (NotFound, InvalidRequest, Forbidden) as error:
            return self._store_answer(topic, None, error, asked)
        except SandqError as error:
            log.debug("metadata of topic %s: %s", topic, error)
            self._unanswered = error
            return False
        self._unanswered = None
        self._update_nodes(reply)
        return self._store_answer(topic, found[0], None, asked)

    def _store_answer(self, topic: str, record: TopicRecord | None, error: SandqError | None, asked: int) -> bool:
        """Store a reply about a topic, unless this client has created or deleted the topic since the request. Return
        whether it was stored."""
        if self._asking != topic:
            return False
        self._serial += 1
        self._topics[topic] = Known(record, error, self._serial, asked)
        return True

    def _update_nodes(self, reply: MetadataReply) -> None:
        for node in reply.nodes:
            self._add_address(node.node_id, (node.host, node.port))
        named = {node.node_id for node in reply.nodes}
        for link in list(self._links.values()):
            if link.node_id not in named and link.connection is None:
                link.scope.cancel()
                del self._links[link.node_id]


def _is_newer(record: TopicRecord, known: TopicRecord) -> bool:
    """Return whether `record` describes a newer topic of the same name, or the same topic with more partitions.

    The node that sent it may lag behind.
    """
    return (record.number, len(record.partitions)) > (known.number, len(known.partitions))
