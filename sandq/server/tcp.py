"""Accept connections on the client port, within limits, with or without TLS, and on the node's Unix socket, always
without TLS."""

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
from sandq.model.logger import get_logger
from sandq.model.ports import LOCAL_CALLER
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
"""Slots beyond the limit for clients on the node's own machine: its HTTP process, other gateways, sandctl."""
_REMEDY: Final = "close some, or raise limits.connections of the node; then try again"

_TLS_REMEDY: Final = (
    "give sandq.connect ca, the file of the authority that issued the node's certificate, or sandctl --ca FILE (--tls "
    "where the machine trusts it)"
)
FRAME_HEAD: Final = b"\0"
"""First byte of every frame of less than 16 MiB. No HTTP request or TLS handshake begins with it."""
FAREWELL_S: Final = 1.0

log = get_logger("sandq.server")


class ClientServer:
    """Accepts connections up to the limit, and at most three quarters of the limit from one address. All others get an
    error.

    Clients on this machine can use spare slots in addition. If all spare slots are used, a new connection displaces the
    oldest connection that is not a gateway. So local clients cannot lock out the node's HTTP process, which proves
    itself at once.
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
        """`tls`: None if the port does not use TLS. `client_name`: the field of a client certificate that holds its
        name."""
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
        """Connections in spare slots, oldest first."""
        self._greeting: dict[trio.SocketStream, None] = {}
        """Streams that are in a TLS handshake before they can use a spare slot, oldest first; at most `SPARE_SLOTS`."""

    async def serve(self, listeners: list[trio.SocketListener]) -> None:
        """Serve clients on these listeners, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._sender.run)
            await trio.serve_listeners(self._serve, listeners, handler_nursery=nursery)

    async def _serve(self, stream: trio.SocketStream) -> None:
        """Serve an accepted connection: give it a slot, do the TLS handshake, and handle its frames.

        If all slots are used, only clients on this machine may get a spare slot."""
        stats = self._stats
        caller = Caller(ANONYMOUS, _peer(stream))
        source = source_of_caller(caller)
        has_slot = self._slots.take(source)
        if not has_slot and not (_is_of_this_machine(stream) and self._may_greet(stream)):
            await self._refuse(stream, source, None)
            return
        stats.accepted += 1
        # Bound for the task of this connection and all tasks that it starts.
        structlog.contextvars.bind_contextvars(
            connection=stats.accepted, principal=caller.principal, peer=caller.address
        )
        try:
            tls = None if is_local(stream) else self._tls
            session = None if tls is None else await tls.greet(stream, source)
        except SandqError as error:
            stats.errors[error.code] += 1
            log.debug("a client was rejected", code=error.code, error=error.message)
            await self._explain_tls(stream, error)
        except Exception:
            stats.errors[SandqError.code] += 1
            if (held_back := stats.warnings.held_back()) is not None:
                log.exception("a handshake ended with an unexpected error", not_logged_before=held_back)
        else:
            self._greeting.pop(stream, None)
            await self._run_connection(stream, caller, session, has_slot)
        finally:
            self._greeting.pop(stream, None)
            if has_slot:
                self._slots.give(source)
            log.debug("a client has gone")

    async def _run_connection(
        self, stream: trio.SocketStream, caller: Caller, session: TlsSession | None, has_slot: bool
    ) -> None:
        """Run a connection after its handshake, until it ends."""
        stats = self._stats
        if not has_slot and not self._has_spare_slot():  # other connections may have come during the handshake
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
            # An unexpected error in one connection must not end the others. The log has the traceback.
            stats.errors[SandqError.code] += 1
            if (held_back := stats.warnings.held_back()) is not None:
                log.exception("a connection ended with an unexpected error", not_logged_before=held_back)
        finally:
            stats.open.discard(connection)
            self._spare.pop(connection, None)

    async def _explain_tls(self, stream: trio.SocketStream, error: SandqError) -> None:
        """Explain to a client without TLS that the port requires it, and close. Failed handshakes got a TLS alert."""
        try:
            if isinstance(error, WrongPort):
                with (
                    trio.move_on_after(FAREWELL_S),
                    suppress(OSError, trio.BrokenResourceError, trio.ClosedResourceError),
                ):
                    head = await stream.socket.recv(1, socket.MSG_PEEK)
                    await stream.send_all(self._requires_tls(head))
                    await stream.send_eof()
                    while await stream.receive_some(4096):
                        pass  # closing a socket with unread data would discard the reply
        finally:
            await trio.aclose_forcefully(stream)

    def _requires_tls(self, head: bytes) -> bytes:
        """Return the reply to a client without TLS: an error frame, or a response if the client speaks HTTP."""
        if head == FRAME_HEAD:
            return encode_error(0, WrongPort(f"this port requires TLS: {_TLS_REMEDY}", speaks=PLAIN))
        text = f"This is sandq's client port, and requires TLS: {_TLS_REMEDY}.\n"
        if self._http_address:
            text += f"HTTP belongs to {self._http_address} on this node.\n"
        head_lines = f"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: {len(text)}\r\n"
        return f"{head_lines}Connection: close\r\n\r\n{text}".encode()

    async def _refuse(self, stream: trio.SocketStream, source: str, session: TlsSession | None) -> None:
        """Close a connection that gets no slot, after an attempt to send the error."""
        self._stats.refused += 1
        reply = encode_error(0, Overloaded(f"{self._why_refused(source)}: {_REMEDY}"))
        with suppress(OSError):
            os.write(stream.socket.fileno(), reply if session is None else session.encode((reply,)))
        await trio.aclose_forcefully(stream)

    def _may_greet(self, stream: trio.SocketStream) -> bool:
        """Return whether a stream may go on without a regular slot.

        Without TLS, a spare slot must be available now. With TLS, that is checked after the handshake; if too many
        streams are in handshakes, the oldest is closed."""
        if self._tls is None:
            return self._has_spare_slot()
        if len(self._greeting) >= SPARE_SLOTS:
            oldest = next(iter(self._greeting))
            del self._greeting[oldest]
            oldest.socket.close()
        self._greeting[stream] = None
        return True

    def _has_spare_slot(self) -> bool:
        """Return whether a spare slot is available. If none is, end the oldest spare connection that is no gateway."""
        if len(self._spare) < SPARE_SLOTS:
            return True
        oldest = next((connection for connection in self._spare if not connection.is_gateway), None)
        if oldest is None:
            return False
        del self._spare[oldest]
        # End it at once: there must never be more than `SPARE_SLOTS` such sockets, even if clients connect fast.
        oldest.end_at_once(Overloaded(f"a later connection from this machine has the slot of this one: {_REMEDY}"))
        return True

    def _why_refused(self, source: str) -> str:
        """Explain why there is no slot for a connection from a source."""
        slots = self._slots
        if slots.has_share(source):
            return f"this node has {slots.limit} connections, which is its limit (limits.connections)"
        return (
            f"{source} has {slots.share} connections, as many as one address may have of the {slots.limit} "
            "of this node (limits.connections)"
        )


def _peer(stream: trio.SocketStream) -> str:
    """Return the address of a client; `local` if it is connected by a Unix socket; `gone` if it has disconnected."""
    if is_local(stream):
        return LOCAL_CALLER
    try:
        host, port = stream.socket.getpeername()[:2]
    except OSError:
        return "gone"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_local(stream: trio.SocketStream) -> bool:
    """Return whether a client is connected by a Unix socket."""
    return stream.socket.family == socket.AF_UNIX


def _is_of_this_machine(stream: trio.SocketStream) -> bool:
    """Return whether a client is on this machine: it is connected by a Unix socket, its address is a loopback address,
    or equal to the address to which it connected."""
    if is_local(stream):
        return True
    try:
        remote, local = stream.socket.getpeername()[0], stream.socket.getsockname()[0]
    except OSError:
        return False
    return remote == local or is_loopback(remote)
