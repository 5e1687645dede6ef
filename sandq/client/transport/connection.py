"""One TCP connection to one node: request ids, replies, pushed deliveries, and combined writes.

`Connection.open` connects and sends HELLO. `run` reads, writes and sends keepalives until the connection is lost or
closed; then it closes the socket. When `run` returns, every unanswered request has failed with ConnectionLost.

Only SandqError is raised: any error of the socket becomes ConnectionLost. Replies are passed to callbacks in the order
of their arrival, without a task per request.
"""

from __future__ import annotations

import logging
import math
import os
import secrets
import ssl
from collections.abc import Callable
from typing import Any, Protocol

import anyio
import anyio.abc
from anyio.streams.tls import TLSAttribute, TLSStream

from sandq.client.options import Options
from sandq.client.signals import Signal
from sandq.client.tls import ClientTls, refusal_of, speaks_no_tls
from sandq.client.transport.credentials import check_clear, token_of
from sandq.client.transport.on_behalf import OURSELVES
from sandq.model.errors import ClosedError, ConnectionLost, Forbidden, ProtocolError, SandqError, TimedOut, WrongPort
from sandq.model.limits import DEFAULT
from sandq.model.ports import socket_path
from sandq.model.unix_sockets import reachable
from sandq.protocol.frames import PROTOCOL_VERSION, Frame, FrameReader, Type, decode_error
from sandq.protocol.proofs import NONCE_BYTES, prove_gateway
from sandq.protocol.replies import HelloReply
from sandq.protocol.requests import Hello, OnBehalf, Ping, Prove

log = logging.getLogger("sandq.client")

RECEIVE_BYTES = 64 * 1024
SEND_BYTES = 1024 * 1024
_FIRST_REQUEST_ID = 1
_DRIFT_MS_PER_S = 1.0  # generous bound on the drift between two clocks

Build = Callable[[int], bytes]
"""Encodes a request's frame, given its request id."""
OnReply = Callable[[Frame | SandqError], None]
"""Called with the reply's frame or with an error. An exception that it raises closes the connection."""


class Listener(Protocol):
    """Receives the frames that a node pushes for one subscription."""

    def on_deliver(self, frame: Frame) -> None: ...

    def on_end(self, error: SandqError) -> None: ...


class Connection:
    """A connection to one node; created by `open`. See the module's docstring."""

    def __init__(self, stream: anyio.abc.ByteStream, address: str, options: Options) -> None:
        self.address = address
        self.hello = HelloReply("", "", "", {}, 0)
        self.listeners: dict[int, Listener] = {}
        self.error: SandqError | None = None
        self.lost = Signal()
        self.certificate_ends_s: float | None = None
        """Expiry of the node's certificate, in epoch seconds; None without TLS."""
        self._options = options
        self._stream = stream
        self._reader = FrameReader(control_bytes=DEFAULT.frame_bytes)
        self._next_id = _FIRST_REQUEST_ID
        self._pending: dict[int, OnReply] = {}
        self._out: list[bytes] = []
        self._flushers: dict[Callable[[], None], None] = {}
        self._last_flushers: dict[Callable[[], None], None] = {}
        self._wake_writer = Signal()
        self._drained = Signal()
        self._writing = False
        self._received = 0  # number of reads that returned data, which show keepalive that the node is alive
        self._clock = _Clock()
        self._is_proved = False
        """True if the node accepts ON_BEHALF frames of this client."""
        self._asker = OURSELVES
        """The caller in the last ON_BEHALF frame that was sent to the node."""
        self._scope: anyio.CancelScope | None = None

    @classmethod
    async def open(cls, host: str, port: int, *, client_name: str, timeout_s: float, options: Options) -> Connection:
        """Connect and send HELLO.

        Raises ConnectionLost if this fails or takes longer than `timeout_s`. Errors of HELLO (such as WrongVersion) are
        raised unchanged.
        """
        address = _text_of(host, port)
        stream: anyio.abc.ByteStream | None = None
        try:
            with anyio.fail_after(timeout_s):
                stream = await _connected(host, port, options.tls)
                connection = cls(stream, address, options)
                connection.certificate_ends_s = _ends_s(stream)
                await connection._say_hello(client_name)
                return connection
        except TimeoutError:
            error: SandqError = ConnectionLost(f"cannot connect to {address}: no answer in {timeout_s:.3g} s")
        except ssl.SSLError as problem:
            kind = WrongPort if speaks_no_tls(problem) else ConnectionLost
            error = kind(f"cannot connect to {address}: {refusal_of(problem)}")
        except (OSError, anyio.BrokenResourceError, anyio.EndOfStream, anyio.ClosedResourceError) as problem:
            error = ConnectionLost(f"cannot connect to {address}: {_why(problem)}")
        except SandqError as problem:
            error = problem
        except BaseException:
            if stream is not None:
                await anyio.aclose_forcefully(stream)
            raise
        if stream is not None:
            await anyio.aclose_forcefully(stream)
        raise error

    async def _say_hello(self, client_name: str) -> None:
        sent_at = anyio.current_time()
        gateway_secret = self._options.gateway_secret
        secret = None if gateway_secret is None else gateway_secret()
        nonce = b"" if secret is None else secrets.token_bytes(NONCE_BYTES)
        options: dict[str, Any] = {"gateway": nonce} if nonce else {}
        token = await token_of(self._options.token)
        if token is not None:
            remote = self._stream.extra(anyio.abc.SocketAttribute.remote_address, None)
            check_clear(token, remote, self._options, is_encrypted=isinstance(self._stream, TLSStream))
            options["token"] = token
        self.hello = hello = HelloReply.parse(await self._ask_before_run(Hello(PROTOCOL_VERSION, client_name, options)))
        self._clock.note(hello.now_ms, sent_at)
        if secret is not None and hello.challenge is not None:
            proof = prove_gateway(secret, nonce, hello.challenge, hello.node_id, hello.cluster_uuid)
            try:
                await self._ask_before_run(Prove(proof))
                self._is_proved = True
            except Forbidden as refusal:
                log.warning("%s does not accept this client as a gateway: %s", self.address, refusal.message)
        frame_bytes = self.hello.limits.get("frame_bytes")
        if type(frame_bytes) is int and DEFAULT.frame_bytes < frame_bytes < 2**32 and not self._reader.buffered_bytes:
            self._reader = FrameReader(frame_bytes, frame_bytes)  # the operator allows larger frames

    async def _ask_before_run(self, request: Hello | Prove) -> Frame:
        """Send a request before the reader task runs, and return its reply. Raises the error that the node replies
        with."""
        request_id = self.new_id()
        await self._stream.send(request.frame(request_id))
        frames: list[Frame] = []
        while not frames:
            frames = self._reader.feed(await self._stream.receive(RECEIVE_BYTES))
        if frames[0][0] == Type.ERROR:
            raise decode_error(frames[0])
        if frames[0][:2] != [Type.REPLY, request_id] or len(frames) > 1:
            raise ProtocolError(f"{self.address} does not answer {request.type.name} as a sandq node does")
        return frames[0]

    # Used by other modules.

    @property
    def is_open(self) -> bool:
        """True while requests may be queued."""
        return self.error is None

    def new_id(self) -> int:
        """Return an id that is unique among the requests and subscriptions of this connection."""
        self._next_id += 1
        return self._next_id - 1

    def local_time(self, server_ms: float) -> float:
        """Return the time on anyio's clock at which the node's clock shows `server_ms`."""
        return (server_ms - self._clock.offset_ms) / 1000

    @property
    def accepts_negative_credit(self) -> bool:
        """True if the node accepts negative CREDIT."""
        return bool(self.hello.limits.get("credit_least", 0) < 0)

    def node_ms(self) -> int:
        """Return the current time of the node's clock, in epoch milliseconds."""
        return round(anyio.current_time() * 1000 + self._clock.offset_ms)

    def post(self, frame: bytes) -> None:
        """Queue a frame that has no reply."""
        if self.error is None:
            self._queue_on_behalf(OURSELVES)
            self._out.append(frame)
            self._wake_writer.set()

    def request(self, build: Build, on_reply: OnReply, asker: OnBehalf = OURSELVES) -> int:
        """Queue a request on behalf of `asker`, and return its id.

        `on_reply` is called later, exactly once, unless `forget` is called first. Raises the connection's error if the
        connection is lost.
        """
        if self.error is not None:
            raise self.error.again()
        self._queue_on_behalf(asker)
        request_id = self.new_id()
        self._out.append(build(request_id))
        self._pending[request_id] = on_reply
        self._wake_writer.set()
        return request_id

    def _queue_on_behalf(self, asker: OnBehalf) -> None:
        """Queue a frame that names the caller of the next frame, if it changed and the node accepts such frames."""
        if asker is not self._asker and self._is_proved and asker != self._asker:
            self._asker = asker
            self._out.append(asker.frame())

    def forget(self, request_id: int) -> None:
        """Drop the callback of a request: its reply is ignored."""
        self._pending.pop(request_id, None)

    def flush_soon(self, flusher: Callable[[], None], *, last: bool = False) -> None:
        """Call `flusher` before the next send, so that it can queue frames. Registering it repeatedly has no further
        effect.

        So acks are combined into few frames. Flushers registered with `last` run after all others.
        """
        if self.error is None:
            (self._last_flushers if last else self._flushers)[flusher] = None
            self._wake_writer.set()

    async def call(
        self,
        build: Build,
        *,
        timeout_s: float = math.inf,
        wait_s: float = 0.0,
        is_moved: Callable[[], bool] = lambda: False,
        asker: OnBehalf = OURSELVES,
    ) -> Frame:
        """Send a request and return its reply.

        `wait_s`: how long the request asks the node to wait. If there is no reply for `standstill_s` beyond this time,
        `is_moved` is called, and then every `leader_check_s`. It returns whether to ask another node instead.

        Raises TimedOut after `timeout_s`, or if `is_moved` returns True. The outcome is then unknown.
        """
        box: list[Frame | SandqError] = []
        done = anyio.Event()

        def on_reply(reply: Frame | SandqError) -> None:
            box.append(reply)
            done.set()

        request_id = self.request(build, on_reply, asker)
        waited_s, pause_s = 0.0, wait_s + self._options.standstill_s
        try:
            while not box and waited_s < timeout_s:
                with anyio.move_on_after(min(pause_s, timeout_s - waited_s)):
                    await done.wait()
                waited_s, pause_s = waited_s + pause_s, self._options.leader_check_s
                if not box and waited_s < timeout_s and is_moved():
                    timeout_s = waited_s
        finally:
            self.forget(request_id)
        if not box:
            raise TimedOut(f"{self.address} did not answer in {timeout_s:g} s; the outcome is unknown")
        if isinstance(box[0], SandqError):
            raise box[0].again()
        return box[0]

    def close(self, error: SandqError | None = None) -> None:
        """Close the connection; `run` returns soon after."""
        if self.error is None:
            self.error = error or ClosedError(f"the connection to {self.address} was closed")
        if self._scope is not None:
            self._scope.cancel()

    async def drain(self) -> None:
        """Wait until all queued frames are passed to the socket, or the connection is lost."""
        while self.error is None and (self._queued or self._writing):
            self._wake_writer.set()
            await self._drained.wait()

    @property
    def _queued(self) -> bool:
        return bool(self._out or self._flushers or self._last_flushers)

    # The tasks.

    async def run(self) -> None:
        """Serve the connection until it is lost or closed. Raises only if there is a bug."""
        try:
            async with anyio.create_task_group() as tasks:
                self._scope = tasks.cancel_scope
                if self.error is not None:
                    self._scope.cancel()
                tasks.start_soon(self._write)
                tasks.start_soon(self._keep_alive)
                await self._read()
        finally:
            if self.error is None:
                self.error = ClosedError(f"the connection to {self.address} was closed")
            with anyio.CancelScope(shield=True):
                await anyio.aclose_forcefully(self._stream)
            self._fail_all(self.error)

    def _fail_all(self, error: SandqError) -> None:
        self._out.clear()
        self._flushers.clear()
        self._last_flushers.clear()
        pending, self._pending = self._pending, {}
        for on_reply in pending.values():
            on_reply(error)
        listeners, self.listeners = self.listeners, {}
        for listener in listeners.values():
            listener.on_end(error)
        self._drained.set()
        self.lost.set()

    async def _read(self) -> None:
        stream, feed = self._stream, self._reader.feed
        try:
            while True:
                data = await stream.receive(RECEIVE_BYTES)
                self._received += 1
                for frame in feed(data):
                    self._dispatch(frame)
        except anyio.EndOfStream:
            self.close(ConnectionLost(f"{self.address} closed the connection"))
        except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError) as problem:
            self.close(ConnectionLost(f"the connection to {self.address} broke: {_why(problem)}"))
        except SandqError as problem:
            log.warning("closing the connection to %s: %s", self.address, problem)
            self.close(ConnectionLost(f"the connection to {self.address} was given up: {problem.message}"))

    def _dispatch(self, frame: Frame) -> None:
        kind, number = frame[0], frame[1]
        if kind == Type.REPLY:
            on_reply = self._pending.pop(number, None)
            if on_reply is not None:
                on_reply(frame)
        elif kind == Type.DELIVER:
            listener = self.listeners.get(number)
            if listener is not None:
                listener.on_deliver(frame)
        elif kind == Type.ERROR:
            error = decode_error(frame)
            if number == 0:
                raise error
            if (on_reply := self._pending.pop(number, None)) is not None:
                on_reply(error)
            elif (listener := self.listeners.pop(number, None)) is not None:
                listener.on_end(error)
        else:
            raise ProtocolError(f"{self.address} sent a frame of type {kind}, which a client never gets")

    async def _write(self) -> None:
        try:
            while True:
                if not self._queued:
                    self._drained.set()
                    await self._wake_writer.wait()
                    # Let other ready tasks run first, so that this send includes the frames that they queue.
                    await anyio.lowlevel.checkpoint()
                while self._flushers or self._last_flushers:
                    if self._flushers:
                        flushers, self._flushers = self._flushers, {}
                    else:
                        flushers, self._last_flushers = self._last_flushers, {}
                    for flusher in flushers:
                        flusher()
                self._writing = True
                for piece in self._pieces():
                    await self._stream.send(piece)
                self._writing = False
        except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError) as problem:
            self.close(ConnectionLost(f"the connection to {self.address} broke: {_why(problem)}"))

    def _pieces(self) -> list[bytes]:
        """Return the queued frames, joined into sends of about 1 MiB. A larger frame is sent alone."""
        frames, self._out = self._out, []
        if len(frames) == 1:
            return frames
        pieces: list[bytes] = []
        start, size = 0, 0
        for index, frame in enumerate(frames):
            if size and size + len(frame) > SEND_BYTES:
                pieces.append(b"".join(frames[start:index]))
                start, size = index, 0
            size += len(frame)
        if frames:
            pieces.append(b"".join(frames[start:]))
        return pieces

    async def _keep_alive(self) -> None:
        while True:
            seen, sent_at = self._received, anyio.current_time()
            try:
                frame = await self.call(Ping().frame, timeout_s=self._options.keepalive_timeout_s)
            except TimedOut:
                if self._received == seen:
                    silent_s = self._options.keepalive_timeout_s
                    self.close(ConnectionLost(f"{self.address} has been silent for {silent_s:g} s"))
            except SandqError:
                pass  # an error reply also shows that the node is alive; the reader task notices a lost connection
            else:
                if len(frame) > 2 and type(frame[2]) is int:
                    self._clock.note(frame[2], sent_at)
            await anyio.sleep(self._options.keepalive_s)


class _Clock:
    """Estimates a node's clock relative to the client's clock from its replies, by the sample with the shortest round
    trip.

    The uncertainty of a sample grows with its age, because clocks drift. So a later sample replaces it eventually.
    """

    def __init__(self) -> None:
        self.offset_ms = 0.0  # the node's epoch milliseconds minus the client's
        self._error_ms = math.inf
        self._sampled_at = 0.0

    def note(self, node_ms: int, sent_at: float) -> None:
        """Add a sample: the node's clock showed `node_ms` in its reply to a request sent at `sent_at`."""
        now = anyio.current_time()
        error_ms = (now - sent_at) * 500
        if error_ms <= self._error_ms + (now - self._sampled_at) * _DRIFT_MS_PER_S:
            self.offset_ms = node_ms - (now + sent_at) * 500
            self._error_ms, self._sampled_at = error_ms, now


def _text_of(host: str, port: int) -> str:
    """Return an address as messages show it."""
    if socket_path(host) is not None:
        return host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def _connected(host: str, port: int, tls: ClientTls | None) -> anyio.abc.ByteStream:
    path = socket_path(host)
    if path is not None:
        with reachable(path) as short:
            return await anyio.connect_unix(short)
    stream = await anyio.connect_tcp(host, port)
    if tls is None:
        return stream
    try:
        # Frames carry their own length, so a TLS closing handshake is not needed to detect truncation.
        return await TLSStream.wrap(
            stream, hostname=tls.name_of(host), ssl_context=tls.context(), standard_compatible=False
        )
    except BaseException as problem:
        await anyio.aclose_forcefully(stream)
        if isinstance(problem, ssl.SSLError) and speaks_no_tls(problem) and tls.falls_back:
            return await anyio.connect_tcp(host, port)
        raise


def _ends_s(stream: anyio.abc.ByteStream) -> float | None:
    found = stream.extra(TLSAttribute.peer_certificate, None)
    ends = found.get("notAfter") if found else None
    return ssl.cert_time_to_seconds(ends) if isinstance(ends, str) else None


def _why(problem: BaseException) -> str:
    """Return the reason for a failure, for an error message. The cause of an error of anyio is the system's error."""
    if isinstance(problem, ssl.SSLError):
        return refusal_of(problem)
    if isinstance(problem, anyio.EndOfStream):
        return "it closed the connection"
    cause: BaseException = problem.__cause__ or problem
    if isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[0]
    if isinstance(cause, OSError) and cause.errno is not None and cause.errno > 0:
        return os.strerror(cause.errno)  # asyncio and trio add different text to it
    # If a host name cannot be resolved, `errno` is negative and `strerror` has the reason.
    return getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
