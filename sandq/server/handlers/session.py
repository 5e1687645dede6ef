"""Dispatch the requests of one connection to their handlers."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Final

from sandq.broker.broker import Broker
from sandq.model.errors import InvalidRequest, ProtocolError, QuotaExceeded, Unauthenticated, Unavailable
from sandq.protocol.frames import RESERVED, Frame, LargeFrame, Type
from sandq.protocol.request import unknown_request
from sandq.server.audit.acts import ACTS, is_act
from sandq.server.audit.requests import RequestAudit
from sandq.server.client_stats import Mark
from sandq.server.connection import Connection
from sandq.server.delays import DELAYING
from sandq.server.handlers import (
    access,
    backups,
    cluster,
    connection,
    consume,
    keys,
    messages,
    schedules,
    topics,
)
from sandq.server.handlers.rights import guarded, guarded_for_gateways
from sandq.server.handlers.routes import Context, Handler
from sandq.server.info import ServerInfo
from sandq.server.request_rates import RATED
from sandq.server.startup_gate import StartupGate

_SUBJECTS: Final = (
    connection,
    consume,
    messages,
    schedules,
    keys,
    topics,
    cluster,
    access,
    backups,
)
HANDLERS: Final[dict[int, Handler]] = {
    route.request.type: route.handle for subject in _SUBJECTS for route in subject.ROUTES
}
"""The handler of each request type."""
GUARDED: Final = guarded(HANDLERS)
"""The handlers for connections with restricted rights: each handler first checks the rights."""
OF_GATEWAYS: Final = guarded_for_gateways(HANDLERS)
"""The handlers for gateways that have proved themselves."""
_PRODUCE: Final = int(Type.PRODUCE)
_RATED: Final = RATED - {_PRODUCE}
"""Types whose rate is checked here. PRODUCE requests are counted when they are produced, several at a time."""


class ClientSession:
    """Implements the requests of one connection."""

    def __init__(self, broker: Broker, connection: Connection, info: ServerInfo) -> None:
        self.greeted = False
        self._audit = RequestAudit(info.audit)
        connection.observe(self._audit, info.add_hint)
        self._context = Context(broker, connection, info)
        self._context.on_proved = self._choose_handlers
        self._flush_produces = self._context.produces.flush
        self._gather = self._context.produces.gather
        self._cluster = info.cluster
        self._startup_gate = StartupGate(HANDLERS, info.cluster)

    @property
    def is_gateway(self) -> bool:
        """Whether the client has proved to be a gateway."""
        return self._context.gateway_proof.is_given

    def handle(self, frame: Frame) -> Awaitable[None] | None:
        """Start a request: check it, and call the handler of its type. Until the client is let in, only greet it.

        A request other than PRODUCE first starts the gathered PRODUCE requests, so that they keep their order."""
        kind = frame[0]
        if kind != _PRODUCE:
            self._flush_produces()
        if not self.greeted:
            return self._greet(frame)
        handler = self._startup_gate.handlers.get(kind)
        if handler is None:
            handler = self._startup_gate.find_handler(kind)
        if handler is None:
            if kind in RESERVED:
                raise InvalidRequest(f"requests of type {kind} are not implemented by this version")
            raise InvalidRequest(unknown_request(kind))
        if kind in ACTS and is_act(frame):
            self._audit.begin(frame, self._context.connection.caller)
        if kind != _PRODUCE:
            if self._context.connection.login is not None:
                self._context.checks.count(frame)
            elif kind in DELAYING and self.is_gateway:
                self._context.checks.check_delay_of_caller(frame)
        if kind in _RATED:
            self._context.checks.check_rate(frame[2] if len(frame) > 2 else None)
        return handler(self._context, frame)

    def _choose_handlers(self) -> None:
        """Choose the handlers that fit the rights of the connection."""
        if self.is_gateway:
            self._startup_gate = StartupGate(OF_GATEWAYS, self._cluster)
        elif self._context.entrance.access is not None:
            self._startup_gate = StartupGate(GUARDED, self._cluster)

    def gather(
        self, frames: Sequence[Frame | LargeFrame], first: int, most: int, requests: dict[int, Mark], mark: Mark
    ) -> int:
        """Gather PRODUCE requests, as `Session.gather` describes."""
        return self._gather(frames, first, most, requests, mark)

    async def _greet(self, frame: Frame) -> None:
        """Handle the first frame (HELLO, or PROVE of a gateway). Raise ProtocolError for any other frame."""
        entrance, kind = self._context.entrance, Type.PROVE if self._context.entrance.must_prove else Type.HELLO
        if frame[0] != kind:
            begins = "a connection begins" if kind == Type.HELLO else "a gateway goes on after HELLO"
            raise ProtocolError(f"{begins} with {kind.name}, not with a frame of type {frame[0]}")
        try:
            rest = HANDLERS[kind](self._context, frame)
            if rest is not None:
                await rest
        except (Unauthenticated, Unavailable, QuotaExceeded) as error:
            await entrance.refused(error)
        self._choose_handlers()
        self.greeted = entrance.is_in

    def handled(self) -> None:
        """Start the gathered requests: no further request follows for now."""
        self._flush_produces()
        self._context.kv_gets.flush()

    def drained(self) -> None:
        """Go on with deliveries: the connection accepts frames again."""
        self._context.subscriptions.notify_credit()

    async def closed(self) -> None:
        """Release what the session holds: the connection has ended."""
        self._context.entrance.gone()
        await self._context.subscriptions.close()
