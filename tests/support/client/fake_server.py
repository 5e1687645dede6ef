"""Provide a server that speaks the protocol over a real loopback socket. A test controls the server.

By default it answers all requests like a cluster of one broker, stores produced messages, and pushes only what a test
pushes (`deliver`). With `auto` it pushes stored messages to each subscription that has credit. `script[Type.X]` holds
reactions to the next requests of a type: an error to answer, CUT, SILENCE, or a function of (connection, frame)."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.abc

from sandq.model import offsets
from sandq.model.batch import Column, encode
from sandq.model.errors import SandqError, TopicExists, UnknownTopic
from sandq.model.piece import LeasedPieces, Piece
from sandq.model.topic_patterns import TopicPattern
from sandq.protocol.frames import Frame, FrameReader, Type, encode_error, encode_reply
from sandq.protocol.replies import MetadataReply, Node, Partition, TopicRecord, encode_deliver
from sandq.protocol.requests import Ack, AckThen, Extend, Hello, Metadata, Nack, Subscribe, TopicNames, Unsubscribe
from sandq.protocol.requests_admin import ConsumerList, GroupList, PauseList, TopicCreate, TopicDelete, TopicStats
from tests.support.client.fake_access import FakeAccess
from tests.support.client.fake_keys import FakeKeys
from tests.support.client.fake_messages import NOW_MS, FakeMessages
from tests.support.client.fake_nodes import FakeNodes, registered
from tests.support.ports import free_port

CUT = object()
SILENCE = object()
Reaction = object
GROUP_NUMBER = 7


@dataclass
class Subscribed:
    """An active subscription."""

    connection: FakeConnection
    request: Subscribe
    credit: int
    tokens: list[int] = field(default_factory=list)


class FakeConnection:
    """The connection of one client."""

    def __init__(self, server: FakeServer, stream: anyio.abc.SocketStream) -> None:
        self.server = server
        self.stream = stream
        self.open = True
        self.subscriptions: dict[int, Subscribed] = {}
        self.client_name = ""
        self._out: list[bytes] = []
        self._wake = anyio.Event()
        self._scope = anyio.CancelScope()

    def send(self, frame: bytes) -> None:
        self._out.append(frame)
        self._wake.set()

    def cut(self) -> None:
        """Close the connection at once, without a last frame."""
        self.open = False
        self._scope.cancel()

    async def run(self) -> None:
        try:
            with self._scope:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._write)
                    await self._read()
                    tasks.cancel_scope.cancel()
        finally:
            self.open = False
            self.subscriptions.clear()
            self.server.connections.remove(self)
            with anyio.CancelScope(shield=True):
                await anyio.aclose_forcefully(self.stream)

    async def _read(self) -> None:
        reader = FrameReader()
        try:
            while True:
                for frame in reader.feed(await self.stream.receive()):
                    self.server.react(self, frame)
                if self.server.auto:
                    self.server.push_ready()
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass
        except SandqError as error:
            await self.stream.send(encode_error(0, error))

    async def _write(self) -> None:
        try:
            while True:
                await self._wake.wait()
                self._wake = anyio.Event()
                out, self._out = self._out, []
                await self.stream.send(b"".join(out))
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass


class FakeServer(FakeAccess, FakeKeys, FakeMessages, FakeNodes):
    """A fake server; see the docstring of the module."""

    def __init__(self, node_id: str = "n1", *, cluster_uuid: str = "c1", auto: bool = False) -> None:
        super().__init__()
        self.node_id = node_id
        self.cluster_uuid = cluster_uuid
        self.auto = auto
        self.port = 0
        self.now_ms = NOW_MS
        self.limits: dict[str, int] = {}
        self.nodes: list[Node] | None = None
        self.topics: dict[str, TopicRecord] = {}
        self.registered = registered(node_id, "n3")
        self.ahead_ms = 0
        self.members: list[dict[str, Any]] | None = None
        self.script: dict[int, deque[Any]] = defaultdict(deque)
        self.connections: list[FakeConnection] = []
        self.frames: list[Frame] = []
        self.acks: list[Ack] = []
        self.ack_thens: list[AckThen] = []
        self.nacks: list[Nack] = []
        self.extends: list[Extend] = []
        self.subscribed: list[Subscribe] = []
        self.unsubscribed: list[int] = []
        self.index = 100
        self._started_at: float | None = None

    def clock_ms(self) -> int:
        """Return the node's time, in ms. It advances with the event loop's clock; the time in offsets is fixed."""
        self._started_at = anyio.current_time() if self._started_at is None else self._started_at
        return self.now_ms + int((anyio.current_time() - self._started_at) * 1000)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def add_topic(
        self,
        name: str,
        partitions: int = 1,
        leaders: Sequence[str | None] | None = None,
        kind: str = "timer",
        **more: Any,
    ) -> None:
        rows = [
            Partition(number, GROUP_NUMBER + number, leaders[number] if leaders else self.node_id, (self.node_id,))
            for number in range(partitions)
        ]
        number = len(self.topics) + 1
        settings = {"lease_ms": 30_000, **more}
        self.topics[name] = TopicRecord(name, number, kind, rows, partitions, 1, settings)

    def of_type(self, kind: int) -> list[Frame]:
        return [frame for frame in self.frames if frame[0] == kind]

    # Running.

    async def start(self, tasks: anyio.abc.TaskGroup) -> None:
        """Listen on a free port of the loopback interface. A restart uses the same port again."""
        self._scope, self._stopped = anyio.CancelScope(), anyio.Event()
        listener = None
        while listener is None:
            # Not a port that the kernel could give to a client while the server is stopped.
            port = self.port or free_port()
            try:
                listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=port)
            except OSError:
                if self.port:
                    raise
        self.port = port
        tasks.start_soon(self._serve, listener)

    async def _serve(self, listener: Any) -> None:
        with self._scope:
            async with listener:
                await listener.serve(self._client)
        self._stopped.set()

    async def _client(self, stream: anyio.abc.SocketStream) -> None:
        connection = FakeConnection(self, stream)
        self.connections.append(connection)
        await connection.run()

    def cut_all(self) -> None:
        for connection in list(self.connections):
            connection.cut()

    async def stop(self) -> None:
        """Stop listening and close all connections."""
        self._scope.cancel()
        await self._stopped.wait()

    # Requests.

    def react(self, connection: FakeConnection, frame: Frame) -> None:
        self.frames.append(frame)
        kind, request_id = frame[0], frame[1]
        scripted = self.script[kind].popleft() if self.script[kind] else None
        if scripted is SILENCE:
            return
        if scripted is CUT:
            connection.cut()
        elif isinstance(scripted, SandqError):
            connection.send(encode_error(request_id, scripted))
        elif callable(scripted):
            scripted(connection, frame)
        else:
            try:
                self.answer(connection, frame)
            except SandqError as error:
                connection.send(encode_error(request_id, error))

    def answer(self, connection: FakeConnection, frame: Frame) -> None:
        """Answer a request like a broker."""
        handler: Callable[[FakeConnection, Frame], Any] = getattr(self, f"do_{Type(frame[0]).name.lower()}")
        fields = handler(connection, frame)
        if fields is not None:
            connection.send(encode_reply(frame[1], *fields))

    def record(self, name: str) -> TopicRecord:
        if name not in self.topics:
            raise UnknownTopic(f"there is no topic {name!r}")
        return self.topics[name]

    def do_hello(self, connection: FakeConnection, frame: Frame) -> Any:
        connection.client_name = Hello.parse(frame).client_name
        return "0.1.0", self.node_id, self.cluster_uuid, self.limits, self.clock_ms()

    def do_ping(self, connection: FakeConnection, frame: Frame) -> Any:
        return (self.clock_ms(),)

    def do_metadata(self, connection: FakeConnection, frame: Frame) -> Any:
        names = Metadata.parse(frame).topics
        topics = [self.record(name) for name in (self.topics if names is None else names)]
        nodes = [Node(self.node_id, "127.0.0.1", self.port)] if self.nodes is None else self.nodes
        return MetadataReply(nodes, topics).fields()

    def do_topic_names(self, connection: FakeConnection, frame: Frame) -> Any:
        request = TopicNames.parse(frame)
        pattern = TopicPattern(request.patterns)
        return ([name for name in sorted(self.topics) if pattern.matches(name)][: request.most],)

    def do_subscribe(self, connection: FakeConnection, frame: Frame) -> Any:
        request = Subscribe.parse(frame)
        record = self.record(request.topic)
        self.subscribed.append(request)
        connection.subscriptions[request.subscription_id] = Subscribed(connection, request, request.credit)
        return ([row.partition for row in record.partitions if row.leader == self.node_id],)

    def do_unsubscribe(self, connection: FakeConnection, frame: Frame) -> Any:
        number = Unsubscribe.parse(frame).subscription_id
        self.unsubscribed.append(number)
        gone = connection.subscriptions.pop(number, None)
        for rows in self.stored.values():
            for row in rows:
                if gone and row.state == "leased" and row.token in gone.tokens:
                    row.state, row.attempt = "ready", row.attempt - 1
        return ()

    def do_credit(self, connection: FakeConnection, frame: Frame) -> Any:
        if frame[2] in connection.subscriptions:
            connection.subscriptions[frame[2]].credit += frame[3]

    def do_ack(self, connection: FakeConnection, frame: Frame) -> Any:
        request = Ack.parse(frame)
        self.acks.append(request)
        for token, what in request.items:
            named = self.named(what)
            for rows in self.stored.values():
                for row in rows:
                    if row.token == token and (named is None or row.offset in named):
                        row.state = "acked"
        return ([None] * len(request.items),)

    def do_ack_then(self, connection: FakeConnection, frame: Frame) -> Any:
        self.ack_thens.append(AckThen.parse(frame))
        return ([None],)

    def do_nack(self, connection: FakeConnection, frame: Frame) -> Any:
        request = Nack.parse(frame)
        self.nacks.append(request)
        return ([None] * len(request.items),)

    def do_extend(self, connection: FakeConnection, frame: Frame) -> Any:
        request = Extend.parse(frame)
        self.extends.append(request)
        return ([self.clock_ms() + item[1] for item in request.items],)

    def do_topic_create(self, connection: FakeConnection, frame: Frame) -> Any:
        request = TopicCreate.parse(frame)
        if request.name in self.topics:
            raise TopicExists(f"topic {request.name!r} exists already")
        self.add_topic(request.name, request.partitions, **request.settings)
        return (self.topics[request.name].to_map(),)

    def do_topic_delete(self, connection: FakeConnection, frame: Frame) -> Any:
        self.record(TopicDelete.parse(frame).name)
        del self.topics[frame[2]]
        return ()

    def do_push_list(self, connection: FakeConnection, frame: Frame) -> Any:
        return ([],)

    def do_group_list(self, connection: FakeConnection, frame: Frame) -> Any:
        counts = [self.dead_reasons(rows) for _, rows in self.of_topic(GroupList.parse(frame).topic)]
        dead = {reason: sum(one.get(reason, 0) for one in counts) for reason in {key for one in counts for key in one}}
        row = {"partition": 0, "cursor": offsets.FIRST, "committed": offsets.FIRST, "leased": 1, "consumers": 1}
        row |= {"waiting": 0, "ready": 2, "dead": sum(dead.values()), "dead_reasons": dead, "reason": None}
        return ([row | {"group": name, "settings": group.get("settings")} for name, group in self.groups.items()],)

    def do_consumer_list(self, connection: FakeConnection, frame: Frame) -> Any:
        self.group(ConsumerList.parse(frame).group)
        return [], 0

    def do_pause_list(self, connection: FakeConnection, frame: Frame) -> Any:
        self.group(PauseList.parse(frame).group)
        return [], 0

    def do_topic_stats(self, connection: FakeConnection, frame: Frame) -> Any:
        self.record(TopicStats.parse(frame).topic)
        row = {"partition": 0, "messages": 3, "bytes": 30, "floor_ms": 1, "now_ms": 2, "delayed": 1, "dead": 0}
        row["ahead_ms"] = self.ahead_ms
        return ([row | ({} if self.members is None else {"members": self.members})],)

    # Pushing.

    def subscription(self) -> Subscribed:
        """Return the only subscription."""
        (found,) = [one for connection in self.connections for one in connection.subscriptions.values()]
        return found

    def deliver(
        self,
        subscribed: Subscribed,
        values: Sequence[bytes],
        *,
        token: int = 1 << 16,
        lease_ms: int = 30_000,
        attempt: int = 1,
        partition: int = 0,
        base: bytes | None = None,
        column: bytes | None = None,
        ids: bytes | None = None,
        live: Any = None,
        last: bool = False,
        created_ms: int | bytes = NOW_MS,
        columns: dict[int, Any] | None = None,
        begin_first: bool = False,
    ) -> bytes:
        """Push messages and return the base offset that they got."""
        if base is None:
            self.index += 1
            base = offsets.pack(self.now_ms, self.index, 0, partition)
        batch = encode({Column.VALUE: list(values), **(columns or {})})
        pushed = len(values) if live is None else sum(count for _, count in live)
        subscribed.credit -= pushed
        subscribed.tokens.append(token)
        piece = Piece(column or base, ids, created_ms, live, batch)
        deadline_ms = self.clock_ms() + lease_ms
        lease = LeasedPieces(
            GROUP_NUMBER + partition, partition, token, attempt, deadline_ms, [piece], begin_first=begin_first
        )
        for frame in encode_deliver(subscribed.request.subscription_id, lease, last=last):
            subscribed.connection.send(frame)
        return base

    def push_ready(self) -> None:
        """Push all ready messages to the subscriptions that have credit. Each lease has one message."""
        for connection in self.connections:
            for subscribed in connection.subscriptions.values():
                for (topic, partition), rows in self.stored.items():
                    if topic != subscribed.request.topic:
                        continue
                    for row in rows:
                        if row.state == "ready" and subscribed.credit > 0:
                            self.index += 1
                            row.state, row.token, row.attempt = "leased", self.index << 16, row.attempt + 1
                            columns = {Column.KEY: [row.key], Column.HEADERS: [row.headers],
                                       Column.PRIORITY: [row.priority], Column.TENANT: [row.tenant]}  # fmt: skip
                            self.deliver(subscribed, [row.value], token=row.token, attempt=row.attempt,
                                         lease_ms=subscribed.request.lease_ms or 30_000, partition=partition,
                                         base=row.offset, columns=columns)  # fmt: skip

    @staticmethod
    def named(what: Any) -> set[bytes] | None:
        """Return the offsets that the item of an ACK names. None: all messages of the lease."""
        if what is None:
            return None
        found = set()
        for base, extent in what:
            if isinstance(extent, int):
                found.update(offsets.run(base, extent))
            else:
                bits = int.from_bytes(extent, "little")
                found.update(offsets.shift(base, place) for place in range(bits.bit_length()) if bits >> place & 1)
        return found
