"""What stands before every route: request ids, Host and Origin, bodies of bounded size, slow clients, the log.

Plain ASGI, around the application; everything of a request that is not about sandq is decided here.
"""

from __future__ import annotations

import ipaddress
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog
import trio
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sandq.server.http import problems

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
        self._under_way = 0
        self._bodies = _Bodies(rules.body_bytes, BODIES_BYTES * rules.body_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers: dict[bytes, bytes] = dict(reversed(scope["headers"]))  # of several the first
        exchange = _Exchange(_request_id(headers), scope["method"] == "HEAD", receive, send, self._bodies)
        scope.setdefault("state", {})["request_id"] = exchange.request_id
        started = time.perf_counter()
        self._under_way += 1
        try:
            with structlog.contextvars.bound_contextvars(request_id=exchange.request_id):
                await self._handle(scope, headers, exchange)
        finally:
            self._under_way -= 1
            self._bodies.used -= exchange.size
            self._tell(scope, exchange, time.perf_counter() - started)

    async def _handle(self, scope: Scope, headers: dict[bytes, bytes], exchange: _Exchange) -> None:
        try:
            self._check(scope, headers)
            await exchange.read_body(headers)
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

    def _check(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        rules = self._rules
        if self._under_way > rules.requests and scope["path"] not in ALWAYS_ANSWERED:
            raise Refused(
                503, "OVERLOADED", f"{rules.requests} requests are under way (limits.http_requests)", retriable=True
            )
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

    def __init__(self, request_id: str, only_head: bool, receive: Receive, send: Send, bodies: _Bodies) -> None:
        self.request_id = request_id
        self.only_head = only_head
        """It is answered like a GET, without the body."""
        self.status: int | None = None
        self._receive = receive
        self._send = send
        self._bodies = bodies
        self.size = 0
        """Of its body, as far as it has come."""
        self._body: bytes | None = b""

    async def read_body(self, headers: dict[bytes, bytes]) -> None:
        length = headers.get(b"content-length", b"0")
        if len(length) > 18 or not length.isdigit() or int(length) > self._bodies.one:
            raise await self._too_large()
        pieces: list[bytes] = []
        with trio.move_on_after(BODY_S) as scope:
            while True:
                message = await self._receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnect
                piece = message.get("body", b"")
                self.size += len(piece)
                self._bodies.used += len(piece)
                if self.size > self._bodies.one:
                    raise await self._too_large()
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

    async def _too_large(self) -> Refused:
        await self._discard()
        return Refused(
            413,
            "TOO_LARGE",
            f"the body is larger than {self._bodies.one} bytes (limits.http_body_bytes); send less at once",
        )

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
        await response(scope, self.receive, self.send)


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
