"""What a client knows of the cluster: nodes with a connection each, topics, who leads what; all kept true.

    servers --connect--> link (node id, addresses, connection) --METADATA--> topic: partitions, their leaders

A link reconnects for ever, with a bounded back-off, until its node leaves the metadata or the client is
closed. A topic is asked for again when somebody says so (`refresh`: not led here, unknown partition,
connection lost), and now and then anyway. After every change of any of it the functions in `on_change` are
called; they only wake somebody. A node is known by its id, not by an address: an address that worked is
kept beside the advertised one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import anyio
import anyio.abc

from sandq.client.options import Options, again
from sandq.client.signals import Signal
from sandq.client.transport.connection import Connection
from sandq.client.transport.topology import Address, Known, Link
from sandq.model.errors import (
    ClosedError,
    ConnectionLost,
    Forbidden,
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

_REFUSALS = 3  # of tokens that are made anew for each connection, before this is what others are told
_ASK_AGAIN_S = 0.5  # at most: a new leader is there about a second after the old one went
_ASK_TIMEOUT_S = 1.0  # at first, then doubled: who was asked may stand still, and another node know


class Cluster:
    """See the module's docstring. `start` is called once, in the client's task group."""

    def __init__(self, servers: Sequence[Address], client_name: str, options: Options) -> None:
        self.options = options
        self.on_change: dict[Callable[[], None], None] = {}
        self.cluster_uuid = ""
        self.limits: dict[str, int] = {}
        self._servers = servers
        self._client_name = client_name
        self._links: dict[str, Link] = {}
        self._topics: dict[str, Known] = {}
        self.forgotten = 0
        """How many topics were created or deleted here."""
        self._asking: str | None = None
        """The topic that is being asked for, unless it was created or deleted here meanwhile."""
        self._wanted: dict[str, str | None] = {}  # topics to be asked for, in order, and whom to ask first
        self._serial = 0
        self._unanswered: SandqError | None = None
        self._refused: SandqError | None = None
        """Why no node lets this client in; None: one did, the last time."""
        self._refusals = 0
        self._changed = Signal()
        self._refresh_now = Signal()
        self._closed = False
        self._tasks: anyio.abc.TaskGroup

    async def start(self, tasks: anyio.abc.TaskGroup) -> None:
        """Connect to the first server that answers and belongs to a cluster, or to those that do not yet. One server:
        its error as it is; several: what each said."""
        self._tasks = tasks
        if self.options.starts_alone:
            tasks.start_soon(self._meet)
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
            told = dict.fromkeys(error.message for error in errors)
            raise ConnectionLost("no server can be reached: " + "; ".join(told))
        tasks.start_soon(self._refresh)

    def close(self) -> None:
        """Every wait in here ends with ClosedError."""
        self._closed = True
        self._notify()

    async def aclose(self) -> None:
        """After the task group: close sockets whose task never began."""
        for link in self._links.values():
            if link.connection is not None:
                link.connection.close()
                await link.connection.run()

    # What others use.

    def record(self, topic: str) -> TopicRecord | None:
        """What is known of a topic at present."""
        known = self._topics.get(topic)
        return known.record if known else None

    def missing(self, topic: str) -> SandqError | None:
        """Why a topic is known not to be there (deleted, never made), or nobody here may use it; None when it is there
        or not known."""
        if self.refusal is not None:
            return self.refusal
        known = self._topics.get(topic)
        return known.error if known else None

    def leader_id(self, topic: str, partition: int) -> str | None:
        """The node that leads a partition, as far as is known."""
        record = self.record(topic)
        return record.partitions[partition].leader if record and partition < len(record.partitions) else None

    def leader(self, topic: str, partition: int) -> Connection | None:
        """An open connection to the partition's leader; without one it is being worked on: `on_change` will tell."""
        node_id = self.leader_id(topic, partition)
        found = self.connection(node_id) if node_id is not None else None
        if found is None:
            # Also when one is known: whoever named it may not have noticed yet that it is gone.
            self.refresh(topic)
        return found

    def connection(self, node_id: str) -> Connection | None:
        """An open connection to a node, if there is one now."""
        link = self._links.get(node_id)
        return link.open_connection if link else None

    def connections(self) -> list[Connection]:
        """All that are open; those of nodes that belonged to no cluster when they were met come last."""
        found = [link.connection for link in self._links.values() if link.connection and link.connection.is_open]
        return sorted(found, key=lambda one: not one.hello.cluster_uuid)

    def forget(self, topic: str) -> None:
        """It was just created or deleted: what is known of it is old, and so are answers that are on their way."""
        self.forgotten += 1
        if self._asking == topic:
            self._asking = None
        self._topics.pop(topic, None)

    def gone(self, topic: str, error: SandqError) -> None:
        """A node answers that there is no such topic: what is known of it is old, if somebody else deleted it. Whoever
        uses it next asks, and has it made anew where it may be."""
        if isinstance(error, UnknownTopic) and self.record(topic) is not None:
            self.forget(topic)
            self.refresh(topic)

    def learn(self, record: TopicRecord, asked: int) -> None:
        """Keep what a node answered about a topic; `asked`: what `forgotten` was when it was asked. If a topic was
        created or deleted here since, it may be about one that is gone."""
        if asked != self.forgotten:
            return
        self._serial += 1
        self._topics[record.name] = Known(record, None, self._serial, self._serial)
        self._notify()

    def learn_all(self, records: Sequence[TopicRecord], asked: int) -> None:
        """The same of all topics that there are: others may have deleted some, and made them anew. Of topics that
        nobody has asked for here nothing is kept, nor what says no more than who leads."""
        if asked != self.forgotten:
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
        """Ask for a topic again soon: this node, if there is a connection to it; it knows what others may not yet."""
        if topic not in self._wanted:
            self._wanted[topic] = node_id
            self._refresh_now.set()

    def successor(self, topic: str, partition: int, node_id: str) -> Connection | None:
        """A connection to the node that leads a partition instead of one that says nothing; None: not that is known,
        and another node is being asked."""
        leader = self.leader_id(topic, partition)
        found = self.connection(leader) if leader is not None and leader != node_id else None
        if found is None:
            others = [link.node_id for link in self._links.values() if link.open_connection is not None]
            self.refresh(topic, next((other for other in others if other != node_id), None))
        return found

    async def topic(self, name: str) -> TopicRecord:
        """The topic's record, asked for when it is not known. UnknownTopic, or what kept the cluster from
        answering.
        """
        if (record := self.record(name)) is not None:
            return record
        return await self.asked(name)

    async def asked(self, name: str) -> TopicRecord:
        """The topic's record as a node tells it from now on; otherwise as `topic`."""
        before = self._serial
        with anyio.move_on_after(self.options.timeout_s):
            while True:
                self.check_open()
                known = self._topics.get(name)
                if known is not None and known.serial > before:
                    if known.record is not None:
                        return known.record
                    # That there was none when somebody else asked says nothing: it may have been made since.
                    if known.asked > before and known.error is not None:
                        raise again(known.error)
                self.refresh(name)
                await self._changed.wait()
        raise Unavailable(f"no node answered about topic {name!r} in {self.options.timeout_s:g} s{self.why()}")

    def is_lost(self, node_id: str) -> bool:
        """Whether a node cannot be reached: it was tried, and there is no connection."""
        link = self._links.get(node_id)
        return link is None or (link.error is not None and link.open_connection is None)

    def knows(self, node_id: str) -> bool:
        """Whether a node of this id has been heard of."""
        return node_id in self._links

    async def change(self) -> None:
        """Until anything of what is known here changes."""
        await self._changed.wait()

    @property
    def refusal(self) -> SandqError | None:
        """Why no node lets this client in; None: one does, or none was reached."""
        return None if self._refused is None or self.connections() else self._refused

    def check_open(self) -> None:
        """ClosedError once the client is closed; Unauthenticated when no node lets it in."""
        if self._closed:
            raise ClosedError("the client is closed")
        if (refusal := self.refusal) is not None:
            raise again(refusal)

    def _note_refusal(self, error: Unauthenticated) -> None:
        """A node does not let this client in. Where the token is made anew for each connection, it may be a moment
        late."""
        self._refusals += 1
        if callable(self.options.token) and self._refusals < _REFUSALS:
            return
        self._refused = error
        if self.options.starts_alone:
            self._refused = Unavailable(f"the cluster does not let this gateway in: {error.message}")
        self._notify()

    @property
    def refused(self) -> SandqError | None:
        """Why no node lets this client in; None: one did, the last time."""
        return self._refused

    def why(self) -> str:
        """The last errors of the links, and what was answered instead of metadata, for a message."""
        errors = [link.error.message for link in self._links.values() if link.error is not None]
        errors += [self._unanswered.message] if self._unanswered is not None else []
        return ": " + "; ".join(errors) if errors else ""

    def _notify(self) -> None:
        self._changed.set()
        for wake in list(self.on_change):
            wake()

    # Links.

    async def _try_server(self, server: Address) -> None:
        """Connect to a configured address; whatever node is there gets (or has) a link."""
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

    async def _meet(self) -> None:
        """Look for a first node until one answers."""
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
        self._refused, self._refusals = None, 0
        uuid = connection.hello.cluster_uuid
        if self.cluster_uuid and uuid != self.cluster_uuid:
            connection.close()
            await connection.run()
            there = f"cluster {uuid}" if uuid else "no cluster yet"
            raise Unavailable(f"{connection.address} belongs to {there}, this client to {self.cluster_uuid}")
        self.cluster_uuid = uuid
        self.limits = {
            name: value for name, value in connection.hello.limits.items() if type(value) is int and value > 0
        }
        return connection

    def introduce(self, node_id: str, address: Address) -> None:
        """Another node says that this one is there."""
        if node_id not in self._links:
            self._want(node_id, address)

    def _want(self, node_id: str, address: Address) -> None:
        """Have a link to a node that is said to be at this address."""
        link = self._links.get(node_id)
        if link is None:
            link = self._links[node_id] = Link(node_id)
            self._tasks.start_soon(self._keep, link)
        link.add(address)

    async def _keep(self, link: Link) -> None:
        """Hold a connection to one node, until its scope is cancelled."""
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
                    attempt = 0  # it lived: a node that takes connections and drops them is not asked without pause
                is_refused = self.refusal is not None
                await anyio.sleep(self.options.refused_pause_s if is_refused else self.options.back_off_s(attempt))
                attempt += 1

    async def _reach(self, link: Link) -> Connection | None:
        """Try each address of a node once, the one that worked last first."""
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
            there = connection.hello.node_id
            link.error = Unavailable(f"{connection.address} is node {there}, not {link.node_id}")
            connection.close()
            await connection.run()
            self._want(there, address)
        self._notify()
        return None

    # Metadata.

    async def _refresh(self) -> None:
        """Ask for wanted topics, one METADATA each, so that an unknown one spoils no other's answer."""
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
            # A pause also after an answer: somebody may ask in a loop until a leader is found.
            await anyio.sleep(min(self.options.back_off_s(attempt), _ASK_AGAIN_S))
            attempt += 1

    async def _try_servers(self) -> None:
        """No connection at all, or to nodes without a cluster only: others may be there, so try the addresses that the
        client was given."""
        known = {address for link in self._links.values() for address in link.addresses}
        for server in self._servers:
            if server in known:
                continue  # its link is trying it
            try:
                await self._try_server(server)
                return
            except SandqError as error:
                log.debug("%s", error)

    async def _ask(self, connection: Connection, topic: str, timeout_s: float) -> bool:
        """Whether there was an answer about the topic."""
        self._serial += 1
        asked = self._serial
        self._asking = topic
        try:
            frame = await connection.call(Metadata([topic]).frame, timeout_s=timeout_s)
            reply = MetadataReply.parse(frame)
            found = [record for record in reply.topics if record.name == topic]
            if not found:
                raise NotFound(f"the answer about topic {topic!r} does not tell of it")
        except (NotFound, InvalidRequest, Forbidden) as error:
            return self._know(topic, None, error, asked)
        except SandqError as error:
            log.debug("metadata of topic %s: %s", topic, error)
            self._unanswered = error
            return False
        self._unanswered = None
        self._update_nodes(reply)
        return self._know(topic, found[0], None, asked)

    def _know(self, topic: str, record: TopicRecord | None, error: SandqError | None, asked: int) -> bool:
        """Keep an answer about a topic, unless it was asked for before the topic was created or deleted here."""
        if self._asking != topic:
            return False
        self._serial += 1
        self._topics[topic] = Known(record, error, self._serial, asked)
        return True

    def _update_nodes(self, reply: MetadataReply) -> None:
        for node in reply.nodes:
            self._want(node.node_id, (node.host, node.port))
        named = {node.node_id for node in reply.nodes}
        for link in list(self._links.values()):
            if link.node_id not in named and link.connection is None:
                link.scope.cancel()
                del self._links[link.node_id]


def _is_newer(record: TopicRecord, known: TopicRecord) -> bool:
    """Whether it is of a topic that was made later, or of the same one, which has more partitions by now. (Who answered
    may be behind.)"""
    return (record.number, len(record.partitions)) > (known.number, len(known.partitions))
