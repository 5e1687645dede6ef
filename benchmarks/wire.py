"""Raw connections: prepared frames out, frames in, with as little work in between as Python allows."""

from __future__ import annotations

import os
import selectors
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from sandq.model.errors import Unavailable
from sandq.protocol.frames import Frame, FrameReader, decode_error
from sandq.protocol.requests import Hello
from sandq.protocol.requests_admin import TopicCreate

RECEIVE_BYTES = 1 << 20
TIMEOUT_S = 60.0
FULL_S = 0.001
SOON_S = 0.05
_ERROR = 255
CA_VARIABLE = "BENCHMARKS_CA"
"""Path of the authority of the node's certificate; if set, connections use TLS."""


class _TlsSocket:
    """The methods used of a socket. A call that would block raises BlockingIOError, as with sockets."""

    def __init__(self, raw: socket.socket, ca: str) -> None:
        context = ssl.create_default_context(cafile=ca)
        self._tls = context.wrap_socket(raw, server_hostname="127.0.0.1")
        self.fileno = self._tls.fileno
        self.setblocking = self._tls.setblocking
        self.settimeout = self._tls.settimeout
        self.setsockopt = self._tls.setsockopt
        self.sendall = self._tls.sendall
        self.close = self._tls.close

    def send(self, data: bytes) -> int:
        try:
            return self._tls.send(data)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None

    def recv(self, size: int) -> bytes:
        """Return all decrypted bytes: the socket does not report that more of them are left."""
        try:
            data = self._tls.recv(size)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None
        while data and self._tls.pending():
            data += self._tls.recv(size)
        return data


class Wire:
    """A blocking connection that has sent HELLO."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if ca := os.environ.get(CA_VARIABLE):
            self.socket = cast(socket.socket, _TlsSocket(self.socket, ca))
        self._reader = FrameReader()
        self._ids = 0
        self.call(Hello(2, "benchmarks", {}).frame)

    def receive(self) -> list[Frame]:
        """Return at least a part of a frame. Raises the error of an error frame."""
        data = self.socket.recv(RECEIVE_BYTES)
        if not data:
            raise ConnectionError("the node closed the connection")
        return checked(self._reader.feed(data))

    def call(self, build: Any) -> Frame:
        """Send one request and return its response; no other frame may arrive meanwhile."""
        self._ids += 1
        self.socket.sendall(build(self._ids))
        while not (frames := self.receive()):
            pass
        return frames[0]

    def create_topic(self, name: str, partitions: int = 1, kind: str = "timer", **settings: Any) -> None:
        """Create a topic, once the node supports its kind: a node that has just started needs a moment."""
        until_s = time.perf_counter() + TIMEOUT_S
        while True:
            try:
                self.call(TopicCreate(name, kind, partitions, 1, settings).frame)
            except Unavailable:
                if time.perf_counter() > until_s:
                    raise
                time.sleep(SOON_S)
            else:
                return

    def close(self) -> None:
        self.socket.close()


def checked(frames: list[Frame]) -> list[Frame]:
    """Return the frames. If one of them is an error, raise the first one."""
    for frame in frames:
        if frame[0] == _ERROR:
            raise decode_error(frame)
    return frames


@dataclass(slots=True)
class Flow:
    """Requests of one connection, sent in order, `window` of them in flight; they are numbered from 1."""

    wire: Wire
    frames: Sequence[bytes]
    window: int
    sent: int = 0
    answered: int = 0
    out: bytes = b""
    handed: list[tuple[float, int]] = field(default_factory=list)
    """Times at which requests were given to the socket, each with the total number of requests given by then."""
    answers: list[tuple[float, list[int]]] = field(default_factory=list)
    """Times at which responses were received, and the numbers of their requests."""

    @property
    def done(self) -> bool:
        return self.answered == len(self.frames)

    def send_next(self) -> None:
        """Fill the window, as far as the socket accepts it."""
        self.send_until(min(len(self.frames), self.answered + self.window))

    def send_until(self, stop: int) -> None:
        """Send the first `stop` requests, as far as the socket accepts them."""
        if self.sent < stop:
            self.out += b"".join(self.frames[self.sent : stop])
            self.sent = stop
            self.handed.append((time.perf_counter(), stop))
        if self.out:
            try:
                count = self.wire.socket.send(self.out)
            except BlockingIOError:
                return
            self.out = self.out[count:]

    def take_answers(self) -> None:
        """Return received bytes, if any."""
        try:
            frames = self.wire.receive()
        except BlockingIOError:
            return
        self.answered += len(frames)
        self.answers.append((time.perf_counter(), [frame[1] for frame in frames]))

    def answer_s(self) -> Iterator[float]:
        """Return for each response the seconds since its request was given to the socket."""
        handed_s: list[float] = []
        for moment_s, count in self.handed:
            handed_s += [moment_s] * (count - len(handed_s))
        return self.since(lambda number: handed_s[number - 1])

    def since(self, moment_of: Callable[[int], float]) -> Iterator[float]:
        """Return for each response the seconds since a planned time of its request."""
        for moment_s, numbers in self.answers:
            for number in numbers:
                yield moment_s - moment_of(number)


@dataclass(frozen=True, slots=True)
class Driven:
    """Result of a run: total time in seconds, and (`answer_s`) the response time of each request."""

    seconds: float
    flows: Sequence[Flow]

    @property
    def answer_s(self) -> list[float]:
        """For each request, return the time from giving it to the socket until its response was received."""
        return [seconds for flow in self.flows for seconds in flow.answer_s()]


def drive(flows: Sequence[Flow]) -> Driven:
    """Run all flows until every request has its response."""
    with selectors.DefaultSelector() as selector:
        _register(selector, flows)
        began = time.perf_counter()
        for flow in flows:
            flow.send_next()
        left = len(flows)
        while left:
            ready = selector.select(TIMEOUT_S)
            if not ready:
                raise TimeoutError(f"the node has not answered for {TIMEOUT_S:g} s")
            for key, _ in ready:
                key.data.take_answers()
                key.data.send_next()
                left -= _settled(selector, key)
        return Driven(time.perf_counter() - began, flows)


@dataclass(frozen=True, slots=True)
class Paced:
    """Result of a run at a given rate: time since the first request was due, and (`late_s`) the response time of each
    request from its planned send."""

    seconds: float
    flows: Sequence[Flow]
    began_s: float
    per_s: float

    def late_s(self) -> Iterator[float]:
        """For each request, return the time from its planned send until its response was received, even if it was sent
        late."""
        for at, flow in enumerate(self.flows):
            yield from flow.since(self._due(at))

    def _due(self, at: int) -> Callable[[int], float]:
        """Return the planned times of a flow's requests, by their numbers."""
        first_s, step_s = self.began_s + at / self.per_s, len(self.flows) / self.per_s
        return lambda number: first_s + (number - 1) * step_s


def pace(flows: Sequence[Flow], per_s: float, began_s: float) -> Paced:
    """Send request n of all flows, in turn, at `began_s + n / per_s`, whatever responses have arrived."""
    total = sum(len(flow.frames) for flow in flows)
    # select() waits for microseconds; epoll only for whole milliseconds.
    with selectors.SelectSelector() as selector:
        _register(selector, flows)
        left, due = len(flows), 0
        while left:
            now = time.perf_counter()
            due = max(due, min(total, int((now - began_s) * per_s + 1)))
            for at, flow in enumerate(flows):
                flow.send_until((due - at + len(flows) - 1) // len(flows))
            wait_s = began_s + due / per_s - now if due < total else TIMEOUT_S
            if any(flow.out for flow in flows):
                wait_s = FULL_S  # nothing reports when the socket accepts the rest
            ready = selector.select(max(0.0, wait_s))
            if not ready and wait_s == TIMEOUT_S:
                raise TimeoutError(f"the node has not answered for {TIMEOUT_S:g} s")
            for key, _ in ready:
                key.data.take_answers()
                left -= _settled(selector, key)
        return Paced(time.perf_counter() - began_s, flows, began_s, per_s)


def _register(selector: selectors.BaseSelector, flows: Sequence[Flow]) -> None:
    for flow in flows:
        flow.wire.socket.setblocking(False)
        selector.register(flow.wire.socket, selectors.EVENT_READ, flow)


def _settled(selector: selectors.BaseSelector, key: selectors.SelectorKey) -> bool:
    """Read the flow's frames; return whether it is complete."""
    flow: Flow = key.data
    if flow.done:
        selector.unregister(flow.wire.socket)
        return True
    events = selectors.EVENT_READ | (selectors.EVENT_WRITE if flow.out else 0)
    if events != key.events:
        selector.modify(flow.wire.socket, events, flow)
    return False
