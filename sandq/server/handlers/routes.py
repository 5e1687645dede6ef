"""Define how a handler gets a request and gives its reply: one route for each request type.

    answered(Get, lambda context, request: ...)                 the result of a coroutine
    submitted(Ack, lambda context, request, done: ...)          the result passed to `done`
    immediate(Ping, lambda context, request: ...)               the result of a function, at once
    sliced(ClusterInfo, lambda context, request: ...)           the same, of a coroutine in time slices
    handled(Credit, lambda context, request_id, request: ...)   the function sends any reply itself
    framed(Produce, lambda context, frame: ...)                 the same, and it also parses the frame

The result becomes the fields of the reply: None becomes no field, a tuple several fields, and any other value one
field. The fields of `Packed` are encoded already, and those of a `Log` end with pieces of a log. If a SandqError is
raised, the reply is an error.
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
    """A connection, and the parts of the node that its handlers use."""

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
        """Called once the client has proved to be a gateway. Set by the session."""
        self.lease_topics: dict[int, str] = {}
        """By Raft group: name of the topic, for partitions whose leases this connection has settled. A cache."""
        self.messages = MessageRequests(broker, connection.output)
        self.schedules = ScheduleRequests(broker, connection.output)
        self.kv_requests = KvRequests(broker, connection.output)
        self.kv_gets = KvGetCoalescer(connection, self.kv_requests)
        self.checks = RequestChecks(broker, connection, info, self.entrance, self.gateway_proof)
        self.produces = ProduceCoalescer(broker, connection, self.checks)
        self.subscriptions = Subscriptions(broker, connection)

    @property
    def caller(self) -> Caller:
        """Caller for whom the current task works."""
        return self.connection.caller

    def topic_of(self, group: int) -> str:
        """Return the name of the topic that a Raft group belongs to; empty if there is none."""
        return self.broker.catalog.view.partition_of_group.get(group, ("", 0))[0]


Handler = Callable[[Context, Frame], Awaitable[None] | None]
"""Handles a frame. If it returns an awaitable, that is awaited before the next frame is handled."""
REQUEST_WORK: Final = 8
"""Units of work of most requests, in addition to the work of their frame."""


class Route(NamedTuple):
    """A request type and its handler."""

    request: type[Request]
    handle: Handler


class Log(NamedTuple):
    """A reply that ends with pieces of a partition's log. Stored batches are included unchanged."""

    head: tuple[Any, ...]
    pieces: Sequence[Piece]


class Packed(NamedTuple):
    """A reply whose fields are encoded already."""

    fields: tuple[bytes | PackedArray, ...]


def answered(
    kind: type[R], work: Callable[[Context, R], Awaitable[Any]], wait_s: Callable[[R], float] = lambda request: 0.0
) -> Route:
    """Reply with the result of a coroutine. `wait_s`: returns how long a request asks to wait."""

    def handle(context: Context, frame: Frame) -> None:
        request, request_id = kind.parse(frame), frame[1]

        async def answer() -> Answer:
            return _reply(request_id, await work(context, request))

        context.connection.time_slice.left -= REQUEST_WORK
        context.connection.start(request_id, answer, wait_s(request))

    return Route(kind, handle)


def submitted(kind: type[R], submit: Callable[[Context, R, Done], None]) -> Route:
    """Reply with the result of a command, which is passed to `done` once the command is applied."""

    def handle(context: Context, frame: Frame) -> None:
        connection, request_id = context.connection, frame[1]

        def done(result: Any) -> None:
            reply_to(connection, request_id, result)

        connection.time_slice.left -= REQUEST_WORK
        submit(context, kind.parse(frame), done)

    return Route(kind, handle)


def reply_to(connection: Connection, request_id: int, result: Any) -> None:
    """Reply with the result of an applied command. If the result is an error, reply with this error."""
    if isinstance(result, SandqError):
        connection.send_error(request_id, result)
    else:
        connection.reply(request_id, encode_reply(request_id, result))


def immediate(kind: type[R], work: Callable[[Context, R], Any]) -> Route:
    """Reply at once with the result of a function."""

    def handle(context: Context, frame: Frame) -> None:
        request_id = frame[1]
        context.connection.reply(request_id, _reply(request_id, work(context, kind.parse(frame))))

    return Route(kind, handle)


def sliced(kind: type[R], work: Callable[[Context, R], Awaitable[Any]]) -> Route:
    """Reply with the result of a coroutine that works in time slices.

    Until it is done, the connection handles no further request; other connections do."""

    async def handle(context: Context, frame: Frame) -> None:
        request_id = frame[1]
        context.connection.reply(request_id, _reply(request_id, await work(context, kind.parse(frame))))

    return Route(kind, handle)


def handled(kind: type[R], handle: Callable[[Context, int, R], None]) -> Route:
    """Leave the reply to a function, which gets the request id."""

    def handle_frame(context: Context, frame: Frame) -> None:
        context.connection.time_slice.left -= REQUEST_WORK
        handle(context, frame[1], kind.parse(frame))

    return Route(kind, handle_frame)


def framed(kind: type[Request], handle: Handler) -> Route:
    """Leave parsing and the reply to a function, which merges many requests."""
    return Route(kind, handle)


def _reply(request_id: int, result: Any) -> Answer:
    """Encode the reply for the result of a handler, as the docstring of the module describes."""
    if result is None:
        return encode_reply(request_id)
    if type(result) is Log:
        return encode_pieces(request_id, result.head, result.pieces)
    if type(result) is Packed:
        return encode_packed(request_id, *result.fields)
    return encode_reply(request_id, *(result if isinstance(result, tuple) else (result,)))
