"""Unique keys: one pending message per key, and no second message for a while after its delivery."""

from __future__ import annotations

from typing import Any

import pytest
import trio

import sandq
from sandq.errors import DuplicateKey, InvalidRequest, NotFound, UnknownTopic
from sandq.model import offsets
from sandq.node.running import Serving
from tests.support.nodes.hand_clock import HandClock
from tests.support.nodes.working import connected, take, take_until, values, with_topic

both_sizes = pytest.mark.parametrize("partitions", [1, 4])


@both_sizes
async def test_reject_says_which_message_has_the_key(api: sandq.Client, partitions: int) -> None:
    await api.admin.create_topic("t", partitions=partitions)
    for name, delay, state in (("later", "1h", "delayed"), ("now", 0, "ready")):
        first = await api.produce("t", b"first", unique_key=name, delay=delay)
        with pytest.raises(DuplicateKey) as refused:
            await api.produce("t", b"second", unique_key=name)
        assert refused.value.details == {"id": first, "state": state}
        assert (await api.messages("t").get(unique_key=name)).value == b"first"
    assert len([1 async for _ in api.messages("t").list()]) == 2


@both_sizes
async def test_replace_takes_the_pending_one_back_in_the_same_step(
    timed: Serving, hand: HandClock, partitions: int
) -> None:
    async with (
        connected(timed) as api,
        with_topic(api, partitions=partitions),
        api.subscribe("t", group="g", credit=100) as subscription,
    ):
        messages = api.messages("t")
        hand.hold()
        old = await api.produce("t", b"old", unique_key="u", delay=0.2)
        new = await api.produce("t", b"new", unique_key="u", delay=0.1, on_conflict="replace")
        assert new != old
        assert (await messages.get(unique_key="u")).id == new
        with pytest.raises(NotFound):
            await messages.get(old)
        with pytest.raises(NotFound):
            await messages.move(old, delay="1h")
        await api.produce("t", b"last", delay=0.4)
        hand.forward(0.3)
        assert [(m.value, m.id) for m in await take(subscription, 1)] == [(b"new", new)]
        hand.forward(0.2)
        assert await take_until(subscription, b"last") == [], (
            "the old message would have been due earlier, but must not be delivered"
        )
        # Delivered messages stay as they are, and the new one is stored.
        third = await api.produce("t", b"third", unique_key="u", on_conflict="replace")
        (message,) = await take(subscription, 1)
        assert (message.value, message.id) == (b"third", third)


async def test_replace_of_leased_message_is_refused(api: sandq.Client) -> None:
    await api.admin.create_topic("t")
    first = await api.produce("t", b"first", unique_key="u")
    async with api.subscribe("t", group="g") as subscription:
        (message,) = await take(subscription, 1, ack=False)
        with pytest.raises(DuplicateKey) as refused:
            await api.produce("t", b"second", unique_key="u", on_conflict="replace")
        assert refused.value.details == {"id": first, "state": "leased"}
        await message.ack()
        second = await api.produce("t", b"second", unique_key="u", on_conflict="replace")
        assert [m.id for m in await take(subscription, 1)] == [second]


@both_sizes
async def test_ignore_gives_the_id_of_the_first(api: sandq.Client, partitions: int) -> None:
    await api.admin.create_topic("t", partitions=partitions)
    first = await api.produce("t", b"first", unique_key="u", delay="1h")
    moved = await api.messages("t").move(first, delay="2h")
    assert await api.produce("t", b"second", unique_key="u", on_conflict="ignore") == first
    found = await api.messages("t").get(unique_key="u")
    assert (found.value, found.id, found.offset) == (b"first", first, moved)
    assert len([1 async for _ in api.messages("t").list()]) == 1


async def test_refused_duplicate_does_not_refuse_its_batch(api: sandq.Client) -> None:
    await api.admin.create_topic("t", partitions=4)
    async with api.producer("t", linger="50ms") as producer:
        receipts = [
            await producer.send(b"%d" % number, unique_key=f"u{number % 20}", delay="1h") for number in range(40)
        ]
        plain = [await producer.send(b"plain", delay="1h") for _ in range(10)]
        ids = [await receipt for receipt in receipts[:20]]
        for number, receipt in enumerate(receipts[20:]):
            with pytest.raises(DuplicateKey) as refused:
                await receipt
            assert refused.value.details["id"] == ids[number]
        ids += [await receipt for receipt in plain]
    assert {message.id async for message in api.messages("t").list()} == set(ids)


async def test_repeated_replace_in_a_batch_leaves_the_last_message(api: sandq.Client) -> None:
    await api.admin.create_topic("t")
    async with api.producer("t", linger="50ms") as producer:
        receipts = [
            await producer.send(b"%d" % number, unique_key="u", delay="1h", on_conflict="replace")
            for number in range(20)
        ]
        ids = [await receipt for receipt in receipts]
    assert len(set(ids)) == 20
    assert [(m.id, m.value) async for m in api.messages("t").list(values=True)] == [(ids[-1], b"19")]
    assert (await api.admin.stats("t"))[0]["messages"] == 1


async def test_many_producers_of_one_key_store_one(api: sandq.Client, node: Serving) -> None:
    await api.admin.create_topic("t", partitions=4)
    won: list[str] = []
    lost: list[object] = []

    async def produce(number: int) -> None:
        async with connected(node) as client:
            try:
                won.append(await client.produce("t", b"%d" % number, unique_key="u", delay="1h"))
            except DuplicateKey as error:
                lost.append(error.details["id"])

    async with trio.open_nursery() as nursery:
        for number in range(10):
            nursery.start_soon(produce, number)
    assert len(won) == 1
    assert lost == won * 9


async def test_a_cancelled_message_frees_its_key_at_once(api: sandq.Client) -> None:
    await api.admin.create_topic("t")
    messages = api.messages("t")
    first = await api.produce("t", b"first", unique_key="u", delay="1h")
    assert await messages.cancel(unique_key="u") == first
    second = await api.produce("t", b"second", unique_key="u", delay="1h")
    assert second != first
    assert (await messages.get(unique_key="u")).id == second
    assert await messages.cancel(first) == first, "the cancel of the first message must keep its reply"
    assert (await messages.get(unique_key="u")).state == "delayed", "it must not cancel the second message"


async def test_a_key_stays_taken_after_its_delivery(timed: Serving, hand: HandClock) -> None:
    async with connected(timed) as api:
        await api.admin.create_topic("t", dedup_window="1h")
        async with api.subscribe("t", group="g", credit=100) as subscription:
            first = await api.produce("t", b"first", unique_key="u")
            (message,) = await take(subscription, 1, ack=False)
            for settled in (False, True):
                if settled:
                    await message.ack()
                with pytest.raises(DuplicateKey) as refused:
                    await api.produce("t", b"second", unique_key="u")
                assert refused.value.details["id"] == first
                assert refused.value.details["state"] not in ("delayed", "ready")
                assert await api.produce("t", b"second", unique_key="u", on_conflict="ignore") == first
            hand.hold()
            hand.forward(3590)
            with pytest.raises(DuplicateKey):
                await api.produce("t", b"second", unique_key="u")
            hand.forward(20)
            second = await api.produce("t", b"second", unique_key="u")
            (message,) = await take(subscription, 1)
            assert (message.value, message.id) == (b"second", second)


async def test_without_a_window_a_key_is_free_once_it_is_delivered(api: sandq.Client) -> None:
    await api.admin.create_topic("t", dedup_window=0)
    async with api.subscribe("t", group="g", credit=100) as subscription:
        for number in range(3):
            await api.produce("t", b"%d" % number, unique_key="u")
            assert values(await take(subscription, 1, ack=number == 0)) == [b"%d" % number]


async def test_key_routes_a_message_with_a_unique_key(api: sandq.Client) -> None:
    await api.admin.create_topic("t", partitions=8)
    for number in range(30):
        name = f"order-{number}"
        alone = await api.produce("t", b"m", unique_key=name, delay="1h")
        both = await api.produce("t", b"m", unique_key="invoice", key=name, delay="1h")
        assert offsets.partition_of_text(alone) == offsets.partition_of_text(both)
        found = await api.messages("t").get(unique_key="invoice", key=name)
        assert (found.id, found.key, found.unique_key) == (both, name.encode(), b"invoice")
    spread = {message.partition async for message in api.messages("t").list()}
    assert len(spread) > 4


@pytest.mark.parametrize("is_listed", [True, False])
async def test_key_finds_its_partition_in_a_recreated_topic(node: Serving, is_listed: bool) -> None:
    async with connected(node) as api, connected(node) as other:
        await api.admin.create_topic("t")
        await api.produce("t", b"old", unique_key="call-ada", delay="1h")  # with one partition, any key belongs to it
        await other.admin.delete_topic("t")
        await other.admin.create_topic("t", partitions=64)
        if is_listed:
            assert [len(topic.partitions) for topic in await api.admin.list_topics()] == [64]
        else:
            await other.admin.delete_topic("t")
            with pytest.raises(UnknownTopic):
                await api.admin.delete_topic("t")
            await other.admin.create_topic("t", partitions=64)
            await api.leases("t", "g").take()  # the client asks, because it knows that the old topic is gone
        for number in range(8):
            await api.produce("t", b"new", unique_key=f"call-{number}", delay="1h")
        assert (await other.messages("t").get(unique_key="call-7")).value == b"new"


async def test_pair_of_key_and_unique_key_is_found_after_partitions_were_added(api: sandq.Client) -> None:
    await api.admin.create_topic("t", partitions=3)
    messages = api.messages("t")
    customers = [f"customer-{number}" for number in range(12)]

    async def produce(customer: str, value: bytes, **more: Any) -> str:
        return await api.produce("t", value, key=customer, unique_key="invoice-1", delay="1h", **more)

    before = {customer: await produce(customer, b"1") for customer in customers}
    assert len({*before.values()}) == 12
    assert {offsets.partition_of_text(one) for one in before.values()} == {0, 1, 2}
    await api.admin.update_topic("t", partitions=5)
    for customer, message_id in before.items():
        with pytest.raises(DuplicateKey) as refused:
            await produce(customer, b"2")
        assert refused.value.details == {"id": message_id, "state": "delayed"}
        assert (await messages.get(unique_key="invoice-1", key=customer)).id == message_id
    alone = await api.produce("t", b"alone", unique_key="invoice-1", delay="1h")
    assert (await messages.get(unique_key="invoice-1")).id == alone

    first, second, third, *others = customers
    assert await produce(first, b"2", on_conflict="ignore") == before[first]
    replaced = await produce(first, b"2", on_conflict="replace_pending")
    assert (await messages.why(unique_key="invoice-1", key=first))["id"] == replaced != before[first]
    await messages.move(unique_key="invoice-1", key=second, delay="2h")
    await messages.update(unique_key="invoice-1", key=second, value=b"moved")
    assert (await messages.get(before[second])).value == b"moved"
    assert await messages.cancel(unique_key="invoice-1", key=third) == before[third]
    assert await messages.cancel(unique_key="invoice-1", key=third) == before[third]
    for ask in (messages.cancel, messages.get, messages.why):
        with pytest.raises(NotFound) as missing:
            await ask(unique_key="invoice-2")
        assert "a message with a key is named by its key and its unique key" in missing.value.message
    left = {message.id async for message in messages.list()}
    assert left == {replaced, before[second], alone, *[before[other] for other in others]}


async def test_fair_topic_takes_no_key_in_names(api: sandq.Client) -> None:
    await api.admin.create_topic("t", kind="fair")
    await api.produce("t", b"1", key="k", unique_key="u", delay="1h")
    for name in ("get", "cancel", "why"):
        with pytest.raises(InvalidRequest, match="unique within the tenant there"):
            await getattr(api.messages("t"), name)(unique_key="u", key="k")
    with pytest.raises(DuplicateKey):
        await api.produce("t", b"1", key="other", unique_key="u", delay="1h")
