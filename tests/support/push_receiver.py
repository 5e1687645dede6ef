"""Provide a receiver of pushed messages: an HTTP server in the test, which sends the answers that the test chooses."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import h11
import trio

Raw = Callable[[trio.abc.Stream], Awaitable[None]]


@dataclass
class Got:
    """A request."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    connection: int


@dataclass
class Receiver:
    """The server.

    `answers`: answers to the next requests, as `(status, headers, body)`. If none is left, the answer is `otherwise`.
    `raw`: function that writes the answer to the stream instead. `hold`: event that each answer waits for."""

    host: str = "127.0.0.1"
    port: int = 0
    scheme: str = "http"
    got: list[Got] = field(default_factory=list)
    answers: list[tuple[int, dict[str, str], bytes]] = field(default_factory=list)
    otherwise: int = 204
    raw: Raw | None = None
    hold: trio.Event | None = None
    connections: int = 0
    open: int = 0
    most_at_once: int = 0
    at_once: int = 0
    _more: trio.Event = field(default_factory=trio.Event)

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.host}:{self.port}/hook"

    async def until(self, count: int) -> list[Got]:
        """Wait until there are `count` requests, and return all requests."""
        while len(self.got) < count:
            await self._more.wait()
        return self.got

    def _note(self, got: Got) -> None:
        self.got.append(got)
        self._more.set()
        self._more = trio.Event()

    async def serve(self, stream: trio.abc.Stream) -> None:
        self.connections += 1
        self.open += 1
        try:
            await self._serve(stream, self.connections)
        except (trio.BrokenResourceError, trio.ClosedResourceError, h11.RemoteProtocolError):
            pass
        finally:
            self.open -= 1
            with trio.move_on_after(0):
                await stream.aclose()

    async def _serve(self, stream: trio.abc.Stream, number: int) -> None:
        http = h11.Connection(h11.SERVER)
        while True:
            request = await _next(http, stream)
            if not isinstance(request, h11.Request):
                return
            body = b""
            while isinstance(event := await _next(http, stream), h11.Data):
                body += bytes(event.data)
            headers = {name.decode(): value.decode() for name, value in request.headers}
            self._note(Got(request.method.decode(), request.target.decode(), headers, body, number))
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            try:
                if self.hold is not None:
                    await self.hold.wait()
                if self.raw is not None:
                    await self.raw(stream)
                    return
            finally:
                self.at_once -= 1
            status, more, content = self.answers.pop(0) if self.answers else (self.otherwise, {}, b"")
            answer = [*more.items(), *([] if status == 204 else [("content-length", str(len(content)))])]
            await stream.send_all(http.send(h11.Response(status_code=status, headers=answer)) or b"")
            if content:
                await stream.send_all(http.send(h11.Data(data=content)) or b"")
            await stream.send_all(http.send(h11.EndOfMessage()) or b"")
            if http.our_state is not h11.DONE:
                return
            http.start_next_cycle()


async def _next(http: h11.Connection, stream: trio.abc.Stream) -> object:
    while (event := http.next_event()) is h11.NEED_DATA:
        http.receive_data(await stream.receive_some(65536))
    return event


@asynccontextmanager
async def receiving(
    tls: ssl.SSLContext | None = None, port: int = 0, host: str = "127.0.0.1"
) -> AsyncIterator[Receiver]:
    """Run a receiver on a port of a loopback address, by default a free one, during the block."""
    receiver = Receiver(host=host, scheme="http" if tls is None else "https")
    listeners = await trio.open_tcp_listeners(port, host=host)
    receiver.port = listeners[0].socket.getsockname()[1]
    served = listeners if tls is None else [trio.SSLListener(one, tls, https_compatible=True) for one in listeners]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, receiver.serve, served)
        yield receiver
        nursery.cancel_scope.cancel()
