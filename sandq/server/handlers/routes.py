"""How a request comes to the broker and its answer to the client: one route for each.

    answered(Get, lambda at, request: at.messages.get(request, at.caller))      with what the coroutine returns
    submitted(Ack, lambda at, request, done: ...)                              with what `done` gets
    told(Ping, lambda at, request: at.broker.clock.now_ms())                   at once, with what is returned
    sliced(ClusterInfo, lambda at, request: at.info.describe())                the same, made in turns by a coroutine
    handled(Credit, lambda at, request_id, request: ...)                       the function sees to the answer
    framed(Produce, lambda at, frame: ...)                                     the same, and it parses the frame

What is returned becomes the fields of the reply: None is none, a tuple several, `Log` ends with pieces of a log,
`Packed` are encoded already, anything else is one. A SandqError that is raised is the answer as well.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from sandq.broker.broker import Broker
from sandq.broker.replication.requests import Done
from sandq.broker.requests.kv_requests import KvRequests
from sandq.broker.requests.message_requests import MessageRequests
from sandq.broker.requests.schedule_requests import ScheduleRequests
from sandq.model.caller import Caller
from sandq.model.errors import SandqError
from sandq.model.piece import Piece
from sandq.protocol.frames import Frame, PackedArray, encode_packed, encode_reply
from sandq.protocol.replies_messages import encode_pieces
from sandq.protocol.request import Request
from sandq.server.connection import Connection
from sandq.server.entrance import Entrance
from sandq.server.gateway_proof import GatewayProof
from sandq.server.info import ServerInfo
from sandq.server.kv_get_coalescer import KvGetCoalescer
from sandq.server.output import Answer
from sandq.server.produce_coalescer import ProduceCoalescer
from sandq.server.request_checks import RequestChecks
from sandq.server.subscriptions import Subscriptions

R = TypeVar("R", bound=Request)


class Context:
    """What handlers know of a connection, and whom they hand its requests to."""

    def __init__(self, broker: Broker, connection: Connection, info: ServerInfo) -> None:
        self.broker = broker
        self.connection = connection
        self.info = info
        self.gateway_proof = GatewayProof(info.gateway_keys.current, info.node_id)
        self.entrance = Entrance(
            connection,
            self.gateway_proof,
            info.logins,
            info.failed_logins,
            broker.clock.now_ms,
            info.cluster,
            info.quotas,
            info.gateway_keys,
        )
        self.on_proved: Callable[[], None] = lambda: None
        """Called once the client has proved to be a gateway; set by the session."""
        self.lease_topics: dict[int, str] = {}
        """Of partitions of which leases were settled here, by Raft group."""
        self.messages = MessageRequests(broker, connection.output)
        self.schedules = ScheduleRequests(broker, connection.output)
        self.kv_requests = KvRequests(broker, connection.output)
        self.kv_gets = KvGetCoalescer(connection, self.kv_requests)
        self.checks = RequestChecks(broker, connection, info, self.entrance, self.gateway_proof)
        self.produces = ProduceCoalescer(broker, connection, self.checks)
        self.subscriptions = Subscriptions(broker, connection)

    @property
    def caller(self) -> Caller:
        """Who asks for what this task works on."""
        return self.connection.caller

    def topic_of(self, group: int) -> str:
        """Return the name of the topic that a Raft group is of; empty if there is none."""
        return self.broker.catalog.view.partition_of_group.get(group, ("", 0))[0]


Handler = Callable[[Context, Frame], Awaitable[None] | None]
"""What it returns is awaited before the next frame is looked at."""
REQUEST_WORK: Final = 8
"""Of most requests, beside their frame."""


class Route(NamedTuple):
    """What becomes of the frames of one type of request."""

    request: type[Request]
    handle: Handler


class Log(NamedTuple):
    """An answer that ends with pieces of a partition's log; batches go in as they are."""

    head: tuple[Any, ...]
    pieces: Sequence[Piece]


class Packed(NamedTuple):
    """An answer whose fields are encoded already."""

    fields: tuple[bytes | PackedArray, ...]


def answered(
    kind: type[R], work: Callable[[Context, R], Awaitable[Any]], wait_s: Callable[[R], float] = lambda request: 0.0
) -> Route:
    """Answer with what a coroutine returns. `wait_s`: for how long a request asks to wait."""

    def handle(context: Context, frame: Frame) -> None:
        request, request_id = kind.parse(frame), frame[1]

        async def answer() -> Answer:
            return _reply(request_id, await work(context, request))

        context.connection.turn.left -= REQUEST_WORK
        context.connection.start(request_id, answer, wait_s(request))

    return Route(kind, handle)


def submitted(kind: type[R], submit: Callable[[Context, R, Done], None]) -> Route:
    """Answer with what the applied command gives to `done`."""

    def handle(context: Context, frame: Frame) -> None:
        connection, request_id = context.connection, frame[1]

        def done(result: Any) -> None:
            reply_to(connection, request_id, result)

        connection.turn.left -= REQUEST_WORK
        submit(context, kind.parse(frame), done)

    return Route(kind, handle)


def reply_to(connection: Connection, request_id: int, result: Any) -> None:
    """Answer with what an applied command gave."""
    if isinstance(result, SandqError):
        connection.send_error(request_id, result)
    else:
        connection.reply(request_id, encode_reply(request_id, result))


def told(kind: type[R], tell: Callable[[Context, R], Any]) -> Route:
    """Answer at once with what a function returns."""

    def handle(context: Context, frame: Frame) -> None:
        request_id = frame[1]
        context.connection.reply(request_id, _reply(request_id, tell(context, kind.parse(frame))))

    return Route(kind, handle)


def sliced(kind: type[R], tell: Callable[[Context, R], Awaitable[Any]]) -> Route:
    """Answer with what a coroutine returns, which ends a turn as often as it has to: the connection's next request
    waits, and those of others do not."""

    async def handle(context: Context, frame: Frame) -> None:
        request_id = frame[1]
        context.connection.reply(request_id, _reply(request_id, await tell(context, kind.parse(frame))))

    return Route(kind, handle)


def handled(kind: type[R], handle: Callable[[Context, int, R], None]) -> Route:
    """Leave the answer to a function, which gets the request's id."""

    def hand_on(context: Context, frame: Frame) -> None:
        context.connection.turn.left -= REQUEST_WORK
        handle(context, frame[1], kind.parse(frame))

    return Route(kind, hand_on)


def framed(kind: type[Request], handle: Handler) -> Route:
    """Leave the answer to a function that parses the frame as well: it looks at many together."""
    return Route(kind, handle)


def _reply(request_id: int, result: Any) -> Answer:
    if result is None:
        return encode_reply(request_id)
    if type(result) is Log:
        return encode_pieces(request_id, result.head, result.pieces)
    if type(result) is Packed:
        return encode_packed(request_id, *result.fields)
    return encode_reply(request_id, *(result if isinstance(result, tuple) else (result,)))
