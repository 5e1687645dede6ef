"""POSTs a request over TCP or TLS, to addresses that the configuration allows, with a bound for everything.

The name is looked up and each of its addresses checked; connected is the address, not the name. Redirects are not
followed. The answer is waited for while the request is sent. Of an answer the status counts: its body is read up to a
small limit, for the error that is noted. Connections are kept for the next request for a short time.
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
"""For the name to be looked up, and a connection to be made, TLS included; within the time of the request."""
ADDRESSES_MOST: Final = 8
"""Of a name that are tried."""
IDLE_S: Final = 30.0
"""A connection is kept for so long between two requests ..."""
LIFE_S: Final = 300.0
"""... and no longer than this in all: then the name is looked up again."""
IDLE_MOST: Final = 100
"""Connections that wait for a request."""
HEAD_BYTES: Final = 16 << 10
"""Of an answer's headers."""
BODY_BYTES: Final = 16 << 10
"""That are read of an answer's body, so that its connection can be used again; of more it is closed."""
DRAIN_S: Final = 1.0
"""For the body of an answer whose status is known."""
MARGIN_S: Final = 0.1
"""So long before the time of the request is over no more is read of it."""
TEXT_CHARS: Final = 500
"""Of an answer's body that are noted."""
INFORMATIONAL_MOST: Final = 10
"""Answers before the answer (1xx)."""
RECEIVE_BYTES: Final = 16 << 10
SEND_BYTES: Final = 64 << 10

Resolve = Callable[[str, int], Awaitable[list[str]]]
"""The addresses of a name. Raises OSError."""


class PushFailed(Exception):
    """The request had no answer; the text says what happened."""


class Answer(NamedTuple):
    """What the receiver said."""

    status: int
    retry_after: str | None
    text: str
    """The beginning of the body, on one line."""


class _Connection:
    def __init__(self, stream: trio.abc.Stream, now_s: float) -> None:
        self.stream = stream
        self.http = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES)
        self.born_s = self.used_s = now_s
        self.was_heard = False
        """Whether something came of the answer to this request."""

    def is_fresh(self, now_s: float) -> bool:
        return now_s < min(self.used_s + IDLE_S, self.born_s + LIFE_S)


class HttpClient:
    """Of one node."""

    def __init__(self, rules: PushRules, tls: ssl.SSLContext | None = None, resolve: Resolve | None = None) -> None:
        """`tls`: None verifies by the authorities that the machine trusts. `resolve`: None asks the machine."""
        self._rules = rules
        self._tls = tls or ssl.create_default_context()
        self._resolve = resolve or Lookups().find
        self._idle: dict[tuple[str, str, int], list[_Connection]] = {}

    async def check(self, target: Target) -> None:
        """Raise TargetRefused unless the target may be pushed to; PushFailed when its name is not found."""
        with trio.move_on_after(CONNECT_S) as scope:
            await self._addresses(target)
        if scope.cancelled_caught:
            raise PushFailed(f"{target.host} was not found within {CONNECT_S:g} s")

    async def post(self, target: Target, headers: list[tuple[bytes, bytes]], body: bytes, timeout_s: float) -> Answer:
        """Return the answer. Raises PushFailed; TargetRefused."""
        doing = ["connecting"]
        with trio.move_on_after(timeout_s) as scope:
            try:
                return await self._post(target, headers, body, doing)
            except h11.RemoteProtocolError as error:
                raise PushFailed(f"the answer is no HTTP: {str(error)[:200]}") from None
            except (OSError, trio.BrokenResourceError, ssl.SSLError) as error:
                raise PushFailed(f"{doing[0]}: {_why(error)}") from None
        assert scope.cancelled_caught
        raise PushFailed(f"no answer within {timeout_s:g} s, while {doing[0]}")

    def close(self) -> None:
        """Drop the connections that wait for a request."""
        for kept in self._idle.values():
            for connection in kept:
                _drop(connection.stream)
        self._idle.clear()

    async def _post(self, target: Target, headers: list[tuple[bytes, bytes]], body: bytes, doing: list[str]) -> Answer:
        connection = self._take(target)
        if connection is not None:
            try:
                return await self._ask(connection, target, headers, body, doing)
            except (OSError, trio.BrokenResourceError, h11.RemoteProtocolError):
                if connection.was_heard:
                    raise
                # It was closed while nobody used it.
        doing[0] = "connecting"
        return await self._ask(await self._connect(target), target, headers, body, doing)

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
            self.close()
        self._idle.setdefault(target[:3], []).append(connection)

    async def _addresses(self, target: Target) -> list[str]:
        """Those that may be connected to. Raises TargetRefused, PushFailed."""
        self._rules.check(target)
        try:
            found = await self._resolve(target.host, target.port)
        except (OSError, UnicodeError) as error:  # the latter of labels that no name may have
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
                    with trio.move_on_at(_share(left)) as share:
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

    async def _ask(
        self,
        connection: _Connection,
        target: Target,
        headers: list[tuple[bytes, bytes]],
        body: bytes,
        doing: list[str],
    ) -> Answer:
        is_kept = False
        try:
            answer = await self._exchange(connection, target, headers, body, doing)
            http = connection.http
            is_kept = http.our_state is h11.DONE and http.their_state is h11.DONE and not http.trailing_data[0]
            if is_kept:
                self._keep(target, connection)
            return answer
        finally:
            if not is_kept:
                _drop(connection.stream)

    async def _exchange(
        self,
        connection: _Connection,
        target: Target,
        headers: list[tuple[bytes, bytes]],
        body: bytes,
        doing: list[str],
    ) -> Answer:
        http = connection.http
        whole = [(b"host", target.authority.encode()), *headers, (b"content-length", str(len(body)).encode())]
        doing[0] = "sending"
        head = http.send(h11.Request(method=b"POST", target=target.path.encode(), headers=whole))
        assert head is not None
        response, failure, text, is_early = None, None, bytearray(), False
        async with trio.open_nursery() as nursery:
            sent = trio.Event()
            nursery.start_soon(self._send, connection, head, body, doing, sent)
            try:
                response = await self._response(connection)
                is_early = response.status_code < 300 and not sent.is_set()
                if is_early:  # who has accepted it is to have all of it
                    nursery.start_soon(_read_body, connection, text, is_early)
                    await _until(sent, trio.current_effective_deadline() - MARGIN_S)
            except Exception as error:
                failure = error  # raised below: as it is, not in the group of a nursery
            nursery.cancel_scope.cancel()
        if response is None:
            assert failure is not None
            raise failure
        if response.status_code < 300 and http.our_state in (h11.SEND_BODY, h11.ERROR):
            raise PushFailed(f"answered {response.status_code}, and did not take the rest of the request")
        found = {name.lower(): value for name, value in response.headers}
        retry_after = found.get(b"retry-after")
        doing[0] = "reading the answer"
        # The status is there, and counts whatever becomes of the rest, also when the time of the request is nearly up.
        drain_s = math.inf if is_early else DRAIN_S
        with trio.move_on_at(min(trio.current_time() + drain_s, trio.current_effective_deadline() - MARGIN_S)):
            await _read_body(connection, text, is_early)
        retry = None if retry_after is None else retry_after.decode("latin-1")
        return Answer(response.status_code, retry, _line(bytes(text)))

    async def _send(
        self, connection: _Connection, head: bytes, body: bytes, doing: list[str], sent: trio.Event
    ) -> None:
        """Send the request, while the answer is waited for: who receives may answer, and close, before all is read."""
        http, stream = connection.http, connection.stream
        # Who is not heard any more is not sent to any more: what it said, if anything, is being read.
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


def _share(left: int) -> float:
    """Until when one of so many addresses is tried: one that nobody answers at leaves time for the next."""
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
    """The body of an answer up to its limit, after what was found of it before; what is cut off leaves the connection
    unusable. Of one that was begun before the request was sent all is read, and left out: who sends back what it gets
    takes no more of the request otherwise, nor what is on its way to it when the connection is cut off."""
    with suppress(OSError, trio.BrokenResourceError, h11.RemoteProtocolError):
        while connection.http.their_state is h11.SEND_BODY and (is_early or len(found) < BODY_BYTES):
            event = await _next_event(connection)
            if isinstance(event, h11.Data):
                found += event.data[: max(BODY_BYTES - len(found), 0)]


def _is_silent(stream: trio.abc.Stream) -> bool:
    """Whether nothing came since the last answer. Who has closed it does not hear the next request; and what was said
    beyond that answer, a second one, say, is none to the next request."""
    tcp = _tcp_of(stream)
    if tcp is None:
        return True
    ready = select.poll()
    ready.register(tcp.socket.fileno(), select.POLLIN)
    return not ready.poll(0)


def _line(body: bytes) -> str:
    """The beginning of a body, as a text on one line."""
    text = body[: 4 * TEXT_CHARS].decode(errors="replace")
    shown = "".join([char if char.isprintable() else " " for char in text])
    return " ".join(shown.split())[:TEXT_CHARS]


def _why(error: BaseException | None) -> str:
    """What happened, in a few words; trio wraps what the system says."""
    while error is not None and not getattr(error, "strerror", None) and error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, BaseExceptionGroup):
        return _why(error.exceptions[0])
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    words = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return str(words)[:200]


def _drop(stream: trio.abc.Stream) -> None:
    """Close it at once, without a word."""
    tcp = _tcp_of(stream)
    if tcp is not None:
        tcp.socket.close()


def _tcp_of(stream: trio.abc.Stream) -> trio.SocketStream | None:
    while isinstance(stream, trio.SSLStream):
        stream = stream.transport_stream
    return stream if isinstance(stream, trio.SocketStream) else None
