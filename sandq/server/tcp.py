"""Listens for clients."""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import structlog
import trio

from sandq.broker.memory_budget import MemoryBudget
from sandq.model.caller import ANONYMOUS, Caller
from sandq.model.config_tls import SUBJECT
from sandq.model.config_types import is_loopback
from sandq.model.errors import Overloaded, SandqError, WrongPort
from sandq.model.limits import Limits
from sandq.model.sources import source_of_caller
from sandq.protocol.frames import encode_error
from sandq.server.client_stats import ClientStats
from sandq.server.connection import Connection, Gate, Session
from sandq.server.output import Sender
from sandq.server.slots import Slots
from sandq.tls.names import client_name
from sandq.tls.port import PLAIN, TlsPort
from sandq.tls.session import TlsSession

SPARE_SLOTS: Final = 64
"""Beyond the limit, for clients on the node's own machine: its HTTP process, other gateways there, sandctl."""
_REMEDY: Final = "close some, or raise limits.connections of the node; it is worth another try in a moment"

_TLS_REMEDY: Final = (
    "give sandq.connect ca, the file of the authority that issued the node's certificate, or sandctl --ca FILE (--tls "
    "where the machine trusts it)"
)
FRAME_HEAD: Final = b"\0"
"""With that begins every frame of less than 16 MiB, and nothing that people speak."""
LAST_WORDS_S: Final = 1.0

log = structlog.get_logger("sandq.server")


class ClientServer:
    """Accepts connections up to the limit, three quarters of them from one address at most; one beyond that is told so
    and closed.

    Whoever comes from this machine finds a place nevertheless. Of those that have a spare one, and are no gateways, the
    oldest loses it to the next: so nobody keeps out the HTTP of this node for longer than it takes to prove itself.
    """

    def __init__(
        self,
        *,
        make_session: Callable[[Connection], Session],
        limits: Limits,
        http_address: str,
        stats: ClientStats | None = None,
        gate: Gate | None = None,
        request_timeout_s: float = math.inf,
        memory: MemoryBudget | None = None,
        sender: Sender | None = None,
        tls: TlsPort | None = None,
        client_name: str = SUBJECT,
    ) -> None:
        """`tls`: None: it speaks none. `client_name`: what of a client's certificate is its name."""
        self._tls = tls
        self._client_name = client_name
        self._memory = memory if memory is not None else MemoryBudget(limits.memory_bytes)
        self._request_timeout_s = request_timeout_s
        self._gate = gate
        self._make_session = make_session
        self._limits = limits
        self._http_address = http_address
        self._stats = stats if stats is not None else ClientStats()
        self._sender = sender if sender is not None else Sender()
        self._slots = Slots(limits.connections)
        self._spare: dict[Connection, None] = {}
        """Who has a spare place, the oldest first."""
        self._greeting: dict[trio.SocketStream, None] = {}
        """Who would have one, and shakes hands before, the oldest first: no more than there are such places."""

    async def serve(self, listeners: list[trio.SocketListener]) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._sender.run)
            await trio.serve_listeners(self._serve, listeners, handler_nursery=nursery)

    async def _serve(self, stream: trio.SocketStream) -> None:
        stats = self._stats
        caller = Caller(ANONYMOUS, _peer(stream))
        source = source_of_caller(caller)
        has_slot = self._slots.take(source)
        if not has_slot and not (_is_of_this_machine(stream) and self._may_greet(stream)):
            await self._refuse(stream, source, None)
            return
        stats.accepted += 1
        # Of the task of this connection, and of those it begins.
        structlog.contextvars.bind_contextvars(
            connection=stats.accepted, principal=caller.principal, peer=caller.address
        )
        try:
            session = None if self._tls is None else await self._tls.greet(stream, source)
        except SandqError as error:
            stats.errors[error.code] += 1
            log.debug("a client was not let in", code=error.code, error=error.message)
            await self._turn_away(stream, error)
        except Exception:
            stats.errors[SandqError.code] += 1
            if (held_back := stats.warnings.held_back()) is not None:
                log.exception("a handshake ended with an unexpected error", not_logged_before=held_back)
        else:
            self._greeting.pop(stream, None)
            await self._carry(stream, caller, session, has_slot)
        finally:
            self._greeting.pop(stream, None)
            if has_slot:
                self._slots.give(source)
            log.debug("a client has gone")

    async def _carry(
        self, stream: trio.SocketStream, caller: Caller, session: TlsSession | None, has_slot: bool
    ) -> None:
        stats = self._stats
        if not has_slot and not self._has_spare_place():  # others may have come during the handshake
            await self._refuse(stream, source_of_caller(caller), session)
            return
        connection = Connection(
            stream=stream,
            sender=self._sender,
            limits=self._limits,
            http_address=self._http_address,
            stats=stats,
            gate=self._gate,
            caller=caller,
            request_timeout_s=self._request_timeout_s,
            memory=self._memory,
            transform=session,
            certificate_name=None if session is None else client_name(session.certificate, self._client_name),
        )
        stats.open.add(connection)
        if not has_slot:
            self._spare[connection] = None
        log.debug("a client has connected", tls=None if session is None else session.version)
        try:
            await connection.run(self._make_session)
        except Exception:
            # A fault of ours in one connection must not take the others with it; the log has it whole.
            stats.errors[SandqError.code] += 1
            if (held_back := stats.warnings.held_back()) is not None:
                log.exception("a connection ended with an unexpected error", not_logged_before=held_back)
        finally:
            stats.open.discard(connection)
            self._spare.pop(connection, None)

    async def _turn_away(self, stream: trio.SocketStream, error: SandqError) -> None:
        """Tell who speaks plain what to do: who fails at TLS was told by TLS."""
        try:
            if isinstance(error, WrongPort):
                with (
                    trio.move_on_after(LAST_WORDS_S),
                    suppress(OSError, trio.BrokenResourceError, trio.ClosedResourceError),
                ):
                    head = await stream.socket.recv(1, socket.MSG_PEEK)
                    await stream.send_all(self._requires_tls(head))
                    await stream.send_eof()
                    while await stream.receive_some(4096):
                        pass  # what is left unread would take the answer away from the client
        finally:
            await trio.aclose_forcefully(stream)

    def _requires_tls(self, head: bytes) -> bytes:
        if head == FRAME_HEAD:
            return encode_error(0, WrongPort(f"this port requires TLS: {_TLS_REMEDY}", speaks=PLAIN))
        text = f"This is sandq's client port, and requires TLS: {_TLS_REMEDY}.\n"
        if self._http_address:
            text += f"HTTP belongs to {self._http_address} on this node.\n"
        head_lines = f"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: {len(text)}\r\n"
        return f"{head_lines}Connection: close\r\n\r\n{text}".encode()

    async def _refuse(self, stream: trio.SocketStream, source: str, session: TlsSession | None) -> None:
        """It has no place: it is told what it takes at once."""
        self._stats.refused += 1
        words = encode_error(0, Overloaded(f"{self._why_none(source)}: {_REMEDY}"))
        with suppress(OSError):
            os.write(stream.socket.fileno(), words if session is None else session.encode((words,)))
        await trio.aclose_forcefully(stream)

    def _may_greet(self, stream: trio.SocketStream) -> bool:
        """Whether there is a spare place; where hands are shaken first, that is asked behind it, and the oldest of too
        many who do is closed."""
        if self._tls is None:
            return self._has_spare_place()
        if len(self._greeting) >= SPARE_SLOTS:
            oldest = next(iter(self._greeting))
            del self._greeting[oldest]
            oldest.socket.close()
        self._greeting[stream] = None
        return True

    def _has_spare_place(self) -> bool:
        """Whether there is a spare place, if need be that of another connection, which is ended."""
        if len(self._spare) < SPARE_SLOTS:
            return True
        oldest = next((connection for connection in self._spare if not connection.is_gateway), None)
        if oldest is None:
            return False
        del self._spare[oldest]
        # At once: more than so many are not to have a socket here, however fast they come.
        oldest.end_at_once(Overloaded(f"a later connection from this machine has the place of this one: {_REMEDY}"))
        return True

    def _why_none(self, source: str) -> str:
        """Why there is no place for a connection from a source."""
        slots = self._slots
        if slots.has_share(source):
            return f"this node has {slots.limit} connections, which is its limit (limits.connections)"
        return (
            f"{source} has {slots.share} connections, as many as one address may have of the {slots.limit} "
            "of this node (limits.connections)"
        )


def _peer(stream: trio.SocketStream) -> str:
    try:
        host, port = stream.socket.getpeername()[:2]
    except OSError:
        return "gone"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _is_of_this_machine(stream: trio.SocketStream) -> bool:
    """Whether a client is on the machine of this node: it has a loopback address, or the one that it has reached."""
    try:
        there, here = stream.socket.getpeername()[0], stream.socket.getsockname()[0]
    except OSError:
        return False
    return there == here or is_loopback(there)
