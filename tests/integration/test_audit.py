"""Acts are recorded with their identity and outcome, and are shown by client, HTTP and frames."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

import sandq
from sandq.model.errors import Conflict, InvalidRequest, TopicExists, UnknownTopic
from sandq.node.running import Serving
from sandq.protocol.frames import Type
from tests.integration.conftest import Dial
from tests.support.http_client import NO_TLS
from tests.support.nodes.small_node import small_config
from tests.support.nodes.with_http import run_node
from tests.support.nodes.working import connected
from tests.support.waiting import PATIENCE_S, until_answer


async def lines_after(api: sandq.Client, position: str | None, count: int) -> tuple[list[dict[str, Any]], str]:
    """Return the audit log once it has this many lines."""

    page = await until_answer(lambda: api.admin.audit(1000, after=position), lambda page: len(page.lines) >= count)
    return page.lines, page.position


async def test_acts_are_noted_and_reads_are_not(node: Serving, api: sandq.Client) -> None:
    await api.admin.create_topic("orders", partitions=2)
    with pytest.raises(TopicExists):
        await api.admin.create_topic("orders")
    await api.admin.list_topics()
    with pytest.raises(UnknownTopic):
        await api.admin.delete_topic("bills")
    found, position = await lines_after(api, None, 3)
    told = [(line["request"], line["about"]["topic"], line["result"]) for line in found]
    assert told == [
        ("topic_create", "orders", "ok"),
        ("topic_create", "orders", "TOPIC_EXISTS"),
        ("topic_delete", "bills", "UNKNOWN_TOPIC"),
    ]
    assert {line["principal"] for line in found} == {"anonymous"}
    assert found[0]["peer"].startswith("127.0.0.1:")
    assert found[0]["about"]["partitions"] == 2

    await api.admin.delete_topic("orders")
    later, _ = await lines_after(api, position, 1)
    assert [(line["request"], line["result"]) for line in later] == [("topic_delete", "ok")]


async def test_node_without_audit_log_reports_that(tmp_path: Path) -> None:
    async with run_node(small_config(tmp_path, AUDIT__ENABLED="false")) as serving, connected(serving) as client:
        page = await client.admin.audit()
        assert page.lines == []
        (why,) = page.missing.values()
        assert "audit.enabled" in why
        with pytest.raises(Conflict, match=r"audit\.enabled"):
            await client.admin.audit(node=serving.broker.node_log.node_id)
        assert not (serving.data_dir / "audit").exists()


async def test_wrong_requests_are_reported(api: sandq.Client) -> None:
    for wrong in ({"last": 0}, {"last": 1001}, {"after": "node1"}, {"after": "node1=x"}):
        with pytest.raises(InvalidRequest):
            await api.admin.audit(**wrong)  # type: ignore[arg-type]


async def test_only_gateways_report_refusals(node: Serving, dial: Dial) -> None:
    raw = await dial(node)
    answer = await raw.call(Type.AUDIT_NOTE, "GET /topics", {}, "FORBIDDEN", "x")
    assert answer[2] == "FORBIDDEN"


async def test_http_shows_the_audit_log_and_records_its_callers(tmp_path: Path) -> None:
    async with run_node(small_config(tmp_path, LISTEN__HTTP="127.0.0.1:0")) as serving:
        assert serving.http is not None
        base = "http://{}:{}".format(*serving.http)
        async with httpx.AsyncClient(verify=NO_TLS, base_url=base, timeout=PATIENCE_S) as web:
            assert (await web.post("/topics", json={"name": "orders"})).status_code == 201

            async def fetch_audit() -> Any:
                return (await web.get("/audit", params={"last": 10})).json()

            found = await until_answer(fetch_audit, lambda found: found["lines"])
            (line,) = found["lines"]
            assert (line["request"], line["result"], line["peer"]) == ("topic_create", "ok", "127.0.0.1")
            assert line["gateway"].startswith("127.0.0.1:")
            assert (await web.get("/audit", params={"after": found["position"]})).json()["lines"] == []
            assert (await web.get("/audit", params={"last": 0})).status_code == 400
            assert "sandq_audit_lines_total 1" in (await web.get("/metrics")).text


async def test_audit_log_is_written_when_the_node_stops(tmp_path: Path) -> None:
    async with run_node(small_config(tmp_path)) as serving, connected(serving) as client:
        await client.admin.create_topic("orders")
    (file,) = (serving.data_dir / "audit").iterdir()
    lines = [json.loads(text) for text in file.read_text("utf-8").splitlines()]
    assert [line["request"] for line in lines] == ["topic_create"]
