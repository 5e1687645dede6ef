"""Lateness figures, as the client, HTTP and the binary protocol return them.

They survive a restart of the node, and report the state of the clock.
"""

from __future__ import annotations

from pathlib import Path

import httpx

import sandq
from sandq.node.running import Serving
from sandq.protocol.frames import Type
from tests.integration.conftest import Dial
from tests.support.http_client import NO_TLS
from tests.support.nodes.small_node import small_config
from tests.support.nodes.with_http import run_node
from tests.support.nodes.working import connected
from tests.support.waiting import PATIENCE_S


async def deliver(client: sandq.Client, topic: str, count: int) -> None:
    await client.produce_many(topic, [b"x"] * count)
    async with client.subscribe(topic, group="g") as messages:
        for _ in range(count):
            await (await anext(messages)).ack()


async def test_delivery_counts_are_shown_and_survive_a_restart(tmp_path: Path) -> None:
    config = small_config(tmp_path, LISTEN__HTTP="127.0.0.1:0", SLO__TARGET="90%", SLO__LATENESS="60s")
    async with run_node(config) as serving, connected(serving) as client:
        await client.admin.create_topic("orders")
        await deliver(client, "orders", 3)
        found = await client.admin.slo()
        assert (found.deliveries, found.late, found.in_time, found.budget_left, found.early) == (3, 0, 1.0, 1.0, 0)
        assert (found.lateness_ms, found.target, found.is_proven) == (60_000, 0.9, True), found.doubts
        assert found.topics == [{"topic": "orders", "deliveries": 3, "late": 0}]
        assert serving.http is not None
        async with httpx.AsyncClient(
            verify=NO_TLS, base_url="http://{}:{}".format(*serving.http), timeout=PATIENCE_S
        ) as web:
            told = (await web.get("/slo")).json()
            assert told["deliveries"] == sum(row["deliveries"] for row in told["histogram"]) == 3
            assert (await web.get("/slo", params={"node": "nobody"})).status_code == 404
            numbers = (await web.get("/metrics")).text
            assert 'sandq_slo_deliveries_total{topic="orders"} 3' in numbers
            assert "sandq_slo_target_ratio 0.9" in numbers and "sandq_slo_lateness_seconds 60.0" in numbers
    async with run_node(config) as serving, connected(serving) as client:
        again = await client.admin.slo(node="node1")
        assert (again.deliveries, again.since_ms, again.topics) == (3, found.since_ms, [])
        await deliver(client, "orders", 1)
        assert (await client.admin.slo()).deliveries == 4


async def test_a_file_that_is_damaged_costs_the_counts_alone(tmp_path: Path) -> None:
    config = small_config(tmp_path)
    async with run_node(config) as serving, connected(serving) as client:
        await client.admin.create_topic("orders")
        await deliver(client, "orders", 1)
        file = serving.data_dir / "slo"
    file.write_bytes(file.read_bytes()[:-1])
    async with run_node(config) as serving, connected(serving) as client:
        assert (await client.admin.slo()).deliveries == 0


async def test_slo_reports_whether_the_clock_is_trusted(node: Serving, api: sandq.Client, dial: Dial) -> None:
    assert (await api.admin.slo()).doubts == []
    client = await dial(node)
    frame = await client.call(Type.SLO)
    assert frame[2]["clock"]["trusted"] is True and frame[2]["node"] == "node1"
