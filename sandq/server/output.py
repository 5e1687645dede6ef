"""The frames that wait to be sent to one client (`Output`), and the task that sends them for all clients (`Sender`).

Frames gather until the sender runs, and leave together. Most sends are a single system call: trio's streams, which cost
ten times as much, send only the bytes that the socket does not accept at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import structlog
import trio

from sandq.broker.event_loop import TimeSlice
from sandq.broker.memory_budget import MemoryBudget
from sandq.model.limits import Limits
from sandq.server.client_stats import ClientStats
from sandq.server.send_queue import SendQueue
from sandq.server.wire import PlainWire, Transform, TransformedWire, Wire

SEND_BYTES = 262_144
FLUSH_BYTES: Final = 1 << 20
"""Maximum bytes that are sent with one system call. The rest follows in pieces of `SEND_BYTES`."""
SEND_STALL_S = 30.0
"""A client that does not accept a piece of `SEND_BYTES` within this time is disconnected, in seconds."""
CROWDED_STALL_S = 2.0
"""Replaces `SEND_STALL_S` while other clients get no replies because too many bytes wait to be sent."""
ANSWERS_GRANTED_BYTES = 16 << 10
"""Bytes of unsent replies that every connection may have, even if the memory for replies is used up."""
UNSENT_BYTES: Final = 1 << 20
"""Limit of a connection's unsent bytes. Above it, the node reads no more requests from the socket, and no data from the
stores for requests that have arrived.

The operating system buffers at least as many bytes in addition, so a client that reads steadily does not have to
wait."""
CONNECTION_SHARE = 1 / 8
"""Part of the memory for replies that one connection may use."""
UNIT_BITS = 10
"""A reply costs a unit of work per 1,024 bytes, in addition to the work of making it: about 1 MiB per time slice."""
FINAL_SEND_S = 1.0

Answer = bytes | list[bytes]
"""A frame, or its parts in order."""


class Sender:
    """Sends for all clients: each `Output` that was added since it last ran. Replies made in the same moment are sent
    together."""

    def __init__(self) -> None:
        self._due: list[Output] = []
        self._is_gathering = False
        self._wake = trio.Event()

    def add(self, sending: Output) -> None:
        """Note that a connection has something to send."""
        if not self._due and not self._is_gathering:
            self._wake.set()
        self._due.append(sending)

    @contextmanager
    def gathering(self) -> Iterator[None]:
        """Collect the frames of a block, and send them at its end instead of in the next iteration of the loop."""
        self._is_gathering = True
        try:
            yield
        finally:
            self._is_gathering = False
            self._flush()

    async def run(self) -> None:
        """Send for all connections, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            self._flush()

    def _flush(self) -> None:
        """Send for all connections that have something to send."""
        due, self._due = self._due, []
        for sending in due:
            sending.flush()


class Output:
    """The frames that wait to be sent to one client. Implements `Output` of `LinearizableReads`."""

    def __init__(
        self,
        stream: trio.SocketStream,
        sender: Sender,
        source: str,
        memory: MemoryBudget,
        limits: Limits,
        stats: ClientStats,
        time_slice: TimeSlice,
        *,
        transform: Transform | None,
        reading: trio.CancelScope,
        log: structlog.typing.FilteringBoundLogger,
    ) -> None:
        """Create the output of one connection.

        `source`: the source whose share of the memory for replies it uses. `time_slice`: that of the connection.
        `transform`: encodes all bytes; None: the wire is plain. `reading`: cancelled when the client is
        disconnected."""
        self.is_open = True
        """Whether frames are still accepted."""
        self.on_drained: Callable[[], None] = lambda: None
        """Called when frames are accepted again after the client was congested."""
        self._stream = stream
        self._fd = stream.socket.fileno()
        self._sender = sender
        self._answers = memory.answers.of(source)
        most = limits.in_flight_bytes_per_connection
        self.most_bytes = min(most, UNSENT_BYTES, int(CONNECTION_SHARE * memory.answers.share_bytes))
        """Limit of unsent bytes above which the client is not read."""
        self._stats = stats
        self._time_slice = time_slice
        self._reading = reading
        self._log = log
        self._out = SendQueue()
        self.wire: Wire = PlainWire(self._out) if transform is None else TransformedWire(self._out, transform)
        self._read_bytes = 0
        """Total bytes of replies that the apply thread has read. Only that thread writes it."""
        self._released_bytes = 0
        """Total bytes of read replies that have become frames or were dropped. Only the loop writes it."""
        self._was_congested = False
        self._is_writing = False
        self._wake = trio.Event()
        self._sent = trio.Event()
        self._reading_lock = trio.Lock()
        """Queue of the tasks that wait for free bytes. The first task gets all free bytes."""
        self._is_ending = False
        self._written = trio.Event()

    @property
    def waiting_bytes(self) -> int:
        """Bytes of frames that are queued or being sent."""
        return self._out.bytes

    @property
    def congested(self) -> bool:
        """Whether too many bytes wait to be sent: read no more for this client, and make no more frames."""
        waiting_bytes = self._out.bytes
        is_little = waiting_bytes <= self.most_bytes and (
            waiting_bytes <= ANSWERS_GRANTED_BYTES or not self._answers.is_full
        )
        if self.is_open and is_little:
            return False
        self._was_congested = True
        return True

    # -- memory for replies that are being read (`LinearizableReads`) -------------------------------------------

    @property
    def has_capacity(self) -> bool:
        """Whether more may be read for this client. May be called from any thread."""
        waiting_bytes = self._out.bytes + self._read_bytes - self._released_bytes
        return waiting_bytes <= self.most_bytes and not self._answers.is_full

    async def wait_for_capacity(self) -> None:
        """Wait until more may be read for this client.

        One task goes on at a time: its reply may use all free bytes, so most of several
        woken tasks would have to wait again."""
        async with self._reading_lock:
            while not self.has_capacity:
                if self._answers.is_full:
                    await self._answers.wait_for_capacity()
                else:
                    await self._sent.wait()

    def charge_on_apply(self, size: int) -> None:
        """Count bytes that were read for this client on the apply thread."""
        self._read_bytes += size
        self._answers.hold(size)

    def charge(self, size: int) -> None:
        """Count bytes that were read for this client on the loop."""
        self._released_bytes -= size
        self._answers.take(size)

    def release(self, size: int) -> None:
        """Release bytes that were read: they become a frame, which counts itself, or are dropped."""
        self._released_bytes += size
        self._answers.give_back(size)
        self._notify_sent()

    def _notify_sent(self) -> None:
        """Wake the tasks that wait for bytes to be sent."""
        sent, self._sent = self._sent, trio.Event()
        sent.set()

    async def until_sent(self) -> None:
        """Wait until the client is not congested."""
        while self.congested:
            await self._sent.wait()

    def send(self, frame: Answer) -> None:
        """Queue a frame; drop it if the connection is closed."""
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
            self._time_slice.left -= size >> UNIT_BITS

    def _sent_out(self, sent: int) -> None:
        """Count bytes that have left this node, and release their memory."""
        self._stats.sent_bytes += sent
        held_no_more = self._out.drop(self.wire.left(sent))
        if held_no_more:
            self._answers.give_back(held_no_more)

    def flush(self) -> None:
        """Send as many bytes as the socket accepts now. `write` sends the rest, and handles errors."""
        wire = self.wire
        if self._is_writing or not self.is_open or not wire.is_due():
            return
        if not self.congested:
            try:
                buffers = wire.head(FLUSH_BYTES)
                sent = os.write(self._fd, buffers[0]) if len(buffers) == 1 else os.writev(self._fd, buffers)
            except Exception:
                # Ignore the error here, where it would end the sender of all connections: `write` gets the same error,
                # and ends only this connection.
                self._wake.set()
                return
            self._sent_out(sent)
        if wire.is_due() or self._was_congested:
            self._wake.set()

    def send_due(self) -> None:
        """Schedule a send if the wire has bytes to send: TLS records of its own, or frames that had to wait for
        these."""
        if not self._is_writing and self.wire.is_due():
            self._sender.add(self)

    async def write(self) -> bool:
        """Send the bytes that `flush` could not send, until the connection ends. Return False if the final bytes could
        not be sent."""
        while True:
            self._is_writing = True  # meanwhile, `flush` sends nothing: its bytes would overtake these bytes
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
        """Give queued frames `FINAL_SEND_S` to be sent: most often an error that says why the connection ends."""
        self._is_ending = True
        self._wake.set()
        with trio.move_on_after(FINAL_SEND_S):
            await self._written.wait()

    def cut_off(self) -> None:
        """Stop sending and reading: the client accepts nothing, or has gone."""
        self.is_open = False
        self._written.set()
        self._reading.cancel()

    def clear(self) -> None:
        """Drop the queued frames: the connection has ended."""
        self.is_open = False
        self._answers.give_back(self._out.clear())
        self._notify_sent()

    def _end_congestion(self) -> None:
        """If the client is not congested any more, notify the session and the waiting tasks."""
        if self._was_congested and not self.congested:
            self._was_congested = False
            self._notify_sent()
            self.on_drained()

    async def _send_piece(self) -> bool:
        """Send one piece, and return whether that succeeded. A client that accepts nothing for too long is
        disconnected."""
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
