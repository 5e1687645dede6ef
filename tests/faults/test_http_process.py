"""The HTTP process of a node is killed, loses its node, or gets signals from other processes."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import suppress

import httpx
import pytest

from tests.support.http_client import NO_TLS
from tests.support.ports import free_port
from tests.support.processes.node import NodeProcess
from tests.support.waiting import PATIENCE_S, wait_until, wait_until_gone

LEASE = "/topics/t/groups/g/lease"


class Served:
    """A node with an HTTP process."""

    def __init__(self, node: NodeProcess, port: int) -> None:
        self.node = node
        self.port = port
        self.web = httpx.Client(verify=NO_TLS, base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S)

    def metric(self, name: str) -> str:
        (line,) = [line for line in self.web.get("/metrics").text.splitlines() if line.startswith(f"{name} ")]
        return line.removeprefix(f"{name} ")

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    port = free_port()
    address = f"127.0.0.1:{port}"
    node = NodeProcess(tmp_path_factory.mktemp("node"), SANDQ_LISTEN__HTTP=address)
    served = Served(node, port)
    yield served
    served.web.close()
    node.close()


@pytest.fixture
def served(one: Served) -> Served:
    """Return the running node with topic "t"."""
    if not one.node.runs:
        before = len(one.node.http_pids)
        one.node.start()
        wait_until(lambda: len(one.node.http_pids) > before)
        wait_until(lambda: one.web.get("/readyz").status_code == 200)
        wait_until(lambda: one.web.post("/topics", json={"name": "t"}).status_code in (201, 409))
    return one


def request(method: str, path: str, body: bytes = b"") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def test_http_process_across_kills_keeps_acknowledged_messages(served: Served) -> None:
    killed = 'sandq_http_process_restarts_total{why="killed"}'
    restarts = int(served.metric(killed))
    assert served.web.post("/topics", json={"name": "kept"}).status_code == 201
    kept = []
    for number in range(30):
        if number in (10, 20):
            served.node.kill_http()
        answer = served.web.post("/topics/kept", json={"text": str(number), "delay": "1h"})
        assert answer.status_code == 201
        kept.append(answer.json()["id"])
    found = served.web.get("/topics/kept/messages?limit=100").json()["messages"]
    assert [message["id"] for message in found] == sorted(kept)
    assert int(served.metric(killed)) == restarts + 2
    counted = 'sandq_http_requests_total{method="POST",route="/topics/{topic}",status="201"}'
    assert int(served.metric(counted)) >= 10, "what was counted before is not forgotten, but for a moment of it"


def test_http_process_kill_gives_waiting_lease_back(served: Served) -> None:
    waiting = 'sandq_memory_bytes{account="watchers"}'
    with served.connect() as client:
        client.sendall(request("POST", LEASE, b'{"wait": "60s"}'))
        wait_until(lambda: served.metric(waiting) != "0")
        served.node.kill_http()
        wait_until(lambda: served.metric(waiting) == "0")
        with suppress(ConnectionResetError):
            assert client.recv(1) == b""
    served.web.post("/topics/t", json={"text": "now"})
    (message,) = served.web.post(LEASE, json={"wait": "60s"}).json()["messages"]
    assert (message["text"], message["attempt"]) == ("now", 1)


def test_paused_node_is_neither_alive_nor_ready(served: Served) -> None:
    def answers() -> list[int]:
        return [served.web.get(path).status_code for path in ("/healthz", "/readyz")]

    wait_until(lambda: answers() == [200, 200])
    served.node.pause()
    try:
        wait_until(lambda: answers() == [503, 503])
    finally:
        served.node.resume()
    wait_until(lambda: answers() == [200, 200])


def test_partial_body_stores_nothing(served: Served) -> None:
    assert served.web.post("/topics", json={"name": "half"}).status_code == 201
    body = json.dumps({"messages": [{"text": str(number)} for number in range(100)]}).encode()
    with served.connect() as client:
        # The first answer shows that the rest is read.
        client.sendall(request("GET", "/healthz") + request("POST", "/topics/half", body)[: -len(body) // 2])
        assert client.recv(1) == b"H"
        served.node.kill_http()
        with suppress(ConnectionResetError):
            while client.recv(4096):
                pass
    answer = served.web.post("/topics/half", json={"text": "whole"})
    assert answer.status_code == 201
    found = served.web.get("/topics/half/messages").json()["messages"]
    assert [message["id"] for message in found] == [answer.json()["id"]]


def test_streamed_message_is_acked_after_http_process_kill(served: Served) -> None:
    """The lease of the streamed message continues, so the message is not delivered to another consumer."""
    assert served.web.post("/topics", json={"name": "streamed"}).status_code == 201
    group = "/topics/streamed/groups/g"
    served.web.post("/topics/streamed", json={"text": "streamed"})
    with served.web.stream("GET", f"{group}/stream?lease=1h") as stream:
        held = next(line for line in stream.iter_lines() if line.startswith("id:")).removeprefix("id:")
        served.node.kill_http()
    served.web.post("/topics/streamed", json={"text": "next"})
    (message,) = served.web.post(f"{group}/lease", json={"wait": "60s"}).json()["messages"]
    assert message["text"] == "next"
    assert served.web.post(f"{group}/ack", content=held).status_code == 200
    assert served.web.get(group).json()["leased"] == 1, "only the next message is still leased"


def test_http_process_ends_only_with_its_node(served: Served) -> None:
    pid = served.node.http_pids[-1]
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(pid, number)
    # After a pause of the machine, the HTTP process is not ready until it hears from its node again.
    wait_until(lambda: served.web.get("/readyz").status_code == 200)
    assert served.node.http_pids[-1] == pid
    served.node.kill()
    wait_until_gone(pid)


def test_http_process_ends_before_its_node(served: Served) -> None:
    pid = served.node.http_pids[-1]
    assert served.node.stop() == 0
    wait_until_gone(pid)
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", served.port)) != 0
