"""The requests of one connection: parsed, handed to the broker, answered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio

from sandq.broker.broker import Broker
from sandq.broker.delivery.lease_once import Taker
from sandq.broker.delivery.subscribe import Subscriber
from sandq.broker.delivery.subscription import Subscription
from sandq.broker.replication.replica import Delivery
from sandq.model.errors import Conflict, InvalidRequest, NotFound, ProtocolError, SandqError, WrongVersion
from sandq.model.names import check_name
from sandq.partition import commands as c
from sandq.protocol import requests as r
from sandq.protocol.frames import PROTOCOL_VERSION, RESERVED, Frame, Type, encode_reply
from sandq.protocol.replies import encode_deliver
from sandq.server.connection import Connection
from sandq.server.handlers.control_session import ControlSession
from sandq.server.info import ServerInfo
from sandq.server.produce_coalescer import ProduceCoalescer
from sandq.server.startup_gate import Handlers, StartupGate

TAKEN_KEPT = 1000


class ClientSession:
    def __init__(self, broker: Broker, connection: Connection, info: ServerInfo) -> None:
        self.greeted = False
        self._broker = broker
        self._connection = connection
        connection.add_hint = info.add_hint
        self._info = info
        self._control = ControlSession(broker, connection, info)
        self._subscriptions: dict[int, tuple[str, Subscription]] = {}
        self._opening: dict[int, trio.Event] = {}
        self._takes: dict[int, trio.CancelScope] = {}
        """LEASE requests under way, by id ..."""
        self._taken: dict[int, Taker] = {}
        """... and the last ones that were answered: who was cancelled meanwhile gives back what it never saw."""
        self._produce_coalescer = ProduceCoalescer(self._produce, connection.reply_each, connection.refuse)
        handlers: Handlers = {
            Type.HELLO: self._hello,
            Type.METADATA: self._metadata,
            Type.PRODUCE: self._produce_coalescer.add,
            Type.SUBSCRIBE: self._subscribe,
            Type.UNSUBSCRIBE: self._unsubscribe,
            Type.CREDIT: self._credit,
            Type.LEASE: self._lease,
            Type.ACK: self._ack,
            Type.NACK: self._nack,
            Type.EXTEND: self._extend,
            Type.PING: self._ping,
            **self._control.handlers,
        }
        self._startup_gate = StartupGate(handlers, info.waiting)

    def handle(self, frame: Frame) -> None:
        if frame[0] != Type.PRODUCE:
            self._produce_coalescer.flush()
        handler = self._startup_gate.handlers.get(frame[0])
        if not self.greeted and frame[0] != Type.HELLO:
            raise ProtocolError(f"a connection begins with HELLO, not with a frame of type {frame[0]}")
        if handler is None:
            handler = self._startup_gate.look_again(frame[0])
        if handler is None:
            if frame[0] in RESERVED:
                raise InvalidRequest(f"requests of type {frame[0]} are not implemented by this version")
            raise InvalidRequest(f"there are no requests of type {frame[0]}")
        handler(frame)

    def handled(self) -> None:
        self._produce_coalescer.flush()
        self._control.handled()

    def drained(self) -> None:
        for _, subscription in self._subscriptions.values():
            subscription.notify_room()

    def closed(self) -> None:
        for topic, subscription in self._subscriptions.values():
            self._broker.detach(topic, subscription)
        self._subscriptions.clear()

    def _reply(self, request_id: int, *fields: Any) -> None:
        self._connection.reply(request_id, encode_reply(request_id, *fields))

    def _done(self, request_id: int) -> Callable[[Any], None]:
        """What answers a request once its command is applied."""

        def done(result: Any) -> None:
            if isinstance(result, SandqError):
                self._connection.send_error(request_id, result)
            else:
                self._reply(request_id, result)

        return done

    # -- connection -----------------------------------------------------------------------------------------------

    def _hello(self, frame: Frame) -> None:
        hello = r.Hello.parse(frame)
        if hello.version != PROTOCOL_VERSION:
            raise WrongVersion(
                f"protocol version {hello.version} is not spoken here, only {PROTOCOL_VERSION}: "
                f"use a client that fits sandq {self._info.version}"
            )
        self.greeted = True
        info = self._info
        self._reply(frame[1], info.version, info.node_id, info.cluster_uuid, info.limits, self._broker.clock.now_ms())

    def _ping(self, frame: Frame) -> None:
        r.Ping.parse(frame)
        self._reply(frame[1], self._broker.clock.now_ms())

    def _metadata(self, frame: Frame) -> None:
        names = r.Metadata.parse(frame).topics
        broker = self._broker
        topics = broker.topics() if names is None else [broker.topic(name) for name in dict.fromkeys(names)]
        self._reply(frame[1], self._info.nodes(), [self._control.topic_record(topic.record) for topic in topics])

    # -- messages -------------------------------------------------------------------------------------------------

    def _produce(self, asked: r.Produce, requests: int, done: Callable[[Any], None]) -> None:
        self._broker.produce(
            asked.topic,
            asked.partition,
            asked.batch,
            asked.producer_id,
            asked.epoch,
            asked.sequence,
            asked.on_conflict,
            done,
            requests=requests,
        )

    def _ack(self, frame: Frame) -> None:
        asked = r.Ack.parse(frame)
        self._settle(frame, asked, c.Ack(asked.items))  # type: ignore[arg-type]

    def _nack(self, frame: Frame) -> None:
        asked = r.Nack.parse(frame)
        self._settle(frame, asked, c.Nack(asked.items))  # type: ignore[arg-type]

    def _extend(self, frame: Frame) -> None:
        asked = r.Extend.parse(frame)
        self._settle(frame, asked, c.Extend(asked.items))  # type: ignore[arg-type]

    def _settle(self, frame: Frame, asked: r.Ack | r.Nack | r.Extend, command: c.Ack | c.Nack | c.Extend) -> None:
        self._broker.settle(asked.group_number, asked.partition, command, self._done(frame[1]))

    # -- subscriptions --------------------------------------------------------------------------------------------

    def _subscribe(self, frame: Frame) -> None:
        asked = r.Subscribe.parse(frame)
        if asked.subscription_id in self._subscriptions or asked.subscription_id in self._opening:
            raise Conflict(f"subscription {asked.subscription_id} is there already on this connection")
        check_name("group", asked.group)
        limits = self._broker.limits
        if not 0 < len(asked.consumer_id) <= limits.consumer_id_chars:
            raise InvalidRequest(f"a consumer id has 1 to {limits.consumer_id_chars} characters")
        if asked.credit > limits.credit_max:
            raise InvalidRequest(f"a credit of {asked.credit}; at most {limits.credit_max} is given")
        held = frozenset((group, partition, token) for group, partition, token in asked.held)
        subscriber = Subscriber(
            asked.topic, asked.group, asked.consumer_id, asked.credit, asked.lease_ms, asked.start, held
        )
        # Before anything is awaited: the id is taken, and who leaves meanwhile waits for the end of this.
        opened = self._opening[asked.subscription_id] = trio.Event()

        async def work() -> bytes:
            try:
                return await self._subscribed(frame[1], asked.subscription_id, subscriber)
            finally:
                del self._opening[asked.subscription_id]
                opened.set()

        try:
            self._connection.start(frame[1], work)
        except SandqError:
            del self._opening[asked.subscription_id]
            raise

    async def _subscribed(self, request_id: int, subscription_id: int, asked: Subscriber) -> bytes:
        connection = self._connection

        def push(delivery: Delivery) -> None:
            self._deliver(subscription_id, delivery)

        def ended(error: SandqError) -> None:
            self._subscriptions.pop(subscription_id, None)
            connection.send_error(subscription_id, error)

        subscription, partitions = await self._broker.subscribe(asked, push, lambda: connection.congested, ended)
        self._subscriptions[subscription_id] = (asked.topic, subscription)
        return encode_reply(request_id, partitions)

    def _deliver(self, number: int, delivery: Delivery) -> None:
        """Push a lease to a subscription or a LEASE request."""
        for frame in encode_deliver(number, delivery):
            self._connection.send(frame)

    def _lease(self, frame: Frame) -> None:
        request_id = frame[1]
        asked = r.Lease.parse(frame)
        if request_id in self._takes:
            raise Conflict(f"request {request_id} is under way already on this connection")
        taker = Taker(*asked)

        async def work() -> bytes:
            taken: list[Delivery] = []
            try:
                with scope:
                    taken = await self._broker.take(taker, lambda: self._connection.congested)
            finally:
                del self._takes[request_id]
            if taken and not taker.ack:
                self._taken[request_id] = taker
                if len(self._taken) > TAKEN_KEPT:
                    del self._taken[next(iter(self._taken))]
            for delivery in taken:
                self._deliver(request_id, delivery)
            return encode_reply(request_id, sum(delivery.count for delivery in taken))

        scope = self._takes[request_id] = trio.CancelScope()
        try:
            self._connection.start(request_id, work)
        except SandqError:
            del self._takes[request_id]
            raise

    def _unsubscribe(self, frame: Frame) -> None:
        asked = r.Unsubscribe.parse(frame)
        take = self._takes.get(asked.subscription_id)
        if take is not None:
            take.cancel()
            self._reply(frame[1])
            return
        taker = self._taken.pop(asked.subscription_id, None)
        if taker is not None:
            self._broker.give_back(taker)
            self._reply(frame[1])
            return
        opening = self._opening.get(asked.subscription_id)
        if opening is None:
            self._subscription(asked.subscription_id)

        async def leave() -> bytes:
            if opening is not None:
                await opening.wait()
            topic, subscription = self._subscription(asked.subscription_id)
            del self._subscriptions[asked.subscription_id]
            await self._broker.unsubscribe(topic, subscription)
            return encode_reply(frame[1])

        self._connection.start(frame[1], leave)

    def _credit(self, frame: Frame) -> None:
        asked = r.Credit.parse(frame)
        found = self._subscriptions.get(asked.subscription_id)
        if found is not None:  # credit that crosses the end of its subscription is for nobody
            self._broker.add_credit(found[1], asked.more)

    def _subscription(self, subscription_id: int) -> tuple[str, Subscription]:
        found = self._subscriptions.get(subscription_id)
        if found is None:
            raise NotFound(f"there is no subscription {subscription_id} on this connection")
        return found
