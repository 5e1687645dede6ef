"""`sandq http` runs as a process: without a node, with a node, at a stop, and with a port in use."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.http_client import NO_TLS
from tests.support.paths import ROOT
from tests.support.ports import free_port
from tests.support.processes.gateway import GatewayProcess
from tests.support.processes.node import NodeProcess
from tests.support.waiting import PATIENCE_S, wait_until

MakeNode = Callable[..., NodeProcess]
MakeGateway = Callable[..., GatewayProcess]


@pytest.fixture
def make_gateway(tmp_path: Path) -> Iterator[MakeGateway]:
    """Return a function that makes gateways, which end with the test."""
    made: list[GatewayProcess] = []

    def make(*options: str, **environ: str) -> GatewayProcess:
        made.append(GatewayProcess(tmp_path, *options, **environ))
        return made[-1]

    yield make
    for gateway in made:
        gateway.close()


def test_gateway_without_node_returns_503(make_node: MakeNode, make_gateway: MakeGateway) -> None:
    """The node is the second of the gateway's two servers. It starts after the gateway, stops, and starts again."""
    node = make_node()
    gateway = make_gateway("--server", f"127.0.0.1:{free_port()},{node.address}")
    with httpx.Client(verify=NO_TLS, base_url=gateway.url, timeout=PATIENCE_S) as web:
        message = {"text": "kept", "unique_key": "one"}

        def status(method: str, path: str, json: object = None) -> int:
            return web.request(method, path, json=json).status_code

        assert (status("GET", "/healthz"), status("GET", "/readyz")) == (200, 503)
        refused = web.post("/topics", json={"name": "t"})
        assert (refused.status_code, refused.json()["code"], refused.json()["retriable"]) == (503, "UNAVAILABLE", True)
        node.start()
        wait_until(lambda: status("GET", "/readyz") == 200)
        # If the answer to the first request took too long, its retry returns 409.
        wait_until(lambda: status("POST", "/topics", {"name": "t"}) in (201, 409))
        wait_until(lambda: status("POST", "/topics/t", message) in (201, 409))
        assert node.stop() == 0
        wait_until(lambda: status("GET", "/readyz") == 503)
        assert status("GET", "/healthz") == 200
        node.start()
        wait_until(lambda: status("GET", "/readyz") == 200)
        wait_until(lambda: "kept" in web.get("/topics/t/messages?values=true").text)
    gateway.request_stop()
    assert gateway.ended() == 0


def test_gateway_at_stop_answers_open_requests_only(make_node: MakeNode, make_gateway: MakeGateway) -> None:
    node = make_node()
    node.start()
    gateway = make_gateway("--server", node.address, SANDQ_SHUTDOWN_GRACE="4m")
    head = b"POST /topics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n"
    with socket.create_connection(gateway.address, timeout=PATIENCE_S) as client, client.makefile("rb") as answer:
        client.sendall(head)
        assert answer.readline().startswith(b"HTTP/1.1 100 ") and answer.readline() == b"\r\n"
        gateway.request_stop()
        wait_until(lambda: not takes_connections(gateway.address))
        client.sendall(b"{}")
        said = answer.read()
        assert said.startswith(b"HTTP/1.1 400 ") and b"\r\nconnection: close\r\n" in said and b"name" in said, said
    assert gateway.ended() == 0
    assert gateway.event("stopped")


def say(gateway: GatewayProcess, data: bytes) -> bytes:
    """Send bytes and return the answer, until the gateway closes the connection."""
    with socket.create_connection(gateway.address, timeout=PATIENCE_S) as client, client.makefile("rb") as answer:
        client.sendall(data)
        return answer.read()


def takes_connections(address: tuple[str, int]) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(address) == 0


def test_gateway_settings_from_file_and_environment_apply(
    make_node: MakeNode, make_gateway: MakeGateway, tmp_path: Path
) -> None:
    """Set limits, allowed hosts and allowed origins by the environment and by a file without a node's settings."""
    node = make_node()
    node.start()
    (tmp_path / "gateway.yaml").write_text("limits: {http_body_bytes: 64KiB}\nhttp: {allowed_hosts: [q.example]}\n")
    gateway = make_gateway(
        "--config", "gateway.yaml", "--server", node.address, SANDQ_HTTP__ALLOWED_ORIGINS="https://a.example"
    )
    with httpx.Client(verify=NO_TLS, base_url=gateway.url, timeout=PATIENCE_S) as web:
        found = say(gateway, b"POST /topics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 65537\r\n\r\n")
        assert found.startswith(b"HTTP/1.1 413 ") and b"limits.http_body_bytes" in found, found
        assert web.get("/healthz", headers={"host": "q.example"}).status_code == 200
        assert web.get("/healthz", headers={"host": "r.example"}).status_code == 403
        assert web.get("/healthz", headers={"origin": "https://a.example"}).status_code == 200
        assert web.get("/healthz", headers={"origin": "https://b.example"}).status_code == 403


def test_gateway_with_port_in_use_prints_one_error(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = subprocess.run(
            [sys.executable, "-m", "sandq.cli", "http", "--listen", address],
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr == f"sandq: {address} is in use by another process: stop it, or use another port (--listen)\n"
