"""Priority and fair topics with three replicas: order, and limits of tenants, after a change of leader."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import sandq
from tests.support.nodes.three import ThreeNodes, three_nodes
from tests.support.nodes.working import take, values
from tests.support.waiting import until_answer


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[ThreeNodes]:
    async with three_nodes(tmp_path) as nodes:
        yield nodes


async def created(client: sandq.Client, **settings: object) -> None:
    await until_answer(client.admin.cluster, lambda info: len(info["nodes"]) == 3)
    await client.admin.create_topic("t", replicas=3, **settings)


async def led_by_another(nodes: ThreeNodes) -> None:
    """Stop the node that leads the topic's partition."""
    await nodes.stop(await nodes.until_led())
    await nodes.until_led()


async def test_priorities_are_strict_after_another_node_leads(nodes: ThreeNodes) -> None:
    async with nodes.connect() as client:
        await created(client, kind="priority")
        for number in range(12):
            await client.produce("t", b"%d/%d" % (number % 3, number), priority=number % 3)
        ids = [await client.produce("t", b"-1", priority=9)]
        await client.messages("t").set_priority(ids[0], priority=-1)
        leases = client.leases("t", "g")
        first = await leases.take(2, wait="30s")
        assert [message.value for message in first] == [b"-1", b"0/0"]
        await leases.ack(first)
        await led_by_another(nodes)
        rest: list[bytes] = []
        while len(rest) < 11:
            found = await leases.take(4, wait="30s")
            rest += [message.value for message in found]
            await leases.ack(found)
        assert rest == [b"%d/%d" % (number % 3, number) for number in sorted(range(1, 12), key=lambda n: (n % 3, n))]


async def test_tenants_keep_their_shares_and_limits(nodes: ThreeNodes) -> None:
    async with nodes.connect() as client:
        await created(client, kind="fair", tenants={"acme": {"max_in_flight": 2, "weight": 2}}, lease="1h")
        for number in range(6):
            await client.produce("t", b"acme %d" % number, tenant="acme")
        for number in range(3):
            await client.produce("t", b"shop %d" % number, tenant="shop")
        leases = client.leases("t", "g")
        held = [message for message in await leases.take(5, wait="30s") if message.tenant == "acme"]
        assert [message.value for message in held] == [b"acme 0", b"acme 1"]
        await led_by_another(nodes)
        assert await leases.take(5) == [], "all messages of shop are leased, and acme has reached its in-flight limit"
        await leases.ack(held[:1])
        again = await leases.take(5, wait="30s")
        assert [message.value for message in again if message.tenant == "acme"] == [b"acme 2"]


async def test_tenants_keep_their_rates(nodes: ThreeNodes) -> None:
    """Check the delivery times: no window contains more than the burst plus the rate allows."""
    each, burst, interval_ms = 24, 3, 50
    given: dict[str, list[int]] = {"acme": [], "shop": []}
    async with nodes.connect() as client:
        await created(client, kind="fair", tenants={"*": {"rate": "20/s", "burst": burst}}, lease="1h")
        await client.produce_many("t", [{"value": b"", "tenant": tenant} for tenant in given for _ in range(each)])
        leases, was_led_by_another = client.leases("t", "g"), False
        while sum(map(len, given.values())) < 2 * each:
            found = await leases.take(10, wait="30s")
            for message in found:
                given[message.tenant].append(message.lease_until_ms - 3_600_000)
            await leases.ack(found)
            if not was_led_by_another and len(given["acme"]) > each // 3:
                was_led_by_another = True
                await led_by_another(nodes)
    assert was_led_by_another
    for tenant, times in given.items():
        for at, first_ms in enumerate(times):
            for more, last_ms in enumerate(times[at:], 1):
                assert more <= burst + (last_ms - first_ms) / interval_ms, f"{tenant} had {more} in {first_ms, last_ms}"


async def test_a_consumer_goes_on_by_priority(nodes: ThreeNodes) -> None:
    async with nodes.connect() as client:
        await created(client, kind="priority")
        async with client.subscribe("t", group="g", credit=1) as subscription:
            await client.produce("t", b"a", priority=5)
            assert values(await take(subscription, 1)) == [b"a"]
            await led_by_another(nodes)
            await client.produce_many("t", [{"value": b"%d" % n, "priority": n} for n in (3, 1, 2)])
            assert values(await take(subscription, 3)) == [b"1", b"2", b"3"]
