"""Permanent consumer ids: a restarted worker immediately gets the messages that it held, and its previous process gets
nothing more."""

from __future__ import annotations

import time

import pytest
import trio

import sandq
from sandq.broker.delivery.subscribe import EPOCH_BITS, EPOCHS_AHEAD_MS
from sandq.client.client import cluster_of
from sandq.errors import ConsumerFenced, InvalidName, LeaseLost
from sandq.node.running import Serving
from sandq.partition.leasing.lease_reclaim import RECLAIMS_MOST
from sandq.protocol.frames import Type
from tests.integration.conftest import Dial
from tests.support.nodes.raw_client import RawClient, values_of
from tests.support.nodes.working import connected, take, values
from tests.support.waiting import PATIENCE_S, until_holds

LATE = (int(time.time() * 1000) + EPOCHS_AHEAD_MS // 2) << EPOCH_BITS
"""An epoch later than those that clients derive from the clock."""


async def subscribed(
    raw: RawClient, epoch: int | None, *, number: int = 1, consumer: str = "w", credit: int = 10
) -> object:
    answer = await raw.call(Type.SUBSCRIBE, number, "t", "g", consumer, credit, None, "earliest", [], epoch, None)
    return answer[2]


async def until_error(raw: RawClient, number: int) -> str:
    """Return the error code that ends a subscription."""
    with trio.fail_after(PATIENCE_S):
        while True:
            frame = await raw.receive()
            if frame[0] == Type.ERROR and frame[1] == number:
                return str(frame[2])


async def test_a_restarted_worker_gets_its_own_at_once(node: Serving, dial: Dial, api: sandq.Client) -> None:
    await api.admin.create_topic("t", partitions=3, lease="10m")
    for number in range(6):
        await api.produce("t", b"%d" % number, partition=number % 3)
    crashed = await dial(node)
    await subscribed(crashed, 5)
    pushed = [await crashed.push() for _ in range(3)]
    held = sorted(value for frame in pushed for value in values_of(frame))
    await crashed.stream.aclose()
    async with (
        api.subscribe("t", group="g", consumer_id="other", credit=100),
        api.subscribe("t", group="g", consumer_id="w", credit=100) as again,
    ):
        messages = await take(again, len(held))
    assert sorted(values(messages)) == held
    assert {message.attempt for message in messages} == {1}
    assert not {message.lease_token for message in messages} & {frame[4] for frame in pushed}


async def test_a_message_that_ends_its_worker_each_time_is_dead_in_the_end(
    node: Serving, dial: Dial, api: sandq.Client
) -> None:
    await api.admin.create_topic("t", lease="10m", max_attempts=1)
    poison = await api.produce("t", b"poison")
    for epoch in range(1, RECLAIMS_MOST + 2):
        crashed = await dial(node)
        await subscribed(crashed, epoch)
        await crashed.push()
        told = (await api.messages("t").why(poison))["groups"]
        assert [row.get("reclaims", 0) for row in told] == [epoch - 1]
        await crashed.stream.aclose()
    await api.produce("t", b"harmless")
    async with api.subscribe("t", group="g", consumer_id="w") as again:
        assert values(await take(again, 1)) == [b"harmless"]
    (letter,) = [letter async for letter in api.dead("t", "g").list()]
    assert (letter.id, letter.reason) == (poison, "lease_expired")
    assert letter.error == f"consumer 'w' was started again {RECLAIMS_MOST + 1} times and has not settled it"


async def test_a_zombie_ends_with_an_error_and_settles_nothing(node: Serving, api: sandq.Client) -> None:
    await api.admin.create_topic("t", lease="10m")
    await api.produce("t", b"m")
    async with api.subscribe("t", group="g", consumer_id="w") as zombie:
        (held,) = await take(zombie, 1, ack=False)
        async with connected(node) as later, later.subscribe("t", group="g", consumer_id="w") as again:
            (message,) = await take(again, 1, ack=False)
            with pytest.raises(ConsumerFenced, match="'w'"), trio.fail_after(PATIENCE_S):
                await anext(zombie)
            with pytest.raises(LeaseLost):
                await held.ack()
            await message.ack()
    assert (message.id, message.attempt) == (held.id, 1)
    assert [row["leased"] for row in await api.admin.groups("t")] == [0]


async def test_messages_of_a_fenced_consumer_are_not_given_back_twice(node: Serving, api: sandq.Client) -> None:
    await api.admin.create_topic("t", lease="10m")
    await api.produce("t", b"m")
    async with connected(node) as later, later.subscribe("t", group="g", consumer_id="w") as again:
        async with api.subscribe("t", group="g", consumer_id="w") as zombie:
            (message,) = await take(zombie, 1, ack=False)
            with pytest.raises(ConsumerFenced):
                await anext(again)
        assert not message.is_settled
    # Both have left. Only the message of the served consumer was given back, and its attempt does not count.
    async with api.subscribe("t", group="g") as others:
        assert [message.attempt for message in await take(others, 1)] == [1]


async def test_a_reconnect_keeps_leases_and_tokens(node: Serving, api: sandq.Client) -> None:
    await api.admin.create_topic("t", lease="10m")
    await api.produce("t", b"a")
    async with connected(node) as client, client.subscribe("t", group="g", consumer_id="w") as subscription:
        (held,) = await take(subscription, 1, ack=False)
        leased = (await api.messages("t").why(held.id))["groups"]
        before = cluster_of(client).connections()
        for connection in before:
            await connection._stream.aclose()  # type: ignore[attr-defined]
        await until_holds(lambda: bool(cluster_of(client).connections()) and cluster_of(client).connections() != before)
        await api.produce("t", b"b")
        (other,) = await take(subscription, 1, ack=False)
        assert [row["consumer"] for row in leased] == ["w"]
        assert (await api.messages("t").why(held.id))["groups"] == leased
        await held.ack()
        await other.ack()


async def test_an_older_process_that_comes_again_is_refused(node: Serving, dial: Dial, api: sandq.Client) -> None:
    await api.admin.create_topic("t")
    async with api.subscribe("t", group="g", consumer_id="w"):
        zombie = await dial(node)
        answer = await zombie.call(Type.SUBSCRIBE, 1, "t", "g", "w", 10, None, "earliest", [], 5, None)
        assert (answer[0], answer[2], answer[4]) == (Type.ERROR, "CONSUMER_FENCED", False)
        without = await zombie.call(Type.SUBSCRIBE, 1, "t", "g", "w", 10, None, "earliest", [])
        assert without[2] == "CONSUMER_FENCED"


async def test_latest_consumer_wins_despite_a_slow_clock(node: Serving, dial: Dial, api: sandq.Client) -> None:
    await api.admin.create_topic("t", lease="10m")
    await api.produce("t", b"m")
    ahead = await dial(node)
    await subscribed(ahead, LATE)
    await ahead.push()
    async with api.subscribe("t", group="g", consumer_id="w") as subscription:
        assert await until_error(ahead, 1) == "CONSUMER_FENCED"
        assert values(await take(subscription, 1)) == [b"m"]


async def test_an_equal_epoch_is_the_same_process(node: Serving, dial: Dial, client: RawClient) -> None:
    await client.create(lease="10m")
    await client.produce(b"m")
    await subscribed(client, 7)
    first = await client.push()
    again = await dial(node)
    await subscribed(again, 7)
    with trio.fail_after(PATIENCE_S):
        pushed = await again.push()
    assert pushed[4] == first[4]


async def test_a_successor_that_comes_amid_grants_gets_all(node: Serving, dial: Dial, api: sandq.Client) -> None:
    """When the successor subscribes, leases for the previous process may still be in flight to the log."""
    await api.admin.create_topic("t", lease="10m")
    zombie, later = await dial(node), await dial(node)
    await subscribed(zombie, 7, credit=1000)
    async with trio.open_nursery() as nursery:
        for number in range(30):
            nursery.start_soon(api.produce, "t", b"%d" % number)
        await subscribed(later, 8, credit=1000)
    got: list[bytes | None] = []
    with trio.fail_after(PATIENCE_S):
        while len(got) < 30:
            pushed = await later.push()
            got += values_of(pushed)
            assert (await later.ack(pushed))[2] == [None]
    assert len({*got}) == 30


async def test_run_raises_it(node: Serving, api: sandq.Client) -> None:
    await api.admin.create_topic("t")

    async def handle(message: sandq.Message) -> None: ...

    async with connected(node) as later, trio.open_nursery() as nursery:

        async def run() -> None:
            with pytest.raises(ConsumerFenced):
                await api.run("t", "g", handle, consumer_id="w")
            nursery.cancel_scope.cancel()

        nursery.start_soon(run)
        await until_holds(lambda: node.broker.catalog.partition("t", 0).consumers("g") == 1)
        async with later.subscribe("t", group="g", consumer_id="w"):
            await trio.sleep_forever()


@pytest.mark.parametrize("name", ["", "a b", "x" * 250, 5])
async def test_an_id_follows_the_rule_for_names(api: sandq.Client, name: str) -> None:
    with pytest.raises(InvalidName, match="consumer"):
        api.subscribe("t", group="g", consumer_id=name)


async def test_bad_epochs_are_refused(client: RawClient) -> None:
    await client.create()
    for epoch in (0, -1, 1 << 62, 1 << 63, "7"):
        answer = await client.call(Type.SUBSCRIBE, 1, "t", "g", "w", 10, None, "earliest", [], epoch, None)
        assert (answer[0], answer[2]) == (Type.ERROR, "INVALID"), epoch
