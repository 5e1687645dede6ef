"""Limits of a group over all partitions of a topic: messages in flight, and messages per second."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

import sandq
from sandq.errors import InvalidRequest, InvalidSetting
from sandq.node import run_node
from sandq.node.running import Serving
from tests.support.nodes.hand_clock import HandClock
from tests.support.nodes.small_node import small_config
from tests.support.nodes.working import connected, take, values
from tests.support.waiting import PATIENCE_S, until_answer, until_holds


async def produce(client: sandq.Client, count: int, partitions: int = 1) -> None:
    for number in range(count):
        await client.produce("t", b"%d" % number, partition=number % partitions)


async def limits(client: sandq.Client) -> dict[str, Any]:
    """Return the limits of the group in partition 0."""
    row = next(row for row in await client.admin.groups("t") if row["partition"] == 0)
    found: dict[str, Any] = row["limits"]
    return found


async def test_messages_in_flight_are_limited_until_an_ack(api: sandq.Client) -> None:
    await api.admin.create_topic("t", lease="1h")
    await api.admin.limit_group("t", "g", max_in_flight=2)
    await produce(api, 5)
    async with api.subscribe("t", group="g", credit=100) as one, api.subscribe("t", group="g", credit=100) as other:
        held: list[sandq.Message] = []

        async def consume(subscription: sandq.Subscription) -> None:
            async for message in subscription:
                held.append(message)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(consume, one)
            nursery.start_soon(consume, other)
            await until_holds(lambda: len(held) == 2)
            (row,) = await api.admin.groups("t")
            assert (row["leased"], row["ready"]) == (2, 3)
            assert row["reason"] == "it waits for the limit of the group: 2 of 2 in flight"
            (last,) = [m async for m in api.messages("t").list() if m.state == "ready"][-1:]
            assert (await api.messages("t").why(last.id))["groups"][0]["reason"] == row["reason"]
            await held[0].ack()
            await until_holds(lambda: len(held) == 3)
            await held[1].nack(delay="1h")
            await until_holds(lambda: len(held) == 4)
            await api.admin.limit_group("t", "g")
            await until_holds(lambda: len(held) == 5)
            assert sorted(values(held)) == [b"%d" % number for number in range(5)]
            assert "limits" not in (await api.admin.groups("t"))[0]
            nursery.cancel_scope.cancel()


async def test_a_rate_lets_a_burst_go_and_then_one_at_a_time(timed: Serving, hand: HandClock) -> None:
    async with connected(timed) as client:
        await client.admin.create_topic("t", lease="1h")
        await client.admin.limit_group("t", "g", rate="2/s", burst=3)
        leases = client.leases("t", "g")
        hand.hold()
        await produce(client, 8)
        assert values(await leases.take(10)) == [b"0", b"1", b"2"]
        assert await leases.take(10) == []
        (row,) = await client.admin.groups("t")
        assert row["reason"] == "it waits for the rate of the group, 2/s: free in 500ms"
        hand.forward(0.499)
        assert await leases.take(10) == []
        hand.forward(0.001)
        assert values(await leases.take(10)) == [b"3"]
        hand.forward(1.2)
        assert values(await leases.take(10)) == [b"4", b"5"]
        hand.run()
        # Waiting clients are woken only by the clock.
        assert values(await leases.take(1, wait="1m")) == [b"6"]
        async with client.subscribe("t", group="g") as subscription:
            assert values(await take(subscription, 1)) == [b"7"]


async def test_over_several_partitions_no_more_are_in_flight(api: sandq.Client, node: Serving) -> None:
    """Return whether every consumer has messages."""
    await api.admin.create_topic("t", partitions=5, lease="1h")
    await api.admin.limit_group("t", "g", max_in_flight=3)
    await produce(api, 60, 5)
    held: set[str] = set()
    got: list[int] = []
    async with api.subscribe("t", group="g", credit=100) as subscription:
        with trio.fail_after(PATIENCE_S):
            async for message in subscription:
                held.add(message.id)
                assert len(held) <= 3
                leased = [led.groups.get("g") for led in node.broker.led("t")]
                assert sum(one.leased for one in leased if one is not None) <= 3
                got.append(message.partition)
                held.discard(message.id)
                await message.ack()
                if len(got) == 60:
                    break
    assert {partition: got.count(partition) for partition in range(5)} == dict.fromkeys(range(5), 12)


async def test_a_limit_below_the_number_of_partitions_goes_round(api: sandq.Client) -> None:
    await api.admin.create_topic("t", partitions=4, lease="1h")
    await produce(api, 400, 4)
    await api.admin.limit_group("t", "g", max_in_flight=1)
    seen: list[int] = []
    async with api.subscribe("t", group="g", credit=100) as subscription:
        with trio.fail_after(PATIENCE_S):
            async for message in subscription:
                seen.append(message.partition)
                await message.ack()
                if set(seen) == {0, 1, 2, 3}:
                    break
    assert len(seen) < 400, "no consumer may wait until all others have finished"


async def test_lowered_and_raised_while_it_runs(api: sandq.Client) -> None:
    await api.admin.create_topic("t", partitions=3, lease="1h")
    await api.admin.limit_group("t", "g", max_in_flight=6)
    await produce(api, 30, 3)
    async with api.subscribe("t", group="g", credit=100) as subscription:
        held = await take(subscription, 6, ack=False)
        await api.admin.limit_group("t", "g", max_in_flight=2)
        # Leased messages stay leased. No further message is leased until there are fewer.
        found = await until_answer(lambda: limits(api), lambda now: now.get("unheard") == [])
        assert found["max_in_flight"] == 2
        for message in held[:4]:
            await message.ack()
        rows = await api.admin.groups("t")
        assert sum(row["leased"] for row in rows) == 2
        await held[4].ack()
        held = [held[5], *await take(subscription, 1, ack=False)]
        await api.admin.limit_group("t", "g", max_in_flight=10)
        held += await take(subscription, 8, ack=False)
        rows = await api.admin.groups("t")
        assert sum(row["leased"] for row in rows) == 10
        await api.admin.limit_group("t", "g")
        held += await take(subscription, 15, ack=False)
        assert len({message.id for message in held}) == 25


async def test_single_lease_request_is_served_by_every_partition(api: sandq.Client) -> None:
    """Without subscriptions, the limit is given to the partition with due messages."""
    await api.admin.create_topic("t", partitions=3, lease="1h")
    await api.admin.limit_group("t", "g", max_in_flight=1)
    leases = api.leases("t", "g")
    for partition in (2, 1, 0, 2):
        await api.produce("t", b"x", partition=partition)
        (message,) = await leases.take(5, wait="1m")
        assert message.partition == partition
        assert await leases.ack([message]) == []


async def test_limits_and_leases_survive_a_restart(tmp_path: Path) -> None:
    async with run_node(small_config(tmp_path)) as node, connected(node) as client:
        await client.admin.create_topic("t", partitions=3, lease="1h")
        await client.admin.limit_group("t", "g", max_in_flight=4)
        await produce(client, 30, 3)
        held: list[sandq.LeasedMessage] = []
        while len(held) < 4:
            held += await client.leases("t", "g").take(10, wait="1m")
    async with run_node(small_config(tmp_path)) as node, connected(node) as client:
        await until_answer(lambda: client.admin.topic("t"), lambda topic: all(row.leader for row in topic.partitions))
        assert (await limits(client))["max_in_flight"] == 4
        assert await client.leases("t", "g").take(10) == []
        assert await client.leases("t", "g").ack(held) == []
        async with client.subscribe("t", group="g", credit=100) as subscription:
            got = await take(subscription, 26)
        assert not {message.id for message in got} & {message.id for message in held}


async def test_new_partitions_have_nothing_of_it_at_first(api: sandq.Client, node: Serving) -> None:
    await api.admin.create_topic("t", lease="1h")
    await api.admin.limit_group("t", "g", max_in_flight=2)
    await produce(api, 4)
    async with api.subscribe("t", group="g", credit=100) as subscription:
        held = await take(subscription, 2, ack=False)
        await api.admin.update_topic("t", partitions=3)
        for partition in (1, 2):
            await api.produce("t", b"new", partition=partition)
        got: list[sandq.Message] = []
        for message in held:
            await message.ack()
        while len(got) < 4:
            (message,) = await take(subscription, 1, ack=False)
            leased = [led.groups.get("g") for led in node.broker.led("t")]
            assert sum(one.leased for one in leased if one is not None) <= 2
            await message.ack()
            got.append(message)
    assert {message.partition for message in got} == {0, 1, 2}


@pytest.mark.parametrize("kind", ["priority", "fair"])
async def test_group_limits_apply_to_other_topic_kinds(api: sandq.Client, kind: str) -> None:
    await api.admin.create_topic("t", kind=kind, partitions=2, lease="1h")
    await api.admin.limit_group("t", "g", max_in_flight=2)
    for number in range(12):
        await api.produce(
            "t", b"%d" % number, priority=-number, **({"tenant": "abc"[number % 3]} if kind == "fair" else {})
        )
    async with api.subscribe("t", group="g", credit=100) as subscription:
        held = await take(subscription, 2, ack=False)
        rows = await api.admin.groups("t")
        assert sum(row["leased"] for row in rows) == 2
        for message in held:
            await message.ack()
        assert len(await take(subscription, 10)) == 10


async def test_invalid_group_limits_are_refused(api: sandq.Client) -> None:
    await api.admin.create_topic("t")
    await api.admin.create_topic("keys", kind="compacted")
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"max_in_flight": 0}, "max_in_flight: a whole number from 1 to 1000000, or none, is expected, not 0"),
        ({"rate": "soon"}, "rate: a rate is expected"),
        ({"burst": 5}, "burst: it goes with a rate only"),
    ]
    for given, message in wrong:
        with pytest.raises(InvalidSetting) as refused:
            await api.admin.limit_group("t", "g", **given)
        assert message in refused.value.message
    with pytest.raises(InvalidRequest, match="compacted"):
        await api.admin.limit_group("keys", "g", max_in_flight=1)
