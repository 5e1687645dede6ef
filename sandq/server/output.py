"""What waits to be sent to one client, and the task that sends what has gathered for all of them.

Frames gather until the sender's turn, and go out as one. Most sends are one call into the system: trio's streams, which
cost ten times that, are there for what the socket does not take at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import structlog
import trio

from sandq.broker.event_loop import Turn
from sandq.broker.memory_budget import MemoryBudget
from sandq.model.limits import Limits
from sandq.server.client_stats import ClientStats
from sandq.server.send_queue import SendQueue
from sandq.server.wire import PlainWire, Transform, TransformedWire, Wire

SEND_BYTES = 262_144
FLUSH_BYTES: Final = 1 << 20
"""What is tried to be sent at once; the rest follows in pieces of `SEND_BYTES`."""
SEND_STALL_S = 30.0
"""A client that does not take a piece of `SEND_BYTES` for so long is cut off ..."""
CROWDED_STALL_S = 2.0
"""... and for so long, while others get no answers because there is too much that is not taken."""
ANSWERS_GRANTED_BYTES = 16 << 10
"""Of answers that every connection may have waiting, whatever others have."""
UNSENT_BYTES: Final = 1 << 20
"""While more bytes of answers than that wait for a client to take them it is not read, and nothing is read for it: the
system has as much again and more on its way, so that who takes them is not kept waiting ..."""
CONNECTION_SHARE = 1 / 8
"""... and no more than so much of all answers."""
UNIT_BITS = 10
"""An answer is a unit of work for each 1,024 bytes, beside what it cost to make: a turn gives 1 MiB, and the last."""
LAST_WORDS_S = 1.0

Answer = bytes | list[bytes]
"""A frame, or the parts of one in their order."""


class Sender:
    """Those that were added since its last turn get to send: what is answered in the same moment goes out together."""

    def __init__(self) -> None:
        self._due: list[Output] = []
        self._is_gathering = False
        self._wake = trio.Event()

    def add(self, sending: Output) -> None:
        if not self._due and not self._is_gathering:
            self._wake.set()
        self._due.append(sending)

    @contextmanager
    def gathering(self) -> Iterator[None]:
        """Inside nobody gets to send, at its end all that were added do: not a turn of the loop later."""
        self._is_gathering = True
        try:
            yield
        finally:
            self._is_gathering = False
            self._flush()

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            self._flush()

    def _flush(self) -> None:
        due, self._due = self._due, []
        for sending in due:
            sending.flush()


class Output:
    """The frames that wait to be sent to one client. It is the `Room` for answers that are read for the client."""

    def __init__(
        self,
        stream: trio.SocketStream,
        sender: Sender,
        source: str,
        memory: MemoryBudget,
        limits: Limits,
        stats: ClientStats,
        turn: Turn,
        *,
        transform: Transform | None,
        reading: trio.CancelScope,
        log: structlog.typing.FilteringBoundLogger,
    ) -> None:
        """`source`: whose share of the memory for answers it takes. `turn`: of the connection. `transform`: what
        is made of all bytes; None: nothing. `reading`: cancelled when the client takes nothing, or has gone."""
        self.is_open = True
        """Whether frames are still taken."""
        self.on_drained: Callable[[], None] = lambda: None
        """Called when frames are taken again after the client was congested."""
        self._stream = stream
        self._fd = stream.socket.fileno()
        self._sender = sender
        self._answers = memory.answers.of(source)
        most = limits.in_flight_bytes_per_connection
        self.most_bytes = min(most, UNSENT_BYTES, int(CONNECTION_SHARE * memory.answers.share_bytes))
        """While more bytes wait to be sent, the client is not read."""
        self._stats = stats
        self._turn = turn
        self._reading = reading
        self._log = log
        self._out = SendQueue()
        self.wire: Wire = PlainWire(self._out) if transform is None else TransformedWire(self._out, transform)
        self._read_bytes = 0
        """Of answers that the apply thread has read, ever."""
        self._let_go_bytes = 0
        """Of answers that were read and are frames by now, or are not needed."""
        self._was_congested = False
        self._is_writing = False
        self._wake = trio.Event()
        self._sent = trio.Event()
        self._room_line = trio.Lock()
        """Of those who wait for room, the first has it."""
        self._is_ending = False
        self._written = trio.Event()

    @property
    def waiting_bytes(self) -> int:
        """Of frames that are queued or being sent."""
        return self._out.bytes

    @property
    def congested(self) -> bool:
        """So much waits to be sent that nothing more should be made for this client."""
        waiting_bytes = self._out.bytes
        is_little = waiting_bytes <= self.most_bytes and (
            waiting_bytes <= ANSWERS_GRANTED_BYTES or not self._answers.is_full
        )
        if self.is_open and is_little:
            return False
        self._was_congested = True
        return True

    # -- room for answers that are read (`LinearizableReads`) --------------------------------------------------

    @property
    def has_room(self) -> bool:
        """Whether more may be read for this client. For any thread."""
        waiting_bytes = self._out.bytes + self._read_bytes - self._let_go_bytes
        return waiting_bytes <= self.most_bytes and not self._answers.is_full

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

    async def until_sent(self) -> None:
        """Wait until the client is not congested any more."""
        while self.congested:
            await self._sent.wait()

    def send(self, frame: Answer) -> None:
        """Queue a frame. Once the connection is closed, frames go nowhere."""
        if self.is_open:
            out = self._out
            if not out and not self._is_writing:
                self._sender.add(self)
            held = out.bytes
            if isinstance(frame, list):
                for part in frame:
                    out.add(part)
            else:
                out.add(frame)
            size = out.bytes - held
            self._answers.take(size)
            self._turn.left -= size >> UNIT_BITS

    def _sent_out(self, sent: int) -> None:
        """So many bytes have left this node."""
        self._stats.sent_bytes += sent
        held_no_more = self._out.drop(self.wire.left(sent))
        if held_no_more:
            self._answers.give_back(held_no_more)

    def flush(self) -> None:
        """Send what has gathered, as far as the socket takes it now; `write` sends the rest, and meets the errors."""
        wire = self.wire
        if self._is_writing or not self.is_open or not wire.is_due():
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

    def send_due(self) -> None:
        """Have words of the wire's own sent at the sender's turn, or frames that may be sent at last."""
        if not self._is_writing and self.wire.is_due():
            self._sender.add(self)

    async def write(self) -> bool:
        """Send what does not go at once, until the end. Return whether last words went out, if there were any."""
        while True:
            self._is_writing = True
            while self.wire.is_due():
                if not await self._send_piece():
                    self.cut_off()
                    return True
            self._is_writing = False
            self._end_congestion()
            if self._is_ending:
                self.wire.end()
                if self.wire.is_due() and not await self._send_piece():
                    return False
                self._written.set()
                return True
            self._wake = trio.Event()
            await self._wake.wait()

    async def end(self) -> None:
        """Let what is queued still go out, for a moment: an error that says why the connection ends, most often."""
        self._is_ending = True
        self._wake.set()
        with trio.move_on_after(LAST_WORDS_S):
            await self._written.wait()

    def cut_off(self) -> None:
        """The client takes nothing, or has gone."""
        self.is_open = False
        self._written.set()
        self._reading.cancel()

    def clear(self) -> None:
        """Drop what is queued: the connection has ended."""
        self.is_open = False
        self._answers.give_back(self._out.clear())
        self._notify_sent()

    def _end_congestion(self) -> None:
        """Tell the session, and who waits, that frames are taken again, if they were not."""
        if self._was_congested and not self.congested:
            self._was_congested = False
            self._notify_sent()
            self.on_drained()

    async def _send_piece(self) -> bool:
        """Send a piece: a client that is slow takes one after the other, a client that takes nothing is cut off."""
        left = SEND_BYTES
        with trio.move_on_after(CROWDED_STALL_S if self._answers.is_waited_for else SEND_STALL_S) as scope:
            while left and self.wire.is_due():
                try:
                    sent = await self._stream.socket.sendmsg(self.wire.head(left))
                except (OSError, trio.ClosedResourceError):
                    return False
                left -= sent
                self._sent_out(sent)
                self._notify_sent()
                self._end_congestion()
        if scope.cancelled_caught and (held_back := self._stats.warnings.held_back()) is not None:
            self._log.warning(
                "a client takes nothing: its connection is closed",
                waiting_bytes=self._out.bytes,
                not_logged_before=held_back,
            )
        return not scope.cancelled_caught
