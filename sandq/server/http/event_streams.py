"""Send the messages of a group as server-sent events, for consumers in other languages.

    retry: 1000                                                   first
    id: {"lease_token":"1.0.393216","offset":"01M89M..."}         the body that ack, nack and extend take
    data: {...}                                                   the message, as in the response of `lease`
    : -                                                           a heartbeat: no messages for a while
    event: error
    data: {"code": "...", "detail": "...", "retriable": true}     the last event: the stream cannot continue

A stream sends one lease request after the other, and the next request only when its client has accepted the messages of
the last lease. So a stream holds at most the messages of one lease in memory. A stream never leases more messages than
its client may hold unsettled (`InFlight`). The client settles messages with other requests.
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
"""`responses` of a route that sends events."""
IN_FLIGHT_DEFAULT: Final = 100
"""Number of messages that a client may hold unsettled by default."""
HEARTBEAT_S: Final = 10.0
"""Time without messages after which a heartbeat is sent, in seconds."""
LEASE_MESSAGES: Final = 100
"""Maximum number of messages of one lease request."""
PIECE_BYTES: Final = 64 << 10
"""Approximate size of the events that are sent together, in bytes."""
GIVE_BACK_S: Final = 5.0
"""Time to give back messages that the client did not settle, in seconds. After that, their leases must expire."""
_BEGINNING: Final = b"retry: 1000\n\n"
_HEARTBEAT: Final = b": -\n\n"


@dataclass(frozen=True, slots=True)
class Wanted:
    """Parameters of a stream. `start`: as in `Leases.take`."""

    max_in_flight: int
    lease_ms: int
    start: str


async def event_stream(request: Request, leases: Leases, wanted: Wanted) -> Response:
    """Return a stream of the messages that are ready now or later. Raise SandqError if it cannot start."""
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
        """Whether the client has disconnected. True at first; set to False if the stream ends for a different
        reason."""

    async def take(self, wait_s: float) -> bool:
        """Lease as many messages as the client may hold. Return whether there were any."""
        free = min(self._in_flight.free, LEASE_MESSAGES)
        lease_s = self._wanted.lease_ms / 1000
        found = await self._leases.take(free, wait=wait_s, lease=lease_s, start=self._wanted.start)
        for message in found:
            self._in_flight.add(message, lease_s)
        self._unsent.extend(found)
        return bool(found)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response. When it ends, give back what the client has not settled."""
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
        """Send events until the client disconnects, the server stops, or the caller's rights are revoked."""
        # Unavailable means that the server stops: the client can settle its messages through another server.
        with suppress(Unavailable):
            try:
                await while_connected(self._request, lambda: self._send_all(send, hold))
            except problems.Revoked as error:
                await send({"type": "http.response.body", "body": error_event(error), "more_body": True})
        self._has_gone = False

    async def _send_all(self, send: Send, hold: Hold) -> None:
        """Send messages until the stream cannot continue; the last event is the reason."""

        async def send_events(events: bytes) -> None:
            await send({"type": "http.response.body", "body": events, "more_body": True})

        await send_events(_BEGINNING)
        try:
            while True:
                await self._send_unsent(send_events, hold)
                if not await self._lease_more():
                    await send_events(_HEARTBEAT)
        except SandqError as error:
            await send_events(error_event(error))

    async def _send_unsent(self, send_events: Callable[[bytes], Awaitable[None]], hold: Hold) -> None:
        """Send the unsent messages as events, about `PIECE_BYTES` at a time. `hold` counts the memory of values."""
        unsent = self._unsent
        while unsent:
            piece, count = b"", 0
            while count < len(unsent) and len(piece) < PIECE_BYTES:
                piece += _event(unsent[count])
                count += 1
            hold(sum([len(message.value) for message in unsent]))
            await send_events(piece)
            for _ in range(count):
                unsent.popleft()
        hold(0)

    async def _lease_more(self) -> bool:
        """Lease further messages. Return False if there were none for a while."""
        if not self._in_flight.free:
            with anyio.move_on_after(HEARTBEAT_S):
                await self._in_flight.until_free()
            if not self._in_flight.free:
                return False
        return await self.take(HEARTBEAT_S)

    async def _give_back(self) -> None:
        """Give back messages: all unsettled ones if the client has gone, otherwise the unsent ones."""
        items = list(self._in_flight) if self._has_gone else [message.held for message in self._unsent]
        self._in_flight.close()
        if items:
            with anyio.CancelScope(shield=True), anyio.move_on_after(GIVE_BACK_S), suppress(SandqError):
                await self._leases.give_back(items)


def _event(message: LeasedMessage) -> bytes:
    """Return the event of a message."""
    return b"id: %b\ndata: %b\n\n" % (_json(message.held._asdict()), _json(message_json(message)))


def error_event(error: SandqError, name: str = "error") -> bytes:
    """Return an event that reports an error."""
    values = {"code": error.code, "detail": error.message, "retriable": error.retriable}
    return b"event: %b\ndata: %b\n\n" % (name.encode(), _json(values))


def _json(values: dict[str, Any]) -> bytes:
    """Return a JSON object on one line: the encoder escapes line ends."""
    return json.dumps(values, separators=(",", ":")).encode()
