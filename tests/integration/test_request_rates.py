"""Requests per second of each client of a topic, at a node."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import httpx
import pytest

import sandq
from sandq.errors import InvalidSetting, Throttled
from sandq.node.running import Serving
from sandq.protocol.frames import Type
from tests.integration.conftest import Dial
from tests.support.http_client import NO_TLS
from tests.support.nodes.http_requests import Web
from tests.support.nodes.small_node import small_config
from tests.support.nodes.with_http import run_node
from tests.support.nodes.working import connected
from tests.support.waiting import PATIENCE_S, until_holds

SLOW = {"max_request_rate": "1/h", "max_request_burst": 2}


async def test_rate_error_says_when_to_retry(node: Serving, dial: Dial, api: sandq.Client) -> None:
    await api.admin.create_topic("t", partitions=1, **SLOW)  # type: ignore[arg-type]
    raw = await dial(node)
    for _ in range(2):
        assert (await raw.produce(b"x"))[0] == 0
    answer = await raw.produce(b"x")
    assert answer[2:5:2] == ["THROTTLED", True]
    assert answer[5]["limit"] == "max_request_rate" and 3_500_000 < answer[5]["retry_after_ms"] <= 3_600_000
    other = await dial(node)  # a further connection does not raise the limit
    assert (await other.call(Type.LIST, "t", 0, None, 0, 2**48 - 1, None, 10, None, False))[2] == "THROTTLED"
    assert (await other.call(Type.LEASE, "t", "g", "", 1, 0, None, "earliest", False))[2] == "THROTTLED"
    await api.admin.update_topic("t", max_request_rate="none", max_request_burst="none")
    await until_holds(lambda: "max_request_rate_us" not in node.broker.catalog.topic("t").record.settings)
    assert (await other.produce(b"x"))[0] == 0


async def test_requests_that_come_together_are_refused_each(node: Serving, dial: Dial, api: sandq.Client) -> None:
    await api.admin.create_topic("t", **SLOW)  # type: ignore[arg-type]
    raw = await dial(node)
    for _ in range(2):
        await raw.produce(b"x")
    codes = [(await raw.produce(b"y"))[2] for _ in range(3)]
    assert codes == 3 * ["THROTTLED"]
    assert len([found async for found in _unlimited(api)]) == 2


async def _unlimited(api: sandq.Client) -> AsyncIterator[sandq.StoredMessage]:
    await api.admin.update_topic("t", max_request_rate=None)
    async for found in api.messages("t").list():
        yield found


async def test_settling_waits_for_no_rate(api: sandq.Client) -> None:
    await api.admin.create_topic("t", partitions=1, **SLOW)  # type: ignore[arg-type]
    await api.produce("t", b"1")
    async with api.subscribe("t", group="g") as subscription:
        message = await anext(subscription)
        await api.produce("t", b"2")  # the last accepted request
        await message.nack(delay=0)
        for _ in range(2):
            await (await anext(subscription)).ack()
        await subscription.flush()
    assert (await api.admin.groups("t"))[0]["ready"] == 0


async def test_client_waits_at_request_rate_and_continues(api: sandq.Client) -> None:
    await api.admin.create_topic("t", max_request_rate="20/s", max_request_burst=1)
    for number in range(4):
        await api.produce("t", str(number).encode())
    leases = api.leases("t", "g")
    taken = [held.value for _ in range(4) for held in await leases.take(max=1, wait="1m")]
    assert taken == [b"0", b"1", b"2", b"3"]
    assert [found.state async for found in api.messages("t").list()] == 4 * ["leased"]


async def test_a_client_gives_up_in_the_end(node: Serving) -> None:
    async with connected(node, timeout="1s", delivery_timeout="1s") as client:
        await client.admin.create_topic("t", **SLOW)  # type: ignore[arg-type]
        for _ in range(2):
            await client.produce("t", b"x")
        with pytest.raises(Throttled, match=r"not stored in 1 s .* accepts 1/h requests per client"):
            await client.produce("t", b"x")
        with pytest.raises(Throttled):
            await client.messages("t").get(unique_key="k")
        with anyio.fail_after(PATIENCE_S), pytest.raises(Throttled):
            await client.leases("t", "g").take()


async def test_every_kind_of_topic_has_the_setting_and_bad_values_are_reported(api: sandq.Client) -> None:
    for kind in ("timer", "compacted", "priority", "fair"):
        topic = await api.admin.create_topic(kind, kind=kind, max_request_rate="100/m", max_request_burst=7)
        assert (topic.settings["max_request_rate_us"], topic.settings["max_request_burst"]) == (600_000, 7)
    with pytest.raises(InvalidSetting, match=r"max_request_rate: a rate is expected: a number a second, or text"):
        await api.admin.update_topic("timer", max_request_rate="often")
    with pytest.raises(InvalidSetting, match="max_request_burst: 0 is not within 1 to 1000000"):
        await api.admin.update_topic("timer", max_request_burst=0)


async def test_over_http_each_address_is_a_client(tmp_path: Path) -> None:
    async with run_node(small_config(tmp_path, LISTEN__HTTP="127.0.0.1:0")) as node:
        assert node.http is not None
        base = f"http://{node.http.host}:{node.http.port}"
        async with httpx.AsyncClient(verify=NO_TLS, base_url=base, timeout=PATIENCE_S) as client:
            web = Web(client)
            settings = {"max_request_rate": "1/h", "max_request_burst": 2}
            await web.post("/topics", {"name": "t", "settings": settings}, 201)
            await web.post("/topics/t", {"value": "MQ=="}, 201)  # by then this node knows the topic
            held = await web.post("/topics/t/groups/g/lease", {})
            await web.get("/topics/t/messages")
            for method, path, body in (
                ("POST", "/topics/t", {"value": "MQ=="}),
                ("POST", "/topics/%74", {"value": "MQ=="}),
                ("GET", "/topics/t/messages", None),
                ("GET", "/topics/t/0", None),
                ("POST", "/topics/t/groups/g/lease", {}),
                ("DELETE", "/topics/t/schedules/daily", None),
            ):
                response = await client.request(method, path, json=body)
                assert response.status_code == 429, (method, path, response.text)
                told = response.json()
                assert told["code"] == "THROTTLED" and told["retriable"] and told["request_id"]
                assert 3500 < int(response.headers["retry-after"]) <= 3600
            ids = [message["id"] for message in held["messages"]]
            await web.post("/topics/t/groups/g/ack", {"lease_token": held["messages"][0]["lease_token"]})
            assert len(ids) == 1
            shown = await web.get("/topics/t")
            assert shown["settings"]["max_request_rate"] == "1/h" and shown["settings"]["max_request_burst"] == 2
        transport = httpx.AsyncHTTPTransport(verify=NO_TLS, local_address="127.0.0.2")
        async with httpx.AsyncClient(base_url=base, timeout=PATIENCE_S, transport=transport) as other:
            await Web(other).get("/topics/t/messages")
