"""Send a request over TCP or TLS to addresses that the configuration allows, with limits for everything.

The host name is resolved and each of its addresses checked; the connection is made to the address, not to the name.
Redirects are not followed. The client reads the response while it sends the request. Only the status of the response
matters; its body is read up to a small limit, for the recorded error. Connections are kept for a short time and reused.
"""

from __future__ import annotations

import math
import select
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from ipaddress import ip_address
from typing import Final, NamedTuple

import h11
import trio

from sandq.model.push_targets import PushRules, Target, TargetRefused
from sandq.push.lookups import Lookups

CONNECT_S: Final = 10.0
"""Timeout for resolving the name and connecting, including TLS, in seconds; part of the request's time."""
ADDRESSES_MOST: Final = 8
"""Maximum number of addresses of a name to try."""
IDLE_S: Final = 30.0
"""How long an unused connection is kept, in seconds."""
LIFE_S: Final = 300.0
"""Maximum lifetime of a connection, in seconds; after that the name is resolved again."""
IDLE_MOST: Final = 100
"""Maximum number of unused connections."""
HEAD_BYTES: Final = 16 << 10
"""Maximum size of a response's headers."""
BODY_BYTES: Final = 16 << 10
"""Maximum number of bytes of a response's body that are read. If the body is larger, the connection cannot be
reused."""
DRAIN_S: Final = 1.0
"""Time to read the body of a response whose status is known, in seconds."""
MARGIN_S: Final = 0.1
"""Reading stops this long before the request's time is over, in seconds."""
ANSWER_BYTES: Final = 4096
"""Maximum number of bytes of a response's body to pass on to a callback."""
TEXT_CHARS: Final = 500
"""Maximum number of characters of a response's body to record."""
INFORMATIONAL_MOST: Final = 10
"""Maximum number of informational responses (1xx) before the final one."""
RECEIVE_BYTES: Final = 16 << 10
SEND_BYTES: Final = 64 << 10

Resolve = Callable[[str, int], Awaitable[list[str]]]
"""Resolves a name to its addresses. Raises OSError."""


class PushFailed(Exception):
    """The request got no response; the text has the reason."""


class Answer(NamedTuple):
    """The response of the receiver."""

    status: int
    retry_after: str | None
    text: str
    """The beginning of the body, on one line."""
    body: bytes = b""
    """The first `ANSWER_BYTES` of the body."""


class _Request(NamedTuple):
    method: bytes
    target: Target
    headers: list[tuple[bytes, bytes]]
    body: bytes


class _Connection:
    def __init__(self, stream: trio.abc.Stream, now_s: float) -> None:
        self.stream = stream
        self.http = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES)
        self.born_s = self.used_s = now_s
        self.was_heard = False
        """True if data of the response to the current request was received."""

    def is_fresh(self, now_s: float) -> bool:
        return now_s < min(self.used_s + IDLE_S, self.born_s + LIFE_S)


class HttpClient:
    """The HTTP client of one node."""

    def __init__(self, rules: PushRules, tls: ssl.SSLContext | None = None, resolve: Resolve | None = None) -> None:
        """`tls`: None uses the authorities of the machine. `resolve`: None uses the resolver of the machine."""
        self._rules = rules
        self._tls = tls or ssl.create_default_context()
        self._resolve = resolve or Lookups().find
        self._idle: dict[tuple[str, str, int], list[_Connection]] = {}
        """Unused connections by scheme, host and port. The most recently used host is last."""

    async def check(self, target: Target) -> None:
        """Raise TargetRefused if pushes to the target are not allowed; PushFailed if its name cannot be resolved."""
        with trio.move_on_after(CONNECT_S) as scope:
            await self._addresses(target)
        if scope.cancelled_caught:
            raise PushFailed(f"{target.host} was not found within {CONNECT_S:g} s")

    async def send(
        self,
        target: Target,
        headers: list[tuple[bytes, bytes]],
        body: bytes,
        timeout_s: float,
        *,
        method: str = "POST",
    ) -> Answer:
        """Send a request and return the response. Raises PushFailed; TargetRefused."""
        request = _Request(method.encode("ascii"), target, headers, body)
        doing = ["connecting"]
        with trio.move_on_after(timeout_s) as scope:
            try:
                return await self._try(request, doing)
            except h11.RemoteProtocolError as error:
                raise PushFailed(f"the answer is no HTTP: {str(error)[:200]}") from None
            except (OSError, trio.BrokenResourceError, ssl.SSLError) as error:
                raise PushFailed(f"{doing[0]}: {_why(error)}") from None
        assert scope.cancelled_caught
        raise PushFailed(f"no answer within {timeout_s:g} s, while {doing[0]}")

    def close(self) -> None:
        """Close the unused connections."""
        for kept in self._idle.values():
            for connection in kept:
                _drop(connection.stream)
        self._idle.clear()

    async def _try(self, request: _Request, doing: list[str]) -> Answer:
        connection = self._take(request.target)
        if connection is not None:
            try:
                return await self._ask(connection, request, doing)
            except (OSError, trio.BrokenResourceError, h11.RemoteProtocolError):
                if connection.was_heard:
                    raise
                # The receiver closed the connection while it was unused: send the request on a new connection.
        doing[0] = "connecting"
        return await self._ask(await self._connect(request.target), request, doing)

    # -- connections ----------------------------------------------------------------------------------------------

    def _take(self, target: Target) -> _Connection | None:
        kept, now_s = self._idle.get(target[:3], []), trio.current_time()
        while kept:
            connection = kept.pop()
            if connection.is_fresh(now_s) and _is_silent(connection.stream):
                return connection
            _drop(connection.stream)
        self._idle.pop(target[:3], None)
        return None

    def _keep(self, target: Target, connection: _Connection) -> None:
        connection.http.start_next_cycle()
        connection.used_s, connection.was_heard = trio.current_time(), False
        if sum(map(len, self._idle.values())) >= IDLE_MOST:
            for unused in self._idle.pop(next(iter(self._idle))):
                _drop(unused.stream)
        self._idle[target[:3]] = [*self._idle.pop(target[:3], []), connection]

    async def _addresses(self, target: Target) -> list[str]:
        """Return the allowed addresses of a target. Raises TargetRefused, PushFailed."""
        self._rules.check(target)
        try:
            found = await self._resolve(target.host, target.port)
        except (OSError, UnicodeError) as error:  # UnicodeError: labels that are not allowed in names
            raise PushFailed(f"{target.host} is not found: {_why(error)}") from None
        allowed, refusal = [], None
        for address in dict.fromkeys(found):
            try:
                self._rules.check_address(target.host, ip_address(address.partition("%")[0]))
            except TargetRefused as error:
                refusal = error
            else:
                allowed.append(address)
        if not allowed:
            raise refusal or PushFailed(f"{target.host} has no address")
        return allowed[:ADDRESSES_MOST]

    async def _connect(self, target: Target) -> _Connection:
        with trio.move_on_after(CONNECT_S) as scope:
            failure: Exception | None = None
            addresses = await self._addresses(target)
            for left in range(len(addresses), 0, -1):
                try:
                    with trio.move_on_at(_address_deadline(left)) as share:
                        return _Connection(await self._open(target, addresses[-left]), trio.current_time())
                    assert share.cancelled_caught
                    failure = TimeoutError(f"{addresses[-left]} does not answer")
                except (OSError, trio.BrokenResourceError, ssl.SSLError) as error:
                    failure = error
            raise PushFailed(f"connecting: {_why(failure)}")
        assert scope.cancelled_caught
        raise PushFailed(f"no connection within {CONNECT_S:g} s")

    async def _open(self, target: Target, address: str) -> trio.abc.Stream:
        tcp = await trio.open_tcp_stream(address, target.port)
        if target.scheme == "http":
            return tcp
        stream = trio.SSLStream(tcp, self._tls, server_hostname=target.host, https_compatible=True)
        try:
            await stream.do_handshake()
        except BaseException:
            _drop(tcp)
            raise
        return stream

    # -- a request ------------------------------------------------------------------------------------------------

    async def _ask(self, connection: _Connection, request: _Request, doing: list[str]) -> Answer:
        is_kept = False
        try:
            answer = await self._exchange(connection, request, doing)
            http = connection.http
            is_kept = http.our_state is h11.DONE and http.their_state is h11.DONE and not http.trailing_data[0]
            if is_kept:
                self._keep(request.target, connection)
            return answer
        finally:
            if not is_kept:
                _drop(connection.stream)

    async def _exchange(self, connection: _Connection, request: _Request, doing: list[str]) -> Answer:
        """Send a request, and read the response at the same time. `doing`: its only item names the current step."""
        http, (method, target, headers, body) = connection.http, request
        whole = [(b"host", target.authority.encode()), *headers, (b"content-length", str(len(body)).encode())]
        doing[0] = "sending"
        head = http.send(h11.Request(method=method, target=target.path.encode(), headers=whole))
        assert head is not None
        response, failure, text, is_early = None, None, bytearray(), False
        async with trio.open_nursery() as nursery:
            sent = trio.Event()
            nursery.start_soon(self._send, connection, head, body, doing, sent)
            try:
                response = await self._response(connection)
                is_early = response.status_code < 300 and not sent.is_set()
                if is_early:  # a receiver that accepts the message must still get all of it
                    nursery.start_soon(_read_body, connection, text, is_early)
                    await _until(sent, trio.current_effective_deadline() - MARGIN_S)
            except Exception as error:
                failure = error  # raised below, without the nursery's exception group
            nursery.cancel_scope.cancel()
        if response is None:
            assert failure is not None
            raise failure
        if response.status_code < 300 and http.our_state in (h11.SEND_BODY, h11.ERROR):
            raise PushFailed(f"answered {response.status_code}, and did not read the rest of the request")
        found = {name.lower(): value for name, value in response.headers}
        retry_after = found.get(b"retry-after")
        doing[0] = "reading the answer"
        # The status is valid even if the rest fails, and even if the request's time is nearly over.
        drain_s = math.inf if is_early else DRAIN_S
        with trio.move_on_at(min(trio.current_time() + drain_s, trio.current_effective_deadline() - MARGIN_S)):
            await _read_body(connection, text, is_early)
        retry = None if retry_after is None else retry_after.decode("latin-1")
        return Answer(response.status_code, retry, _printable(bytes(text)), bytes(text[:ANSWER_BYTES]))

    async def _send(
        self, connection: _Connection, head: bytes, body: bytes, doing: list[str], sent: trio.Event
    ) -> None:
        """Send the request. `_exchange` reads the response at the same time, because a receiver may respond and close
        the connection before it has read the whole request."""
        http, stream = connection.http, connection.stream
        # If sending fails, stop: `_exchange` reads the response if the receiver has sent one.
        with suppress(OSError, trio.BrokenResourceError, h11.LocalProtocolError):
            await stream.send_all(head)
            view = memoryview(body)
            for start in range(0, len(body), SEND_BYTES):
                await stream.send_all(http.send(h11.Data(data=bytes(view[start : start + SEND_BYTES]))) or b"")
            http.send(h11.EndOfMessage())
        doing[0] = "waiting for the answer"
        sent.set()

    async def _response(self, connection: _Connection) -> h11.Response:
        informational = 0
        while True:
            event = await _next_event(connection)
            if isinstance(event, h11.Response):
                return event
            informational += isinstance(event, h11.InformationalResponse)
            if informational > INFORMATIONAL_MOST:
                raise PushFailed(f"more than {INFORMATIONAL_MOST} answers of status 1xx")


def _address_deadline(left: int) -> float:
    """Return the deadline for one of `left` addresses, so that an unresponsive address leaves time for the others."""
    now_s = trio.current_time()
    return now_s + (trio.current_effective_deadline() - now_s) / left if left > 1 else math.inf


async def _until(event: trio.Event, until_s: float) -> None:
    with trio.move_on_at(until_s):
        await event.wait()


async def _next_event(connection: _Connection) -> object:
    while True:
        event = connection.http.next_event()
        if event is not h11.NEED_DATA:
            return event
        data = await connection.stream.receive_some(RECEIVE_BYTES)
        if not data and connection.http.their_state is h11.SEND_RESPONSE:
            raise trio.BrokenResourceError("the connection was closed without an answer")
        connection.was_heard = True
        connection.http.receive_data(bytes(data))


async def _read_body(connection: _Connection, found: bytearray, is_early: bool) -> None:
    """Read the body of a response up to its limit, and append it to `found`. A truncated body makes the connection
    unusable.

    If the response came before the request was sent (`is_early`), the whole body is read and the excess dropped.
    Otherwise a receiver that echoes the request would block, and closing the connection would lose request data in
    transit."""
    with suppress(OSError, trio.BrokenResourceError, h11.RemoteProtocolError):
        while connection.http.their_state is h11.SEND_BODY and (is_early or len(found) < BODY_BYTES):
            event = await _next_event(connection)
            if isinstance(event, h11.Data):
                found += event.data[: max(BODY_BYTES - len(found), 0)]


def _is_silent(stream: trio.abc.Stream) -> bool:
    """Return whether nothing was received since the last response.

    Otherwise the receiver has closed the connection, or it sent extra data, which must not be taken for the next
    response.
    """
    tcp = _tcp_of(stream)
    if tcp is None:
        return True
    ready = select.poll()
    ready.register(tcp.socket.fileno(), select.POLLIN)
    return not ready.poll(0)


def _printable(body: bytes) -> str:
    """Return the beginning of a body as one line of text."""
    text = body[: 4 * TEXT_CHARS].decode(errors="replace")
    shown = "".join([char if char.isprintable() else " " for char in text])
    return " ".join(shown.split())[:TEXT_CHARS]


def _why(error: BaseException | None) -> str:
    """Return a short reason for an error; trio's errors have the system's error as their cause."""
    while error is not None and not getattr(error, "strerror", None) and error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, BaseExceptionGroup):
        return _why(error.exceptions[0])
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return str(text)[:200]


def _drop(stream: trio.abc.Stream) -> None:
    """Close a connection at once, without a TLS closing handshake."""
    tcp = _tcp_of(stream)
    if tcp is not None:
        tcp.socket.close()


def _tcp_of(stream: trio.abc.Stream) -> trio.SocketStream | None:
    while isinstance(stream, trio.SSLStream):
        stream = stream.transport_stream
    return stream if isinstance(stream, trio.SocketStream) else None
