"""Messages of a group as server-sent events, for consumers in other languages.

    retry: 1000                                                   first
    id: {"lease_token":"1.0.393216","offset":"01M89M..."}         the body that ack, nack and extend take
    data: {...}                                                   the message, as `lease` answers it
    : -                                                           nothing has come for a while
    event: error
    data: {"code": "...", "detail": "...", "retriable": true}     last: it cannot go on

A stream leases as `lease` does, one request after the other, and asks for more only when its client has taken what
came: no more of it is here than one lease brings. It never has more messages out than its client may hold unsettled
(`InFlight`): those are settled by other requests.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import anyio
from fastapi import Request
from fastapi.responses import Response
from starlette.types import Receive, Scope, Send

from sandq.client import LeasedMessage, Leases
from sandq.client.json_format import message_json
from sandq.model.errors import Overloaded, SandqError, Unavailable
from sandq.server.http import problems
from sandq.server.http.gateway import gateway_of, while_connected
from sandq.server.http.guards import IS_HEAD, WAITING_SLOT, Hold
from sandq.server.http.in_flight import InFlight

MEDIA_TYPE: Final = "text/event-stream"
EVENTS: Final[dict[int | str, dict[str, Any]]] = {
    200: {"content": {MEDIA_TYPE: {"schema": {"type": "string", "description": "Server-sent events."}}}}
}
"""For the `responses` of a route."""
IN_FLIGHT_DEFAULT: Final = 100
"""Messages that a client may hold unsettled, unless it says otherwise."""
HEARTBEAT_S: Final = 10.0
TAKE_MESSAGES: Final = 100
"""Of one lease."""
PIECE_BYTES: Final = 64 << 10
"""Events that go out together, about."""
GIVE_BACK_S: Final = 5.0
"""For what a client did not settle to be given back; otherwise it is held until its leases end."""
_BEGINNING: Final = b"retry: 1000\n\n"
_HEARTBEAT: Final = b": -\n\n"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a stream is to bring. `start`: as `Leases.take` has it."""

    max_in_flight: int
    lease_ms: int
    start: str


async def event_stream(request: Request, leases: Leases, wanted: Wanted) -> Response:
    """What is ready now, and what becomes so. Raises SandqError: what is wrong at the start."""
    stream = _EventStream(request, leases, wanted)
    if getattr(request.state, IS_HEAD):
        return Response(headers=stream.headers)
    await while_connected(request, lambda: stream.take(wait_s=0))
    return stream


class _EventStream(Response):
    media_type = MEDIA_TYPE

    def __init__(self, request: Request, leases: Leases, wanted: Wanted) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers({"content-type": MEDIA_TYPE, "cache-control": "no-store"})
        self._request = request
        self._leases = leases
        self._wanted = wanted
        self._in_flight = InFlight(gateway_of(request).streams, leases.topic, wanted.max_in_flight)
        self._unsent: deque[LeasedMessage] = deque()
        self._has_gone = True
        """The client, unless it is known to be there at the end."""

    async def take(self, wait_s: float) -> bool:
        """Lease what there is room for; whether there was something."""
        free = min(self._in_flight.free, TAKE_MESSAGES)
        lease_s = self._wanted.lease_ms / 1000
        found = await self._leases.take(free, wait=wait_s, lease=lease_s, start=self._wanted.start)
        for message in found:
            self._in_flight.add(message, lease_s)
        self._unsent.extend(found)
        return bool(found)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with getattr(self._request.state, WAITING_SLOT)() as hold:
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                await self._serve(send, hold)
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        except Overloaded as error:
            await problems.of_error(self._request, error)(scope, receive, send)
        finally:
            await self._give_back()

    async def _serve(self, send: Send, hold: Hold) -> None:
        # Unavailable: the server stops, and the client may settle elsewhere what it has.
        with suppress(Unavailable):
            try:
                await while_connected(self._request, lambda: self._send_all(send, hold))
            except problems.Revoked as error:
                await send({"type": "http.response.body", "body": error_event(error), "more_body": True})
        self._has_gone = False

    async def _send_all(self, send: Send, hold: Hold) -> None:
        """Until it cannot go on; why not is said at last."""

        async def say(events: bytes) -> None:
            await send({"type": "http.response.body", "body": events, "more_body": True})

        await say(_BEGINNING)
        try:
            while True:
                await self._send_unsent(say, hold)
                if not await self._more():
                    await say(_HEARTBEAT)
        except SandqError as error:
            await say(error_event(error))

    async def _send_unsent(self, say: Callable[[bytes], Awaitable[None]], hold: Hold) -> None:
        unsent = self._unsent
        while unsent:
            piece, count = b"", 0
            while count < len(unsent) and len(piece) < PIECE_BYTES:
                piece += _event(unsent[count])
                count += 1
            hold(sum([len(message.value) for message in unsent]))
            await say(piece)
            for _ in range(count):
                unsent.popleft()
        hold(0)

    async def _more(self) -> bool:
        """Whether something came, in a while."""
        if not self._in_flight.free:
            with anyio.move_on_after(HEARTBEAT_S):
                await self._in_flight.until_free()
            if not self._in_flight.free:
                return False
        return await self.take(HEARTBEAT_S)

    async def _give_back(self) -> None:
        items = list(self._in_flight) if self._has_gone else [message.held for message in self._unsent]
        self._in_flight.close()
        if items:
            with anyio.CancelScope(shield=True), anyio.move_on_after(GIVE_BACK_S), suppress(SandqError):
                await self._leases.give_back(items)


def _event(message: LeasedMessage) -> bytes:
    return b"id: %b\ndata: %b\n\n" % (_json(message.held._asdict()), _json(message_json(message)))


def error_event(error: SandqError, name: str = "error") -> bytes:
    """An event that tells an error."""
    said = {"code": error.code, "detail": error.message, "retriable": error.retriable}
    return b"event: %b\ndata: %b\n\n" % (name.encode(), _json(said))


def _json(said: dict[str, Any]) -> bytes:
    """In one line, which escapes see to."""
    return json.dumps(said, separators=(",", ":")).encode()
