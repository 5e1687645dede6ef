"""Provide a TCP proxy between a client and a node. The proxy loses the frames that a test chooses.

To lose a PRODUCE or the reply to a PRODUCE, it closes the connection instead of forwarding the frame."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import msgpack
import trio

from sandq.protocol.frames import Type

Judge = Callable[[int], bool]
"""Function n -> whether to close the connection instead of forwarding PRODUCE n (or reply n), counted from 0."""


class Proxy:
    """Use as `async with proxy_to(port) as proxy`; clients connect to `proxy.port`."""

    def __init__(self, target: int) -> None:
        self.target = target
        """Port of the node."""
        self.port = 0
        self.requests = self.answers = 0
        """Numbers of PRODUCE frames, and of replies to them, that reached the proxy."""
        self.lost = trio.Event()
        """Set when the proxy loses a frame."""
        self.cut_request: Judge = lambda n: False
        self.cut_answer: Judge = lambda n: False

    async def serve(self, client: trio.SocketStream) -> None:
        try:
            node = await trio.open_tcp_stream("127.0.0.1", self.target)
        except OSError:
            await trio.aclose_forcefully(client)
            return
        produced: set[int] = set()
        async with client, node, trio.open_nursery() as nursery:
            nursery.start_soon(self._forward, client, node, produced, True, nursery.cancel_scope)
            nursery.start_soon(self._forward, node, client, produced, False, nursery.cancel_scope)

    async def _forward(
        self,
        source: trio.SocketStream,
        sink: trio.SocketStream,
        produced: set[int],
        is_request: bool,
        scope: trio.CancelScope,
    ) -> None:
        buffer = b""
        try:
            while data := await source.receive_some(1 << 16):
                buffer += data
                while len(buffer) >= 4 and len(buffer) >= (end := 4 + int.from_bytes(buffer[:4], "big")):
                    frame, buffer = buffer[:end], buffer[end:]
                    if self._is_lost(frame, produced, is_request):
                        self.lost.set()
                        return
                    await sink.send_all(frame)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            scope.cancel()

    def _is_lost(self, frame: bytes, produced: set[int], is_request: bool) -> bool:
        kind, request_id, *_ = msgpack.unpackb(frame[4:], raw=False, strict_map_key=False)
        if is_request and kind == Type.PRODUCE:
            produced.add(request_id)
            self.requests += 1
            return self.cut_request(self.requests - 1)
        if not is_request and kind == Type.REPLY and request_id in produced:
            self.answers += 1
            return self.cut_answer(self.answers - 1)
        return False


@asynccontextmanager
async def proxy_to(target: int) -> AsyncIterator[Proxy]:
    proxy = Proxy(target)
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, host="127.0.0.1"), proxy.serve, 0)
        proxy.port = listeners[0].socket.getsockname()[1]
        try:
            yield proxy
        finally:
            nursery.cancel_scope.cancel()
