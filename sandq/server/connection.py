"""One client connection: receives, parses and dispatches its frames in time slices, within limits.

`Output` holds the frames to send, and `OpenRequests` the requests that are not answered yet. The `Session` knows what
the frames mean.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Protocol

import structlog
import trio

from sandq.broker.access.authenticator import Login
from sandq.broker.event_loop import SHARED_WORK, TimeSlice
from sandq.broker.memory_budget import MemoryBudget
from sandq.model.caller import NODE, Caller
from sandq.model.errors import (
    Conflict,
    ProtocolError,
    SandqError,
    Unavailable,
    WrongPort,
)
from sandq.model.limits import Limits
from sandq.model.logger import get_logger
from sandq.model.sources import source_of_caller
from sandq.protocol.frames import LARGE_BYTES, Frame, FrameReader, LargeFrame, Type, encode_error
from sandq.server.audit.requests import RequestAudit
from sandq.server.caller_requests import GRANTED_BYTES, RECEIVE_BYTES, CallerRequests, asking, sizes
from sandq.server.client_stats import ClientStats, Mark
from sandq.server.open_requests import OpenRequests
from sandq.server.output import Output, Sender
from sandq.server.wire import Transform, TransformedWire

log = get_logger("sandq.server")

CROWDED_RECEIVE_BYTES = 4096
"""Bytes per receive while clients wait for memory for large frames."""
HELLO_S = 10.0
"""Maximum time until the client is let in, in seconds."""
HELLO_BYTES = 8192
"""Maximum size of the first frame, and of each frame before the client is let in, in bytes."""
FRAME_S = 10.0
FRAME_BYTES_PER_S = 512 << 10
"""Maximum time for the rest of an incomplete frame: `FRAME_S` seconds, plus a second for each `FRAME_BYTES_PER_S` of
its size.

Time in which this node does not read the connection does not count."""
FRAME_WORK_BITS = 4
"""A frame costs a unit of work, plus a unit for each 16 bytes (about the size of an item). PRODUCE costs one unit."""
RECEIVE_BITS: Final = 12
"""Each 4,096 received bytes cost a unit of work, in addition to the work of their frames."""
_PRODUCE = int(Type.PRODUCE)

Gate = Callable[[], Awaitable[None]]
"""Awaited after each receive, before the bytes are parsed."""


class Connection:
    """Reads the frames of a client and passes them to the session.

    Most receives are a single system call: trio's streams cost ten times as much."""

    def __init__(
        self,
        *,
        stream: trio.SocketStream,
        sender: Sender,
        limits: Limits,
        http_address: str,
        stats: ClientStats | None = None,
        gate: Gate | None = None,
        caller: Caller = NODE,
        request_timeout_s: float = math.inf,
        memory: MemoryBudget | None = None,
        transform: Transform | None = None,
        certificate_name: str | None = None,
    ) -> None:
        """Create the connection; `run` serves it.

        `request_timeout_s`: limit of a request that takes a while, in addition to the time that it asks to wait.
        `memory`: the budget of the node. `transform`: encodes and decodes all bytes (TLS); None: the wire is plain.
        `certificate_name`: the name in the client's certificate."""
        self.certificate_name = certificate_name
        """Name of the client in its certificate; None if it has shown none, or one without a name."""
        self.is_encrypted = transform is not None
        """Whether the bytes are encrypted on the wire."""
        self.login: Login | None = None
        """The login that admitted the client; None if it has shown no credentials."""
        self.time_slice = TimeSlice()
        """Time slice of the reader task. Each handled request uses a part of it."""
        self._stream = stream
        self._fd = stream.socket.fileno()
        self._gate = gate
        self._stats = stats if stats is not None else ClientStats()
        self._limits = limits
        self._http_address = http_address
        self._reading = trio.CancelScope()
        memory = memory if memory is not None else MemoryBudget(limits.memory_bytes)
        own = CallerRequests(caller, memory, limits, log.bind(**structlog.contextvars.get_contextvars()))
        self.output = Output(
            stream,
            sender,
            source_of_caller(caller),
            memory,
            limits,
            self._stats,
            self.time_slice,
            transform=transform,
            reading=self._reading,
            log=own.log,
        )
        self._requests = OpenRequests(own, self.output, memory, limits, self._stats, self.time_slice, request_timeout_s)
        # Handlers send replies through these methods, and know nothing of the parts of a connection.
        self.send = self.output.send
        self.reply, self.reply_each = self._requests.reply, self._requests.reply_each
        self.send_error, self.refuse = self._requests.send_error, self._requests.refuse
        self.start, self.start_many = self._requests.start, self._requests.start_many
        self.set_caller, self.waits = self._requests.set_caller, self._requests.waits
        self._reserved_bytes = 0
        """Bytes of request memory that are reserved for the incomplete frame."""
        self._has_partial_frame = False
        """Whether a frame is received in part; its rest must come before `_frame_deadline_s`."""
        self._frame_deadline_s = math.inf
        """Deadline for the rest of the incomplete frame, by trio's clock; infinite if there is none."""
        self._read_deadline_s = math.inf
        """Current deadline of the reader's cancel scope. Cached, because reading and setting the deadline of a scope is
        expensive."""
        self._is_end_sent = False
        """Whether `end` has sent the client the error that ends the connection."""
        self._nursery: trio.Nursery
        self._session: Session

    @property
    def open(self) -> bool:
        """Whether frames can still be sent."""
        return self.output.is_open

    @property
    def congested(self) -> bool:
        """Whether too many bytes wait to be sent. If so, nothing more should be read for this client, and no replies
        made."""
        return self.output.congested

    @property
    def waiting_bytes(self) -> int:
        """Bytes of frames that are queued or being sent."""
        return self.output.waiting_bytes

    @property
    def requests(self) -> int:
        """Number of requests that are not answered yet."""
        return len(self._requests.marks)

    @property
    def is_gateway(self) -> bool:
        """Whether the client has proved to be a gateway. Valid once the connection runs."""
        return self._session.is_gateway

    @property
    def address(self) -> str:
        """Address of the client."""
        return self._requests.own.caller.address

    @property
    def caller(self) -> Caller:
        """Caller for whom the current task works."""
        return self._requests.current.caller

    def hold_request(self, size: int) -> None:
        """Count `size` bytes that a request holds in addition to its frame. A negative size releases such bytes."""
        self._requests.own.count(size)

    def observe(self, audit: RequestAudit, add_hint: Callable[[SandqError], None]) -> None:
        """Report the outcome of requests to `audit`, and let `add_hint` add details for the client to each error."""
        self._requests.audit, self._requests.add_hint = audit, add_hint

    def log_in(self, caller: Caller, login: Login | None) -> None:
        """Set the authenticated caller of the connection itself. Call from the reader task only."""
        self.login, own = login, self._requests.own
        own.caller, own.log = caller, own.log.bind(principal=caller.principal)
        structlog.contextvars.bind_contextvars(principal=caller.principal)

    async def run(self, make_session: Callable[[Connection], Session]) -> None:
        """Serve the client until it disconnects, violates the protocol, or is too slow. Then release all memory."""
        self._session = make_session(self)
        self.output.on_drained = self._session.drained
        asking.set(self._requests.own)
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = self._requests.nursery = nursery
                nursery.start_soon(self._write)
                nursery.start_soon(self._greeting_deadline)
                with self._reading:
                    await self._read()
                if self.open:
                    if self._reading.cancelled_caught and self._session.greeted and not self._is_end_sent:
                        error = Unavailable("a frame was not received completely in time; connect and send it again")
                        self.send_error(0, error)
                    await self.output.end()
                else:
                    # Nothing more can be sent. Requests that have begun may take a while to end; close the socket
                    # before.
                    await trio.aclose_forcefully(self._stream)
                self.output.is_open = False
                await self._requests.end_listening()
                nursery.cancel_scope.cancel()
        finally:
            self.output.is_open = False
            self._requests.own.incoming.give_back(self._reserved_bytes)
            self._reserved_bytes = 0
            self._requests.clear()
            self.output.clear()
            with trio.CancelScope(shield=True):
                await self._session.closed()
            await trio.aclose_forcefully(self._stream)

    async def _write(self) -> None:
        """Send frames, and end the connection once nothing more can be sent."""
        if not await self.output.write():
            self._nursery.cancel_scope.cancel()

    def end(self, error: SandqError) -> None:
        """Send the client the error that ends the connection, and stop reading."""
        self.send_error(0, error)
        self._is_end_sent = True
        self._reading.cancel()

    def end_at_once(self, error: SandqError) -> None:
        """Send the bytes of an error that the socket accepts now, and end the connection."""
        self.send_error(0, error)
        self.output.flush()
        self.output.cut_off()

    async def _read(self) -> None:
        """Receive bytes and handle the frames in them, until the client ends the stream or violates the protocol.

        Each iteration waits for bytes, receives and decodes them, and parses and handles frames in time slices. Then it
        waits while too much is unsent or unanswered, or for memory for a large frame (back-pressure)."""
        reader = FrameReader(self._limits.frame_bytes, first_frame_bytes=HELLO_BYTES, defer_bytes=LARGE_BYTES)
        stats, own = self._stats, self._requests.own
        incoming, output, wire = own.incoming, self.output, self.output.wire
        received, is_transformed = wire.received, isinstance(wire, TransformedWire)
        has_more = False  # True: the last receive filled its buffer, so the next one probably need not wait
        while True:
            try:
                if not has_more:
                    self._set_deadline(self._frame_deadline_s)
                    await trio.lowlevel.wait_readable(self._fd)
                    self.time_slice.begin()
                elif self.time_slice.left <= 0:
                    # Most often, more bytes are there already: the time of other tasks is no delay of the client.
                    with self._frame_deadline_paused():
                        await self.time_slice.end()
                size = CROWDED_RECEIVE_BYTES if incoming.is_waited_for else RECEIVE_BYTES
                # A wire that is behind (TLS) has received bytes that it has not decoded yet: read no more of them.
                data = b"" if wire.is_behind else os.read(self._fd, size)
            except BlockingIOError:
                has_more = False
                continue
            except OSError:
                return
            self.time_slice.left -= len(data) >> RECEIVE_BITS
            stats.received_bytes += len(data)
            try:
                plain = received(data)
            except SandqError as error:
                self.send_error(0, error)
                return
            if plain is None:
                return
            has_more = len(data) == size or wire.is_behind
            if is_transformed:
                self.time_slice.left -= wire.work
                output.send_due()
            if self._gate is not None:
                with self._frame_deadline_paused():
                    await self._gate()
            received_at, received_bytes = time.perf_counter(), reader.buffered_bytes + len(plain)
            try:
                most = max(self.time_slice.left, 1)  # each frame costs at least one unit of work
                frames = reader.feed(plain, most)
                if self._has_partial_frame and frames:
                    self._end_partial_frame()
                while True:
                    await self._handle(frames, received_at, received_bytes - reader.buffered_bytes)
                    if len(frames) < most:
                        break
                    received_bytes = reader.buffered_bytes
                    most = max(self.time_slice.left, SHARED_WORK)
                    frames = reader.feed(b"", most)  # parse further frames from the bytes that it already has
                self._session.handled()
            except WrongPort as error:
                self._wrong_port(error)
                return
            except SandqError as error:
                # A protocol error ends this connection only. Requests that came before it still take effect.
                self._session.handled()
                self.send_error(0, error)
                return
            if output.congested or own.are_too_many:
                await self._hold_back()
            if reader.buffered_bytes:
                if reader.wanted_bytes > HELLO_BYTES and not self._session.greeted:
                    self.send_error(0, ProtocolError(f"a frame of more than {HELLO_BYTES} bytes before HELLO"))
                    return
                await self._begin_partial_frame(reader)

    async def _handle(self, frames: list[Frame | LargeFrame], received_at: float, received_bytes: int) -> None:
        """Handle the frames of one receive in time slices, so that one connection cannot hold up the others.

        The session gathers requests that can be done together. `handled` tells it that no further request follows for
        now."""
        session, stats, time_slice, output = self._session, self._stats, self.time_slice, self.output
        requests = self._requests
        own, marks = requests.own, requests.marks
        counted, most_bytes = own, output.most_bytes
        # `kind`, `mark`, `size`: those of the previous frame. Consecutive frames of one type share a mark.
        kind, mark, size, no_reply_bytes = -1, None, 0, 0
        produce_bytes, other_bytes, all_bytes = sizes(frames, received_bytes)
        own.count(all_bytes)
        other_work = 1 + (received_bytes // max(len(frames), 1) >> FRAME_WORK_BITS)
        at, count = 0, len(frames)
        while at < count:
            # Handling a PRODUCE only gathers it, so back-pressure is not checked for each. Refused PRODUCE requests use
            # up the time slice quickly, because their error replies count as much work. `_end_slice` then checks.
            if time_slice.left <= 0 or (kind != _PRODUCE and (output.waiting_bytes > most_bytes or own.is_busy)):
                await self._end_slice(most_bytes)
            if kind == _PRODUCE and mark is not None:
                # A fast path: gather as many of the next PRODUCE frames as possible in one call.
                together = session.gather(frames, at, time_slice.left, marks, mark)
                if together:
                    at += together
                    time_slice.left -= together
                    continue
            one = frames[at]
            at += 1
            frame = one if type(one) is list else await self._decode(one)  # type: ignore[arg-type]
            time_slice.left -= 1 if frame[0] == _PRODUCE else other_work
            if frame[0] != kind:
                kind = frame[0]
                size = produce_bytes if kind == _PRODUCE else other_bytes
                sender = requests.current
                # A PRODUCE counts for the gateway itself: it merges messages of many callers into one batch.
                counted = own if kind == _PRODUCE else sender
                mark = stats.mark(kind, received_at, size, counted, sender)
            if mark is None:
                no_reply_bytes += size
            elif frame[1] in marks:
                no_reply_bytes += size
                self.send(encode_error(frame[1], Conflict(f"request {frame[1]} is not answered yet")))
                continue
            else:
                marks[frame[1]] = mark
            try:
                if counted is not own and mark is not None:
                    own.hand_over(size, counted)
                rest = session.handle(frame)
                if rest is not None:
                    await rest
            except ProtocolError:
                raise
            except SandqError as error:
                requests.refuse(frame[1], error)
        if no_reply_bytes:  # no reply will release the memory of these requests
            own.count(-no_reply_bytes)

    async def _end_slice(self, most_bytes: int) -> None:
        """Wait while more than `most_bytes` are unsent, or too many requests are in progress. End the time slice."""
        if self.output.waiting_bytes > most_bytes:
            self._session.handled()
            await self._until_sent()
        if self._requests.own.is_busy:
            self._session.handled()
            await self._until_worked()
        await self.time_slice.end()

    async def _decode(self, large: LargeFrame) -> Frame:
        """Decode a large frame in time slices."""
        self._session.handled()  # the gathered requests of earlier frames need not wait until this frame is decoded
        steps = large.decode()
        while True:
            try:
                work = next(steps)
            except StopIteration as end:
                frame: Frame = end.value
                return frame
            await self.time_slice.spend(work)

    async def _hold_back(self) -> None:
        """Wait until the client has read enough of its replies, and until enough of its requests are answered."""
        if self.output.congested:
            await self._until_sent()
        if self._requests.own.are_too_many:
            with self._frame_deadline_paused():
                await self._requests.own.until_answered()

    async def _until_sent(self) -> None:
        """Wait until the client has read enough of its replies. Until then, the connection reads nothing and handles no
        further request."""
        with self._frame_deadline_paused():
            await self.output.until_sent()

    async def _until_worked(self) -> None:
        """Wait until fewer requests are being worked on. Until then, the connection reads nothing."""
        with self._frame_deadline_paused():
            await self._requests.own.until_worked()

    @contextmanager
    def _frame_deadline_paused(self) -> Iterator[None]:
        """Extend the deadline of an incomplete frame by the time that this node spends in the block."""
        self._set_deadline(math.inf)
        began_s = trio.current_time()
        try:
            yield
        finally:
            self._frame_deadline_s += trio.current_time() - began_s

    def _set_deadline(self, at_s: float) -> None:
        """Set the time at which reading ends. Called only before a wait for the client: most frames arrive without a
        wait."""
        if at_s != self._read_deadline_s:
            self._read_deadline_s = self._reading.deadline = at_s

    async def _begin_partial_frame(self, reader: FrameReader) -> None:
        """Reserve memory for the incomplete frame, if it is large, and set the deadline for its rest."""
        wanted = reader.wanted_bytes
        is_large = wanted > GRANTED_BYTES and not self._reserved_bytes
        if is_large:
            self._set_deadline(math.inf)
            await self._requests.own.incoming.reserve(wanted)
            self._reserved_bytes = wanted
        if is_large or not self._has_partial_frame:
            self._has_partial_frame = True
            self._frame_deadline_s = trio.current_time() + FRAME_S + wanted / FRAME_BYTES_PER_S

    def _end_partial_frame(self) -> None:
        """Release the memory and the deadline of a frame that is complete now."""
        self._has_partial_frame = False
        self._frame_deadline_s = math.inf
        self._set_deadline(math.inf)
        if self._reserved_bytes:
            self._requests.own.incoming.give_back(self._reserved_bytes)
            self._reserved_bytes = 0

    async def _greeting_deadline(self) -> None:
        """End the connection if the client is not let in within `HELLO_S`."""
        await trio.sleep(HELLO_S)
        if not self._session.greeted:
            self.end(ProtocolError(f"no HELLO within {HELLO_S:.0f} s"))

    def _wrong_port(self, error: WrongPort) -> None:
        """Answer a client of a different protocol. A client of HTTP gets a response that names the HTTP port."""
        if error.details.get("speaks") != "http":
            self.send_error(0, error)
            return
        text = "This is sandq's client port: it speaks the binary protocol of sandctl and the client library.\n" + (
            f"HTTP belongs to {self._http_address} on this node.\n" if self._http_address else ""
        )
        head = f"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: {len(text)}\r\n"
        self.send(f"{head}Connection: close\r\n\r\n{text}".encode())


class Session(Protocol):
    """Handles the requests in the frames of a connection."""

    greeted: bool

    @property
    def is_gateway(self) -> bool:
        """Whether the client has proved to be a gateway."""
        ...

    def handle(self, frame: Frame) -> Awaitable[None] | None:
        """Start a request. If an awaitable is returned, await it before the next frame is handled.

        Raise SandqError if the request failed, ProtocolError if that must end the connection."""
        ...

    def gather(
        self, frames: Sequence[Frame | LargeFrame], first: int, most: int, requests: dict[int, Mark], mark: Mark
    ) -> int:
        """Gather at most `most` PRODUCE requests from `frames[first]` on, as long as they are like the previous
        request.

        Note each of them in `requests`, with `mark`. Return their number."""
        ...

    def handled(self) -> None:
        """Note that all frames of a receive were handled: start the gathered requests."""
        ...

    def drained(self) -> None:
        """Note that the connection accepts frames again after it was congested."""
        ...

    async def closed(self) -> None:
        """Note that the connection has ended."""
        ...
