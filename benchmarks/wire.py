"""Raw connections: prepared frames out, frames in, with as little work in between as Python allows."""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sandq.protocol.frames import Frame, FrameReader, Type, decode_error
from sandq.protocol.requests import Hello
from sandq.protocol.requests_admin import TopicCreate

RECEIVE_BYTES = 1 << 20
TIMEOUT_S = 60.0
_ERROR = 255


class Wire:
    """A blocking connection that has said HELLO."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = FrameReader()
        self._ids = 0
        self.call(Hello(1, "benchmarks", {}).frame)

    def receive(self) -> list[Frame]:
        """What came, at least a part of a frame; raises an error frame's error."""
        data = self.socket.recv(RECEIVE_BYTES)
        if not data:
            raise ConnectionError("the node closed the connection")
        return checked(self._reader.feed(data))

    def call(self, build: Any) -> Frame:
        """One request, one reply; nothing else may come meanwhile."""
        self._ids += 1
        self.socket.sendall(build(self._ids))
        while not (frames := self.receive()):
            pass
        return frames[0]

    def create_topic(self, name: str, partitions: int = 1, **settings: Any) -> None:
        self.call(TopicCreate(name, "timer", partitions, 1, settings).frame)

    def close(self) -> None:
        self.socket.close()


def checked(frames: list[Frame]) -> list[Frame]:
    """Raises the first error among them."""
    for frame in frames:
        if frame[0] == _ERROR:
            raise decode_error(frame)
    return frames


@dataclass(slots=True)
class Flow:
    """Requests of one connection, sent in order, `window` of them unanswered."""

    wire: Wire
    frames: Sequence[bytes]
    window: int
    sent: int = 0
    answered: int = 0
    out: bytes = b""
    sent_at: float = 0.0

    def send_next(self) -> None:
        """Top the window up, as far as the socket takes it."""
        stop = min(len(self.frames), self.answered + self.window)
        if self.sent < stop:
            self.out += b"".join(self.frames[self.sent : stop])
            self.sent = stop
            self.sent_at = time.perf_counter()
        if self.out:
            try:
                count = self.wire.socket.send(self.out)
            except BlockingIOError:
                return
            self.out = self.out[count:]


@dataclass(slots=True)
class Driven:
    """How long it took, and (with a window of 1) how long each answer."""

    seconds: float = 0.0
    answer_s: list[float] = field(default_factory=list)


def drive(flows: Sequence[Flow]) -> Driven:
    """Run all flows until everything is answered."""
    driven = Driven()
    with selectors.DefaultSelector() as selector:
        for flow in flows:
            flow.wire.socket.setblocking(False)
            selector.register(flow.wire.socket, selectors.EVENT_READ, flow)
        began = time.perf_counter()
        for flow in flows:
            flow.send_next()
        left = len(flows)
        while left:
            ready = selector.select(TIMEOUT_S)
            if not ready:
                raise TimeoutError(f"the node has not answered for {TIMEOUT_S:g} s")
            for key, _ in ready:
                left -= _turn(selector, key.data, driven.answer_s)
        driven.seconds = time.perf_counter() - began
    return driven


def _turn(selector: selectors.BaseSelector, flow: Flow, answer_s: list[float]) -> bool:
    """Take answers, send more; whether the flow is through."""
    try:
        flow.answered += len(flow.wire.receive())
    except BlockingIOError:
        pass
    else:
        if flow.window == 1 and flow.answered == flow.sent:
            answer_s.append(time.perf_counter() - flow.sent_at)
    flow.send_next()
    selector.modify(flow.wire.socket, selectors.EVENT_READ | (selectors.EVENT_WRITE if flow.out else 0), flow)
    return flow.answered == len(flow.frames) and _unregister(selector, flow)


def _unregister(selector: selectors.BaseSelector, flow: Flow) -> bool:
    selector.unregister(flow.wire.socket)
    return True


def is_delivery(frame: Frame) -> bool:
    return bool(frame[0] == Type.DELIVER)
