"""Checks and limits that apply to every HTTP request, before any route.

The checks cover request ids, Host and Origin, authentication, quotas, the size of bodies, memory, slow clients, and the
log. The guard is plain ASGI around the application.
"""

from __future__ import annotations

import ipaddress
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Final, Protocol

import anyio
import structlog
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sandq.broker.memory_budget import Account, SourceShare
from sandq.client import on_behalf_of
from sandq.model.errors import Overloaded, QuotaExceeded, SandqError
from sandq.model.logger import get_logger
from sandq.model.quotas import NO_QUOTA
from sandq.model.sources import source_of
from sandq.server.http import problems
from sandq.server.http.audit_notes import AuditNotes
from sandq.server.http.caller import CALLER, NOTES, HttpCaller
from sandq.server.http.rights import is_open
from sandq.server.quota_meters import QuotaMeters
from sandq.server.slots import Slots

log = get_logger("sandq.http")

BODY_S = 30.0
"""Time for a body to arrive, in seconds."""
BODY_BYTES_PER_S = 64 * 1024
"""Number of received bytes that extend the time of a body by one second."""
DISCARD_S = 5.0
"""Time in which the rest of a refused body is read and dropped, in seconds."""
REQUEST_BYTES: Final = 16 << 10
"""Approximate memory of a request, in bytes, without its body and its response."""
BODY_COPIES: Final = 3
"""Copies of a body in memory: the received bytes, the parsed JSON, and the objects made from it."""
BODY_SHARE: Final = 4 / 5
"""Part of the memory for the requests of one address that one body may use."""
SMALL_BYTES: Final = 4096
"""Size up to which a body is read even if the memory is used up, in bytes."""
RESPONSE_BYTES: Final = 3 << 20
"""Memory reserved for a response, in bytes. The largest responses are pages, which also exist in several copies."""
PIECES_BYTES: Final = 5 << 19
"""Approximate bytes that are read ahead for a response sent in pieces: a batch of 1 MiB, and its messages."""
RESERVE_S: Final = 10.0
"""Maximum time that a request waits for this memory, in seconds."""
ALWAYS_ANSWERED = ("/livez", "/healthz", "/readyz", "/metrics")
"""Paths that are served even if the limits of requests or connections are reached."""
CERTIFICATE_NAME: Final = "certificate_name"
"""Key in the state of a connection: the name in the client's certificate, or None."""
IS_ENCRYPTED: Final = "is_encrypted"
"""Key in the state of a connection: whether it uses TLS."""
IS_SPARE: Final = "is_spare"
"""Key in the state of a connection: whether it has a spare slot, and may only use `ALWAYS_ANSWERED`."""
WAITING_SLOT: Final = "waiting_slot"
"""Key in the state of a request: see `Guard.waiting_slot`."""
IS_HEAD: Final = "is_head"
"""Key in the state of a request: whether it is a HEAD, which is answered like a GET, without the body."""
HOSTS_KEPT: Final = 256
"""Number of recent host names for which the result of `_is_address` is cached."""
CONTROL_BYTES: Final = 1 << 20
"""Maximum size of a body that carries no messages, in bytes."""
EXPOSED_HEADERS: Final = ("etag", "retry-after", "sandq-stale-ms", "x-request-id")
"""Response headers that pages of other sites may read."""
_CARRYING: Final = ("POST", "PUT", "PATCH")
_CARRIES = re.compile(r"/topics/[^/]+(/[0-9]+|/keys/[\s\S]*|/groups/[^/]+/(ack|nack|extend))?")
_CARRIES_SCHEDULES = re.compile(r"/topics/[^/]+/schedules(/[\s\S]*)?")
"""Requests about schedules carry messages, too. Unlike the responses of `_CARRIES`, their responses contain stored
messages, so memory is reserved for these responses."""
_SETTLES = re.compile(r"/topics/[^/]+/groups/[^/]+/(ack|nack|dead|extend)")
"""Requests that settle messages. Quotas count these requests, but never refuse them: the messages would be
redelivered."""
_BY_GET = re.compile(r"/(topics/[^/]+/groups/[^/]+|overview)/stream")
"""GET requests that change something or hold a slot. Pages of other sites must not send such requests."""
OTHER_SITES: Final = (b"cross-site", b"same-site")
"""Values of Sec-Fetch-Site with which browsers mark requests from pages of other sites."""
HSTS: Final = (b"strict-transport-security", b"max-age=31536000")
"""Strict-Transport-Security, for a year."""
_LENGTH_DIGITS: Final = 18
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]{1,255})(?::[0-9]{1,5})?")

Observe = Callable[[str, str, int, float], None]
"""Called for each request, with method, route, status and duration in seconds."""
Hold = Callable[[int], None]
"""Called with the number of bytes that were read for an unlimited response and are not sent yet."""


class Logins(Protocol):
    """Identifies the caller of a request."""

    async def caller(self, headers: Mapping[bytes, bytes], certificate: str | None, source: str) -> HttpCaller | None:
        """Return the caller; None: an anonymous one that may do everything. Raise SandqError."""
        ...


@dataclass(frozen=True, slots=True)
class Rules:
    """Limits and policies of one server.

    `hosts`: host names that clients may use, in addition to addresses. `origins`: other sites whose pages may use it.
    """

    hosts: frozenset[str]
    origins: frozenset[str]
    requests: int
    waiting: int
    body_bytes: int
    body_limit: str
    """Name of the limit that sets `body_bytes`."""
    requires_tls: bool = False
    """Whether browsers must use TLS from now on (Strict-Transport-Security)."""


class Refused(Exception):
    """A request that is refused before any route."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        retriable: bool = False,
        headers: Mapping[str, str] | None = None,
        more: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(detail)
        self.more = more
        self.headers = headers or {}
        self.status = status
        self.code = code
        self.detail = detail
        self.retriable = retriable


class Guard:
    """The outermost layer of the application."""

    def __init__(
        self,
        app: ASGIApp,
        rules: Rules,
        observe: Observe,
        account: Account,
        logins: Logins | None = None,
        notes: AuditNotes | None = None,
        quotas: QuotaMeters | None = None,
    ) -> None:
        """Create the guard.

        `account`: memory of requests. `logins`: identifies callers; None: everything is allowed. `notes`: records
        refused requests for the audit log. `quotas`: counts the usage of identities; None: create counters."""
        self._logins = logins
        self._notes = notes
        self.quotas = quotas if quotas is not None else QuotaMeters(anyio.current_time)
        self._account = account
        self._app = app
        self._rules = rules
        self._observe = observe
        self._log = log.bind()  # Bound once, so that a request whose line is not logged costs nothing here.
        self._in_progress = Slots(rules.requests)
        self._waiting = Slots(rules.waiting)

    @property
    def in_progress(self) -> int:
        """Number of requests in progress, without those that wait for an event."""
        return self._in_progress.used

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request: count it, check it, pass it to the application, and report it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # Copy the state: the server's own one must not refer to the exchange. The exchange refers to the server's
        # `send`, so each request would be a reference cycle, which keeps its body until the garbage collector runs.
        state = dict(scope.get("state", ()))
        scope = {**scope, "state": state}
        headers: dict[bytes, bytes] = dict(reversed(scope["headers"]))  # if a name is repeated, its first value counts
        closes = state.get(IS_SPARE, False)
        host = str((scope.get("client") or ("?",))[0])
        # The format in which nodes write the addresses of their own clients.
        address = f"[{host}]" if ":" in host else host
        source = source_of(host)
        share = self._account.of(source)
        only_by_tls = self._rules.requires_tls and state.get(IS_ENCRYPTED, False) and not _is_localhost(headers)
        request_id, only_head = _request_id(headers), scope["method"] == "HEAD"
        exchange = _Exchange(request_id, only_head, receive, send, share, closes, only_by_tls)
        apart = partial(self.waiting_slot, source, exchange)
        state.update({"request_id": exchange.request_id, WAITING_SLOT: apart, IS_HEAD: exchange.only_head})
        started = time.perf_counter()
        has_slot = scope["path"] not in ALWAYS_ANSWERED and self._in_progress.take(source)
        try:
            # Each request has its own task, so the variable need not be unbound.
            structlog.contextvars.bind_contextvars(request_id=exchange.request_id)
            with on_behalf_of(address):
                await self._handle(scope, headers, exchange, has_slot, (address, source))
        finally:
            if has_slot:
                self._in_progress.give(source)
            exchange.end()
            self._report(scope, exchange, time.perf_counter() - started)

    @contextmanager
    def waiting_slot(self, source: str, exchange: _Exchange) -> Iterator[Hold]:
        """Count a request as waiting for an event, instead of as in progress, within the block.

        Yield the function that reports the memory of its response. Raise Overloaded if too many requests wait."""
        waiting = self._waiting
        if not waiting.take(source):
            raise Overloaded(
                f"{waiting.limit} requests, or {waiting.share} of this address, wait for messages or changes "
                "(limits.http_waiting): ask without waiting, or again in a moment"
            )
        self._in_progress.give(source)
        exchange.count_response(0)
        try:
            yield exchange.hold
        finally:
            exchange.count_response(RESPONSE_BYTES)
            self._in_progress.add(source)
            waiting.give(source)

    async def _handle(
        self,
        scope: Scope,
        headers: dict[bytes, bytes],
        exchange: _Exchange,
        has_slot: bool,
        origin: tuple[str, str],
    ) -> None:
        """Check a request, and pass it to the application.

        `origin`: the address of the client as nodes see it, and the source whose limits apply."""
        try:
            self._check(scope, headers, has_slot)
            is_for_everybody = is_open(scope["path"]) or _is_preflight(scope, headers)
            # A body needs authentication even on an open path: an anonymous client could hold a slot for as long as it
            # takes.
            if self._logins is None or (is_for_everybody and not _has_body(headers)):
                await self._serve(scope, headers, exchange)
                return
            caller = await self._log_in(self._logins, scope, headers, origin)
            if caller is None:
                await self._serve(scope, headers, exchange)
                return
            with on_behalf_of(origin[0], caller.principal, caller.consumes):
                await self._count_and_serve(caller, scope, headers, exchange)
        except Refused as refused:
            refused.headers = {**refused.headers, **self._for_page(headers)}
            await exchange.refuse(scope, refused)
        except ClientDisconnect:
            pass  # the client has gone: it needs no response
        except Exception as error:
            if isinstance(error.__cause__, ClientDisconnect):
                return  # the client has disconnected after half of the response was sent
            log.exception("a request failed with an unexpected error", path=scope["path"][:200])
            if exchange.status is None:
                await exchange.refuse(scope, Refused(500, "INTERNAL", problems.FAULT))
            elif exchange.status != 500:
                raise  # half of the response is sent: the server closes the connection

    def _for_page(self, headers: Mapping[bytes, bytes]) -> dict[str, str]:
        """Return the headers that let a page of an allowed site read why its request is refused."""
        origin = headers.get(b"origin", b"").decode("latin-1")
        if origin not in self._rules.origins:
            return {}
        return {
            "access-control-allow-origin": origin,
            "access-control-expose-headers": ", ".join(EXPOSED_HEADERS),
            "vary": "Origin",
        }

    async def _log_in(
        self, logins: Logins, scope: Scope, headers: dict[bytes, bytes], origin: tuple[str, str]
    ) -> HttpCaller | None:
        """Identify the caller, and store it in the state of the request. Raise Refused."""
        state, (address, source) = scope["state"], origin
        request_id: str = state["request_id"]
        try:
            caller = await logins.caller(headers, state.get(CERTIFICATE_NAME), source)
        except SandqError as error:
            if error.http_status == 401 and self._notes is not None and b"authorization" not in headers:
                # The request was not sent to a node. If it had credentials, a node has recorded the failure.
                self._notes.refused(address, None, scope["method"], error, request_id)
            status = 503 if error.http_status == 421 else error.http_status
            challenge = {"www-authenticate": "Bearer"} if status == 401 else None
            raise Refused(status, error.code, error.message, retriable=error.retriable, headers=challenge) from None
        state[CALLER] = caller
        if caller is not None and caller.access is not None and (notes := self._notes) is not None:
            principal = caller.principal
            state[NOTES] = lambda call, error: notes.refused(address, principal, call, error, request_id)
        return caller

    async def _count_and_serve(
        self, caller: HttpCaller, scope: Scope, headers: dict[bytes, bytes], exchange: _Exchange
    ) -> None:
        """Count a request against the caller's quota, and serve it. Raise Refused."""
        quota, quotas = caller.quota, self.quotas
        if quota is NO_QUOTA:
            await self._serve(scope, headers, exchange)
            return
        length = headers.get(b"content-length", b"0")
        # A larger body is refused without being read.
        size = min(int(length), self._rules.body_bytes) if length.isdigit() and len(length) <= _LENGTH_DIGITS else 0
        is_free = scope["method"] == "POST" and _SETTLES.fullmatch(scope["path"]) is not None
        carries = not is_free or scope["path"].endswith("/ack")  # an ack may send messages
        try:
            # Settling is not subject to the quota of connections: waiting leases and streams may have used it up.
            with quotas.connected(caller.principal, NO_QUOTA if is_free else quota):
                quotas.take(caller.principal, quota, 1, size, is_free=is_free, carries=carries)
                await self._serve(scope, headers, exchange)
        except QuotaExceeded as error:
            again = {"retry-after": problems.retry_after(error)} if error.retriable else None
            raise Refused(
                error.http_status,
                error.code,
                error.message,
                retriable=error.retriable,
                headers=again,
                more=error.details,
            ) from None
        finally:
            if exchange.size > size:  # the body had no Content-Length
                quotas.owe(caller.principal, quota, exchange.size - size)

    async def _serve(self, scope: Scope, headers: dict[bytes, bytes], exchange: _Exchange) -> None:
        """Read the body, and run the application. Raise Refused."""
        is_carrying, path = scope["method"] in _CARRYING, scope["path"]
        carries = is_carrying and _CARRIES.fullmatch(path) is not None
        has_schedules = is_carrying and _CARRIES_SCHEDULES.fullmatch(path) is not None
        await self._read_body(exchange, headers, carries or has_schedules)
        if not carries and scope["path"] not in ALWAYS_ANSWERED:
            await exchange.reserve_response()
        if exchange.only_head:
            scope["method"] = "GET"
        # Bodies are JSON, whatever their content type is.
        scope["headers"] = [
            *((name, value) for name, value in scope["headers"] if name != b"content-type"),
            (b"content-type", b"application/json"),
        ]
        await self._app(scope, exchange.receive, exchange.send)

    async def _read_body(self, exchange: _Exchange, headers: dict[bytes, bytes], carries: bool) -> None:
        """Read the body, within the limit for requests that carry messages or for all others."""
        rules = self._rules
        if carries or rules.body_bytes <= CONTROL_BYTES:
            await exchange.read_body(headers, rules.body_bytes, rules.body_limit)
        else:
            await exchange.read_body(headers, CONTROL_BYTES, "it carries no messages")

    def _check(self, scope: Scope, headers: dict[bytes, bytes], has_slot: bool) -> None:
        """Raise Refused if a request must not reach the application.

        The reason may be its encoding, too many connections or requests, or a host or an origin that is not allowed."""
        rules = self._rules
        encoding = headers.get(b"content-encoding", b"identity").decode("latin-1").strip().lower()
        if encoding not in ("", "identity"):
            raise Refused(
                415,
                "CONTENT_ENCODING",
                f"the content encoding {encoding[:40]!r} is not supported: send the body unencoded",
            )
        if scope["path"] not in ALWAYS_ANSWERED:
            if scope["state"].get(IS_SPARE, False):
                raise Refused(503, "OVERLOADED", "too many connections (limits.http_connections)", retriable=True)
            if not has_slot:
                slots = self._in_progress
                why = f"{slots.limit} requests are in progress, or {slots.share} of this address (limits.http_requests)"
                raise Refused(503, "OVERLOADED", why, retriable=True)
        host = headers.get(b"host", b"").decode("latin-1")
        match = _HOST.fullmatch(host)
        if match is None or not (_is_address(match[1]) or match[1].lower() in rules.hosts):
            raise Refused(
                403,
                "FOREIGN_HOST",
                f"this node is not {host[:80]!r}: use its address, or add the host to http.allowed_hosts",
            )
        origin = headers.get(b"origin")
        if origin is not None:
            text = origin.decode("latin-1").lower()
            if text not in (f"http://{host}".lower(), f"https://{host}".lower()) and text not in rules.origins:
                raise Refused(
                    403,
                    "FOREIGN_ORIGIN",
                    f"pages of {text[:80]!r} may not use this node: http.allowed_origins lists the sites that may",
                )

        elif headers.get(b"sec-fetch-site") in OTHER_SITES and _BY_GET.fullmatch(scope["path"]) is not None:
            # A GET has no Origin: a page could send it as the URL of an image, and lease messages with it.
            raise Refused(403, "FOREIGN_ORIGIN", "pages of other sites may not open streams of this node")

    def _report(self, scope: Scope, exchange: _Exchange, seconds: float) -> None:
        """Count a request that has ended, and log it."""
        route = scope.get("route")
        path: str = getattr(route, "path", "(none)")
        status = exchange.status or problems.CLIENT_GONE
        self._observe(scope["method"], path, status, seconds)
        self._log.debug(
            "request",
            request_id=exchange.request_id,
            method=scope["method"],
            path=scope["path"][:200],
            status=status,
            milliseconds=round(seconds * 1000, 1),
            peer=(scope.get("client") or ("?",))[0],
        )


class _Exchange:
    """One request: its body, which is read before the routes run, and the response in progress."""

    def __init__(
        self,
        request_id: str,
        only_head: bool,
        receive: Receive,
        send: Send,
        share: SourceShare,
        closes: bool,
        only_by_tls: bool,
    ) -> None:
        """Create the exchange of one request.

        `share`: memory for the requests of its address. `closes`: close the connection after the response.
        `only_by_tls`: tell browsers to use TLS only."""
        self._only_by_tls = only_by_tls
        self.request_id = request_id
        self.only_head = only_head
        """Whether the request is a HEAD, which is answered like a GET without the body."""
        self.status: int | None = None
        self._receive = receive
        self._send = send
        self._share = share
        self._closes = closes
        self._size = 0
        """Bytes of the body that have arrived."""
        self._response_bytes = 0
        self._ahead_bytes = PIECES_BYTES
        self._counted = 0
        """Bytes that are charged to the share."""
        self._body: bytes | None = b""
        self._count()

    @property
    def size(self) -> int:
        """Bytes of the body that were read."""
        return self._size

    def _count(self) -> None:
        """Charge the memory that the request holds now to the share of its address."""
        more = REQUEST_BYTES + BODY_COPIES * self._size + self._response_bytes - self._counted
        self._counted += more
        if more > 0:
            self._share.take(more)
        elif more < 0:
            self._share.give_back(-more)

    def count_response(self, size: int) -> None:
        """Set the number of bytes that the response holds, or may hold."""
        self._response_bytes = size
        self._count()

    def hold(self, size: int) -> None:
        """Set the number of bytes that were read for a response in pieces. For routes that count these themselves."""
        self._ahead_bytes = size
        self.count_response(size)

    async def reserve_response(self) -> None:
        """Wait for the memory of the response. Raise Refused."""
        with anyio.move_on_after(RESERVE_S):
            await self._share.reserve(RESPONSE_BYTES)
            self._counted += RESPONSE_BYTES
            self._response_bytes = RESPONSE_BYTES
            return
        why = "requests use all the memory that they may (limits.memory_bytes): send it again in a moment"
        raise Refused(503, "OVERLOADED", why, retriable=True)

    def end(self) -> None:
        """Release the memory of the request."""
        self._share.give_back(self._counted)
        self._counted = 0

    async def read_body(self, headers: dict[bytes, bytes], most: int, limit: str) -> None:
        """Read the whole body, at most `most` bytes. `limit`: name of that limit. Raise Refused."""
        length = headers.get(b"content-length", b"0")
        if len(length) > 18 or not length.isdigit() or int(length) > most:
            raise await self._too_large(most, limit)
        pieces: list[bytes] = []
        with anyio.move_on_after(BODY_S) as scope:
            while True:
                message = await self._receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnect
                piece = message.get("body", b"")
                has_capacity = self._share.has_capacity(BODY_COPIES * len(piece))
                self._size += len(piece)
                if self._size > most:
                    raise await self._too_large(most, limit)
                if self._size > SMALL_BYTES and not has_capacity:
                    await self._throw_body_away(pieces)
                    raise Refused(503, "OVERLOADED", "too many large bodies at once: send it again", retriable=True)
                self._count()
                scope.deadline += len(piece) / BODY_BYTES_PER_S
                pieces.append(piece)
                if not message.get("more_body", False):
                    break
        if scope.cancelled_caught:
            raise Refused(408, "TIMED_OUT", f"the body did not arrive in time: {self._size} bytes of it were received")
        self._body = b"".join(pieces)

    async def _too_large(self, most: int, limit: str) -> Refused:
        """Discard the rest of the body, and return the error for a body that is too large."""
        await self._discard()
        return Refused(413, "TOO_LARGE", f"the body is larger than {most} bytes ({limit}): send less at once")

    async def _throw_body_away(self, pieces: list[bytes]) -> None:
        """Free the pieces of a body, and discard the rest."""
        pieces.clear()
        self._size = 0
        self._count()
        await self._discard()

    async def _discard(self) -> None:
        """Read and drop the rest of the body for a while: a client that is still sending does not read the response."""
        with anyio.move_on_after(DISCARD_S):
            message = await self._receive()
            while message.get("more_body", False):
                message = await self._receive()

    async def receive(self) -> Message:
        """Return the body once, and then the server's further messages: the disconnection."""
        body, self._body = self._body, None
        if body is not None:
            return {"type": "http.request", "body": body, "more_body": False}
        return await self._receive()

    async def send(self, message: Message) -> None:
        """Send a message of the response: add headers, drop the body for HEAD, and count the memory that it holds."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [
                *message.get("headers", ()),
                (b"x-request-id", self.request_id.encode()),
                (b"x-content-type-options", b"nosniff"),
                *([(b"connection", b"close")] if self._closes else ()),
                *([HSTS] if self._only_by_tls else ()),
            ]
        elif self.only_head:
            message = {**message, "body": b""}
        if message["type"] == "http.response.body":
            # A response in pieces holds more than the piece that is sent.
            self.count_response(len(message.get("body", b"")) + (self._ahead_bytes if message.get("more_body") else 0))
        await self._send(message)

    async def refuse(self, scope: Scope, refused: Refused) -> None:
        """Respond with an error, and close the connection."""
        response = problems.problem(
            self.request_id,
            refused.status,
            refused.code,
            refused.detail,
            retriable=refused.retriable,
            more=refused.more,
        )
        response.headers.update(refused.headers)
        # The body may be unread, so the connection cannot be used for a further request.
        response.headers["connection"] = "close"
        async with anyio.create_task_group() as tasks:
            # Drop the body meanwhile: its unread bytes could prevent the server from sending the end of the response.
            tasks.start_soon(self._throw_away)
            await response(scope, self.receive, self.send)
            tasks.cancel_scope.cancel()

    async def _throw_away(self) -> None:
        """Read and drop messages until the client disconnects."""
        while (await self._receive())["type"] != "http.disconnect":
            pass


def _is_localhost(headers: Mapping[bytes, bytes]) -> bool:
    """Return whether the request uses the name localhost. Other programs on the machine share this name, with other
    ports."""
    return headers.get(b"host", b"").partition(b":")[0].lower() == b"localhost"


def _is_preflight(scope: Scope, headers: Mapping[bytes, bytes]) -> bool:
    """Return whether this is a preflight: a browser asks if a page of another site may send a request. A preflight has
    no credentials."""
    return scope["method"] == "OPTIONS" and b"access-control-request-method" in headers


def _has_body(headers: Mapping[bytes, bytes]) -> bool:
    """Return whether the headers announce a body."""
    return b"transfer-encoding" in headers or headers.get(b"content-length", b"0").strip(b"0") != b""


def _request_id(headers: dict[bytes, bytes]) -> str:
    """Return the id that the client gave, if it is valid, or a new random one."""
    given = headers.get(b"x-request-id", b"").decode("latin-1")
    return given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(8)


@lru_cache(HOSTS_KEPT)
def _is_address(host: str) -> bool:
    """Return whether a host is an address. A page of another site can rebind its own name, but not an address."""
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True
