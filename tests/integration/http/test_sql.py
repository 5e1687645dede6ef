"""SQL over HTTP: off by default, with the rights of the caller, within its limits."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

import sandq
from sandq.model.caller import NODE
from sandq.model.config_sql import SqlSection
from sandq.model.limits import Limits
from sandq.model.principals import token_hash, token_text
from sandq.node.running import Serving
from sandq.protocol.requests_access import IdentityPut
from tests.support.http_client import NO_TLS
from tests.support.nodes.gateway import gateway
from tests.support.nodes.http_requests import Web
from tests.support.nodes.small_node import small_config
from tests.support.nodes.with_http import run_node
from tests.support.waiting import PATIENCE_S


async def give(node: Serving, name: str, *grants: str) -> str:
    """Return a token with these grants."""
    text = token_text(secrets.token_bytes(32))
    fields = {"grants": list(grants), "secret_hash": token_hash(text)}
    await node.identities.put(IdentityPut(f"token:{name}", True, fields), NODE)
    return text


@pytest.fixture
async def asked(node: Serving) -> AsyncIterator[Web]:
    """HTTP client of a gateway that answers SQL."""
    server = f"127.0.0.1:{node.client_port}"
    async with (
        gateway(server, Limits(), sql=SqlSection(http=True)) as address,
        httpx.AsyncClient(verify=NO_TLS, base_url=f"http://{address}", timeout=PATIENCE_S) as client,
    ):
        yield Web(client)


async def test_rows_come_as_json(asked: Web, api: sandq.Client) -> None:
    await api.admin.create_topic("t", partitions=1)
    await api.produce("t", b"\xff\x00", key="k", delay="2h")
    await api.produce("t", "later", key="l", delay="3h")
    statement = (
        "SELECT value, deliver_at, 9007199254740993 AS large FROM messages WHERE topic = 't' "
        "AND deliver_at > NOW() ORDER BY deliver_at"
    )
    found = await asked.post("/sql", {"statement": statement})
    assert [column["name"] for column in found["columns"]] == ["value", "deliver_at", "large"]
    (first, second), more = found["rows"], found["more"]
    assert (first[0], second[0], first[2], more) == ({"base64": "/wA="}, "later", "9007199254740993", False)
    assert first[1].endswith("Z") and first[1] < second[1]
    found = await asked.post("/sql", {"statement": statement, "limit": 1})
    assert len(found["rows"]) == 1 and found["more"]
    assert (await asked.post("/sql", {"statement": "SHOW TABLES", "database": "z4"}))["rows"]
    assert (await asked.post("/sql", {"statement": "SET @a = 1"}))["columns"] == []


async def test_invalid_statements_are_refused(asked: Web, api: sandq.Client) -> None:
    await api.admin.create_topic("t", partitions=1)
    for statement, words in (
        ("DELETE FROM messages", "read"),
        ("SELECT * FROM read_csv('/etc/passwd')", "read_csv"),
        ("SELECT * FROM messages", "say full_scan"),
        ("SELEC", "SELECT"),
        ("KILL 1", "KILL"),
    ):
        found = await asked.post("/sql", {"statement": statement}, 400)
        assert words.lower() in found["detail"].lower(), found
    await asked.post("/sql", {"statement": "SELECT 1", "limit": 100_000}, 400)
    await asked.post("/sql", {"statement": ""}, 400)
    long = "SELECT REPEAT('x', 60000) FROM information_schema.columns"
    found = await asked.post("/sql", {"statement": long}, 400)
    assert "8,388,608 bytes" in found["detail"]


async def test_sql_is_off_by_default(web: Web) -> None:
    found = await web.post("/sql", {"statement": "SELECT 1"}, 409)
    assert "sql.http" in found["detail"]


async def test_visible_topics_depend_on_the_caller(tmp_path: Path) -> None:
    secret = b"what nodes and gateways share"
    secret_file = tmp_path / "gateway-secret"
    secret_file.write_bytes(secret + b"\n")
    secret_file.chmod(0o600)
    config = small_config(
        tmp_path / "node",
        LISTEN__HTTP="none",
        SECURITY__AUTHENTICATION="require",
        HTTP__GATEWAY_SECRET_FILE=str(secret_file),
    )
    async with run_node(config) as node:
        server = f"127.0.0.1:{node.client_port}"
        async with sandq.connect(server, token=await give(node, "boss", "admin")) as client:
            for name in ("mine", "theirs"):
                await client.admin.create_topic(name, partitions=1)
                await client.produce(name, name, delay="2h")
        token = await give(node, "reader", "read:mine")
        async with (
            gateway(server, Limits(), secret=secret, sql=SqlSection(http=True)) as address,
            httpx.AsyncClient(verify=NO_TLS, base_url=f"http://{address}", timeout=PATIENCE_S) as http,
        ):
            headers, web = {"authorization": f"Bearer {token}"}, Web(http)
            found = await web.ask("POST", "/sql", {"statement": "SELECT topic FROM topics"}, headers=headers)
            assert found["rows"] == [["mine"]]
            for topic, status in (("mine", 200), ("theirs", 403)):
                statement = f"SELECT text FROM messages WHERE topic = '{topic}' AND deliver_at > NOW()"
                found = await web.ask("POST", "/sql", {"statement": statement}, status, headers=headers)
                assert status == 403 or found["rows"] == [[topic]]
            await web.post("/sql", {"statement": "SELECT 1"}, 401)
