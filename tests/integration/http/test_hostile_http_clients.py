"""HTTP clients that flood a node, send too much, or do not read."""

from __future__ import annotations

import resource
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path

import httpx
import pytest
import trio

import sandq
from sandq.model.limits import DEFAULT, Limits
from sandq.node import web as node_web
from sandq.node.running import Serving
from sandq.server import process_tuning
from sandq.server.http.bounds import Deadlines
from sandq.server.http.node_link import Begin
from tests.support.http_client import NO_TLS
from tests.support.nodes.http_requests import Web
from tests.support.nodes.small_node import small_config
from tests.support.nodes.with_http import run_node
from tests.support.nodes.working import connected
from tests.support.waiting import PATIENCE_S, until_answer

LISTING = b"GET /topics/t/messages?values=true HTTP/1.1\r\nHost: localhost\r\nAccept: application/x-ndjson\r\n\r\n"


async def stalled_reader(node: Serving) -> trio.SocketStream:
    """A client that requests much and reads nothing."""
    assert node.http is not None
    async with connected(node) as api, api.producer("t") as producer:
        for _ in range(40):
            await producer.send(b"x" * 500_000, delay="1h")
    stream = await trio.open_tcp_stream("127.0.0.1", node.http[1])
    await stream.send_all(LISTING)
    return stream


async def test_a_client_that_takes_nothing_does_not_hold_up_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deadlines = Deadlines(grace_s=0.3, leave_s=0.3)
    monkeypatch.setattr(node_web, "Begin", partial(Begin, deadlines=deadlines))
    with trio.fail_after(2 * PATIENCE_S):
        async with run_node(small_config(tmp_path, LISTEN__HTTP="127.0.0.1:0")) as node:
            async with connected(node) as api:
                await api.admin.create_topic("t")
            stream = await stalled_reader(node)
        await trio.aclose_forcefully(stream)


LEASE = b'POST /topics/t/groups/g/lease HTTP/1.1\r\nHost: localhost\r\nContent-Length: 14\r\n\r\n{"wait":"60s"}'
HALF = b"GET /topics HTTP/1.1\r\nHost: localhost\r\nX: "


def web_of(node: Serving) -> httpx.AsyncClient:
    """Use a new connection for each request."""
    assert node.http is not None
    limits = httpx.Limits(max_keepalive_connections=0)
    return httpx.AsyncClient(
        verify=NO_TLS, base_url=f"http://127.0.0.1:{node.http[1]}", timeout=PATIENCE_S, limits=limits
    )


async def test_connections_beyond_the_limit(tmp_path: Path) -> None:
    """A client that floods a node with silent connections or partial requests loses these."""
    config = small_config(tmp_path, LISTEN__HTTP="127.0.0.1:0", LIMITS__HTTP_CONNECTIONS="4")
    async with run_node(config) as node, web_of(node) as client:
        assert node.http is not None
        async with AsyncExitStack() as stack:
            floods = [
                await stack.enter_async_context(await trio.open_tcp_stream("127.0.0.1", node.http[1]))
                for _ in range(12)
            ]
            for stream in floods[::2]:
                with suppress(trio.BrokenResourceError):
                    await stream.send_all(HALF)
            for path in ("/topics", "/healthz", "/metrics"):
                assert (await client.get(path)).status_code == 200, path
            # The connection that was idle for longest is closed. If that was before its request, TCP resets it.
            with trio.fail_after(PATIENCE_S), suppress(trio.BrokenResourceError):
                assert await floods[0].receive_some(1) == b""


async def test_health_is_answered_when_all_connections_have_requests(tmp_path: Path) -> None:
    config = small_config(tmp_path, LISTEN__HTTP="127.0.0.1:0", LIMITS__HTTP_CONNECTIONS="3")
    async with run_node(config) as node, web_of(node) as client:
        assert node.http is not None
        await client.post("/topics", json={"name": "t"})
        waiting = []

        async def status() -> int:
            """Send one more request, in case the node did not know yet that the earlier connections had requests."""
            assert node.http is not None
            waiting.append(await trio.open_tcp_stream("127.0.0.1", node.http[1]))
            with suppress(trio.BrokenResourceError):
                await waiting[-1].send_all(LEASE)
            return (await client.get("/topics")).status_code

        await until_answer(status, lambda found: found == 503)
        await until_answer(lambda: client.get("/readyz"), lambda found: found.status_code == 200)
        for path in ("/healthz", "/readyz", "/metrics"):
            found = await client.get(path)
            assert found.status_code == 200 and found.headers["connection"] == "close", path
        refused = await client.get("/topics")
        assert (refused.status_code, refused.json()["code"]) == (503, "OVERLOADED")
        for stream in waiting:
            await trio.aclose_forcefully(stream)
        await until_answer(lambda: client.get("/topics"), lambda found: found.status_code == 200)


def test_connections_leave_descriptors_for_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """This is true for any limits."""
    for files in (64, 256, 1024, 20_000, 1_000_000):
        monkeypatch.setattr(resource, "getrlimit", lambda _, files=files: (files, files))
        found: Limits = process_tuning.limits_within_files(DEFAULT)
        assert found.connections > 0 and found.http_connections > 0
        if files >= 256:
            room = files - process_tuning.RESERVED - files // process_tuning.STORE_PART
            assert found.connections + found.http_connections <= room
    assert process_tuning.limits_within_files(DEFAULT) is DEFAULT, "enough is enough"


async def test_a_fault_of_ours_is_a_problem(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(self: object) -> None:
        raise ZeroDivisionError("of a secret")

    monkeypatch.setattr(sandq.client.admin.admin.Admin, "list_topics", fails)
    found = await web.get("/topics", 500)
    assert found["code"] == "INTERNAL" and "secret" not in found["detail"]
    assert await web.get("/healthz") == {"status": "ok"}


async def test_settings_that_are_no_settings(web: Web) -> None:
    await web.post("/topics", {"name": "t"})
    await web.post("/topics/t/groups/g/lease")
    for name in ("topic", "group", "self", "name"):
        for path in ("/topics/t", "/topics/t/groups/g"):
            assert (await web.patch(path, {"settings": {name: 1}}, 400))["code"] == "INVALID_SETTING", name


async def test_duplicate_fields_and_parameters_are_rejected(web: Web) -> None:
    response = await web.raw("POST", "/topics", content=b'{"name": "a", "name": "b"}')
    assert response.status_code == 400 and "'name' is there twice" in response.json()["detail"]
    await web.post("/topics", {"name": "t"})
    response = await web.raw("GET", "/topics/t/messages?limit=1&limit=2")
    assert response.status_code == 400 and "twice" in response.json()["detail"]


async def test_bytes_of_all_bodies_are_limited(web: Web, web_node: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node accepts bodies of 2 MiB, and 16 MiB in total at a time."""
    assert web_node.http is not None
    head = b"POST /topics/t HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2097152\r\n\r\n"
    streams: list[trio.SocketStream] = []

    async def refused() -> int:
        return (await web.raw("POST", "/topics/t", content=b" " * 1_500_000)).status_code

    async def refused_beside_more() -> int:
        """A connection that should block others may have been refused itself, so open one more."""
        streams.append(await trio.open_tcp_stream("127.0.0.1", web_node.http[1]))
        with suppress(trio.BrokenResourceError):
            await streams[-1].send_all(head + b" " * 2_000_000)
        return await refused()

    assert await refused() == 400
    await until_answer(refused_beside_more, lambda status: status == 503)
    assert len(streams) >= 7
    for stream in streams:
        await trio.aclose_forcefully(stream)
    await until_answer(refused, lambda status: status == 400)


async def test_a_page_ends_when_it_is_large(web: Web, web_node: Serving) -> None:
    await web.post("/topics", {"name": "t"})
    async with connected(web_node) as api, api.producer("t") as producer:
        await producer.send_many([b"%d" % n + b"x" * 400_000 for n in range(10)])
    seen: list[str] = []
    start: dict[str, str] = {}
    while True:
        page = await web.get("/topics/t/0", **start)
        assert 1 <= len(page["messages"]) <= 3
        seen += [message["text"][0] for message in page["messages"]]
        if page["next"] is None:
            break
        start = {"start": page["next"]}
    assert seen == list("0123456789")
    assert len((await web.get("/topics/t/messages", values=True))["messages"]) == 3
    assert len((await web.get("/topics/t/messages"))["messages"]) == 10


async def test_client_that_disconnects_is_counted_as_499(web: Web, web_node: Serving) -> None:
    await web.post("/topics", {"name": "t"})
    async with trio.open_nursery() as nursery:
        nursery.start_soon(web.post, "/topics/t/groups/g/lease", {"wait": "1m"})
        await until_answer(lambda: web.get("/topics/t/groups"), lambda told: bool(told["groups"]))
        nursery.cancel_scope.cancel()

    async def counted() -> str:
        return (await web.raw("GET", "/metrics")).text

    route = 'route="/topics/{topic}/groups/{group}/lease"'
    text = await until_answer(counted, lambda text: f'{route},status="499"' in text)
    assert f'{route},status="500"' not in text


NO_SETTINGS: list[tuple[str, str]] = [
    (r'{"lease": -20503798569137852416}', "too large"),
    (r'{"backoff": {"factor": 99999999999999999999999}}', "too large"),
    (r'{"\udb3f": 1}', "is no text"),
    (r'{"ordering": "\ud86c"}', "is no text"),
    (r'{"backoff": {"kind": "\ud86c"}}', "is no text"),
]


async def test_settings_that_no_frame_can_carry(web: Web) -> None:
    await web.post("/topics", {"name": "t"})
    await web.post("/topics/t/groups/g/lease")
    for settings, words in NO_SETTINGS:
        body = f'{{"settings": {settings}}}'
        for method, path, content in (
            ("PATCH", "/topics/t", body),
            ("PATCH", "/topics/t/groups/g", body),
            ("POST", "/topics", body[:-1] + ', "name": "u"}'),
        ):
            response = await web.raw(method, path, content=content)
            assert response.status_code == 400 and words in response.json()["detail"], response.text
