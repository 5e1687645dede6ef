"""The client's loop, the same for all peers: sends prepared bytes, counts responses, with one selector; and the
consumer's loop."""

from __future__ import annotations

import re
import selectors
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from benchmarks.peers.peer import Consumer, Link, PeerError
from benchmarks.peers.workloads import POLL_S, VALUE_BYTES

RECEIVE_BYTES: Final = 1 << 16
TIMEOUT_S: Final = 60.0
_DUE = re.compile(rb"due=(\d{13})")
_DUE_BYTES = 17


def value(due_ms: int | None = None, number: int = 0) -> bytes:
    """Return a message of 100 bytes. A scheduled one contains its due time, and a number that makes it unique."""
    head = b"" if due_ms is None else b"due=%013d n=%09d " % (due_ms, number)
    return head.ljust(VALUE_BYTES, b"x")


class DueTimes:
    """Finds due times of messages in received bytes, whatever the protocol around them."""

    def __init__(self) -> None:
        self._kept = b""

    def feed(self, data: bytes) -> list[int]:
        """Return the due times that are complete by now, ms since the epoch."""
        data = self._kept + data
        found, end = [], 0
        for match in _DUE.finditer(data):
            found.append(int(match[1]))
            end = match.end()
        self._kept = data[max(end, len(data) - _DUE_BYTES + 1) :]
        return found


@dataclass(slots=True)
class Flow:
    """Requests of one connection: sends `requests` in turn until `limit` are sent, with `window` of them in flight."""

    link: Link
    requests: Sequence[bytes]
    limit: int
    window: int
    sent: int = 0
    answers: int = 0
    out: memoryview = field(default_factory=lambda: memoryview(b""))
    sent_at: float = 0.0

    def send_next(self) -> None:
        """Fill the window, as far as the socket accepts it."""
        stop = min(self.limit, self.answers // self.link.answers_each + self.window)
        if self.sent < stop:
            requests, many = self.requests, len(self.requests)
            new = b"".join([requests[at % many] for at in range(self.sent, stop)])
            self.out = memoryview(bytes(self.out) + new if self.out else new)
            self.sent = stop
            self.sent_at = time.perf_counter()
        if self.out:
            try:
                count = self.link.socket.send(self.out)
            except BlockingIOError:
                return
            self.out = self.out[count:]

    @property
    def through(self) -> bool:
        return self.sent == self.limit and self.answers == self.sent * self.link.answers_each


@dataclass(slots=True)
class Driven:
    """Total time, and (with a window of 1) the time of each response."""

    seconds: float = 0.0
    answer_s: list[float] = field(default_factory=list)


def drive(flows: Sequence[Flow], seconds: float = TIMEOUT_S) -> Driven:
    """Run all flows until every request has its response; after `seconds` nothing new is sent."""
    driven = Driven()
    with selectors.DefaultSelector() as selector:
        for flow in flows:
            flow.link.socket.setblocking(False)
            selector.register(flow.link.socket, selectors.EVENT_READ, flow)
        began = time.perf_counter()
        for flow in flows:
            _send(selector, flow)
        left, over = len(flows), False
        while left:
            ready = selector.select(TIMEOUT_S)
            if not ready:
                raise PeerError(f"no answer for {TIMEOUT_S:g} s")
            if not over and time.perf_counter() - began > seconds:
                over = True
                for flow in flows:
                    flow.limit = flow.sent
            for key, events in ready:
                flow = key.data
                if events & selectors.EVENT_READ:
                    _receive(flow, driven.answer_s)
                if flow.through:
                    selector.unregister(flow.link.socket)
                    left -= 1
                else:
                    _send(selector, flow)
        driven.seconds = time.perf_counter() - began
    return driven


def _receive(flow: Flow, answer_s: list[float]) -> None:
    try:
        data = flow.link.socket.recv(RECEIVE_BYTES)
    except BlockingIOError:
        return
    if not data:
        raise PeerError("the server closed a connection")
    flow.answers += flow.link.count(data)
    if flow.answers > flow.sent * flow.link.answers_each:
        raise PeerError(f"{flow.answers} answers to {flow.sent} requests")
    if flow.window == 1 and flow.answers == flow.sent * flow.link.answers_each:
        answer_s.append(time.perf_counter() - flow.sent_at)


def _send(selector: selectors.BaseSelector, flow: Flow) -> None:
    waited = bool(flow.out)
    flow.send_next()
    if bool(flow.out) != waited:
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if flow.out else 0)
        selector.modify(flow.link.socket, events, flow)


def drain(consumer: Consumer, messages: int, late_ms: list[float] | None = None) -> float:
    """Consume this many messages until the last is acked; return the seconds. `late_ms` collects their lateness."""
    due_times = DueTimes()
    consumer.socket.settimeout(TIMEOUT_S)
    began = time.perf_counter()
    consumer.socket.sendall(consumer.start())
    while consumer.done < messages:
        try:
            data = consumer.socket.recv(RECEIVE_BYTES)
        except TimeoutError:
            raise PeerError(
                f"{consumer.done} of {messages} messages consumed, then nothing for {TIMEOUT_S:g} s"
            ) from None
        if late_ms is not None:
            now_ms = time.time() * 1000
            late_ms += [now_ms - due_ms for due_ms in due_times.feed(data)]
        if not data:
            raise PeerError("the server closed the consumer's connection")
        out = consumer.receive(data)
        if consumer.idle:
            time.sleep(POLL_S)
        if out:
            consumer.socket.sendall(out)
    consumer.finish()
    return time.perf_counter() - began
