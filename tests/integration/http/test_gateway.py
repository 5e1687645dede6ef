"""The gateway on uvloop: it limits what uvicorn does not limit, and no request outlives its client."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from sandq.model.config_types import Address
from sandq.node.running import Serving
from sandq.server.http import connections, guards, standalone
from sandq.server.http.bounds import FULL, SPARE_SLOTS
from tests.support.http_client import NO_TLS
from tests.support.nodes.gateway import PATIENT, gateway
from tests.support.nodes.small_node import small_config
from tests.support.nodes.with_http import run_node
from tests.support.nodes.working import connected
from tests.support.waiting import PATIENCE_S, until_answer, until_holds

GET = b"GET /topics/t HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
AHEAD_BYTES = 8192
"""Bytes that a connection may keep behind a request, in tests of pipelining."""
LAST = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"


def lease(wait: str) -> bytes:
    body = f'{{"wait": "{wait}"}}'.encode()
    return (
        b"POST /topics/t/groups/g/lease HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n" % len(body)
    ) + body


@pytest.fixture
async def small(tmp_path: Path) -> AsyncIterator[Serving]:
    """A node with topic "t", and limits that are soon reached."""
    limits = {"LIMITS__HTTP_CONNECTIONS": "4", "LIMITS__HTTP_REQUESTS": "8", "LIMITS__HTTP_WAITING": "3"}
    async with run_node(small_config(tmp_path, **limits)) as node, connected(node) as api:
        await api.admin.create_topic("t")
        yield node


def gateway_of(node: Serving, **deadlines: float) -> AbstractAsyncContextManager[Address]:
    """The gateway with deadlines that tests do not reach, except these."""
    return gateway(f"127.0.0.1:{node.client_port}", node.broker.limits, replace(PATIENT, **deadlines))


@pytest.fixture
async def at(small: Serving) -> AsyncIterator[Address]:
    async with gateway_of(small) as address:
        yield address


async def everything(stream: trio.SocketStream) -> bytes:
    answer = b""
    with trio.fail_after(PATIENCE_S):
        while piece := await stream.receive_some(65536):
            answer += piece
    return answer


async def one_answer(stream: trio.SocketStream) -> bytes:
    """Return a request with a JSON object as its body."""
    answer = b""
    with trio.fail_after(PATIENCE_S):
        while not answer.endswith(b"}"):  # the head of the response may arrive alone
            answer += await stream.receive_some(65536)
    return answer


async def exchange(at: Address, data: bytes) -> bytes:
    async with await trio.open_tcp_stream(*at) as stream:
        await stream.send_all(data)
        return await everything(stream)


def waiting(node: Serving) -> bool:
    """Return whether a request waits for messages there."""
    return node.broker.node_log.memory.watchers.bytes > 0


async def test_half_a_head_has_its_time(small: Serving) -> None:
    async with gateway_of(small, head_s=0.05) as at:
        assert await exchange(at, b"GET /healthz HT") == b""
        answer = await exchange(at, HEALTH + b"GET /healthz HT")
    assert answer.startswith(b"HTTP/1.1 200 ") and answer.count(b"HTTP/1.1 ") == 1


async def test_a_connection_without_a_request_has_its_time(small: Serving) -> None:
    async with gateway_of(small, idle_s=0.05) as at:
        assert await exchange(at, b"") == b""


@pytest.mark.parametrize(
    "data",
    [
        b"GET /healthz HTTP/1.1\r\nX: " + b"y" * 100_000,
        b"GET /" + b"x" * 100_000,
        b"GET /healthz HTTP/1.1\r\n" + b"X: y\r\n" * 101 + b"\r\n",
        b"POST /topics HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" + b"X: y\r\n" * 10_000,
    ],
    ids=["header", "path", "headers", "trailers"],
)
async def test_a_head_is_no_larger_than_it_may_be(at: Address, data: bytes) -> None:
    answer = await exchange(at, data)
    assert answer.count(b"HTTP/1.1 ") == 1 and answer.split()[1] in (b"431", b"408", b"400"), answer[:200]


async def test_invalid_request_is_refused_after_replies_to_earlier_requests(at: Address) -> None:
    answer = await exchange(at, GET + HEALTH + b"nonsense\r\n\r\n" + HEALTH)
    assert [part[:3] for part in answer.split(b"HTTP/1.1 ")[1:]] == [b"200", b"200", b"400"]


async def test_pipelined_requests_are_all_answered(at: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "AHEAD_BYTES", AHEAD_BYTES)
    async with await trio.open_tcp_stream(*at) as stream, trio.open_nursery() as nursery:
        count = 4 * AHEAD_BYTES // len(HEALTH)
        nursery.start_soon(stream.send_all, HEALTH * count + LAST)
        answer = await everything(stream)
    assert answer.count(b"HTTP/1.1 200 OK") == count + 1


async def test_client_that_leaves_during_a_waiting_lease_leaves_no_requests(
    small: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Return whether the connection was closed or reset, and the bytes that it received after the lease."""
    asked: list[str] = []
    call = guards.Guard.__call__

    async def noted(guard: guards.Guard, scope: Any, receive: Any, send: Any) -> None:
        asked.append(scope["path"])
        await call(guard, scope, receive, send)

    monkeypatch.setattr(guards.Guard, "__call__", noted)
    for is_reset in (True, False):
        async with gateway_of(small, **({} if is_reset else {"leave_s": 0.05})) as at:
            stream = await trio.open_tcp_stream(*at)
            await stream.send_all(lease("60s") + 500 * GET)
            await until_holds(lambda: waiting(small))
            if is_reset:
                stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            await stream.aclose()
            await until_holds(lambda: not waiting(small))
    assert asked == ["/topics/t/groups/g/lease"] * 2


async def test_longest_idle_connection_is_closed_first(at: Address) -> None:
    streams = []
    for _ in range(5):
        stream = await trio.open_tcp_stream(*at)
        await stream.send_all(HEALTH)
        assert (await one_answer(stream)).startswith(b"HTTP/1.1 200 ")
        streams.append(stream)
    assert await everything(streams[0]) == b"", "one address may use three of four slots"
    await streams[-1].send_all(LAST)
    assert (await everything(streams[-1])).startswith(b"HTTP/1.1 200 ")
    for stream in streams:
        await stream.aclose()


async def test_request_beyond_the_limit_is_refused(at: Address) -> None:
    """Every connection has a request, and the spare slots are used too."""
    waits = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"
    async with AsyncExitStack() as opened:

        async def connect(address: str) -> trio.SocketStream:
            stream = await trio.open_tcp_stream(*at, local_address=address)
            return await opened.enter_async_context(stream)

        first = []
        for _ in range(3 + SPARE_SLOTS - SPARE_SLOTS // 4):
            first.append(await connect("127.0.0.2"))
            await first[-1].send_all(waits)
            assert (await first[-1].receive_some(1000)).startswith(b"HTTP/1.1 100 "), "the request must be in progress"
        assert await everything(await connect("127.0.0.2")) == FULL
        other = await connect("127.0.0.3")
        await other.send_all(HEALTH)
        assert (await other.receive_some(1000)).startswith(b"HTTP/1.1 200 ")
        await first[0].send_all(b"{}")
        assert (await first[0].receive_some(1000)).startswith(b"HTTP/1.1 200 ")


async def test_waiting_requests_per_address_are_limited_to_three_quarters(small: Serving) -> None:
    limits = replace(small.broker.limits, http_connections=100, http_waiting=4)
    answers: list[bytes] = []

    async def ask(at: Address) -> None:
        async with await trio.open_tcp_stream(*at) as stream:
            await stream.send_all(lease("60s").replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
            answers.append(await everything(stream))

    async with gateway(f"127.0.0.1:{small.client_port}", limits) as at, trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(ask, at)
        await until_holds(lambda: answers)
        nursery.cancel_scope.cancel()
    assert answers[0].startswith(b"HTTP/1.1 503 ") and b"limits.http_waiting" in answers[0], answers


async def test_posts_that_come_together_are_few_produces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests of twenty connections that are read in one iteration of the gateway's loop, which is blocked until all
    are there."""
    begun, all_sent = trio.Event(), threading.Event()
    call, token = guards.Guard.__call__, trio.lowlevel.current_trio_token()

    async def blocking_call(guard: guards.Guard, scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/stand-still":
            token.run_sync_soon(begun.set)
            all_sent.wait(PATIENCE_S)
        await call(guard, scope, receive, send)

    monkeypatch.setattr(guards.Guard, "__call__", blocking_call)
    body = b'{"text": "x"}'
    post = b"POST /topics/t HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    async with (
        run_node(small_config(tmp_path, LISTEN__HTTP="127.0.0.1:0")) as node,
        connected(node) as api,
        httpx.AsyncClient(verify=NO_TLS, base_url=f"http://{node.http}", timeout=PATIENCE_S) as at_node,
        gateway_of(node) as at,
        AsyncExitStack() as stack,
    ):
        await api.admin.create_topic("t")

        async def produces() -> int:
            """Return the PRODUCE requests that the node has answered."""
            told = 'sandq_requests_total{type="produce",result="ok"} '
            (line,) = [line for line in (await metrics(at_node)).splitlines() if line.startswith(told)]
            return int(float(line.removeprefix(told)))

        streams = [await stack.enter_async_context(await trio.open_tcp_stream(*at)) for _ in range(20)]
        for stream in streams:  # the gateway must know each connection and the topic first
            await stream.send_all(post)
            assert (await one_answer(stream)).startswith(b"HTTP/1.1 201 ")
        before = await produces()
        blocker = await stack.enter_async_context(await trio.open_tcp_stream(*at))
        await blocker.send_all(b"GET /stand-still HTTP/1.1\r\nHost: localhost\r\n\r\n")
        try:
            await begun.wait()
            for stream in streams:
                await stream.send_all(post)
        finally:
            all_sent.set()
        for stream in streams:
            assert (await one_answer(stream)).startswith(b"HTTP/1.1 201 ")
        assert await produces() - before <= 3
        (row,) = await api.admin.stats("t")
        assert row["messages"] == 40


async def test_client_that_does_not_read_its_reply_is_disconnected(small: Serving) -> None:
    listing = b"GET /topics/t/messages?values=true HTTP/1.1\r\nHost: localhost\r\nAccept: application/x-ndjson\r\n\r\n"
    async with connected(small) as api:
        for _ in range(12):
            await api.produce_many("t", [{"value": b"x" * 900_000, "delay": "1h"}])
    async with (
        gateway_of(small, crowded_stall_s=0.02, send_stall_s=0.02) as at,
        await trio.open_tcp_stream(*at) as stream,
        httpx.AsyncClient(verify=NO_TLS, base_url=f"http://{at}", timeout=PATIENCE_S) as client,
    ):
        await stream.send_all(listing)
        told = 'sandq_http_requests_total{method="GET",route="/topics/{topic}/messages"'
        await until_answer(lambda: metrics(client), lambda text: told in text)


async def metrics(client: httpx.AsyncClient) -> str:
    return (await client.get("/metrics")).text


async def test_stopping_gateway_answers_waiting_requests(small: Serving) -> None:
    async with gateway_of(small) as address:
        stream = await trio.open_tcp_stream(*address)
        await stream.send_all(lease("60s"))
        await until_holds(lambda: waiting(small))
    answer = await everything(stream)
    assert answer.startswith(b"HTTP/1.1 503 ") and b"connection: close" in answer, answer
    await stream.aclose()


async def test_gateway_is_ready_while_the_cluster_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standalone, "POLL_S", 0.01)
    stop = trio.Event()

    async def run(task_status: trio.TaskStatus[Serving]) -> None:
        async with run_node(small_config(tmp_path)) as node:
            task_status.started(node)
            await stop.wait()

    async with trio.open_nursery() as nursery:
        node = await nursery.start(run)
        async with (
            gateway_of(node) as address,
            httpx.AsyncClient(verify=NO_TLS, base_url=f"http://{address}", timeout=PATIENCE_S) as client,
        ):
            await until_answer(lambda: client.get("/readyz"), lambda found: found.status_code == 200)
            assert (await client.get("/healthz")).status_code == 200
            stop.set()
            await until_answer(lambda: client.get("/readyz"), lambda found: found.status_code == 503)
            assert (await client.get("/healthz")).status_code == 200
