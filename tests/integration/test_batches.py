"""Consuming in batches: few frames for many messages, and each message is settled as requested."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import trio

import sandq
from sandq.node.running import Serving
from tests.support.nodes.three import NAMES, three_nodes
from tests.support.nodes.working import take_until, waits_until_trimmed
from tests.support.waiting import PATIENCE_S, until_answer

MESSAGES = 5000


async def fill(api: sandq.Client, count: int = MESSAGES, **options: Any) -> None:
    async with api.producer("t") as producer:
        for number in range(count):
            await producer.send(b"%d" % number, **options)


async def batches_of(subscription: sandq.Subscription, count: int) -> list[sandq.MessageBatch]:
    """Return the next batches with `count` messages in total."""
    found: list[sandq.MessageBatch] = []
    with trio.fail_after(PATIENCE_S):
        async for batch in subscription.batches():
            found.append(batch)
            if sum(map(len, found)) >= count:
                break
    return found


async def test_over_several_nodes_batches_stay_large(tmp_path: Path) -> None:
    """Several nodes lease to one consumer, which acks each batch."""
    async with three_nodes(tmp_path) as nodes, nodes.connect() as api:
        await until_answer(api.admin.cluster, lambda info: len(info["nodes"]) == 3)
        await api.admin.create_topic("t", partitions=6, replicas=3)
        await until_answer(
            lambda: api.admin.topic("t"), lambda record: {row.leader for row in record.partitions} == {*NAMES}
        )
        async with api.producer("t") as producer:
            await producer.send_many([b"%d" % number for number in range(MESSAGES)])
        got: list[bytes] = []
        batches = 0
        async with api.subscribe("t", group="g") as subscription:
            with trio.fail_after(PATIENCE_S):
                async for batch in subscription.batches():
                    got += batch.values
                    batches += 1
                    await batch.ack()
                    if len(got) == MESSAGES:
                        break
        assert sorted(got, key=int) == [b"%d" % number for number in range(MESSAGES)]
        assert batches <= 60, "batches must not shrink to the few acked messages"


@pytest.mark.parametrize("partitions", [1, 4])
async def test_many_messages_take_few_frames(
    partitions: int, node: Serving, api: sandq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await api.admin.create_topic("t", partitions=partitions)
    await fill(api)
    items: list[int] = []
    settle = node.broker.settle

    def counted(request: Any, caller: Any, done: Any) -> None:
        items.append(len(request.items))
        settle(request, caller, done)

    monkeypatch.setattr(node.broker, "settle", counted)
    got: list[bytes] = []
    batches = 0
    async with api.subscribe("t", group="g") as subscription:
        with trio.fail_after(PATIENCE_S):
            async for batch in subscription.batches():
                assert (batch.topic, batch.attempt) == ("t", 1) and batch.partition in range(partitions)
                assert len(batch) == len(batch.values) == len(batch.keys)
                got += batch.values
                batches += 1
                await batch.ack()
                if len(got) == MESSAGES:
                    break
    wanted = [b"%d" % number for number in range(MESSAGES)]
    assert got == wanted if partitions == 1 else sorted(got) == sorted(wanted)
    assert batches <= 30, "each lease should have a batch of a thousand messages, as produced"
    assert len(items) <= batches, "at most one frame per batch"
    assert sum(items) <= batches, "one item per frame"
    await waits_until_trimmed(api)


async def test_message_settled_in_another_way_than_its_batch(api: sandq.Client) -> None:
    await api.admin.create_topic("t", backoff={"kind": "none"}, max_attempts=2)
    await fill(api, 300, key="k")
    async with api.subscribe("t", group="g") as subscription:
        seen = 0
        with trio.fail_after(PATIENCE_S):
            async for batch in subscription.batches():
                assert set(batch.keys) == {b"k"}
                if batch.attempt == 1:
                    for message in batch.messages:
                        if int(message.value) % 100 == 7:
                            message.nack(error="seven")
                else:
                    assert {int(value) % 100 for value in batch.values} == {7}
                seen += len(batch)
                await batch.ack()
                if seen == 303:
                    break
    assert await api.dead("t", "g").counts() == {}
    await waits_until_trimmed(api)


async def test_nacked_batch_is_redelivered_completely(api: sandq.Client) -> None:
    await api.admin.create_topic("t", partitions=2, max_attempts=2)
    await fill(api, 500)
    attempts: Counter[int] = Counter()
    async with api.subscribe("t", group="g") as subscription:
        for batch in await batches_of(subscription, 500):
            await batch.nack(delay=0.05, error="all of it")
        for batch in await batches_of(subscription, 500):
            attempts[batch.attempt] += len(batch)
            await batch.nack(error="again")
        assert attempts == {2: 500}
        assert await api.dead("t", "g").counts() == {"nacked": 500}
    assert await api.dead("t", "g").redrive() == (500, 500, 0)
    async with api.subscribe("t", group="g") as subscription:
        for batch in await batches_of(subscription, 500):
            await batch.ack()
    await waits_until_trimmed(api)


async def test_cancelled_and_moved_messages_are_left_out_of_batches(api: sandq.Client) -> None:
    await api.admin.create_topic("t")
    async with api.producer("t") as producer:
        receipts = await producer.send_many([b"%d" % number for number in range(200)])
    ids = await receipts
    for message_id in ids[::10]:
        await api.messages("t").cancel(message_id)
    await api.messages("t").move(ids[5], delay="1h")
    left = [b"%d" % number for number in range(200) if number % 10 and number != 5]
    async with api.subscribe("t", group="g") as subscription:
        batches = await batches_of(subscription, len(left))
        assert [value for batch in batches for value in batch.values] == left
        for batch in batches:
            await batch.ack()
        await api.produce("t", b"last")
        assert await take_until(subscription, b"last") == []
    await waits_until_trimmed(api, left=1)


async def test_two_take_batches_of_one_subscription(api: sandq.Client) -> None:
    await api.admin.create_topic("t", partitions=2)
    await fill(api, 3000)
    got: Counter[bytes] = Counter()

    async def work(subscription: sandq.Subscription) -> None:
        async for batch in subscription.batches():
            got.update(batch.values)
            batch.ack()
            if len(got) == 3000:
                nursery.cancel_scope.cancel()

    async with api.subscribe("t", group="g", credit=500) as subscription:
        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(work, subscription)
                nursery.start_soon(work, subscription)
    assert set(got.values()) == {1}
    await waits_until_trimmed(api)
