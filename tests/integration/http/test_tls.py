"""TLS of HTTP, and its connection to a client port that requires TLS."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import trio
from cryptography import x509

from sandq.node import run_node as run_with_process
from sandq.node import web as node_web
from sandq.node.running import Serving
from sandq.server.http.connections import _Connection
from sandq.server.http.node_link import Begin
from sandq.tls import certificates
from tests.support.certificates import Authority
from tests.support.nodes.gateway import PATIENT
from tests.support.nodes.small_node import small_config
from tests.support.nodes.with_http import run_node
from tests.support.waiting import PATIENCE_S, until_answer

HOST: Final = "127.0.0.1"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ca")


@asynccontextmanager
async def serving(directory: Path, authority: Authority, **more: str) -> AsyncIterator[Serving]:
    """A node that requires TLS of clients and of HTTP."""
    pair = authority.issue("node1", [x509.DNSName("node1"), x509.DNSName("localhost")], days=0.5)
    files = {"CERT_FILE": str(pair.certificate), "KEY_FILE": str(pair.key), "CA_FILE": str(authority.ca)}
    environ = {f"TLS__{name}": value for name, value in {**files, **more}.items()}
    async with run_node(small_config(directory, LISTEN__HTTP=f"{HOST}:0", **environ)) as node:
        yield node


def web(node: Serving, context: ssl.SSLContext | None, **options: Any) -> httpx.AsyncClient:
    assert node.http is not None
    scheme = "http" if context is None else "https"
    options |= {} if context is None else {"verify": context}
    return httpx.AsyncClient(base_url=f"{scheme}://localhost:{node.http.port}", timeout=PATIENCE_S, **options)


def trusting(authority: Authority, name: str | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authority.ca)
    if name is not None:
        pair = authority.client(name)
        context.load_cert_chain(pair.certificate, pair.key)
    return context


async def test_requests_go_through(tmp_path: Path, authority: Authority) -> None:
    async with serving(tmp_path, authority) as node, web(node, trusting(authority)) as client:
        made = await client.post("/topics", json={"name": "t", "partitions": 2})
        assert made.status_code == 201, made.text
        large = "x" * 1_500_000
        sent = await client.post("/topics/t", json={"value": large})
        assert sent.is_success, sent.text
        found = await client.post("/topics/t/groups/g/lease", json={"max": 1, "wait": "5s"})
        assert large in found.text
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(client.get, "/topics")


async def test_plain_http_on_a_tls_port_gets_an_explanation(tmp_path: Path, authority: Authority) -> None:
    async with serving(tmp_path, authority) as node, web(node, None) as client:
        answer = await client.get("/topics")
        assert answer.status_code == 400 and "this port requires TLS: use https://" in answer.text
        with pytest.raises(httpx.ConnectError):
            async with web(node, ssl.create_default_context()) as strange:
                await strange.get("/topics")
        async with web(node, trusting(authority)) as known:
            assert (await known.get("/topics")).is_success


async def test_hsts_is_sent_where_tls_is_required(tmp_path: Path, authority: Authority) -> None:
    async with serving(tmp_path / "required", authority) as node, web(node, trusting(authority)) as client:
        for status, path in ((200, "/topics"), (404, "/topics/none"), (403, "/topics")):
            name = "queue.example" if status == 403 else f"{HOST}:{node.http.port if node.http else 0}"
            answer = await client.get(path, headers={"host": name})
            assert (answer.status_code, answer.headers["strict-transport-security"]) == (status, "max-age=31536000")
        answer = await client.get("/topics")
        assert "strict-transport-security" not in answer.headers, "other programs on localhost must be refused"
    accepting = serving(tmp_path / "accepted", authority, HTTP="accept", CLIENT="accept")
    async with accepting as node, web(node, trusting(authority)) as client:
        answer = await client.get("/topics", headers={"host": HOST})
        assert answer.status_code == 200 and "strict-transport-security" not in answer.headers


async def test_both_are_let_in(tmp_path: Path, authority: Authority) -> None:
    async with serving(tmp_path, authority, HTTP="accept", CLIENT="accept") as node:
        for context in (None, trusting(authority)):
            async with web(node, context) as client:
                assert (await client.get("/topics")).is_success


async def test_connection_state_has_the_certificate_name(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    states: list[Any] = []
    start = _Connection._start_asgi_task

    def noted(self: Any, cycle: Any, app: Any) -> None:
        states.append(cycle.scope["state"])
        start(self, cycle, app)

    monkeypatch.setattr(_Connection, "_start_asgi_task", noted)
    modes = {"HTTP": "accept", "CLIENT_CERTIFICATES": "accept"}
    async with serving(tmp_path, authority, **modes) as node:
        for context in (trusting(authority, "ada"), trusting(authority), None):
            async with web(node, context) as client:
                assert (await client.get("/topics")).is_success
    found = [(state["certificate_name"], state["is_encrypted"]) for state in states]
    assert found == [("ada", True), (None, True), (None, False)]


async def test_clients_with_certificates_alone(tmp_path: Path, authority: Authority) -> None:
    async with serving(tmp_path, authority, CLIENT_CERTIFICATES="require") as node:
        async with web(node, trusting(authority, "ada")) as client:
            assert (await client.get("/topics")).is_success
        async with web(node, trusting(authority)) as client:
            with pytest.raises((httpx.TransportError, ssl.SSLError)):
                await client.get("/topics")


async def test_renewed_certificate_is_used_for_new_connections(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificates, "CHECK_S", 0.01)

    async def serial(client: httpx.AsyncClient) -> int:
        async with client.stream("GET", "/topics") as answer:
            await answer.aread()
            tls = answer.extensions["network_stream"].get_extra_info("ssl_object")
            return x509.load_der_x509_certificate(tls.getpeercert(True)).serial_number

    async with serving(tmp_path, authority) as node, web(node, trusting(authority)) as kept:
        first = await serial(kept)
        authority.node("node1", force=True)
        found = first
        while found == first:
            async with web(node, trusting(authority)) as client:
                found = await serial(client)
        assert await serial(kept) == first  # the open connection keeps its certificate


@pytest.mark.parametrize("has_authority", [True, False])
async def test_http_process_connects_to_its_node_with_tls(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch, has_authority: bool
) -> None:
    begin = partial(Begin, stale_s=PATIENCE_S, timeout_s=PATIENCE_S, deadlines=PATIENT)
    monkeypatch.setattr(node_web, "Begin", begin)
    pair = authority.node("node1")
    files = {"CERT_FILE": str(pair.certificate), "KEY_FILE": str(pair.key)}
    # Without an authority, the HTTP process trusts its node by the node's own certificate.
    more = {"CA_FILE": str(authority.ca), "CLIENT_CERTIFICATES": "accept"} if has_authority else {"PEER": "off"}
    environ = {f"TLS__{name}": value for name, value in {**files, **more}.items()}
    config = small_config(tmp_path, LISTEN__HTTP=f"{HOST}:0", **environ)
    async with run_with_process(config) as node, web(node, trusting(authority, "ada")) as client:
        found = await client.post("/topics", json={"name": "t"})
        while found.status_code == 503:
            found = await client.post("/topics", json={"name": "t"})
        assert found.status_code == 201, found.text
        await until_answer(lambda: client.get("/readyz"), lambda answer: answer.is_success)
