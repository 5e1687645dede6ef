"""One client connection: frames in, frames out, each coalesced; limits; a clear end."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import Final
from weakref import WeakValueDictionary

import structlog
import trio

from sandq.broker import verbose
from sandq.broker.access.authenticator import Login
from sandq.broker.event_loop import SHARED_WORK, Turn
from sandq.broker.memory_budget import MemoryBudget
from sandq.broker.peers.metadata_barrier import Unsure
from sandq.model.caller import NODE, Caller
from sandq.model.errors import (
    Conflict,
    Overloaded,
    ProtocolError,
    SandqError,
    TimedOut,
    Unavailable,
    WrongPort,
    let_go,
)
from sandq.model.limits import Limits
from sandq.model.sources import source_of_caller
from sandq.protocol.frames import LARGE_BYTES, Frame, FrameReader, LargeFrame, Type, encode_error
from sandq.server.audit.requests import RequestAudit
from sandq.server.caller_requests import BEGUN_WORK, GRANTED_BYTES, CallerRequests, asking
from sandq.server.client_stats import OURS, ClientStats, Mark
from sandq.server.request_sizes import RECEIVE_BYTES, sizes
from sandq.server.send_queue import SendQueue
from sandq.server.sender import Sender
from sandq.server.session_protocol import Session
from sandq.server.verbose_lines import tell_answered
from sandq.server.wire import PlainWire, Transform, TransformedWire, Wire

log = structlog.get_logger("sandq.server")

RECEIVE_FEW_BYTES = 4096
"""While many frames are half received."""
SEND_BYTES = 262_144
FLUSH_BYTES: Final = 1 << 20
"""What is tried to be sent at once; the rest follows in pieces of `SEND_BYTES`."""
SEND_STALL_S = 30.0
"""A client that does not take a piece of `SEND_BYTES` for so long is cut off ..."""
CROWDED_STALL_S = 2.0
"""... and for so long, while others get no answers because there is too much that is not taken."""
HELLO_S = 10.0
HELLO_BYTES = 8192
"""The first frame, in bytes."""
FRAME_S = 10.0
FRAME_BYTES_PER_S = 512 << 10
"""A frame has so long to come whole, and a second more for so many bytes of it; what waits for its turn here is not
counted."""
ANSWERS_GRANTED_BYTES = 16 << 10
"""Of answers that every connection may have waiting, whatever others have."""
UNSENT_BYTES: Final = 1 << 20
"""While more bytes of answers than that wait for a client to take them it is not read, and nothing is read for it: the
system has as much again and more on its way, so that who takes them is not kept waiting ..."""
CONNECTION_SHARE = 1 / 8
"""... and no more than so much of all answers."""
SAID_BITS = 4
"""A frame is a unit of work, and one more for each 16 bytes of it, which most often are an item; but for batches."""
RECEIVE_BITS: Final = 12
"""A unit of work for each 4,096 bytes that are received, beside the frames in them."""
UNIT_BITS = 10
"""An answer is a unit of work for each 1,024 bytes, beside what it cost to make: a turn gives 1 MiB, and the last."""
REFUSAL_WORK = 16
"""Of an answer that says why not."""
LAST_WORDS_S = 1.0
CALLERS: Final = 4096
"""On whose behalf a gateway may have requests under way at a time; those of more are its own."""
_PRODUCE = int(Type.PRODUCE)


Answer = bytes | list[bytes]
"""A frame, or the parts of one in their order."""
Gate = Callable[[], Awaitable[None]]
"""Awaited before what came is looked at."""


class Connection:
    """Frames to send gather until the sender's turn, and go out as one. Nothing awaits per frame.

    Most receives and sends are one call into the system: trio's streams, which cost ten times that, are there for what
    the socket does not take at once.
    """

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
        self._request_timeout_s = request_timeout_s
        self._stream = stream
        self._fd = stream.socket.fileno()
        self._sender = sender
        self._gate = gate
        self._stats = stats if stats is not None else ClientStats()
        self.add_hint: Callable[[SandqError], None] = lambda error: None
        """Adds to an error what its receiver may want to know; set by the session."""
        self.audit = RequestAudit(None)
        """Told what becomes of requests; set by the session."""
        self.turn = Turn()
        """What is done for the requests of this connection as they come."""
        self._requests: dict[int, Mark] = {}
        """Those that are not answered yet."""
        self._limits = limits
        self._http_address = http_address
        memory = memory if memory is not None else MemoryBudget(limits.memory_bytes)
        self._memory = memory
        # What is answered is answered in other tasks, too.
        self.login: Login | None = None
        """What lets it in, if it has shown something that says who it is."""
        self._own = CallerRequests(caller, memory, limits, log.bind(**structlog.contextvars.get_contextvars()))
        self._callers: WeakValueDictionary[Caller, CallerRequests] = WeakValueDictionary()
        """Those on whose behalf a gateway has requests under way, and the last one."""
        self._answers = memory.answers.of(source_of_caller(caller))
        self._incoming = self._own.incoming
        most = limits.in_flight_bytes_per_connection
        self._most_bytes = min(most, UNSENT_BYTES, int(CONNECTION_SHARE * memory.answers.share_bytes))
        self._reserved_bytes = 0
        """For the frame of which a part has come."""
        self._is_half = False
        """There is such a frame, and its rest must come in time, ..."""
        self._due_s = math.inf
        """... namely until then."""
        self._read_bytes = 0
        """Of answers that the apply thread has read, ever ..."""
        self._let_go_bytes = 0
        """... and of those that are frames by now, or are not needed."""
        self._was_congested = False
        self._out = SendQueue()
        self._wire: Wire = PlainWire(self._out) if transform is None else TransformedWire(self._out, transform)
        self._writing = False
        self._wake = trio.Event()
        self._sent = trio.Event()
        self._room_line = trio.Lock()
        """Of those who wait for room, the first has it."""
        self._reading = trio.CancelScope()
        self._deadline_s = math.inf
        """Its deadline: to look at that, and to change it, is not cheap."""
        self._was_told = False
        """Why it is not read any more."""
        self._ending = False
        self._listening: dict[trio.CancelScope, None] = {}
        """Of requests that wait for something to happen."""
        self._written = trio.Event()
        self._nursery: trio.Nursery
        self._session: Session
        self.open = True

    @property
    def congested(self) -> bool:
        """So much waits to be sent that nothing more should be made for this client."""
        waiting_bytes = self._out.bytes
        is_little = waiting_bytes <= self._most_bytes and (
            waiting_bytes <= ANSWERS_GRANTED_BYTES or not self._answers.is_full
        )
        if self.open and is_little:
            return False
        self._was_congested = True
        return True

    # -- room for answers that are read (`LinearizableReads`) --------------------------------------------------

    @property
    def has_room(self) -> bool:
        """Whether more may be read for this client. For any thread."""
        waiting_bytes = self._out.bytes + self._read_bytes - self._let_go_bytes
        return waiting_bytes <= self._most_bytes and not self._answers.is_full

    async def until_room(self) -> None:
        """Wait until more may be read for this client. One goes on after the other: the next answer may take all of it,
        and hundreds would be woken for nothing with every piece that is sent."""
        async with self._room_line:
            while not self.has_room:
                if self._answers.is_full:
                    await self._answers.until_room()
                else:
                    await self._sent.wait()

    def hold(self, size: int) -> None:
        """So much was read for this client. On the apply thread."""
        self._read_bytes += size
        self._answers.hold(size)

    def take(self, size: int) -> None:
        """So much was read for this client. On the loop."""
        self._let_go_bytes -= size
        self._answers.take(size)

    def let_go(self, size: int) -> None:
        """What was read becomes a frame, or is not needed."""
        self._let_go_bytes += size
        self._answers.give_back(size)
        self._notify_sent()

    def _notify_sent(self) -> None:
        """Wake who waits for bytes to go."""
        sent, self._sent = self._sent, trio.Event()
        sent.set()

    def hold_request(self, size: int) -> None:
        """Count bytes of a request beyond its frame; below 0 if it is answered."""
        self._own.count(size)

    @property
    def waiting_bytes(self) -> int:
        """Of frames that are queued or being sent."""
        return self._out.bytes

    @property
    def requests(self) -> int:
        """How many are not answered yet."""
        return len(self._requests)

    @property
    def is_gateway(self) -> bool:
        """Whether the client has proved to be a gateway. Once it runs."""
        return self._session.is_gateway

    def send(self, frame: Answer) -> None:
        """Queue a frame. Once the connection is closed, frames go nowhere."""
        if self.open:
            out = self._out
            if not out and not self._writing:
                self._sender.add(self)
            held = out.bytes
            if isinstance(frame, list):
                for part in frame:
                    out.add(part)
            else:
                out.add(frame)
            size = out.bytes - held
            self._answers.take(size)
            self.turn.left -= size >> UNIT_BITS

    def _sent_out(self, sent: int) -> None:
        """So many bytes have left this node."""
        self._stats.sent_bytes += sent
        held_no_more = self._out.drop(self._wire.left(sent))
        if held_no_more:
            self._answers.give_back(held_no_more)

    def flush(self) -> None:
        """Send what has gathered, as far as the socket takes it now; `_write` sends the rest, and meets the errors."""
        wire = self._wire
        if self._writing or not self.open or not wire.is_due():
            return
        if not self.congested:
            try:
                buffers = wire.head(FLUSH_BYTES)
                sent = os.write(self._fd, buffers[0]) if len(buffers) == 1 else os.writev(self._fd, buffers)
            except Exception:
                # It is met again where it ends this connection, and no other.
                self._wake.set()
                return
            self._sent_out(sent)
        if wire.is_due() or self._was_congested:
            self._wake.set()

    def reply(self, request_id: int, frame: Answer) -> None:
        """Answer a request."""
        mark = self._requests.pop(request_id, None)
        if self.audit.acts:
            self.audit.answered(request_id)
        if mark is not None:
            mark[0].observe(time.perf_counter() - mark[2])
            mark[4].count(-mark[3])
        if verbose.is_on():
            tell_answered(self._own, [request_id], [mark])
        self.send(frame)

    def reply_each(self, request_ids: Sequence[int], frames: Answer) -> None:
        """Answer several requests."""
        now_s, own, answered_bytes = time.perf_counter(), self._own, 0
        pop = self._requests.pop
        if self.audit.acts:
            for request_id in request_ids:
                self.audit.answered(request_id)
        marks = [pop(request_id, None) for request_id in request_ids]
        if verbose.is_on():
            tell_answered(self._own, request_ids, marks)
        mark = marks[0] if marks else None
        if mark is not None and marks.count(mark) == len(marks):  # they came together
            mark[0].observe(now_s - mark[2], len(marks))
            mark[4].count(-mark[3] * len(marks))
            self.send(frames)
            return
        for mark in marks:
            if mark is not None:
                mark[0].observe(now_s - mark[2])
                if mark[4] is own:
                    answered_bytes += mark[3]
                else:
                    mark[4].count(-mark[3])
        own.count(-answered_bytes)
        self.send(frames)

    def send_error(self, request_id: int, error: SandqError) -> None:
        """Answer a request that failed; 0: tell what ends the connection."""
        mark = self._requests.pop(request_id, None)
        if mark is not None:
            mark[0].observe(time.perf_counter() - mark[2])
            self._stats.failures[mark[1], error.code] += 1
            mark[4].count(-mark[3])
        elif not request_id:
            self._stats.errors[error.code] += 1
        self.turn.left -= REFUSAL_WORK
        self._tell(request_id, mark, error)
        asks = self._own if mark is None else mark[5]
        self.audit.failed(request_id, "connection" if mark is None else mark[1], asks.caller, error)
        self.add_hint(error)
        self.send(encode_error(request_id, error))
        let_go(error)

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
        about = (self._own if mark is None else mark[5]).log
        if error.code not in OURS:
            about.debug("a request was refused", **fields)
        elif (held_back := self._stats.warnings.held_back()) is not None:
            about.warning("a request failed", **fields, not_logged_before=held_back)

    # -- whose requests they are, and what they take ------------------------------------------------------------

    @property
    def _asking(self) -> CallerRequests:
        asks, own = asking.get(self._own), self._own
        # A task that was begun for another connection may do something for this one.
        return asks if asks is own or self._callers.get(asks.caller) is asks else own

    @property
    def address(self) -> str:
        """Where it comes from."""
        return self._own.caller.address

    @property
    def caller(self) -> Caller:
        """Who asks for what this task works on."""
        return self._asking.caller

    def log_in(self, caller: Caller, login: Login | None) -> None:
        """It is known by now who asks by this connection itself. For who reads it."""
        self.login, own = login, self._own
        own.caller, own.log = caller, own.log.bind(principal=caller.principal)
        structlog.contextvars.bind_contextvars(principal=caller.principal)

    def ask_for(self, caller: Caller | None) -> None:
        """What follows is asked on behalf of a caller; None: for this connection itself. For who reads it."""
        own = self._own
        asks = own if caller is None else self._callers.get(caller)
        if caller is not None and asks is None and (len(self._callers) < CALLERS or caller.access is not None):
            about = own.log.bind(principal=caller.principal, peer=caller.address, gateway=own.caller.address)
            asks = CallerRequests(caller, self._memory, self._limits, about, has_connection=False)
            self._callers[caller] = asks
        elif caller is not None and asks is not None:
            asks.caller = caller  # it may do something else by now
        asking.set(asks or own)
        # Of what is logged by the tasks that are begun for it.
        structlog.contextvars.bind_contextvars(principal=self.caller.principal, peer=self.caller.address)
        if asks is None or asks is own:
            structlog.contextvars.unbind_contextvars("gateway")
        else:
            structlog.contextvars.bind_contextvars(gateway=own.caller.address)

    def waits(self, size: int) -> AbstractContextManager[None]:
        """Count a request that waits for something to happen, and what it takes beyond `WAITING_BYTES`. Raises
        Overloaded."""
        return self._asking.waits(size)

    def start(self, request_id: int, work: Callable[[], Awaitable[Answer]], wait_s: float = 0.0) -> None:
        """Run a request that takes a while; what it returns is the reply. `wait_s`: for so long it asks to wait. Raises
        Overloaded when as many wait as may, or as `start_many` does."""
        if not wait_s:
            self.start_many([request_id], work)
            return
        asks, scope = self._asking, trio.CancelScope()
        asks.listen()
        self._listening[scope] = None
        self._nursery.start_soon(self._listen, scope, asks, self._begun(asks, [request_id], work, wait_s))

    def start_many(self, request_ids: Sequence[int], work: Callable[[], Awaitable[Answer]]) -> None:
        """Run requests that are done together; what it returns are their replies, one behind the other. Raises
        Overloaded when a gateway's caller has as many under way as may be."""
        asks = self._asking
        asks.begin(len(request_ids))
        asks.do(len(request_ids), self._begun(asks, request_ids, work), self._nursery)

    def _begun(
        self,
        asks: CallerRequests,
        request_ids: Sequence[int],
        work: Callable[[], Awaitable[Answer]],
        wait_s: float = 0.0,
    ) -> Callable[[], Awaitable[None]]:
        """What answers requests within the time that they have from now on."""
        self.turn.left -= BEGUN_WORK
        timeout_s = self._request_timeout_s + wait_s
        return partial(self._work, asks, request_ids, work, timeout_s, trio.current_time() + timeout_s)

    async def _listen(self, scope: trio.CancelScope, asks: CallerRequests, done: Callable[[], Awaitable[None]]) -> None:
        with scope:
            try:
                await done()
            finally:
                del self._listening[scope]
                asks.listening -= 1

    async def _end_listening(self) -> None:
        """End what waits for something to happen, in turns: all at once would be a long one."""
        turn = Turn()
        for scope in list(self._listening):
            scope.cancel()
            await turn.spend(BEGUN_WORK)

    async def _until_worked(self) -> None:
        """Not read: the client that asks for more than is worked on waits for its answers."""
        with self._not_counted():
            await self._own.until_worked()

    async def _work(
        self,
        asks: CallerRequests,
        request_ids: Sequence[int],
        work: Callable[[], Awaitable[Answer]],
        timeout_s: float,
        deadline_s: float,
    ) -> None:
        if not self.open:
            return  # it was to come after others, and nobody waits for it any more
        failure: SandqError = TimedOut(f"not done within {timeout_s:g} s: the outcome is unknown")
        with trio.move_on_at(deadline_s) as within:
            try:
                self.reply_each(request_ids, await work())
            except SandqError as error:
                failure = error
                failure = await error.settled() if isinstance(error, Unsure) else error
            else:
                return
        if within.cancelled_caught:
            asks.log.warning("a request took too long", requests=len(request_ids), timeout_s=timeout_s)
        for request_id in request_ids:
            self.send_error(request_id, failure)

    def refuse(self, request_id: int, refusal: SandqError) -> None:
        """Answer a request that failed, once it is certain how."""

        async def work() -> bytes:
            raise refusal

        if isinstance(refusal, Unsure):
            with suppress(Overloaded):  # then it is answered as it is: to be asked again
                self.start(request_id, work)
                return
        self.send_error(request_id, refusal)

    async def run(self, make_session: Callable[[Connection], Session]) -> None:
        self._session = make_session(self)
        asking.set(self._own)
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._write)
                nursery.start_soon(self._greeting_deadline)
                with self._reading:
                    await self._read()
                if self.open:
                    await self._say_last_words()
                else:
                    # Nothing more is said. What was begun may take a while to end, and is to keep no socket meanwhile.
                    await trio.aclose_forcefully(self._stream)
                self.open = False
                await self._end_listening()
                nursery.cancel_scope.cancel()
        finally:
            self.open = False
            self.audit.end()
            self._incoming.give_back(self._reserved_bytes)
            self._reserved_bytes = 0
            for asks in (self._own, *self._callers.values()):
                asks.clear()
            self._requests.clear()
            self._answers.give_back(self._out.clear())
            self._notify_sent()
            with trio.CancelScope(shield=True):
                await self._session.closed()
            await trio.aclose_forcefully(self._stream)

    def end(self, error: SandqError) -> None:
        """Tell the client why, and read nothing more of it."""
        self.send_error(0, error)
        self._was_told = True
        self._reading.cancel()

    def end_at_once(self, error: SandqError) -> None:
        """Tell the client why as far as its socket takes it now, and close that."""
        self.send_error(0, error)
        self.flush()
        self._cut_off()

    async def _say_last_words(self) -> None:
        """Let what is queued still go out: an error that says why, most often."""
        if self._reading.cancelled_caught and self._session.greeted and not self._was_told:
            self.send_error(0, Unavailable("a frame has not come whole in time; connect and send it again"))
        self._ending = True
        self._wake.set()
        with trio.move_on_after(LAST_WORDS_S):
            await self._written.wait()

    def _cut_off(self) -> None:
        """The client takes nothing, or has gone."""
        self.open = False
        self._written.set()
        self._reading.cancel()

    async def _read(self) -> None:
        reader = FrameReader(self._limits.frame_bytes, first_frame_bytes=HELLO_BYTES, defer_bytes=LARGE_BYTES)
        stats, incoming = self._stats, self._incoming
        wire = self._wire
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
                if not self._writing and wire.is_due():
                    self._sender.add(self)  # it has words of its own, or may send at last
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
            if self.congested:
                await self._until_sent()
            if self._own.are_too_many:
                # Not read: the client that asks for more than is answered waits for its answers.
                with self._not_counted():
                    await self._own.until_answered()
            if reader.buffered_bytes:
                if reader.wanted_bytes > HELLO_BYTES and not self._session.greeted:
                    self.send_error(0, ProtocolError(f"a frame of more than {HELLO_BYTES} bytes before it is let in"))
                    return
                await self._expect(reader)

    async def _handle(self, frames: list[Frame | LargeFrame], came_at: float, came_bytes: int) -> None:
        """Handle what has come, in turns: nobody waits longer for as much as one connection can ask at once. What goes
        together goes together nevertheless, once all of it is handled."""
        session, stats, turn, requests = self._session, self._stats, self.turn, self._requests
        own = counted = self._own
        handle, most_bytes = session.handle, self._most_bytes
        kind, mark, size, unasked_bytes = -1, None, 0, 0
        produce_bytes, other_bytes, all_bytes = sizes(frames, came_bytes)
        own.count(all_bytes)
        other_work = 1 + (came_bytes // max(len(frames), 1) >> SAID_BITS)
        at, count = 0, len(frames)
        while at < count:
            # A PRODUCE is not worked on here, and is answered here when it is refused, which is much work.
            if turn.left <= 0 or (kind != _PRODUCE and (self._out.bytes > most_bytes or own.is_busy)):
                if self._out.bytes > most_bytes:
                    session.handled()
                    await self._until_sent()
                if own.is_busy:
                    session.handled()
                    await self._until_worked()
                await turn.end()
            if kind == _PRODUCE and mark is not None:
                together = session.gather(frames, at, turn.left, requests, mark)
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
                asks = self._asking
                # Batches count for the gateway, which makes them of messages of many callers.
                counted = own if kind == _PRODUCE else asks
                mark = stats.mark(kind, came_at, size, counted, asks)
            if mark is None:
                unasked_bytes += size
            elif frame[1] in requests:
                unasked_bytes += size
                self.send(encode_error(frame[1], Conflict(f"request {frame[1]} is not answered yet")))
                continue
            else:
                requests[frame[1]] = mark
            try:
                if counted is not own and mark is not None:
                    own.hand_over(size, counted)
                rest = handle(frame)
                if rest is not None:
                    await rest
            except ProtocolError:
                raise
            except SandqError as error:
                self.refuse(frame[1], error)
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
            while self.congested:
                await self._sent.wait()

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
            await self._incoming.reserve(wanted)
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
            self._incoming.give_back(self._reserved_bytes)
            self._reserved_bytes = 0

    async def _greeting_deadline(self) -> None:
        await trio.sleep(HELLO_S)
        if not self._session.greeted:
            self.end(ProtocolError(f"no HELLO within {HELLO_S:.0f} s"))

    async def _write(self) -> None:
        while True:
            self._writing = True
            while self._wire.is_due():
                if not await self._send_piece():
                    self._cut_off()
                    return
            self._writing = False
            self._end_congestion()
            if self._ending:
                self._wire.end()
                if self._wire.is_due() and not await self._send_piece():
                    self._nursery.cancel_scope.cancel()
                    return
                self._written.set()
                return
            self._wake = trio.Event()
            await self._wake.wait()

    def _end_congestion(self) -> None:
        """Tell the session, and who waits, that frames are taken again, if they were not."""
        if self._was_congested and not self.congested:
            self._was_congested = False
            self._notify_sent()
            self._session.drained()

    async def _send_piece(self) -> bool:
        """Send a piece: a client that is slow takes one after the other, a client that takes nothing is cut off."""
        left = SEND_BYTES
        with trio.move_on_after(CROWDED_STALL_S if self._answers.is_waited_for else SEND_STALL_S) as scope:
            while left and self._wire.is_due():
                try:
                    sent = await self._stream.socket.sendmsg(self._wire.head(left))
                except (OSError, trio.ClosedResourceError):
                    return False
                left -= sent
                self._sent_out(sent)
                self._notify_sent()
                self._end_congestion()
        if scope.cancelled_caught and (held_back := self._stats.warnings.held_back()) is not None:
            self._own.log.warning(
                "a client takes nothing: its connection is closed",
                waiting_bytes=self._out.bytes,
                not_logged_before=held_back,
            )
        return not scope.cancelled_caught

    def _wrong_port(self, error: WrongPort) -> None:
        if error.details.get("speaks") != "http":
            self.send_error(0, error)
            return
        text = "This is sandq's client port: it speaks the binary protocol of sandctl and the client library.\n" + (
            f"HTTP belongs to {self._http_address} on this node.\n" if self._http_address else ""
        )
        head = f"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: {len(text)}\r\n"
        self.send(f"{head}Connection: close\r\n\r\n{text}".encode())
