"""HTTP in a process that a node of this process starts."""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import httpx
import pytest
import trio

from sandq.node import run_node
from sandq.node import web as node_web
from sandq.node.running import Serving
from sandq.server.caller_requests import WAITING_BYTES
from sandq.server.http.node_link import Begin
from tests.support.http_client import NO_TLS
from tests.support.nodes.gateway import PATIENT
from tests.support.nodes.small_node import small_config
from tests.support.waiting import PATIENCE_S, until_answer, until_holds


async def takes_connections(port: int) -> bool:
    try:
        stream = await trio.open_tcp_stream("127.0.0.1", port)
    except OSError:
        return False
    await stream.aclose()
    return True


def post(path: str, body: bytes, headers: str = "") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
    return head.encode() + body


async def everything(stream: trio.SocketStream) -> bytes:
    answer = b""
    while piece := await stream.receive_some(65536):
        answer += piece
    return answer


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The HTTP process uses the machine's clock, even if the test replaces the clock of the node."""
    monkeypatch.setattr(node_web, "Begin", partial(Begin, stale_s=PATIENCE_S, timeout_s=PATIENCE_S, deadlines=PATIENT))


async def test_requests_in_progress_are_answered_before_the_client_port_closes(tmp_path: Path, patient: None) -> None:
    """Waiting requests get an error that asks to retry; later connections are refused."""
    config = small_config(tmp_path, LISTEN__HTTP="127.0.0.1:0")
    stopped, stop = trio.Event(), trio.Event()

    async def run(task_status: trio.TaskStatus[Serving]) -> None:
        async with run_node(config) as node:
            task_status.started(node)
            await stop.wait()
        stopped.set()

    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery, AsyncExitStack() as opened:
            node = await nursery.start(run)
            assert node.http is not None
            async with httpx.AsyncClient(verify=NO_TLS, base_url=f"http://{node.http}", timeout=PATIENCE_S) as client:
                assert (await client.post("/topics", json={"name": "t"})).status_code == 201
                metrics = (await client.get("/metrics")).text
            assert 'sandq_http_requests_total{method="POST",route="/topics",status="201"} 1' in metrics
            waits, asks = [await opened.enter_async_context(await trio.open_tcp_stream(*node.http)) for _ in range(2)]
            await waits.send_all(post("/topics/t/groups/g/lease", b'{"wait": "60s"}'))
            head, late = post("/topics", b'{"name": "late"}', "Expect: 100-continue\r\n").split(b"\r\n\r\n")
            await asks.send_all(head + b"\r\n\r\n")
            assert (await asks.receive_some(65536)).startswith(b"HTTP/1.1 100 ")
            stop.set()
            assert (await everything(waits)).startswith(b"HTTP/1.1 503 ")
            await until_answer(lambda: takes_connections(node.http.port), lambda takes: not takes)
            await asks.send_all(late)
            assert (await everything(asks)).startswith(b"HTTP/1.1 201 ")
            await stopped.wait()


async def test_node_counts_waiting_requests_for_the_client_address(tmp_path: Path, patient: None) -> None:
    config = small_config(tmp_path, LISTEN__HTTP="127.0.0.1:0")
    with trio.fail_after(PATIENCE_S):
        async with run_node(config) as node:
            assert node.http is not None
            async with httpx.AsyncClient(verify=NO_TLS, base_url=f"http://{node.http}", timeout=PATIENCE_S) as client:
                assert (await client.post("/topics", json={"name": "t"})).status_code == 201
            async with await trio.open_tcp_stream(*node.http, local_address="127.0.0.2") as waits:
                await waits.send_all(post("/topics/t/groups/g/lease", b'{"wait": "60s"}'))
                account = node.broker.node_log.memory.watchers
                await until_holds(lambda: account.of("127.0.0.2").bytes >= WAITING_BYTES)
                assert account.bytes == account.of("127.0.0.2").bytes


async def test_process_of_a_node_with_a_backup_directory_lists_backups(tmp_path: Path, patient: None) -> None:
    config = small_config(tmp_path, LISTEN__HTTP="127.0.0.1:0", BACKUP__URL=str(tmp_path / "backups"))
    with trio.fail_after(PATIENCE_S):
        async with run_node(config) as node:
            assert node.http is not None
            async with httpx.AsyncClient(verify=NO_TLS, base_url=f"http://{node.http}", timeout=PATIENCE_S) as client:
                answer = await client.get("/backups")
                assert (answer.status_code, answer.json()["backups"]) == (200, [])
