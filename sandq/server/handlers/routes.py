"""How a request comes to the broker and its answer to the client: one route for each.

    answered(Get, lambda at, request: at.messages.get(request, at.caller))      with what the coroutine returns
    submitted(Ack, lambda at, request, done: ...)                              with what `done` gets
    told(Ping, lambda at, request: at.broker.clock.now_ms())                   at once, with what is returned
    sliced(ClusterInfo, lambda at, request: at.info.cluster())                 the same, made in turns by a coroutine
    handled(Credit, lambda at, request_id, request: ...)                       the function sees to the answer
    framed(Produce, lambda at, frame: ...)                                     the same, and it parses the frame

What is returned becomes the fields of the reply: None is none, a tuple several, `Log` ends with pieces of a log,
`Packed` are encoded already, anything else is one. A SandqError that is raised is the answer as well.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, TypeVar

import msgpack
import trio

from sandq.broker.broker import Broker
from sandq.broker.replication.requests import Done
from sandq.broker.requests.kv_requests import KvRequests
from sandq.broker.requests.message_requests import MessageRequests
from sandq.broker.requests.schedule_requests import ScheduleRequests
from sandq.model.batch_format import stored_bytes_of
from sandq.model.caller import Caller
from sandq.model.errors import QuotaExceeded, SandqError
from sandq.model.piece import Piece
from sandq.model.quotas import NO_QUOTA, Quota
from sandq.partition.produce_validation import check_ratio
from sandq.protocol.frames import Frame, PackedArray, Type, encode_packed, encode_reply
from sandq.protocol.replies_messages import encode_pieces
from sandq.protocol.request import Request
from sandq.protocol.requests import Produce
from sandq.server.connection import Connection
from sandq.server.delays import AT_ONCE, DELAYING, Ahead, ahead_of_batch, check_delay, delay_of_request
from sandq.server.entrance import Entrance
from sandq.server.gateway_proof import GatewayProof
from sandq.server.info import ServerInfo
from sandq.server.kv_get_coalescer import KvGetCoalescer
from sandq.server.output import Answer
from sandq.server.produce_coalescer import ProduceCoalescer
from sandq.server.quota_meters import NEVER_REFUSED, NOT_COUNTED
from sandq.server.subscriptions import Subscriptions

R = TypeVar("R", bound=Request)


class Context:
    """What handlers know of a connection, and whom they hand its requests to."""

    def __init__(self, broker: Broker, connection: Connection, info: ServerInfo) -> None:
        self.broker = broker
        self.connection = connection
        self.info = info
        self.gateway_proof = GatewayProof(info.gateway_keys(), info.node_id)
        self.entrance = Entrance(
            connection,
            self.gateway_proof,
            info.logins,
            info.failed_logins,
            broker.clock.now_ms,
            info.waiting,
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
        self.produces = ProduceCoalescer(
            self._produce,
            self._produce_large,
            self._spend,
            connection.reply_each,
            connection.refuse,
        )
        self.subscriptions = Subscriptions(broker, connection)

    @property
    def caller(self) -> Caller:
        """Who asks for what this task works on."""
        return self.connection.caller

    def check_rate(self, topic: object, requests: int = 1) -> None:
        """Raises Throttled when its client asks more of a topic than it may. Gateways see to it themselves: they know
        whose requests these are."""
        opened, access = self.broker.catalog.topics.get(topic) if type(topic) is str else None, self.entrance.access
        if opened is not None and access is not None and not access.sees(opened.record.name):
            return  # it is refused, and so takes nothing of others and learns nothing
        if opened is not None and not self.gateway_proof.is_given:
            self.info.request_rates.take(opened.record.name, opened.record.settings, self.caller, requests)

    @property
    def quota(self) -> Quota:
        """What who asks by this connection itself may take."""
        login = self.connection.login
        return NO_QUOTA if login is None else login.quota

    def count(self, frame: Frame) -> None:
        """Count a request of who has a quota, but for PRODUCE. Raises QuotaExceeded."""
        kind, quota, now_ms = frame[0], self.quota, self.broker.clock.now_ms()
        if quota is NO_QUOTA or kind in NOT_COUNTED:
            return
        principal = self.caller.principal
        if kind in DELAYING and quota.max_delay_ms is not None:
            check_delay(principal, quota, delay_of_request(frame, now_ms))
        size = 0 if quota.bytes_per_s is None else _size_of(frame)
        is_free, carries = kind in NEVER_REFUSED, kind == Type.ACK_THEN
        self.info.quotas.take(principal, quota, 1, size, is_free=is_free, carries=carries)

    def check_delay_of_caller(self, frame: Frame) -> None:
        """Look at what a gateway asks for somebody: it sees to the rest of its callers' quotas. Raises
        QuotaExceeded."""
        principal = self.caller.principal
        record = self.broker.metadata.identities.get(principal)
        if record is not None and "max_delay_ms" in record.quota:
            quota = Quota.of(record.quota)
            check_delay(principal, quota, delay_of_request(frame, self.broker.clock.now_ms()))

    def check_stored(self, topic: str, size: int | None, pending: Callable[[], int | None]) -> None:
        """Raise QuotaExceeded if the owner of a topic would have more than it may: see `OwnerUsage.check`."""
        usage = self.info.usage
        if usage is not None and usage.bounds_any and (owner := self._owner(topic)) is not None:
            usage.check(owner, size, pending)

    def _count_produce(self, request: Produce, requests: int, known: Ahead | None = None) -> None:
        """Raise QuotaExceeded if the caller, or the owner of the topic, has no more. `known`: how far ahead the batch
        sends; None: it is computed here, if that matters."""
        quota, raw = self.quota, request.batch

        def ahead() -> Ahead:
            return ahead_of_batch(raw, self.broker.clock.now_ms()) if known is None else known

        self.check_stored(request.topic, stored_bytes_of(raw), lambda: ahead().messages)
        if quota is NO_QUOTA:
            return
        principal = self.caller.principal
        if quota.max_delay_ms is not None:
            check_delay(principal, quota, ahead().delay_ms)
        self.info.quotas.take(principal, quota, requests, stored_bytes_of(raw))

    def topic_of(self, group: int) -> str:
        """Return the name of the topic that a Raft group is of; empty if there is none."""
        return self.broker.catalog.view.partition_of_group.get(group, ("", 0))[0]

    def _owner(self, topic: str) -> str | None:
        """Who owns a topic, as far as it is open here."""
        opened = self.broker.catalog.topics.get(topic)
        return None if opened is None else opened.record.owner

    def _produce(self, request: Produce, requests: int, done: Done) -> None:
        if (
            requests > 1
            and self.quota is not NO_QUOTA
            and not self.info.quotas.has_room(self.caller.principal, self.quota, requests)
        ):
            raise QuotaExceeded("not all of them at once")  # so they come one by one
        self.check_rate(request.topic, requests)
        self._count_produce(request, requests)
        if not _is_compressed(request.batch):
            self.broker.produce(request, self.caller, done, requests=requests)
            return
        with self._held(request, done) as answer:
            self.broker.produce(request, self.caller, answer, requests=requests)

    async def _produce_large(self, request: Produce, done: Done) -> None:
        self.check_rate(request.topic)
        check_ratio(request.batch)  # before anything decompresses it, and before quotas count what it claims
        ahead = AT_ONCE
        if self.quota.max_delay_ms is not None or self._owner(request.topic) is not None:
            # It takes long, and others are not to wait for that.
            ahead = await trio.to_thread.run_sync(ahead_of_batch, request.batch, self.broker.clock.now_ms())
        self._count_produce(request, 1, ahead)
        with self._held(request, done) as answer:
            checked = await self.broker.check_large(request)
            self.broker.produce(request, self.caller, answer, checked=checked)

    @contextmanager
    def _held(self, request: Produce, done: Done) -> Iterator[Done]:
        """Count the bytes that a compressed batch has beyond its frame, until it is refused or answered."""
        more = stored_bytes_of(request.batch) - len(request.batch)
        if not more:
            yield done
            return

        def answer(result: Any) -> None:
            self.connection.hold_request(-more)
            done(result)

        self.connection.hold_request(more)
        try:
            yield answer
        except BaseException:
            self.connection.hold_request(-more)
            raise

    def _spend(self, work: int) -> None:
        self.connection.turn.left -= work


def _is_compressed(raw: bytes) -> bool:
    """Whether a batch has more bytes than its frame says, as far as its header is there."""
    return raw[9:10] > b"\0"


def _size_of(frame: Frame) -> int:
    try:
        return len(msgpack.packb(frame))
    except ValueError:
        return 0  # nested deeper than anything that is taken: who reads it says so


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
