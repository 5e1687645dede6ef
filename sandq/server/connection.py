"""One client connection: frames in, frames out, each coalesced; limits; a clear end."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import structlog
import trio

from sandq.broker.controller.metadata_barrier import Unsure
from sandq.model.caller import NODE, Caller
from sandq.model.errors import Overloaded, ProtocolError, SandqError, TimedOut, WrongPort
from sandq.model.limits import Limits
from sandq.protocol.frames import Frame, FrameReader, encode_error
from sandq.server.client_stats import OURS, ClientStats, Mark
from sandq.server.sender import Sender

log = structlog.get_logger("sandq.server")

RECEIVE_BYTES = 65_536
"""More at once would keep other connections waiting."""
SEND_BYTES = 262_144
SEND_STALL_S = 30.0
"""A client that does not take a piece of `SEND_BYTES` for so long is cut off."""
HELLO_S = 10.0
LAST_WORDS_S = 1.0


Gate = Callable[[], Awaitable[None]]
"""Awaited before what came is looked at."""


class Session(Protocol):
    """What the frames of a connection mean."""

    greeted: bool

    def handle(self, frame: Frame) -> None:
        """Start what a frame asks for. Raises SandqError: the request failed (ProtocolError: the connection)."""
        ...

    def handled(self) -> None:
        """Everything that one receive brought was handled."""
        ...

    def drained(self) -> None:
        """The connection takes frames again after it was congested."""
        ...

    def closed(self) -> None: ...


class Connection:
    """Frames to send gather until the sender's turn, and go out as one. Nothing awaits per frame.

    Most receives and sends are one call into the system: trio's streams, which cost ten times that, are there for what
    the socket does not take at once.
    """

    def __init__(
        self,
        stream: trio.SocketStream,
        sender: Sender,
        limits: Limits,
        http_address: str,
        stats: ClientStats | None = None,
        gate: Gate | None = None,
        caller: Caller = NODE,
        request_timeout_s: float = math.inf,
    ) -> None:
        """`request_timeout_s`: for a request that takes a while, beyond what it asks to wait."""
        self._request_timeout_s = request_timeout_s
        self.caller = caller
        self._stream = stream
        self._fd = stream.socket.fileno()
        self._sender = sender
        self._gate = gate
        self._stats = stats if stats is not None else ClientStats()
        self.add_hint: Callable[[SandqError], None] = lambda error: None
        """Adds to an error what its receiver may want to know; set by the session."""
        self._requests: dict[int, Mark] = {}
        """Those that are not answered yet."""
        # What is answered is answered in other tasks, too.
        self._log = log.bind(**structlog.contextvars.get_contextvars())
        self._limits = limits
        self._http_address = http_address
        self._out: list[bytes | memoryview] = []
        self._out_bytes = 0
        self._writing = False
        self._wake = trio.Event()
        self._sent = trio.Event()
        self._reading = trio.CancelScope()
        self._ending = False
        self._working = 0
        self._written = trio.Event()
        self._nursery: trio.Nursery
        self._session: Session
        self.open = True

    @property
    def congested(self) -> bool:
        """So much waits to be sent that nothing more should be made for this client."""
        return not self.open or self._out_bytes > self._limits.in_flight_bytes_per_connection

    @property
    def waiting_bytes(self) -> int:
        """Of frames that are queued or being sent."""
        return self._out_bytes

    @property
    def requests(self) -> int:
        """How many are not answered yet."""
        return len(self._requests)

    def send(self, frame: bytes) -> None:
        """Queue a frame. Once the connection is closed, frames go nowhere."""
        if self.open:
            if not self._out and not self._writing:
                self._sender.add(self)
            self._out.append(frame)
            self._out_bytes += len(frame)

    def flush(self) -> None:
        """Send what has gathered, as far as the socket takes it now; `_write` sends the rest, and meets the errors."""
        if self._writing or not self.open or not self._out:
            return
        if not self.congested:
            try:
                data = self._out[0] if len(self._out) == 1 else b"".join(self._out)
                sent = os.write(self._fd, data)
            except Exception:
                # It is met again where it ends this connection, and no other.
                self._wake.set()
                return
            self._out_bytes -= sent
            self._stats.sent_bytes += sent
            self._out = [memoryview(data)[sent:]] if sent < len(data) else []
        if self._out:
            self._wake.set()

    def reply(self, request_id: int, frame: bytes) -> None:
        """Answer a request."""
        mark = self._requests.pop(request_id, None)
        if mark is not None:
            mark[0].observe(time.perf_counter() - mark[2])
        self.send(frame)

    def reply_each(self, request_ids: Sequence[int], frames: bytes) -> None:
        """Answer several requests."""
        now_s = time.perf_counter()
        for request_id in request_ids:
            mark = self._requests.pop(request_id, None)
            if mark is not None:
                mark[0].observe(now_s - mark[2])
        self.send(frames)

    def send_error(self, request_id: int, error: SandqError) -> None:
        """Answer a request that failed; 0: tell what ends the connection."""
        mark = self._requests.pop(request_id, None)
        if mark is not None:
            mark[0].observe(time.perf_counter() - mark[2])
            self._stats.failures[mark[1], error.code] += 1
        elif not request_id:
            self._stats.errors[error.code] += 1
        self._tell(request_id, mark, error)
        self.add_hint(error)
        self.send(encode_error(request_id, error))

    def _tell(self, request_id: int, mark: Mark | None, error: SandqError) -> None:
        """To the log: what is our fault to everybody, the rest to who looks for it."""
        told = {
            "request_id": request_id or None,
            "request": mark[1] if mark is not None else None,
            "topic": error.details.get("topic"),
            "code": error.code,
            "error": error.message,
        }
        fields = {name: value for name, value in told.items() if value is not None}
        if error.code not in OURS:
            self._log.debug("a request was refused", **fields)
        elif (held_back := self._stats.warnings.held_back()) is not None:
            self._log.warning("a request failed", **fields, not_logged_before=held_back)

    @property
    def room(self) -> int:
        """For so many more requests to be worked on."""
        return self._limits.requests_per_connection - self._working

    def start(self, request_id: int, work: Callable[[], Awaitable[bytes]], wait_s: float = 0.0) -> None:
        """Run a request that takes a while; what it returns is the reply. `wait_s`: for so long it asks to wait."""
        self.start_many([request_id], work, wait_s)

    def start_many(self, request_ids: Sequence[int], work: Callable[[], Awaitable[bytes]], wait_s: float = 0.0) -> None:
        """Run requests that are done together; what it returns are their replies, one behind the other."""
        if len(request_ids) > self.room:
            raise Overloaded(f"{self._working} requests of this connection are being worked on; wait for their answers")
        self._working += len(request_ids)
        self._nursery.start_soon(self._work, request_ids, work, self._request_timeout_s + wait_s)

    async def _work(self, request_ids: Sequence[int], work: Callable[[], Awaitable[bytes]], timeout_s: float) -> None:
        failure: SandqError = TimedOut(f"not done within {timeout_s:g} s: the outcome is unknown")
        try:
            with trio.move_on_after(timeout_s) as within:
                try:
                    self.reply_each(request_ids, await work())
                except SandqError as error:
                    failure = error
                    failure = await error.settled() if isinstance(error, Unsure) else error
                else:
                    return
            if within.cancelled_caught:
                log.warning("a request took too long", requests=len(request_ids), timeout_s=timeout_s)
            for request_id in request_ids:
                self.send_error(request_id, failure)
        finally:
            self._working -= len(request_ids)

    def refuse(self, request_id: int, refusal: SandqError) -> None:
        """Answer a request that failed, once it is certain how."""

        async def work() -> bytes:
            raise refusal

        if isinstance(refusal, Unsure):
            try:
                self.start(request_id, work)
                return
            except SandqError as error:
                refusal = error
        self.send_error(request_id, refusal)

    async def run(self, make_session: Callable[[Connection], Session]) -> None:
        self._session = make_session(self)
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._write)
                nursery.start_soon(self._greeting_deadline)
                with self._reading:
                    await self._read()
                # What is queued still goes out: an error that says why, most often.
                self._ending = True
                self._wake.set()
                with trio.move_on_after(LAST_WORDS_S):
                    await self._written.wait()
                nursery.cancel_scope.cancel()
        finally:
            self.open = False
            self._session.closed()
            await trio.aclose_forcefully(self._stream)

    async def _read(self) -> None:
        reader = FrameReader(self._limits.frame_bytes)
        handle, stats = self._session.handle, self._stats
        while True:
            try:
                await trio.lowlevel.wait_readable(self._fd)
                data = os.read(self._fd, RECEIVE_BYTES)
            except BlockingIOError:
                continue
            except OSError:
                return
            if not data:
                return
            stats.received_bytes += len(data)
            if self._gate is not None:
                await self._gate()
            came_at, kind, mark = time.perf_counter(), -1, None
            try:
                for frame in reader.feed(data):
                    if frame[0] != kind:
                        kind = frame[0]
                        mark = stats.mark(kind, came_at)
                    if mark is not None:
                        self._requests[frame[1]] = mark
                    try:
                        handle(frame)
                    except ProtocolError:
                        raise
                    except SandqError as error:
                        self.refuse(frame[1], error)
                self._session.handled()
            except WrongPort as error:
                self._wrong_port(error)
                return
            except SandqError as error:
                # What a client said on its connection concerns that connection only.
                self.send_error(0, error)
                return
            while self.congested:
                # Not read, not answered: the client that does not read its answers waits for itself.
                self._sent = trio.Event()
                await self._sent.wait()

    async def _greeting_deadline(self) -> None:
        await trio.sleep(HELLO_S)
        if not self._session.greeted:
            self.send_error(0, ProtocolError(f"no HELLO within {HELLO_S:.0f} s"))
            self._reading.cancel()

    async def _write(self) -> None:
        while True:
            self._writing = True
            while self._out:
                frames, self._out = self._out, []
                size = self._out_bytes
                if not await self._send(frames[0] if len(frames) == 1 else b"".join(frames)):
                    self._nursery.cancel_scope.cancel()
                    return
                was_congested = self.congested
                self._out_bytes -= size
                self._sent.set()
                if was_congested and not self.congested:
                    self._session.drained()
            self._writing = False
            if self._ending:
                self._written.set()
                return
            self._wake = trio.Event()
            await self._wake.wait()

    async def _send(self, data: bytes | memoryview) -> bool:
        """In pieces: a client that is slow takes one after the other, a client that takes nothing is cut off."""
        view = memoryview(data)
        for start in range(0, len(data), SEND_BYTES):
            with trio.move_on_after(SEND_STALL_S) as scope:
                try:
                    await self._stream.send_all(view[start : start + SEND_BYTES])
                    self._stats.sent_bytes += len(view[start : start + SEND_BYTES])
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    return False
            if scope.cancelled_caught:
                if (held_back := self._stats.warnings.held_back()) is not None:
                    self._log.warning(
                        "a client takes nothing: its connection is closed",
                        waiting_bytes=self._out_bytes,
                        not_logged_before=held_back,
                    )
                return False
        return True

    def _wrong_port(self, error: WrongPort) -> None:
        if error.details.get("speaks") != "http":
            self.send_error(0, error)
            return
        text = "This is sandq's client port: it speaks the binary protocol of sandctl and the client library.\n" + (
            f"HTTP belongs to {self._http_address} on this node.\n" if self._http_address else ""
        )
        head = f"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: {len(text)}\r\n"
        self.send(f"{head}Connection: close\r\n\r\n{text}".encode())
