"""Tests of raw connections with a small server: the send times of requests and the measured response times."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from benchmarks.wire import Flow, Paced, Wire, drive, pace
from sandq.errors import SandqError
from sandq.protocol.frames import FrameReader, Type, encode_frame

REPLY, ERROR = 0, 255


class Server:
    """A server that answers concurrent requests in reverse order. `refuse`: number of the request that fails."""

    def __init__(self) -> None:
        self.refuse = 0
        self.together: list[int] = []
        """Number of requests in each received batch."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        """Serve each connection in a thread, until the listener is closed."""
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        reader = FrameReader()
        with connection:
            while data := connection.recv(1 << 20):
                frames = reader.feed(data)
                if frames and frames[0][0] == Type.PING:
                    self.together.append(len(frames))
                connection.sendall(b"".join(self._answer(frame[1]) for frame in reversed(frames)))

    def _answer(self, number: int) -> bytes:
        if number == self.refuse:
            return encode_frame(ERROR, number, "OVERLOADED", "too much", True, {})
        return encode_frame(REPLY, number)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


@pytest.fixture
def wires(server: Server) -> Iterator[list[Wire]]:
    made = [Wire(server.port) for _ in range(3)]
    yield made
    for wire in made:
        wire.close()


def pings(count: int) -> list[bytes]:
    return [encode_frame(Type.PING, number) for number in range(1, count + 1)]


def test_drive_gets_all_answers_and_sends_no_more_than_the_window(server: Server, wires: list[Wire]) -> None:
    flows = [Flow(wire, pings(100), 7) for wire in wires]
    driven = drive(flows)
    assert [flow.answered for flow in flows] == [100] * 3
    assert len(driven.answer_s) == 300
    assert max(server.together) <= 7
    assert 0 < min(driven.answer_s) <= max(driven.answer_s) <= driven.seconds


def test_drive_raises_the_error_of_the_node(server: Server, wires: list[Wire]) -> None:
    server.refuse = 5
    with pytest.raises(SandqError, match="too much"):
        drive([Flow(wires[0], pings(10), 2)])


def test_pace_sends_nothing_before_it_is_due(wires: list[Wire]) -> None:
    began_s = time.perf_counter() + 0.05
    flows = [Flow(wire, pings(20), 20) for wire in wires]
    ran = pace(flows, 1000, began_s)
    for at, flow in enumerate(flows):
        assert flow.done
        for moment_s, count in flow.handed:
            assert moment_s >= began_s + (at + (count - 1) * 3) / 1000
    late_s = list(ran.late_s())
    assert len(late_s) == 60
    assert min(late_s) > 0


def test_replies_are_distinguished_by_request_id(wires: list[Wire]) -> None:
    flow = Flow(wires[0], pings(4), 4, handed=[(10.0, 1), (11.0, 4)], answers=[(12.0, [2]), (13.0, [4, 3, 1])])
    assert list(flow.answer_s()) == [1.0, 2.0, 2.0, 3.0]


def test_paced_latency_counts_from_the_intended_send_though_the_sender_was_behind(wires: list[Wire]) -> None:
    # Two connections, 10 requests per second from second 100 on, all handed over at second 105.
    flows = [
        Flow(wires[0], pings(2), 2, handed=[(105.0, 2)], answers=[(105.5, [1, 2])]),
        Flow(wires[1], pings(2), 2, handed=[(105.0, 2)], answers=[(106.0, [2, 1])]),
    ]
    assert list(Paced(6.0, flows, 100.0, 10.0).late_s()) == pytest.approx([5.5, 5.3, 5.7, 5.9])
