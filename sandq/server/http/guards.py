"""What stands before every route: request ids, Host and Origin, bodies of bounded size, slow clients, the log.

Plain ASGI, around the application; everything of a request that is not about sandq is decided here.
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
from sandq.model.quotas import NO_QUOTA
from sandq.model.sources import source_of
from sandq.server.http import problems
from sandq.server.http.audit_notes import AuditNotes
from sandq.server.http.caller import CALLER, NOTES, HttpCaller
from sandq.server.http.rights import is_open
from sandq.server.quota_meters import QuotaMeters
from sandq.server.slots import Slots

log = structlog.get_logger("sandq.http")

BODY_S = 30.0
"""A body has so long to arrive ..."""
BODY_BYTES_PER_S = 64 * 1024
"""... and a second more for each of these."""
DISCARD_S = 5.0
REQUEST_BYTES: Final = 16 << 10
"""What a request takes, about, beside its body and its answer."""
BODY_COPIES: Final = 3
"""What a body takes, in its bytes: it is there as it came, as what it says, and as what is made of that."""
BODY_SHARE: Final = 4 / 5
"""What one body may take of all that the requests of its address may."""
SMALL_BYTES: Final = 4096
"""A body that is read whatever others take."""
ANSWER_BYTES: Final = 3 << 20
"""What a request may take for its answer: the largest are pages, which are there in so many copies, too."""
PIECES_BYTES: Final = 5 << 19
"""What is read ahead of an answer that is sent piece by piece, about: a batch of 1 MiB, and its messages."""
ROOM_S: Final = 10.0
"""A request waits so long for room for that."""
ALWAYS_ANSWERED = ("/livez", "/healthz", "/readyz", "/metrics")
"""However many other requests there are."""
CERTIFICATE_NAME: Final = "certificate_name"
"""Of a connection: who the client is by its certificate, or None."""
IS_ENCRYPTED: Final = "is_encrypted"
"""Of a connection: whether what is said cannot be read on its way."""
NO_PLACE: Final = "no_place"
"""Of a connection's state: it is one too many, and only these are answered."""
WAIT_APART: Final = "wait_apart"
"""Of a request's state: see `Guard.wait_apart`."""
IS_HEAD: Final = "is_head"
"""Of a request's state: it is answered like a GET, without the body."""
HOSTS_KEPT: Final = 256
"""Names by which the server was called last, and whether they are addresses."""
CONTROL_BYTES: Final = 1 << 20
"""A body that carries no messages, and is no answer that is sent back."""
EXPOSED_HEADERS: Final = ("etag", "retry-after", "sandq-stale-ms", "x-request-id")
"""That pages of other sites may read."""
_CARRYING: Final = ("POST", "PUT", "PATCH")
_CARRIES = re.compile(r"/topics/[^/]+(/[0-9]+|/keys/[\s\S]*|/groups/[^/]+/(ack|nack|extend))?")
_CARRIES_SCHEDULES = re.compile(r"/topics/[^/]+/schedules(/[\s\S]*)?")
"""They have messages, too, and are answered by what was made of them."""
_SETTLES = re.compile(r"/topics/[^/]+/groups/[^/]+/(ack|nack|dead|extend)")
"""What is counted, and not refused: who may not ack would get the same messages again."""
_BY_GET = re.compile(r"/(topics/[^/]+/groups/[^/]+|overview)/stream")
"""Asked for by GET, and it changes something, or keeps a place."""
OTHER_SITES: Final = (b"cross-site", b"same-site")
"""Of Sec-Fetch-Site, by which browsers say whose page asks."""
HSTS: Final = (b"strict-transport-security", b"max-age=31536000")
"""For a year."""
_LENGTH_DIGITS: Final = 18
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]{1,255})(?::[0-9]{1,5})?")

Observe = Callable[[str, str, int, float], None]
"""Told of each request: method, route, status, seconds."""
Hold = Callable[[int], None]
"""Told how many bytes were read of an answer without an end, and are not sent yet."""


class Logins(Protocol):
    """Says who asks."""

    async def caller(self, headers: Mapping[bytes, bytes], certificate: str | None, source: str) -> HttpCaller | None:
        """None: nobody in particular, who may do everything. Raises SandqError."""
        ...


@dataclass(frozen=True, slots=True)
class Rules:
    """`hosts`: names by which this node may be called, beside its addresses; `origins`: pages of other sites that may
    use it."""

    hosts: frozenset[str]
    origins: frozenset[str]
    requests: int
    waiting: int
    body_bytes: int
    body_limit: str
    """The limit that this is by."""
    requires_tls: bool = False
    """Whether browsers are to come by TLS alone from now on (Strict-Transport-Security)."""


class Refused(Exception):
    """A request that no route gets to see."""

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
    """The outermost of the application."""

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
        """`account`: of what requests take. `logins` says who asks; None: everybody may do everything. `notes` takes
        what is refused. `quotas`: counts what identities take; None: in meters of its own."""
        self._logins = logins
        self._notes = notes
        self.quotas = quotas if quotas is not None else QuotaMeters(anyio.current_time)
        self._account = account
        self._app = app
        self._rules = rules
        self._observe = observe
        self._log = log.bind()  # not for each request: what is not logged costs nothing
        self._under_way = Slots(rules.requests)
        self._waiting = Slots(rules.waiting)

    @property
    def under_way(self) -> int:
        """Number of requests that are under way, without those that wait for something to happen."""
        return self._under_way.used

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # The server's own goes on telling what was asked, and has nothing of what comes below: with the exchange in it,
        # which has the server's `send`, each request would be left to the collector, with its body.
        state = dict(scope.get("state", ()))
        scope = {**scope, "state": state}
        headers: dict[bytes, bytes] = dict(reversed(scope["headers"]))  # of several the first
        once = state.get(NO_PLACE, False)
        address = str((scope.get("client") or ("?",))[0])
        # As nodes write the addresses of their own clients.
        asker = f"[{address}]" if ":" in address else address
        source = source_of(address)
        share = self._account.of(source)
        only_by_tls = self._rules.requires_tls and state.get(IS_ENCRYPTED, False) and not _is_localhost(headers)
        request_id, only_head = _request_id(headers), scope["method"] == "HEAD"
        exchange = _Exchange(request_id, only_head, receive, send, share, once, only_by_tls)
        apart = partial(self.wait_apart, source, exchange)
        state.update({"request_id": exchange.request_id, WAIT_APART: apart, IS_HEAD: exchange.only_head})
        started = time.perf_counter()
        has_place = scope["path"] not in ALWAYS_ANSWERED and self._under_way.take(source)
        try:
            # A task of its own serves each request: what it is called needs no taking back.
            structlog.contextvars.bind_contextvars(request_id=exchange.request_id)
            with on_behalf_of(asker):
                await self._handle(scope, headers, exchange, has_place, (asker, source))
        finally:
            if has_place:
                self._under_way.give(source)
            exchange.end()
            self._tell(scope, exchange, time.perf_counter() - started)

    @contextmanager
    def wait_apart(self, source: str, exchange: _Exchange) -> Iterator[Hold]:
        """For a request that waits for something to happen: it is no more counted among those that are under way, but
        among those that wait. Raises Overloaded when those are too many."""
        waiting = self._waiting
        if not waiting.take(source):
            raise Overloaded(
                f"{waiting.limit} requests wait for messages or changes, or {waiting.share} of this address "
                "(limits.http_waiting); ask without waiting, or again in a moment"
            )
        self._under_way.give(source)
        exchange.count_answer(0)
        try:
            yield exchange.hold
        finally:
            exchange.count_answer(ANSWER_BYTES)
            self._under_way.add(source)
            waiting.give(source)

    async def _handle(
        self,
        scope: Scope,
        headers: dict[bytes, bytes],
        exchange: _Exchange,
        has_place: bool,
        origin: tuple[str, str],
    ) -> None:
        """`origin`: on behalf of which address nodes are asked, and whose limits it has."""
        try:
            self._check(scope, headers, has_place)
            is_for_everybody = is_open(scope["path"]) or _is_preflight(scope, headers)
            # Who is nobody keeps no place for as long as a body takes.
            if self._logins is None or (is_for_everybody and not _has_body(headers)):
                await self._pass_on(scope, headers, exchange)
                return
            caller = await self._log_in(self._logins, scope, headers, origin)
            if caller is None:
                await self._pass_on(scope, headers, exchange)
                return
            with on_behalf_of(origin[0], caller.principal, caller.consumes):
                await self._counted(caller, scope, headers, exchange)
        except Refused as refused:
            refused.headers = {**refused.headers, **self._for_page(headers)}
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

    def _for_page(self, headers: Mapping[bytes, bytes]) -> dict[str, str]:
        """What has a page of another site that may ask read why it is refused."""
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
        """Find out who asks, and note it in the state of the request. Raises Refused."""
        state, (asker, source) = scope["state"], origin
        request_id: str = state["request_id"]
        try:
            caller = await logins.caller(headers, state.get(CERTIFICATE_NAME), source)
        except SandqError as error:
            if error.http_status == 401 and self._notes is not None and b"authorization" not in headers:
                # What a node did not get to see; of the others it has noted the failure itself.
                self._notes.refused(asker, None, scope["method"], error, request_id)
            status = 503 if error.http_status == 421 else error.http_status
            challenge = {"www-authenticate": "Bearer"} if status == 401 else None
            raise Refused(status, error.code, error.message, retriable=error.retriable, headers=challenge) from None
        state[CALLER] = caller
        if caller is not None and caller.access is not None and (notes := self._notes) is not None:
            principal = caller.principal
            state[NOTES] = lambda call, error: notes.refused(asker, principal, call, error, request_id)
        return caller

    async def _counted(
        self, caller: HttpCaller, scope: Scope, headers: dict[bytes, bytes], exchange: _Exchange
    ) -> None:
        """Pass on what a quota allows. Raises Refused."""
        quota, quotas = caller.quota, self.quotas
        if quota is NO_QUOTA:
            await self._pass_on(scope, headers, exchange)
            return
        length = headers.get(b"content-length", b"0")
        # Of what is larger nothing is read.
        size = min(int(length), self._rules.body_bytes) if length.isdigit() and len(length) <= _LENGTH_DIGITS else 0
        is_free = scope["method"] == "POST" and _SETTLES.fullmatch(scope["path"]) is not None
        carries = not is_free or scope["path"].endswith("/ack")  # which may send messages
        try:
            # What settles messages finds room beside the leases and streams that wait.
            with quotas.connected(caller.principal, NO_QUOTA if is_free else quota):
                quotas.take(caller.principal, quota, 1, size, is_free=is_free, carries=carries)
                await self._pass_on(scope, headers, exchange)
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
            if exchange.size > size:  # of a body that did not say how long it is
                quotas.owe(caller.principal, quota, exchange.size - size)

    async def _pass_on(self, scope: Scope, headers: dict[bytes, bytes], exchange: _Exchange) -> None:
        """Read the body, and let the application answer. Raises Refused."""
        is_carrying, path = scope["method"] in _CARRYING, scope["path"]
        carries = is_carrying and _CARRIES.fullmatch(path) is not None
        has_schedules = is_carrying and _CARRIES_SCHEDULES.fullmatch(path) is not None
        await self._read_body(exchange, headers, carries or has_schedules)
        if not carries and scope["path"] not in ALWAYS_ANSWERED:
            await exchange.reserve_answer()
        if exchange.only_head:
            scope["method"] = "GET"
        scope["headers"] = [
            *((name, value) for name, value in scope["headers"] if name != b"content-type"),
            (b"content-type", b"application/json"),
        ]
        await self._app(scope, exchange.receive, exchange.send)

    async def _read_body(self, exchange: _Exchange, headers: dict[bytes, bytes], carries: bool) -> None:
        rules = self._rules
        if carries or rules.body_bytes <= CONTROL_BYTES:
            await exchange.read_body(headers, rules.body_bytes, rules.body_limit)
        else:
            await exchange.read_body(headers, CONTROL_BYTES, "it carries no messages")

    def _check(self, scope: Scope, headers: dict[bytes, bytes], has_place: bool) -> None:
        rules = self._rules
        encoding = headers.get(b"content-encoding", b"identity").decode("latin-1").strip().lower()
        if encoding not in ("", "identity"):
            raise Refused(
                415, "CONTENT_ENCODING", f"a body of the encoding {encoding[:40]!r} is not read: send it as it is"
            )
        if scope["path"] not in ALWAYS_ANSWERED:
            if scope["state"].get(NO_PLACE, False):
                raise Refused(503, "OVERLOADED", "too many connections (limits.http_connections)", retriable=True)
            if not has_place:
                slots = self._under_way
                why = f"{slots.limit} requests are under way, or {slots.share} of this address (limits.http_requests)"
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

        elif headers.get(b"sec-fetch-site") in OTHER_SITES and _BY_GET.fullmatch(scope["path"]) is not None:
            # Such a request has no Origin: a page can make it by an image, and lease messages with it.
            raise Refused(403, "FOREIGN_ORIGIN", "pages of other sites may not open streams of this node")

    def _tell(self, scope: Scope, exchange: _Exchange, seconds: float) -> None:
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
    """One request: its body, read before the routes see it, and its answer on its way."""

    def __init__(
        self,
        request_id: str,
        only_head: bool,
        receive: Receive,
        send: Send,
        share: SourceShare,
        once: bool,
        only_by_tls: bool,
    ) -> None:
        """`share`: what requests of its address may take; `once`: the connection is closed behind the answer;
        `only_by_tls`: browsers are told to come by TLS alone."""
        self._only_by_tls = only_by_tls
        self.request_id = request_id
        self.only_head = only_head
        """It is answered like a GET, without the body."""
        self.status: int | None = None
        self._receive = receive
        self._send = send
        self._share = share
        self._once = once
        self._size = 0
        """Of its body, as far as it has come."""
        self._answer_bytes = 0
        self._ahead_bytes = PIECES_BYTES
        self._counted = 0
        """Of the share."""
        self._body: bytes | None = b""
        self._count()

    @property
    def size(self) -> int:
        """Bytes of its body that were read."""
        return self._size

    def _count(self) -> None:
        more = REQUEST_BYTES + BODY_COPIES * self._size + self._answer_bytes - self._counted
        self._counted += more
        if more > 0:
            self._share.take(more)
        elif more < 0:
            self._share.give_back(-more)

    def count_answer(self, size: int) -> None:
        """So much is there of its answer, or may be."""
        self._answer_bytes = size
        self._count()

    def hold(self, size: int) -> None:
        """So much was read, and no more, of an answer that is sent piece by piece; for who counts it."""
        self._ahead_bytes = size
        self.count_answer(size)

    async def reserve_answer(self) -> None:
        """Wait until there is room for its answer. Raises Refused."""
        with anyio.move_on_after(ROOM_S):
            await self._share.reserve(ANSWER_BYTES)
            self._counted += ANSWER_BYTES
            self._answer_bytes = ANSWER_BYTES
            return
        why = "requests take all the memory that they may (limits.memory_bytes); send it again in a moment"
        raise Refused(503, "OVERLOADED", why, retriable=True)

    def end(self) -> None:
        """Nothing of it is there any more."""
        self._share.give_back(self._counted)
        self._counted = 0

    async def read_body(self, headers: dict[bytes, bytes], most: int, limit: str) -> None:
        """Read it whole, `most` bytes because of a limit. Raises Refused."""
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
                has_room = self._share.has_room(BODY_COPIES * len(piece))
                self._size += len(piece)
                if self._size > most:
                    raise await self._too_large(most, limit)
                if self._size > SMALL_BYTES and not has_room:
                    await self._throw_body_away(pieces)
                    raise Refused(503, "OVERLOADED", "too many large bodies at once; send it again", retriable=True)
                self._count()
                scope.deadline += len(piece) / BODY_BYTES_PER_S
                pieces.append(piece)
                if not message.get("more_body", False):
                    break
        if scope.cancelled_caught:
            raise Refused(408, "TIMED_OUT", f"the body did not arrive: {self._size} bytes of it came in time")
        self._body = b"".join(pieces)

    async def _too_large(self, most: int, limit: str) -> Refused:
        await self._discard()
        return Refused(413, "TOO_LARGE", f"the body is larger than {most} bytes ({limit}); send less at once")

    async def _throw_body_away(self, pieces: list[bytes]) -> None:
        pieces.clear()
        self._size = 0
        self._count()
        await self._discard()

    async def _discard(self) -> None:
        """Who is still sending does not read: what comes is thrown away for a while, so that the answer arrives."""
        with anyio.move_on_after(DISCARD_S):
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
                *([HSTS] if self._only_by_tls else ()),
            ]
        elif self.only_head:
            message = {**message, "body": b""}
        if message["type"] == "http.response.body":
            # Of what comes in pieces there is more than the piece.
            self.count_answer(len(message.get("body", b"")) + (self._ahead_bytes if message.get("more_body") else 0))
        await self._send(message)

    async def refuse(self, scope: Scope, refused: Refused) -> None:
        response = problems.problem(
            self.request_id,
            refused.status,
            refused.code,
            refused.detail,
            retriable=refused.retriable,
            more=refused.more,
        )
        response.headers.update(refused.headers)
        # The body may not be read: the connection cannot be used for another request.
        response.headers["connection"] = "close"
        async with anyio.create_task_group() as tasks:
            # Nor may what comes of it keep back the end of the answer: the server queues a few pieces, and that behind.
            tasks.start_soon(self._throw_away)
            await response(scope, self.receive, self.send)
            tasks.cancel_scope.cancel()

    async def _throw_away(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass


def _is_localhost(headers: Mapping[bytes, bytes]) -> bool:
    """Whether it is asked by a name that other programs of the same machine have, too, on other ports."""
    return headers.get(b"host", b"").partition(b":")[0].lower() == b"localhost"


def _is_preflight(scope: Scope, headers: Mapping[bytes, bytes]) -> bool:
    """Whether a page of another site asks what it may ask: that shows nothing that says who it is."""
    return scope["method"] == "OPTIONS" and b"access-control-request-method" in headers


def _has_body(headers: Mapping[bytes, bytes]) -> bool:
    return b"transfer-encoding" in headers or headers.get(b"content-length", b"0").strip(b"0") != b""


def _request_id(headers: dict[bytes, bytes]) -> str:
    given = headers.get(b"x-request-id", b"").decode("latin-1")
    return given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(8)


@lru_cache(HOSTS_KEPT)
def _is_address(host: str) -> bool:
    """A page of another site can make a browser call its own name, not an address."""
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True
