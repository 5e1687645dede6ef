"""One TCP connection to one node: request ids, replies, pushes, and everything that is queued sent in one go.

Resource handling: `open` connects and says HELLO; `run` reads, writes and keeps alive until the connection
is lost or closed, and closes the socket. When it returns, every request that had no answer has been told
ConnectionLost.

Error handling: nothing but SandqError comes out of here; a connection that broke is ConnectionLost, whatever the
socket said.

Replies are handed to callbacks, in the order in which they came: no task per request.
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

from sandq.client.options import Options, again
from sandq.client.signals import Signal
from sandq.client.tls import ClientTls, refusal_of, speaks_no_tls
from sandq.client.transport.credentials import check_clear, token_of
from sandq.client.transport.on_behalf import OURSELVES
from sandq.model.errors import ClosedError, ConnectionLost, Forbidden, ProtocolError, SandqError, TimedOut, WrongPort
from sandq.model.limits import DEFAULT
from sandq.protocol.frames import PROTOCOL_VERSION, Frame, FrameReader, Type, decode_error
from sandq.protocol.proofs import NONCE_BYTES, prove_gateway
from sandq.protocol.replies import HelloReply
from sandq.protocol.requests import Hello, OnBehalf, Ping, Prove

log = logging.getLogger("sandq.client")

RECEIVE_BYTES = 64 * 1024
SEND_BYTES = 1024 * 1024
_FIRST_REQUEST_ID = 1
_DRIFT_MS_PER_S = 1.0  # what two clocks may drift apart, generously

Build = Callable[[int], bytes]
"""Makes a request's frame, given its request id."""
OnReply = Callable[[Frame | SandqError], None]
"""Takes the reply's frame, or the error that it was. What it raises closes the connection."""


class Listener(Protocol):
    """Takes what a node pushes for one subscription."""

    def on_deliver(self, frame: Frame) -> None: ...

    def on_end(self, error: SandqError) -> None: ...


class Connection:
    """See the module's docstring; made by `open`."""

    def __init__(self, stream: anyio.abc.ByteStream, address: str, options: Options) -> None:
        self.address = address
        self.hello = HelloReply("", "", "", {}, 0)
        self.listeners: dict[int, Listener] = {}
        self.error: SandqError | None = None
        self.lost = Signal()
        self.certificate_ends_s: float | None = None
        """When the certificate of the node ends, in epoch seconds; None: there is no TLS."""
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
        self._received = 0  # counts what arrives: how keepalive sees life
        self._clock = _Clock()
        self._is_proved = False
        """The node believes on whose behalf we ask."""
        self._asker = OURSELVES
        """On whose behalf, as it was told last."""
        self._scope: anyio.CancelScope | None = None

    @classmethod
    async def open(cls, host: str, port: int, *, client_name: str, timeout_s: float, options: Options) -> Connection:
        """Connect and say HELLO. ConnectionLost when that fails or takes longer; WrongVersion and its like pass."""
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
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
        self.hello = hello = HelloReply.parse(await self._ask_first(Hello(PROTOCOL_VERSION, client_name, options)))
        self._clock.note(hello.now_ms, sent_at)
        if secret is not None and hello.challenge is not None:
            proof = prove_gateway(secret, nonce, hello.challenge, hello.node_id, hello.cluster_uuid)
            try:
                await self._ask_first(Prove(proof))
                self._is_proved = True
            except Forbidden as refusal:
                log.warning("%s does not take this client for a gateway: %s", self.address, refusal.message)
        frame_bytes = self.hello.limits.get("frame_bytes")
        if type(frame_bytes) is int and DEFAULT.frame_bytes < frame_bytes < 2**32 and not self._reader.buffered_bytes:
            self._reader = FrameReader(frame_bytes, frame_bytes)  # the operator allows larger ones

    async def _ask_first(self, request: Hello | Prove) -> Frame:
        """Ask before anybody else does. Raises what it is answered with."""
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

    # What others use.

    @property
    def is_open(self) -> bool:
        """Whether requests may be queued."""
        return self.error is None

    def new_id(self) -> int:
        """An id that no request and no subscription of this connection has."""
        self._next_id += 1
        return self._next_id - 1

    def local_time(self, server_ms: float) -> float:
        """When it is `server_ms` on the node, on anyio's clock."""
        return (server_ms - self._clock.offset_ms) / 1000

    @property
    def takes_credit_back(self) -> bool:
        """Whether the node takes CREDIT that is less than nothing."""
        return bool(self.hello.limits.get("credit_least", 0) < 0)

    def node_ms(self) -> int:
        """What time it is on the node, in epoch milliseconds."""
        return round(anyio.current_time() * 1000 + self._clock.offset_ms)

    def post(self, frame: bytes) -> None:
        """Queue a frame that has no reply."""
        if self.error is None:
            self._tell_asker(OURSELVES)
            self._out.append(frame)
            self._wake_writer.set()

    def request(self, build: Build, on_reply: OnReply, asker: OnBehalf = OURSELVES) -> int:
        """Queue a request, on behalf of somebody; `on_reply` is called exactly once, later, unless `forget` comes
        first."""
        if self.error is not None:
            raise again(self.error)
        self._tell_asker(asker)
        request_id = self.new_id()
        self._out.append(build(request_id))
        self._pending[request_id] = on_reply
        self._wake_writer.set()
        return request_id

    def _tell_asker(self, asker: OnBehalf) -> None:
        """Say on whose behalf the next frame is, unless the node knows, or would not believe it."""
        if asker is not self._asker and self._is_proved and asker != self._asker:
            self._asker = asker
            self._out.append(asker.frame())

    def forget(self, request_id: int) -> None:
        """Nobody waits for this reply any more."""
        self._pending.pop(request_id, None)

    def flush_soon(self, flusher: Callable[[], None], *, last: bool = False) -> None:
        """Before the next send, call `flusher` (once, however often it was named) to queue: so acks coalesce.

        Those named with `last` come after all others.
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
        """Send a request and wait for its reply. TimedOut: the outcome is unknown. `is_moved()` is asked when there is
        none for `standstill_s` beyond the `wait_s` that the request asks to wait, and again and again: whether somebody
        else is to be asked instead (TimedOut, too)."""
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
                waited_s, pause_s = waited_s + pause_s, self._options.look_again_s
                if not box and waited_s < timeout_s and is_moved():
                    timeout_s = waited_s
        finally:
            self.forget(request_id)
        if not box:
            raise TimedOut(f"{self.address} did not answer in {timeout_s:g} s; the outcome is unknown")
        if isinstance(box[0], SandqError):
            raise again(box[0])
        return box[0]

    def close(self, error: SandqError | None = None) -> None:
        """Give the connection up; `run` returns."""
        if self.error is None:
            self.error = error or ClosedError(f"the connection to {self.address} was closed")
        if self._scope is not None:
            self._scope.cancel()

    async def drain(self) -> None:
        """Until everything queued has been handed to the socket, or the connection is lost."""
        while self.error is None and (self._queued or self._writing):
            self._wake_writer.set()
            await self._drained.wait()

    @property
    def _queued(self) -> bool:
        return bool(self._out or self._flushers or self._last_flushers)

    # The tasks.

    async def run(self) -> None:
        """Serve the connection; returns when it is lost or closed. Only a bug raises."""
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
            self._tell_all(self.error)

    def _tell_all(self, error: SandqError) -> None:
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
                    # One more turn of the loop: what others do in it still goes out with this send.
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
        """What is queued, joined to sends of about 1 MiB (a larger frame by itself)."""
        frames, self._out = self._out, []
        if len(frames) == 1:
            return frames
        pieces: list[bytes] = []
        start, size = 0, 0
        for place, frame in enumerate(frames):
            if size and size + len(frame) > SEND_BYTES:
                pieces.append(b"".join(frames[start:place]))
                start, size = place, 0
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
                pass  # an answer all the same; a lost connection is noticed by the reader
            else:
                if len(frame) > 2 and type(frame[2]) is int:
                    self._clock.note(frame[2], sent_at)
            await anyio.sleep(self._options.keepalive_s)


class _Clock:
    """A node's clock against ours: the best of the samples, each as good as its round trip was short."""

    def __init__(self) -> None:
        self.offset_ms = 0.0  # the node's epoch milliseconds minus ours
        self._error_ms = math.inf
        self._sampled_at = 0.0

    def note(self, node_ms: int, sent_at: float) -> None:
        """The node answered `node_ms` to what was sent at `sent_at`."""
        now = anyio.current_time()
        error_ms = (now - sent_at) * 500
        if error_ms <= self._error_ms + (now - self._sampled_at) * _DRIFT_MS_PER_S:
            self.offset_ms = node_ms - (now + sent_at) * 500
            self._error_ms, self._sampled_at = error_ms, now


async def _connected(host: str, port: int, tls: ClientTls | None) -> anyio.abc.ByteStream:
    stream = await anyio.connect_tcp(host, port)
    if tls is None:
        return stream
    try:
        # Frames say themselves where they end: nobody waits for the words that end TLS.
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
    """What went wrong, in words; the system's reason stands in the cause of anyio's errors."""
    if isinstance(problem, ssl.SSLError):
        return refusal_of(problem)
    if isinstance(problem, anyio.EndOfStream):
        return "it closed the connection"
    cause: BaseException = problem.__cause__ or problem
    if isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[0]
    if isinstance(cause, OSError) and cause.errno is not None and cause.errno > 0:
        return os.strerror(cause.errno)  # asyncio and trio put other words around it
    # Of a name that is not found the number is below zero, and says nothing.
    return getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
