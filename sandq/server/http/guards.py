"""What stands before every route: request ids, Host and Origin, bodies of bounded size, slow clients, the log.

Plain ASGI, around the application; everything of a request that is not about sandq is decided here.
"""

from __future__ import annotations

import ipaddress
import re
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog
import trio
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sandq.model.errors import Overloaded
from sandq.server.http import problems
from sandq.server.http.places import Places

log = structlog.get_logger("sandq.http")

BODY_S = 30.0
"""A body has so long to arrive ..."""
BODY_BYTES_PER_S = 64 * 1024
"""... and a second more for each of these."""
DISCARD_S = 5.0
BODIES_BYTES = 8
"""Of all requests under way, as many times the limit of one."""
ALWAYS_ANSWERED = ("/healthz", "/readyz", "/metrics")
"""However many other requests there are."""
NO_PLACE: Final = "no_place"
"""Of a connection's state: it is one too many, and only these are answered."""
WAIT_APART: Final = "wait_apart"
"""Of a request's state: see `Guard.wait_apart`."""
CONTROL_BYTES: Final = 1 << 20
"""A body that carries no messages, and is no answer that is sent back."""
_CARRIES = re.compile(r"/topics/[^/]+(/[0-9]+|/keys/[\s\S]*|/groups/[^/]+/(ack|nack|extend))?")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]{1,255})(?::[0-9]{1,5})?")

Observe = Callable[[str, str, int, float], None]
"""Told of each request: method, route, status, seconds."""


@dataclass(frozen=True, slots=True)
class Rules:
    """`hosts`: names by which this node may be called, beside its addresses; `origins`: pages of other sites that may
    use it."""

    hosts: frozenset[str]
    origins: frozenset[str]
    requests: int
    waiting: int
    body_bytes: int


class Refused(Exception):
    """A request that no route gets to see."""

    def __init__(self, status: int, code: str, detail: str, *, retriable: bool = False) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.retriable = retriable


class Guard:
    """The outermost of the application."""

    def __init__(self, app: ASGIApp, rules: Rules, observe: Observe) -> None:
        self._app = app
        self._rules = rules
        self._observe = observe
        self._under_way = Places(rules.requests)
        self._waiting = Places(rules.waiting)
        self._bodies = _Bodies(rules.body_bytes, BODIES_BYTES * rules.body_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers: dict[bytes, bytes] = dict(reversed(scope["headers"]))  # of several the first
        state = scope.setdefault("state", {})
        once = state.get(NO_PLACE, False)
        exchange = _Exchange(_request_id(headers), scope["method"] == "HEAD", receive, send, self._bodies, once)
        address = str((scope.get("client") or ("?",))[0])
        state.update({"request_id": exchange.request_id, WAIT_APART: partial(self.wait_apart, address)})
        started = time.perf_counter()
        has_place = scope["path"] not in ALWAYS_ANSWERED and self._under_way.take(address)
        try:
            with structlog.contextvars.bound_contextvars(request_id=exchange.request_id):
                await self._handle(scope, headers, exchange, has_place)
        finally:
            if has_place:
                self._under_way.give(address)
            self._bodies.used -= exchange.size
            self._tell(scope, exchange, time.perf_counter() - started)

    @contextmanager
    def wait_apart(self, address: str) -> Iterator[None]:
        """For a request that waits for something to happen: it is no more counted among those that are under way, but
        among those that wait. Raises Overloaded when those are too many."""
        waiting = self._waiting
        if not waiting.take(address):
            raise Overloaded(
                f"{waiting.limit} requests wait for messages or changes, or {waiting.share} of this address "
                "(limits.http_waiting); ask without waiting, or again in a moment"
            )
        self._under_way.give(address)
        try:
            yield
        finally:
            self._under_way.add(address)
            waiting.give(address)

    async def _handle(self, scope: Scope, headers: dict[bytes, bytes], exchange: _Exchange, has_place: bool) -> None:
        try:
            self._check(scope, headers, has_place)
            carries = _CARRIES.fullmatch(scope["path"]) is not None
            await exchange.read_body(headers, self._rules.body_bytes if carries else CONTROL_BYTES)
            if exchange.only_head:
                scope["method"] = "GET"
            scope["headers"] = [
                *((name, value) for name, value in scope["headers"] if name != b"content-type"),
                (b"content-type", b"application/json"),
            ]
            await self._app(scope, exchange.receive, exchange.send)
        except Refused as refused:
            await exchange.refuse(scope, refused)
        except ClientDisconnect:
            pass  # nobody is left to be told
        except Exception as error:
            if isinstance(error.__cause__, ClientDisconnect):
                return  # so it looks when half of the answer was out
            log.exception("a request failed with an unexpected error", path=scope["path"][:200])
            if exchange.status is None:
                await exchange.refuse(scope, Refused(500, "INTERNAL", problems.FAULT))
            elif exchange.status != 500:
                raise  # half of the answer is out: the server closes the connection

    def _check(self, scope: Scope, headers: dict[bytes, bytes], has_place: bool) -> None:
        rules = self._rules
        if scope["path"] not in ALWAYS_ANSWERED:
            if scope["state"].get(NO_PLACE, False):
                raise Refused(503, "OVERLOADED", "too many connections (limits.http_connections)", retriable=True)
            if not has_place:
                places = self._under_way
                why = f"{places.limit} requests are under way, or {places.share} of this address (limits.http_requests)"
                raise Refused(503, "OVERLOADED", why, retriable=True)
        host = headers.get(b"host", b"").decode("latin-1")
        match = _HOST.fullmatch(host)
        if match is None or not (_is_address(match[1]) or match[1].lower() in rules.hosts):
            raise Refused(
                403,
                "FOREIGN_HOST",
                f"this node is not {host[:80]!r}: ask it by its address, or name the host in http.allowed_hosts",
            )
        origin = headers.get(b"origin")
        if origin is not None:
            text = origin.decode("latin-1").lower()
            if text not in (f"http://{host}".lower(), f"https://{host}".lower()) and text not in rules.origins:
                raise Refused(
                    403,
                    "FOREIGN_ORIGIN",
                    f"pages of {text[:80]!r} may not use this node; http.allowed_origins names those that may",
                )

    def _tell(self, scope: Scope, exchange: _Exchange, seconds: float) -> None:
        route = scope.get("route")
        path: str = getattr(route, "path", "(none)")
        status = exchange.status or problems.CLIENT_GONE
        self._observe(scope["method"], path, status, seconds)
        log.debug(
            "request",
            request_id=exchange.request_id,
            method=scope["method"],
            path=scope["path"][:200],
            status=status,
            milliseconds=round(seconds * 1000, 1),
            peer=(scope.get("client") or ("?",))[0],
        )


@dataclass(slots=True)
class _Bodies:
    """What bodies may take: one, and all of those under way."""

    one: int
    all: int
    used: int = 0


class _Exchange:
    """One request: its body, read before the routes see it, and its answer on its way."""

    def __init__(
        self, request_id: str, only_head: bool, receive: Receive, send: Send, bodies: _Bodies, once: bool
    ) -> None:
        """`once`: the connection is closed behind the answer."""
        self.request_id = request_id
        self.only_head = only_head
        """It is answered like a GET, without the body."""
        self.status: int | None = None
        self._receive = receive
        self._send = send
        self._bodies = bodies
        self._once = once
        self.size = 0
        """Of its body, as far as it has come."""
        self._body: bytes | None = b""

    async def read_body(self, headers: dict[bytes, bytes], most: int) -> None:
        """Read it whole, of `most` bytes or the limit of all bodies. Raises Refused."""
        most = min(most, self._bodies.one)
        length = headers.get(b"content-length", b"0")
        if len(length) > 18 or not length.isdigit() or int(length) > most:
            raise await self._too_large(most)
        pieces: list[bytes] = []
        with trio.move_on_after(BODY_S) as scope:
            while True:
                message = await self._receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnect
                piece = message.get("body", b"")
                self.size += len(piece)
                self._bodies.used += len(piece)
                if self.size > most:
                    raise await self._too_large(most)
                if self._bodies.used > self._bodies.all:
                    self._bodies.used -= self.size
                    self.size = 0
                    await self._discard()
                    raise Refused(503, "OVERLOADED", "too many large bodies at once; send it again", retriable=True)
                scope.deadline += len(piece) / BODY_BYTES_PER_S
                pieces.append(piece)
                if not message.get("more_body", False):
                    break
        if scope.cancelled_caught:
            raise Refused(408, "TIMED_OUT", f"the body did not arrive: {self.size} bytes of it came in time")
        self._body = b"".join(pieces)

    async def _too_large(self, most: int) -> Refused:
        await self._discard()
        why = "limits.http_body_bytes" if most == self._bodies.one else "it carries no messages"
        return Refused(413, "TOO_LARGE", f"the body is larger than {most} bytes ({why}); send less at once")

    async def _discard(self) -> None:
        """Who is still sending does not read: what comes is thrown away for a while, so that the answer arrives."""
        with trio.move_on_after(DISCARD_S):
            message = await self._receive()
            while message.get("more_body", False):
                message = await self._receive()

    async def receive(self) -> Message:
        """The body, once; then whatever comes, which is the end of the connection."""
        body, self._body = self._body, None
        if body is not None:
            return {"type": "http.request", "body": body, "more_body": False}
        return await self._receive()

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [
                *message.get("headers", ()),
                (b"x-request-id", self.request_id.encode()),
                (b"x-content-type-options", b"nosniff"),
                *([(b"connection", b"close")] if self._once else ()),
            ]
        elif self.only_head:
            message = {**message, "body": b""}
        await self._send(message)

    async def refuse(self, scope: Scope, refused: Refused) -> None:
        response = problems.problem(
            self.request_id, refused.status, refused.code, refused.detail, retriable=refused.retriable
        )
        # The body may not be read: the connection cannot be used for another request.
        response.headers["connection"] = "close"
        async with trio.open_nursery() as nursery:
            # Nor may what comes of it keep back the end of the answer: the server queues a few pieces, and that behind.
            nursery.start_soon(self._throw_away)
            await response(scope, self.receive, self.send)
            nursery.cancel_scope.cancel()

    async def _throw_away(self) -> None:
        while True:
            await self._receive()


def _request_id(headers: dict[bytes, bytes]) -> str:
    given = headers.get(b"x-request-id", b"").decode("latin-1")
    return given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(8)


def _is_address(host: str) -> bool:
    """A page of another site can make a browser call its own name, not an address."""
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True
