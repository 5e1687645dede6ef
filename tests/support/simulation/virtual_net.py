"""Simulate a network of streams in virtual time, for whole nodes in one process.

It replaces the part of trio's TCP that links use. Bytes arrive later, in order. Each direction between two machines can
hang; then its bytes wait until the hang ends. A connection can break. Both sides notice that at once, but if a machine
has lost its power, its peers notice only silence."""

from __future__ import annotations

import contextlib
import random
import socket
from collections import deque
from collections.abc import Callable
from typing import Any

import trio

from sandq.model.config_types import Address

HOST = "127.0.0.1"
WINDOW_BYTES = 1 << 20
"""Maximum number of bytes in flight in one direction of a connection. At the maximum, the sender waits."""
RECEIVE_BYTES = 64 << 10


class _Pipe:
    """One direction of a connection."""

    def __init__(self, sender: str, receiver: str) -> None:
        self.sender, self.receiver = sender, receiver
        self.in_flight: deque[tuple[float, bytes]] = deque()
        self.size = 0
        self.last_s = 0.0
        """Arrival time of the last sent bytes, in seconds. Later bytes must not overtake them."""
        self.ended = False
        """Whether the sender has closed its side."""
        self.broken = False
        self.changed = trio.Event()

    def notify(self) -> None:
        changed, self.changed = self.changed, trio.Event()
        changed.set()


class _Socket:
    def __init__(self, port: int) -> None:
        self._port = port

    def getsockname(self) -> tuple[str, int]:
        return HOST, self._port

    getpeername = getsockname
    family = socket.AF_INET


class VirtualStream(trio.abc.HalfCloseableStream):
    def __init__(self, net: VirtualNet, incoming: _Pipe, outgoing: _Pipe, port: int) -> None:
        self.socket = _Socket(port)
        self.incoming, self.outgoing = incoming, outgoing
        self.lost = False
        """Whether the machine of this side is gone. Then its tasks must send nothing when they end."""
        self._net = net
        self._closed = False

    async def send_all(self, data: Any) -> None:
        await trio.lowlevel.checkpoint()
        pipe = self.outgoing
        while pipe.size > WINDOW_BYTES and not (pipe.broken or self._closed):
            await pipe.changed.wait()
        self._check(pipe)
        pipe.last_s = max(pipe.last_s, trio.current_time() + self._net.delay_s())
        pipe.in_flight.append((pipe.last_s, bytes(data)))
        pipe.size += len(data)
        pipe.notify()

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def send_eof(self) -> None:
        await trio.lowlevel.checkpoint()
        if self.lost:
            return
        self.outgoing.ended = True
        self.outgoing.notify()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        await trio.lowlevel.checkpoint()
        pipe = self.incoming
        while True:
            self._check(pipe)
            changed = pipe.changed
            if self._net.hangs(pipe.sender, pipe.receiver):
                await changed.wait()
            elif pipe.in_flight:
                wait_s = pipe.in_flight[0][0] - trio.current_time()
                if wait_s <= 0:
                    return self._take(max_bytes or RECEIVE_BYTES)
                with trio.move_on_after(wait_s):
                    await changed.wait()
            elif pipe.ended:
                return b""
            else:
                await changed.wait()

    def _take(self, most: int) -> bytes:
        pipe = self.incoming
        at_s, data = pipe.in_flight.popleft()
        if len(data) > most:
            pipe.in_flight.appendleft((at_s, data[most:]))
            data = data[:most]
        pipe.size -= len(data)
        pipe.notify()
        return data

    def _check(self, pipe: _Pipe) -> None:
        if self._closed:
            raise trio.ClosedResourceError
        if pipe.broken:
            raise trio.BrokenResourceError("the connection broke")

    async def aclose(self) -> None:
        self._net.forget(self)
        self._closed = True
        if not self.lost:
            self.outgoing.ended = True
            self.outgoing.notify()
            self.incoming.notify()
        await trio.lowlevel.checkpoint()


class VirtualListener(trio.abc.Listener[VirtualStream]):
    def __init__(self, net: VirtualNet, name: str, port: int) -> None:
        self.socket = _Socket(port)
        self.name = name
        self._net = net
        self._come, self._accepted = trio.open_memory_channel[VirtualStream](1000)

    def connect_stream(self, stream: VirtualStream) -> None:
        self._come.send_nowait(stream)

    async def accept(self) -> VirtualStream:
        try:
            return await self._accepted.receive()
        except trio.EndOfChannel:
            raise trio.ClosedResourceError from None

    async def aclose(self) -> None:
        if self._net.listeners.get(self.socket.getsockname()[1]) is self:
            del self._net.listeners[self.socket.getsockname()[1]]
        self._come.close()
        await trio.lowlevel.checkpoint()


class VirtualPort:
    """Replaces `sandq.server.listening.BoundPort`."""

    def __init__(self, net: VirtualNet, name: str, host: str, port: int) -> None:
        self._net = net
        self._name = name
        self.address = Address(host, port)

    def listen(self) -> list[VirtualListener]:
        port = self.address.port
        listener = self._net.listeners[port] = VirtualListener(self._net, self._name, port)
        return [listener]

    def close(self) -> None:
        """Do nothing: the listener owns the port."""


class VirtualNet:
    """All connections between machines. `who()` returns the machine whose code runs now."""

    def __init__(self, rng: random.Random, who: Callable[[], str]) -> None:
        self.most_s = rng.choice((0.002, 0.02, 0.1))
        """Maximum delay of bytes, in seconds."""
        self.listeners: dict[int, VirtualListener] = {}
        self.hanging: set[tuple[str, str]] = set()
        """Directions that hang: (from, to)."""
        self._rng = rng
        self._who = who
        self._streams: list[VirtualStream] = []

    def delay_s(self) -> float:
        return self._rng.uniform(0.0002, self.most_s)

    def hangs(self, sender: str, receiver: str) -> bool:
        return (sender, receiver) in self.hanging

    # -- interface of nodes ---------------------------------------------------------------------------------------

    async def bind(self, host: str, port: int, what: str) -> VirtualPort:
        """Replaces `sandq.server.listening.bind`."""
        await trio.lowlevel.checkpoint()
        return VirtualPort(self, self._who(), host, port)

    async def listen(self, host: str, port: int, what: str) -> list[VirtualListener]:
        """Replaces `sandq.server.listening.listen`."""
        await trio.lowlevel.checkpoint()
        listener = self.listeners[port] = VirtualListener(self, self._who(), port)
        return [listener]

    async def connect(self, host: str, port: int, **options: Any) -> VirtualStream:
        """Replaces `trio.open_tcp_stream`."""
        own = self._who()
        await trio.sleep(2 * self.delay_s())
        listener = self.listeners.get(port)
        if listener is None:
            raise OSError(f"nobody listens on {port}")
        if self.hangs(own, listener.name) or self.hangs(listener.name, own):
            await trio.sleep_forever()
        there, back = _Pipe(own, listener.name), _Pipe(listener.name, own)
        ours, theirs = VirtualStream(self, back, there, port), VirtualStream(self, there, back, port)
        self._streams += [ours, theirs]
        listener.connect_stream(theirs)
        return ours

    def forget(self, stream: VirtualStream) -> None:
        with contextlib.suppress(ValueError):
            self._streams.remove(stream)

    # -- faults ---------------------------------------------------------------------------------------------------

    def hang(self, sender: str, receiver: str) -> None:
        self.hanging.add((sender, receiver))

    def resume(self) -> None:
        """End all hangs."""
        self.hanging.clear()
        for stream in list(self._streams):
            stream.incoming.notify()

    def break_between(self, a: str, b: str) -> None:
        for stream in list(self._streams):
            if {stream.incoming.sender, stream.incoming.receiver} == {a, b}:
                self._break(stream)

    def gone(self, name: str, *, silently: bool) -> None:
        """Remove a machine with its listeners and connections. `silently`: the other sides do not notice."""
        for listener in [one for one in self.listeners.values() if one.name == name]:
            del self.listeners[listener.socket.getsockname()[1]]
        for stream in [one for one in self._streams if one.incoming.receiver == name]:
            stream.lost = True
            if not silently:
                self._break(stream)
            self.forget(stream)

    @staticmethod
    def _break(stream: VirtualStream) -> None:
        for pipe in (stream.incoming, stream.outgoing):
            pipe.broken = True
            pipe.notify()
