"""Checks before every route: hosts, origins, sizes, slow clients, invalid JSON, unknown routes."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import trio

from sandq.client.producer import Producer
from sandq.errors import StartupError
from sandq.model import json_values
from sandq.node.running import Serving
from sandq.server.http import guards, routes_messages, strict
from tests.support.http_client import NO_TLS
from tests.support.nodes.http_requests import Web
from tests.support.nodes.small_node import small_config
from tests.support.nodes.with_http import run_node
from tests.support.nodes.working import connected
from tests.support.waiting import PATIENCE_S, until_answer, until_holds

FOREIGN = "https://evil.example"


async def wire(node: Serving, data: bytes) -> bytes:
    """Return everything that is sent in response to these bytes."""
    assert node.http is not None
    async with await trio.open_tcp_stream("127.0.0.1", node.http[1]) as stream:
        await stream.send_all(data)
        answer = b""
        with trio.fail_after(PATIENCE_S):
            while piece := await stream.receive_some(65536):
                answer += piece
        return answer


async def hosts(web: Web, host: str) -> int:
    return (await web.raw("GET", "/healthz", headers={"host": host})).status_code


async def test_only_allowed_hosts_are_accepted(web: Web) -> None:
    for host in ("localhost", "LOCALHOST:2108", "127.0.0.1:2108", "[::1]:2108", "10.1.2.3"):
        assert await hosts(web, host) == 200, host
    for host in ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "a b", "[::1", "localhost:x"):
        assert await hosts(web, host) == 403, host


async def test_pages_of_others(web: Web) -> None:
    host = {"host": "localhost:2108"}
    same = await web.raw("GET", "/topics", headers={**host, "origin": "http://localhost:2108"})
    assert same.status_code == 200
    for origin in (FOREIGN, "null", "http://localhost:2109", "http://localhost"):
        found = await web.raw("POST", "/topics", json={"name": "t"}, headers={**host, "origin": origin})
        assert (found.status_code, found.json()["code"]) == (403, "FOREIGN_ORIGIN")
        assert "access-control-allow-origin" not in found.headers
    assert (await web.get("/topics"))["topics"] == []


async def test_pages_of_other_sites_open_no_stream(web: Web) -> None:
    """A page can request an image without an Origin header. The stream would lease messages for that request."""
    await web.post("/topics", {"name": "t"}, 201)
    for path in ("/topics/t/groups/g/stream", "/overview/stream"):
        for site in ("cross-site", "same-site"):
            found = await web.raw("GET", path, headers={"sec-fetch-site": site})
            assert (found.status_code, found.json()["code"]) == (403, "FOREIGN_ORIGIN")
        for site in ("same-origin", "none"):
            assert (await web.raw("HEAD", path, headers={"sec-fetch-site": site})).status_code == 200
    assert (await web.get("/topics/t/groups"))["groups"] == []
    assert (await web.raw("GET", "/topics", headers={"sec-fetch-site": "cross-site"})).status_code == 200


@pytest.fixture
async def open_web(tmp_path: Path) -> AsyncIterator[Web]:
    """Run a node with HTTP, and yield a client for it."""
    config = small_config(
        tmp_path, LISTEN__HTTP="127.0.0.1:0", HTTP__ALLOWED_HOSTS="queue.example", HTTP__ALLOWED_ORIGINS=FOREIGN
    )
    async with run_node(config) as node:
        assert node.http is not None
        async with httpx.AsyncClient(verify=NO_TLS, base_url=f"http://127.0.0.1:{node.http[1]}") as client:
            yield Web(client)


async def test_allowed_hosts_and_origins_are_accepted(open_web: Web) -> None:
    headers = {"host": "queue.example:80", "origin": FOREIGN}
    found = await open_web.raw("GET", "/topics", headers=headers)
    assert found.status_code == 200 and found.headers["access-control-allow-origin"] == FOREIGN
    before = {**headers, "access-control-request-method": "POST", "access-control-request-headers": "content-type"}
    assert (await open_web.raw("OPTIONS", "/topics", headers=before)).status_code == 200
    assert await hosts(open_web, "other.example") == 403


async def test_pages_may_read_that_they_ask_too_much(open_web: Web) -> None:
    headers = {"host": "queue.example:80", "origin": FOREIGN}
    topic = {"name": "t", "settings": {"max_request_rate": "1/h", "max_request_burst": 2}}
    assert (await open_web.raw("POST", "/topics", headers=headers, json=topic)).status_code == 201
    assert (await open_web.raw("POST", "/topics/t", headers=headers, json={"text": "x"})).status_code == 201
    before = {**headers, "access-control-request-method": "GET"}
    for _ in range(3):  # a CORS preflight does not reach the topic
        assert (await open_web.raw("OPTIONS", "/topics/t/messages", headers=before)).status_code == 200
    found = [await open_web.raw("GET", "/topics/t/messages", headers=headers) for _ in range(3)]
    assert found[-1].status_code == 429 and found[0].status_code == 200
    assert found[-1].headers["access-control-allow-origin"] == FOREIGN
    assert "retry-after" in found[-1].headers["access-control-expose-headers"]


async def test_unauthenticated_reply_has_cors_headers_for_allowed_origins(open_web: Web) -> None:
    headers = {"host": "queue.example:80", "authorization": "Bearer sandq_wrong"}
    found = await open_web.raw("GET", "/topics", headers={**headers, "origin": FOREIGN})
    assert found.status_code == 401 and found.headers["access-control-allow-origin"] == FOREIGN
    assert found.headers["vary"] == "Origin"
    for origin in ("https://elsewhere.example", f"{FOREIGN}x"):
        refused = await open_web.raw("GET", "/topics", headers={**headers, "origin": origin})
        assert refused.status_code == 403 and "access-control-allow-origin" not in refused.headers
    assert "access-control-allow-origin" not in (await open_web.raw("GET", "/topics", headers=headers)).headers


async def test_request_ids(web: Web) -> None:
    found = await web.raw("GET", "/topics/nope", headers={"x-request-id": "mine-1"})
    assert found.headers["x-request-id"] == "mine-1" == found.json()["request_id"]
    for bad in ("a b", "x" * 129, "<script>"):
        found = await web.raw("GET", "/healthz", headers={"x-request-id": bad})
        assert found.headers["x-request-id"] != bad


NO_JSON = [
    b"",
    b"{",
    b"\xff\xfe",
    b'{"name": NaN}',
    b'{"name": Infinity}',
    b'{"name": 1e999}',
    b'{"name": ' + b"9" * 5000 + b"}",
    b"[" * 50_000,
    b'{"a":' * 50_000,
    b"{" + b",".join(b'"%d":0' % at for at in range(10_001)) + b"}",
    b"nonsense",
    b'{"name": "t"} trailing',
    b"null",
]


async def test_body_that_is_not_json_is_rejected(web: Web) -> None:
    for content in NO_JSON:
        response = await web.raw("POST", "/topics", content=content)
        assert response.status_code == 400, (content[:50], response.text)
        assert response.headers["content-type"] == "application/problem+json"
        assert (await web.get("/topics"))["topics"] == []


@pytest.mark.parametrize(
    "content",
    [
        b'{"json": [' + b",".join([b"[]"] * 50_001) + b"]}",
        b'{"json": [' + b",".join([b"0"] * 250_001) + b"]}",
        b'{"json": [' + b",".join([b"{}"] * 125_001) + b"]}",
        b"[" * 1_000_000,
    ],
    ids=["arrays", "numbers", "objects", "depth"],
)
async def test_json_of_too_many_parts(web: Web, content: bytes) -> None:
    """Reading this body would delay all other clients."""
    response = await web.raw("POST", "/topics/t", content=content)
    assert (response.status_code, response.json()["code"]) == (413, "TOO_LARGE"), response.text


async def test_a_name_twice_is_found_at_once(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [b'"%d":0' % at for at in range(9_999)]
    looks = 0
    read = json_values.twice

    def counted(given: Iterable[str]) -> list[str]:
        def each() -> Iterator[str]:
            nonlocal looks
            for name in given:
                looks += 1
                yield name

        return read(each())

    monkeypatch.setattr(json_values, "twice", counted)
    response = await web.raw("POST", "/topics/t", content=b"{" + b",".join([*names, names[-1]]) + b"}")
    assert response.status_code == 400 and "'9998' is there twice" in response.json()["detail"]
    assert 0 < looks <= 10_000, "each mistake is checked once"


async def test_first_wrong_message_of_many_is_reported(web: Web) -> None:
    wrong = {f"k{at}": 0 for at in range(20)}
    found = await web.raw("POST", "/topics/t", json={"messages": [{"text": "a"}, *[wrong] * 5_000]})
    assert found.status_code == 400
    assert {mistake["where"].split(".")[2] for mistake in found.json()["errors"]} == {"1"}
    ack = {"messages": [{"lease_token": 1}] * 10_000}
    found = await web.raw("POST", "/topics/t/groups/g/ack", json=ack)
    assert found.status_code == 400 and len(found.json()["errors"]) == 1


async def test_a_large_body_is_for_messages_alone(web: Web) -> None:
    large = b" " * 1_500_000
    for method, path, status in (
        ("POST", "/topics", 413),
        ("PATCH", "/topics/t", 400),
        ("POST", "/topics/t", 400),
        ("POST", "/topics/t/0", 400),
        ("PUT", "/topics/t/keys/a/b", 400),
        ("POST", "/topics/t/groups/g/ack", 400),
        ("POST", "/topics/t/groups/g/lease", 413),
        ("POST", "/cluster/transfer", 413),
    ):
        assert (await web.raw(method, path, content=large)).status_code == status, (method, path)


async def test_body_is_json_for_any_content_type(web: Web) -> None:
    kinds = ["text/plain", "application/xml", "multipart/form-data; boundary=x", "", "nonsense"]
    for number, kind in enumerate(kinds):
        body = b'{"name": "t%d"}' % number
        response = await web.raw("POST", "/topics", content=body, headers={"content-type": kind})
        assert response.status_code == 201, kind


async def test_too_large(web: Web, web_node: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guards, "DISCARD_S", PATIENCE_S)
    found = await web.raw("POST", "/topics", content=b" " * 3_000_000)
    assert (found.status_code, found.json()["code"]) == (413, "TOO_LARGE")
    chunk = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
    head = b"POST /topics HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert (await wire(web_node, head + chunk * 3 + b"0\r\n\r\n")).startswith(b"HTTP/1.1 413 ")
    huge = b"POST /topics HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + b"9" * 17 + b"\r\n\r\n{}"
    monkeypatch.setattr(guards, "DISCARD_S", 0.2)  # the whole response has been sent
    assert b" 413 " in await wire(web_node, huge)


async def test_client_that_sends_on_receives_the_refusal(web_node: Serving) -> None:
    head = b"POST /topics/t HTTP/1.1\r\nHost: evil.example\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert (await wire(web_node, head + b"1\r\nx\r\n" * 100 + b"0\r\n\r\n")).startswith(b"HTTP/1.1 403")


async def test_requests_one_behind_the_other_are_answered_in_their_order(web: Web, web_node: Serving) -> None:
    assert web_node.http is not None
    stream = await trio.open_tcp_stream("127.0.0.1", web_node.http[1])
    count = 60
    await stream.send_all(
        b"".join(
            b"GET /nope%d HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Request-Id: r%d.\r\n\r\n" % (n, n) for n in range(count)
        )
    )
    got = b""
    with trio.fail_after(PATIENCE_S):
        while got.count(b"x-request-id") < count:
            got += await stream.receive_some(1 << 16)
    assert [got.index(b"x-request-id: r%d.\r\n" % n) for n in range(count)] == sorted(
        got.index(b"x-request-id: r%d.\r\n" % n) for n in range(count)
    )
    await stream.aclose()


def _has_group(node: Serving) -> bool:
    partitions = node.broker.catalog.topics["t"].partitions.values()
    return any(delivery.groups.get("g") is not None for delivery in partitions)


async def test_unknown_paths_and_methods_are_refused(web: Web) -> None:
    for path in ("/nope", "/topics/", "/topics/t/groups/g/nope", "/docs/../cli.py", "/docs/nope", "/%00"):
        assert (await web.ask("GET", path, None, 404))["code"] == "NO_ROUTE", path
    found = await web.raw("PUT", "/topics")
    assert (found.status_code, found.headers["allow"]) == (405, "GET, POST")
    found = await web.raw("DELETE", "/topics/t/groups")
    assert (found.status_code, found.headers["allow"]) == (405, "GET")
    long = await web.raw("GET", "/" + "x" * 10_000)
    assert long.status_code == 404 and len(long.content) < 1000
    assert (await web.raw("GET", "/?" + "x" * 20_000)).status_code in (400, 431)


async def test_slow_clients_do_not_delay_others(
    web: Web, web_node: Serving, capsys: pytest.CaptureFixture[str]
) -> None:
    """Clients send half of a head, half of a body, or do not read the response."""
    assert web_node.http is not None
    await web.post("/topics", {"name": "t"})
    for _ in range(3):
        await web.post("/topics/t", {"messages": [{"text": "x" * 100_000, "delay": "1h"}] * 10})
    streams = [await trio.open_tcp_stream("127.0.0.1", web_node.http[1]) for _ in range(30)]
    listing = b"GET /topics/t/messages?values=true HTTP/1.1\r\nHost: localhost\r\nAccept: application/x-ndjson\r\n\r\n"
    for at, stream in enumerate(streams):
        if at % 3 == 0:
            await stream.send_all(b"POST /topics HT")
        elif at % 3 == 1:
            await stream.send_all(b'POST /topics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 14\r\n\r\n{"name"')
        else:
            await stream.send_all(listing)
    with trio.fail_after(PATIENCE_S):
        for _ in range(20):
            await web.post("/topics/t", {"text": "m"})
    for stream in streams:
        await trio.aclose_forcefully(stream)
    assert [topic["name"] for topic in (await web.get("/topics"))["topics"]] == ["t"]
    assert "unexpected error" not in capsys.readouterr().out, "a client that disconnects is no error of the server"


async def test_head_pipelining_expect_http_1_0_and_upgrade(web: Web, web_node: Serving) -> None:
    """HEAD requests, pipelined requests, `Expect: 100-continue`, an HTTP/1.0 client, and upgrade requests."""
    head = await web.raw("HEAD", "/healthz")
    assert (head.status_code, head.content, head.headers["content-length"]) == (200, b"", "15")
    assert (await web.raw("HEAD", "/nope")).status_code == 404
    one = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    answer = await wire(web_node, one + b"GET /nope HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert answer.count(b"HTTP/1.1 200") == 1 and answer.count(b"HTTP/1.1 404") == 1
    expecting = (
        b"POST /topics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        b'Expect: 100-continue\r\nContent-Length: 13\r\n\r\n{"name": "t"}'
    )
    assert b"HTTP/1.1 201" in await wire(web_node, expecting)
    assert b" 200 " in await wire(web_node, b"GET /healthz HTTP/1.0\r\nHost: localhost\r\n\r\n")
    assert b" 403 " in await wire(web_node, b"GET /healthz HTTP/1.0\r\n\r\n")
    for garbage in (b"\x00\x01\x02\r\n\r\n", b"GET\r\n\r\n", b"A" * 100_000):
        answer = await wire(web_node, garbage)
        assert not answer or answer.split()[1] in (b"400", b"431"), answer[:200]
    upgrade = b"GET /topics HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    keys = b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    assert (await wire(web_node, upgrade + keys)).split()[1] in (b"200", b"403"), "no upgrade may happen"
    assert await web.get("/healthz") == {"status": "ok"}


async def test_ambiguous_requests_and_other_protocols_are_rejected(web: Web, web_node: Serving) -> None:
    """Requests that two parsers might understand in different ways, and other protocols."""
    one = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
    both = b"POST /topics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 13\r\nTransfer-Encoding: chunked\r\n\r\n"
    for data, status in (
        (b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n", b"505"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"505"),
        (both + b'd\r\n{"name": "t"}\r\n0\r\n\r\n' + one + b"\r\n", b"400"),
        (one + b"X: y\r\n" * 100 + b"\r\n", b"431"),
    ):
        answer = await wire(web_node, data)
        assert answer.split()[1] == status and answer.count(b"HTTP/1.1 ") == 1, answer
    upgrade = b"Connection: Upgrade, HTTP2-Settings, close\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n"
    assert b"HTTP/1.1 200 " in await wire(web_node, one + upgrade), "the connection must continue without an upgrade"
    assert (await web.get("/topics"))["topics"] == []


async def test_waiting_requests_are_limited(tmp_path: Path) -> None:
    limits = {"LIMITS__HTTP_REQUESTS": "8", "LIMITS__HTTP_WAITING": "3"}
    async with run_node(small_config(tmp_path, LISTEN__HTTP="127.0.0.1:0", **limits)) as node:
        assert node.http is not None
        async with httpx.AsyncClient(
            verify=NO_TLS, base_url=f"http://127.0.0.1:{node.http[1]}", timeout=PATIENCE_S
        ) as client:
            web = Web(client)
            await web.post("/topics", {"name": "t"})
            statuses: list[int] = []

            async def wait() -> None:
                statuses.append((await client.post("/topics/t/groups/g/lease", json={"wait": "1m"})).status_code)

            async with trio.open_nursery() as nursery:
                for _ in range(6):
                    nursery.start_soon(wait)
                await until_holds(lambda: len(statuses) == 3)
                assert statuses == [503, 503, 503]
                # Waiting requests do not use the slots of other requests.
                for _ in range(20):
                    assert (await client.get("/topics")).status_code == 200
                assert (await client.post("/topics/t/groups/g/lease", json={})).json()["messages"] == []
                async with connected(node) as api:
                    for _ in range(3):
                        await api.produce("t", b"m")
            assert sorted(statuses) == [200, 200, 200, 503, 503, 503]


async def test_taken_http_port_prevents_start(web_node: Serving, tmp_path: Path) -> None:
    assert web_node.http is not None
    config = small_config(tmp_path / "other", LISTEN__HTTP=f"127.0.0.1:{web_node.http[1]}")
    with pytest.raises(StartupError, match=r"listen\.http"):
        async with run_node(config):
            pass


async def test_documentation_without_the_internet(web: Web) -> None:
    assert (await web.raw("GET", "/")).headers["location"] == "/docs"
    page = await web.raw("GET", "/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "//" not in page.text.replace("<!DOCTYPE", ""), "no file may be loaded from another origin"
    for name in ("swagger-ui.css", "swagger-ui-bundle.js", "favicon-32x32.png", "start.js"):
        assert f'"docs/{name}"' in page.text
        assert len((await web.raw("GET", f"/docs/{name}")).content) > 50
    schema = (await web.raw("GET", "/openapi.json")).json()
    assert len(schema["paths"]) > 20
    for path in schema["paths"].values():
        for operation in path.values():
            assert operation["summary"] and {"4XX", "5XX"} <= operation["responses"].keys()


async def test_node_routes_return_health_cluster_and_clock(web: Web) -> None:
    assert await web.get("/healthz") == {"status": "ok"}
    await until_answer(lambda: web.raw("GET", "/readyz"), lambda found: found.json() == {"status": "ok"})
    cluster = await web.get("/cluster")
    assert (cluster["node"], cluster["storage_failed"]) == ("node1", None)
    assert [node["node"] for node in (await web.get("/cluster/nodes"))["nodes"]] == ["node1"]
    assert (await web.get("/cluster/clock"))["alarm"] is False
    assert (await web.post("/cluster/clock/accept"))["drift_ms"] == 0


LOOP: Final = "sandq-http"
"""Return the id of the thread that runs the event loop of HTTP."""


async def test_many_messages_are_read_in_a_thread_and_sent_in_parts(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    parts: list[int] = []
    read_large, send_ready = strict._read_large, Producer.send_ready

    def noted(*args: Any) -> Any:
        read.append(threading.current_thread().name)
        return read_large(*args)

    async def counted(producer: Producer, messages: Any) -> Any:
        parts.append(len(messages))
        return await send_ready(producer, messages)

    monkeypatch.setattr(strict, "_read_large", noted)
    monkeypatch.setattr(Producer, "send_ready", counted)
    await web.post("/topics", {"name": "t"}, 201)
    texts = [f"{number} {'ü' * 20}" for number in range(1500)]
    answer = await web.post("/topics/t", {"messages": [{"text": text} for text in texts]}, 201)
    assert (answer["stored"], answer["failed"]) == (1500, 0)
    assert read and LOOP not in read and sum(parts) == 1500 and max(parts) <= routes_messages.SENT_AT_ONCE
    for at in (0, 700, 1499):
        assert (await web.get(f"/topics/t/messages/{answer['results'][at]['id']}"))["text"] == texts[at]
    wrong = await web.post("/topics/t", {"messages": [{"text": text} for text in texts] + [{"txt": "x"}]}, 400)
    assert "1500" in str(wrong)


async def raw_status(web_node: Serving, target: str) -> bytes:
    """Return the status of a GET whose request target is sent as it is."""
    assert web_node.http is not None
    host = "{}:{}".format(*web_node.http)
    answer = await wire(web_node, f"GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
    return answer.split(b" ")[1]


async def test_a_request_target_may_be_absolute(web_node: Serving) -> None:
    assert web_node.http is not None
    host = "{}:{}".format(*web_node.http)
    for scheme in ("http", "HTTP"):
        assert await raw_status(web_node, f"{scheme}://{host}/topics") == b"200"
        assert await raw_status(web_node, f"{scheme}://{host}/topics?x=1") == b"400"
        assert await raw_status(web_node, f"{scheme}://{host}/topics/none%20") == b"400"


async def test_host_of_absolute_target_is_checked(web_node: Serving) -> None:
    assert await raw_status(web_node, "http://evil.example/topics") == b"403"


async def test_a_body_with_a_content_encoding_is_415(web: Web) -> None:
    for encoding in ("gzip", "br", "gzip, identity"):
        response = await web.raw("POST", "/topics", content=b"{}", headers={"content-encoding": encoding})
        assert (response.status_code, response.json()["code"]) == (415, "CONTENT_ENCODING")
    response = await web.raw("POST", "/topics", content=b'{"name": "t"}', headers={"content-encoding": "identity"})
    assert response.status_code == 201
