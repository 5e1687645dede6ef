"""One client connection: what comes on it is read and handled in turns, within limits; a clear end.

What goes out is in `Output`, what is not answered yet in `OpenRequests`.
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
from sandq.broker.event_loop import SHARED_WORK, Turn
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
from sandq.model.sources import source_of_caller
from sandq.protocol.frames import LARGE_BYTES, Frame, FrameReader, LargeFrame, Type, encode_error
from sandq.server.audit.requests import RequestAudit
from sandq.server.caller_requests import GRANTED_BYTES, RECEIVE_BYTES, CallerRequests, asking, sizes
from sandq.server.client_stats import ClientStats, Mark
from sandq.server.open_requests import OpenRequests
from sandq.server.output import Output, Sender
from sandq.server.wire import Transform, TransformedWire

log = structlog.get_logger("sandq.server")

RECEIVE_FEW_BYTES = 4096
"""While many frames are half received."""
HELLO_S = 10.0
HELLO_BYTES = 8192
"""The first frame, in bytes."""
FRAME_S = 10.0
FRAME_BYTES_PER_S = 512 << 10
"""A frame has so long to come whole, and a second more for so many bytes of it; what waits for its turn here is not
counted."""
SAID_BITS = 4
"""A frame is a unit of work, and one more for each 16 bytes of it, which most often are an item; but for batches."""
RECEIVE_BITS: Final = 12
"""A unit of work for each 4,096 bytes that are received, beside the frames in them."""
_PRODUCE = int(Type.PRODUCE)

Gate = Callable[[], Awaitable[None]]
"""Awaited before what came is looked at."""


class Connection:
    """Reads what a client says. Most receives are one call into the system: trio's streams cost ten times that."""

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
        """`request_timeout_s`: for a request that takes a while, beyond what it asks to wait. `memory`: of the node.
        `transform`: what is made of all bytes; None: nothing. `certificate_name`: of the client's certificate."""
        self.certificate_name = certificate_name
        """Who the client is by its certificate; None: it has shown none, or it names nobody."""
        self.is_encrypted = transform is not None
        """Whether what is said cannot be read on its way."""
        self.login: Login | None = None
        """What lets it in, if it has shown something that says who it is."""
        self.turn = Turn()
        """What is done for the requests of this connection as they come."""
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
            self.turn,
            transform=transform,
            reading=self._reading,
            log=own.log,
        )
        self._requests = OpenRequests(own, self.output, memory, limits, self._stats, self.turn, request_timeout_s)
        # The methods for answers. Handlers know nothing of the parts of a connection.
        self.send = self.output.send
        self.reply, self.reply_each = self._requests.reply, self._requests.reply_each
        self.send_error, self.refuse = self._requests.send_error, self._requests.refuse
        self.start, self.start_many = self._requests.start, self._requests.start_many
        self.ask_for, self.waits = self._requests.ask_for, self._requests.waits
        self._reserved_bytes = 0
        """For the frame of which a part has come."""
        self._is_half = False
        """Whether a part of a frame has come, whose rest must come in time."""
        self._due_s = math.inf
        """When the rest must have come."""
        self._deadline_s = math.inf
        """The deadline of reading: to look at that, and to change it, is not cheap."""
        self._was_told = False
        """Why it is not read any more."""
        self._nursery: trio.Nursery
        self._session: Session

    @property
    def open(self) -> bool:
        """Whether frames can still be sent."""
        return self.output.is_open

    @property
    def congested(self) -> bool:
        """Whether so much waits to be sent that nothing more should be made for this client."""
        return self.output.congested

    @property
    def waiting_bytes(self) -> int:
        """Of frames that are queued or being sent."""
        return self.output.waiting_bytes

    @property
    def requests(self) -> int:
        """How many are not answered yet."""
        return len(self._requests.marks)

    @property
    def is_gateway(self) -> bool:
        """Whether the client has proved to be a gateway. Once it runs."""
        return self._session.is_gateway

    @property
    def address(self) -> str:
        """Where it comes from."""
        return self._requests.own.caller.address

    @property
    def caller(self) -> Caller:
        """Who asks for what this task works on."""
        return self._requests.current.caller

    def hold_request(self, size: int) -> None:
        """Count bytes of a request beyond its frame; below 0 if it is answered."""
        self._requests.own.count(size)

    def observe(self, audit: RequestAudit, add_hint: Callable[[SandqError], None]) -> None:
        """Tell `audit` what becomes of requests; `add_hint` adds to an error what its receiver may want to know."""
        self._requests.audit, self._requests.add_hint = audit, add_hint

    def log_in(self, caller: Caller, login: Login | None) -> None:
        """It is known by now who asks by this connection itself. For who reads it."""
        self.login, own = login, self._requests.own
        own.caller, own.log = caller, own.log.bind(principal=caller.principal)
        structlog.contextvars.bind_contextvars(principal=caller.principal)

    async def run(self, make_session: Callable[[Connection], Session]) -> None:
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
                    if self._reading.cancelled_caught and self._session.greeted and not self._was_told:
                        error = Unavailable("a frame has not come whole in time; connect and send it again")
                        self.send_error(0, error)
                    await self.output.end()
                else:
                    # Nothing more is said. What was begun may take a while to end, and is to keep no socket meanwhile.
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
        if not await self.output.write():
            self._nursery.cancel_scope.cancel()

    def end(self, error: SandqError) -> None:
        """Tell the client why, and read nothing more of it."""
        self.send_error(0, error)
        self._was_told = True
        self._reading.cancel()

    def end_at_once(self, error: SandqError) -> None:
        """Tell the client why as far as its socket takes it now, and close that."""
        self.send_error(0, error)
        self.output.flush()
        self.output.cut_off()

    async def _read(self) -> None:
        reader = FrameReader(self._limits.frame_bytes, first_frame_bytes=HELLO_BYTES, defer_bytes=LARGE_BYTES)
        stats, incoming = self._stats, self._requests.own.incoming
        output, wire = self.output, self.output.wire
        received, is_transformed = wire.received, isinstance(wire, TransformedWire)
        more = False
        while True:
            try:
                if not more:
                    self._set_deadline(self._due_s)
                    await trio.lowlevel.wait_readable(self._fd)
                    self.turn.begin()
                elif self.turn.left <= 0:
                    # There is more, most often, and it waits for its turn here: that is not the client's time.
                    with self._not_counted():
                        await self.turn.end()
                size = RECEIVE_FEW_BYTES if incoming.is_waited_for else RECEIVE_BYTES
                data = b"" if wire.is_behind else os.read(self._fd, size)
            except BlockingIOError:
                more = False
                continue
            except OSError:
                return
            self.turn.left -= len(data) >> RECEIVE_BITS
            stats.received_bytes += len(data)
            try:
                plain = received(data)
            except SandqError as error:
                self.send_error(0, error)
                return
            if plain is None:
                return
            more = len(data) == size or wire.is_behind
            if is_transformed:
                self.turn.left -= wire.work
                output.send_due()
            if self._gate is not None:
                with self._not_counted():
                    await self._gate()
            came_at, came_bytes = time.perf_counter(), reader.buffered_bytes + len(plain)
            try:
                most = max(self.turn.left, 1)
                frames = reader.feed(plain, most)
                if self._is_half and frames:
                    self._came_whole()
                while True:
                    await self._handle(frames, came_at, came_bytes - reader.buffered_bytes)
                    if len(frames) < most:
                        break
                    came_bytes = reader.buffered_bytes
                    most = max(self.turn.left, SHARED_WORK)
                    frames = reader.feed(b"", most)
                self._session.handled()
            except WrongPort as error:
                self._wrong_port(error)
                return
            except SandqError as error:
                # What a client said on its connection concerns that connection only; what came before it stands.
                self._session.handled()
                self.send_error(0, error)
                return
            if output.congested:
                await self._until_sent()
            if self._requests.own.are_too_many:
                # Not read: the client that asks for more than is answered waits for its answers.
                with self._not_counted():
                    await self._requests.own.until_answered()
            if reader.buffered_bytes:
                if reader.wanted_bytes > HELLO_BYTES and not self._session.greeted:
                    self.send_error(0, ProtocolError(f"a frame of more than {HELLO_BYTES} bytes before it is let in"))
                    return
                await self._expect(reader)

    async def _handle(self, frames: list[Frame | LargeFrame], came_at: float, came_bytes: int) -> None:
        """Handle what has come, in turns: nobody waits longer for as much as one connection can ask at once. What goes
        together goes together nevertheless, once all of it is handled."""
        session, stats, turn, output = self._session, self._stats, self.turn, self.output
        requests = self._requests
        own, marks = requests.own, requests.marks
        counted, most_bytes = own, output.most_bytes
        kind, mark, size, unasked_bytes = -1, None, 0, 0
        produce_bytes, other_bytes, all_bytes = sizes(frames, came_bytes)
        own.count(all_bytes)
        other_work = 1 + (came_bytes // max(len(frames), 1) >> SAID_BITS)
        at, count = 0, len(frames)
        while at < count:
            # A PRODUCE is not worked on here, and is answered here when it is refused, which is much work.
            if turn.left <= 0 or (kind != _PRODUCE and (output.waiting_bytes > most_bytes or own.is_busy)):
                if output.waiting_bytes > most_bytes:
                    session.handled()
                    await self._until_sent()
                if own.is_busy:
                    session.handled()
                    await self._until_worked()
                await turn.end()
            if kind == _PRODUCE and mark is not None:
                together = session.gather(frames, at, turn.left, marks, mark)
                if together:
                    at += together
                    turn.left -= together
                    continue
            one = frames[at]
            at += 1
            frame = one if type(one) is list else await self._decode(one)  # type: ignore[arg-type]
            turn.left -= 1 if frame[0] == _PRODUCE else other_work
            if frame[0] != kind:
                kind = frame[0]
                size = produce_bytes if kind == _PRODUCE else other_bytes
                asks = requests.current
                # Batches count for the gateway, which makes them of messages of many callers.
                counted = own if kind == _PRODUCE else asks
                mark = stats.mark(kind, came_at, size, counted, asks)
            if mark is None:
                unasked_bytes += size
            elif frame[1] in marks:
                unasked_bytes += size
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
        if unasked_bytes:
            own.count(-unasked_bytes)

    async def _decode(self, large: LargeFrame) -> Frame:
        """Decode a large frame in turns."""
        self._session.handled()  # what came before it need not wait
        steps = large.decode()
        while True:
            try:
                work = next(steps)
            except StopIteration as end:
                frame: Frame = end.value
                return frame
            await self.turn.spend(work)

    async def _until_sent(self) -> None:
        """Not read, not answered: the client that does not read its answers waits for itself."""
        with self._not_counted():
            await self.output.until_sent()

    async def _until_worked(self) -> None:
        """Not read: the client that asks for more than is worked on waits for its answers."""
        with self._not_counted():
            await self._requests.own.until_worked()

    @contextmanager
    def _not_counted(self) -> Iterator[None]:
        """What half a frame waits for here is not taken off the time that its rest has to come."""
        self._set_deadline(math.inf)
        began_s = trio.current_time()
        try:
            yield
        finally:
            self._due_s += trio.current_time() - began_s

    def _set_deadline(self, at_s: float) -> None:
        """End reading then. It is set while the client is waited for: most frames are there."""
        if at_s != self._deadline_s:
            self._deadline_s = self._reading.deadline = at_s

    async def _expect(self, reader: FrameReader) -> None:
        """A part of a frame has come: there must be room for all of it, and its rest must come in time."""
        wanted = reader.wanted_bytes
        is_large = wanted > GRANTED_BYTES and not self._reserved_bytes
        if is_large:
            self._set_deadline(math.inf)
            await self._requests.own.incoming.reserve(wanted)
            self._reserved_bytes = wanted
        if is_large or not self._is_half:
            self._is_half = True
            self._due_s = trio.current_time() + FRAME_S + wanted / FRAME_BYTES_PER_S

    def _came_whole(self) -> None:
        """What half a frame needed is free again."""
        self._is_half = False
        self._due_s = math.inf
        self._set_deadline(math.inf)
        if self._reserved_bytes:
            self._requests.own.incoming.give_back(self._reserved_bytes)
            self._reserved_bytes = 0

    async def _greeting_deadline(self) -> None:
        await trio.sleep(HELLO_S)
        if not self._session.greeted:
            self.end(ProtocolError(f"no HELLO within {HELLO_S:.0f} s"))

    def _wrong_port(self, error: WrongPort) -> None:
        if error.details.get("speaks") != "http":
            self.send_error(0, error)
            return
        text = "This is sandq's client port: it speaks the binary protocol of sandctl and the client library.\n" + (
            f"HTTP belongs to {self._http_address} on this node.\n" if self._http_address else ""
        )
        head = f"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: {len(text)}\r\n"
        self.send(f"{head}Connection: close\r\n\r\n{text}".encode())


class Session(Protocol):
    """What the frames of a connection mean."""

    greeted: bool

    @property
    def is_gateway(self) -> bool:
        """Whether the client has proved to be a gateway."""
        ...

    def handle(self, frame: Frame) -> Awaitable[None] | None:
        """Start what a frame asks for. What takes long is returned, and awaited before the next frame is looked at.
        Raises SandqError: the request failed (ProtocolError: the connection)."""
        ...

    def gather(
        self, frames: Sequence[Frame | LargeFrame], first: int, most: int, requests: dict[int, Mark], mark: Mark
    ) -> int:
        """Take in so many from the `first` on, as long as they go together with the PRODUCE before them, and note them
        among the requests that are not answered yet: how many."""
        ...

    def handled(self) -> None:
        """Everything that came in one turn was handled."""
        ...

    def drained(self) -> None:
        """The connection takes frames again after it was congested."""
        ...

    async def closed(self) -> None:
        """The connection has gone."""
        ...
