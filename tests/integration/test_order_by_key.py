"""A topic ordered by key delivers one message of each key at a time and in order, after any settlement."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest
import trio

import sandq
from sandq.node.running import Serving
from tests.support.nodes.working import connected, take, take_until, values
from tests.support.waiting import PATIENCE_S, until_answer

KEYS = [b"a", b"b", b"c", b"d", b"e"]
OF_EACH = 25


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in (2, 3))])
async def test_strictly_one_after_another(node: Serving, api: sandq.Client, seed: int) -> None:
    rng = random.Random(seed)
    await api.admin.create_topic(
        "t", partitions=2, ordering="key", lease="1h", max_attempts=None, backoff={"kind": "fixed", "first": "5ms"}
    )
    order = [key for key in KEYS for _ in range(OF_EACH)]
    rng.shuffle(order)
    counts: dict[bytes, int] = defaultdict(int)
    async with api.producer("t") as producer:
        for key in order:
            delay = rng.choice((None, None, 0.02))
            # The delivery times of one key rise, which defines its order.
            await producer.send(b"%d" % counts[key], key=key, delay=None if delay is None else 0.2 + counts[key] / 1000)
            counts[key] += 1
    busy: set[bytes] = set()
    done: dict[bytes, list[str]] = defaultdict(list)
    attempts: dict[str, int] = defaultdict(int)

    async def work() -> None:
        async with connected(node) as client, client.subscribe("t", group="g", credit=10) as subscription:
            async for message in subscription:
                key = message.key
                assert key is not None
                assert key not in busy, "two messages of a key are in flight"
                assert not done[key] or message.offset > done[key][-1], "out of order"
                busy.add(key)
                attempts[message.id] += 1
                assert message.attempt == attempts[message.id]
                await trio.sleep(rng.choice((0, 0.002)))
                busy.discard(key)
                if rng.random() < 0.2:
                    await message.nack(error="again")
                else:
                    done[key].append(message.offset)
                    await message.ack()
                if sum(map(len, done.values())) == len(order):
                    nursery.cancel_scope.cancel()

    with trio.fail_after(2 * PATIENCE_S):
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(work)
    assert {key: len(offsets) for key, offsets in done.items()} == dict.fromkeys(KEYS, OF_EACH)
    for offsets in done.values():
        assert offsets == sorted(offsets)
    assert max(attempts.values()) > 1
    rows = await api.admin.groups("t")
    assert sum(row["leased"] + row["waiting"] + row["dead"] for row in rows) == 0


async def test_why_names_an_earlier_message_of_the_key(api: sandq.Client) -> None:
    await api.admin.create_topic("t", ordering="key", lease="1h")
    messages = api.messages("t")
    first, second, third = [await api.produce("t", b"%d" % number, key="k") for number in range(3)]
    other = await api.produce("t", b"other", key="l")
    async with api.subscribe("t", group="g", credit=100) as subscription:
        held = {message.id: message for message in await take(subscription, 2, ack=False)}
        assert set(held) == {first, other}
        for message_id in (second, third):
            told = await messages.why(message_id)
            (group,) = told["groups"]
            assert (told["state"], group["state"]) == ("ready", "ready")
            assert group["reason"] == "it waits for an earlier message of its key"
        (row,) = await api.admin.groups("t")
        assert (row["leased"], row["ready"]) == (2, 2)
        # A message that waits for an earlier one is pending: it can be moved or cancelled.
        await messages.cancel(second)
        await held[first].ack()
        (message,) = await take(subscription, 1)
        assert message.id == third
        await held[other].ack()
        await api.produce("t", b"last", key="m")
        assert await take_until(subscription, b"last") == []


async def test_a_message_that_waits_for_its_retry_keeps_its_key_back(node: Serving, api: sandq.Client) -> None:
    await api.admin.create_topic("t", ordering="key", lease="1h", max_attempts=2)
    for number in range(2):
        await api.produce("t", b"%d" % number, key="k")
    async with api.subscribe("t", group="g", credit=100) as subscription:
        (message,) = await take(subscription, 1, ack=False)
        before_ms = node.broker.clock.now_ms()
        await message.nack(delay=0.2)
        (again,) = await take(subscription, 1, ack=False)
        assert (again.value, again.attempt) == (b"0", 2)
        assert node.broker.clock.now_ms() >= before_ms + 200
        await again.nack(error="dead")
        assert values(await take(subscription, 1)) == [b"1"], "a dead message must not block others"
        assert await api.dead("t", "g").counts() == {"nacked": 1}
        # A redriven message precedes later messages of its key.
        third = await api.produce("t", b"2", key="k")
        await take(subscription, 1)
        await api.dead("t", "g").redrive()
        assert values(await take(subscription, 1)) == [b"0"]
        assert third


async def test_a_consumer_that_leaves_hands_its_keys_on_in_order(api: sandq.Client) -> None:
    await api.admin.create_topic("t", ordering="key", lease="1h")
    for number in range(6):
        await api.produce("t", b"%d" % number, key=f"k{number % 2}")
    async with api.subscribe("t", group="g", credit=100) as leaving:
        assert sorted(values(await take(leaving, 2, ack=False))) == [b"0", b"1"]
    async with api.subscribe("t", group="g", credit=100) as subscription:
        got = await take(subscription, 6)
    for key in (b"k0", b"k1"):
        mine = [message.value for message in got if message.key == key]
        assert mine == sorted(mine)
    await until_answer(lambda: api.admin.stats("t"), lambda rows: rows[0]["messages"] == 0)


async def test_messages_without_a_key_do_not_wait(api: sandq.Client) -> None:
    await api.admin.create_topic("t", ordering="key", lease="1h")
    for number in range(20):
        await api.produce("t", b"%d" % number)
    async with api.subscribe("t", group="g", credit=100) as subscription:
        assert len(await take(subscription, 20, ack=False)) == 20


async def test_a_seek_back_keeps_the_order(api: sandq.Client) -> None:
    await api.admin.create_topic("t", ordering="key", lease="1h", delete_on_ack=False)
    for number in range(10):
        await api.produce("t", b"%d" % number, key="k")
    async with api.subscribe("t", group="g", credit=100) as subscription:
        got = await take(subscription, 4)
        (held,) = await take(subscription, 1, ack=False)
        assert (values(got), held.value) == ([b"0", b"1", b"2", b"3"], b"4")
        await api.admin.seek_group("t", "g", "earliest")
        assert values(await take(subscription, 10)) == [b"%d" % number for number in range(10)]
