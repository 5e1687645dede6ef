"""A topic with `max_in_flight_per_key`: limits the messages of a key in flight, over all consumers."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import anyio
import pytest

import sandq
import sandq.testing
from sandq.errors import InvalidSetting
from sandq.testing import AsyncBroker
from tests.support.nodes.working import take, take_until, values
from tests.support.waiting import PATIENCE_S

KEYS = ("a", "b", "c")
OF_EACH = 12


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_three_consumers_have_two_messages_of_a_key_at_once(backend: str) -> None:
    async def main() -> None:
        with anyio.fail_after(PATIENCE_S):
            async with sandq.testing.broker(patience="1h") as b:
                await _three_consumers(b)

    anyio.run(main, backend=backend)


async def _three_consumers(b: AsyncBroker) -> None:
    """Let three consumers work on messages of few keys, and check the limit per key at every moment."""
    await b.create_topic("t", partitions=2, max_in_flight_per_key=2)
    held: dict[str, set[int]] = defaultdict(set)
    done: set[tuple[str, int]] = set()
    all_are_held, may_go_on = anyio.Event(), anyio.Event()

    async def handle(message: sandq.Message) -> None:
        """All consumers first lease as many messages as possible. Then each message takes a while, and some are
        redelivered."""
        assert message.key is not None
        key, number = message.key.decode(), int(message.value)
        held[key].add(number)
        assert len(held[key]) <= 2, "too many messages of a key are in flight"
        if sum(map(len, held.values())) == 2 * len(KEYS):
            all_are_held.set()
        await may_go_on.wait()
        await anyio.sleep(0.001)
        held[key].discard(number)
        if number % 5 == 0 and message.attempt == 1:
            await message.nack(delay=0)
            return
        done.add((key, number))
        await message.ack()
        if len(done) == len(KEYS) * OF_EACH:
            tasks.cancel_scope.cancel()

    async def work() -> None:
        async with b.client() as client, client.subscribe("t", group="g", credit=10) as subscription:
            async for message in subscription:
                tasks.start_soon(handle, message)

    async with b.client() as client, client.producer("t") as producer:
        for number in range(OF_EACH):
            for key in KEYS:
                await producer.send(b"%d" % number, key=key)
    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(work)
        await all_are_held.wait()
        assert held == {key: {0, 1} for key in KEYS}
        async with b.client() as client:
            rows = await client.admin.groups("t")
        assert (sum(row["leased"] for row in rows), sum(row["ready"] for row in rows)) == (6, len(KEYS) * OF_EACH - 6)
        assert sum(row["blocked_by_key"] for row in rows) == len(KEYS) * OF_EACH - 6
        may_go_on.set()
    assert len(done) == len(KEYS) * OF_EACH


async def test_next_message_of_key_is_delivered_after_an_ack(api: sandq.Client) -> None:
    await api.admin.create_topic("t", max_in_flight_per_key=2, lease="1h")
    for number in range(4):
        await api.produce("t", b"%d" % number, key="k")
    async with api.subscribe("t", group="g", credit=100) as subscription:
        first, second = await take(subscription, 2, ack=False)
        last = await api.produce("t", b"other", key="l")
        (other,) = await take(subscription, 1, ack=False)
        assert other.id == last
        await second.ack()
        (third,) = await take(subscription, 1, ack=False)
        assert third.value == b"2"
        for message in (first, third, other):
            await message.ack()
        assert values(await take(subscription, 1)) == [b"3"]


async def test_a_group_lowers_its_limit_and_raises_it(api: sandq.Client) -> None:
    await api.admin.create_topic("t", max_in_flight_per_key=3, lease="1h")
    ids = [await api.produce("t", b"%d" % number, key="k") for number in range(6)]
    async with api.subscribe("t", group="g", credit=100) as subscription:
        held = await take(subscription, 3, ack=False)
        await api.admin.update_group("t", "g", max_in_flight_per_key=2)
        (row,) = await api.admin.groups("t")
        assert row["settings"] == {"max_in_flight_per_key": 2}
        (group,) = (await api.messages("t").why(ids[3]))["groups"]
        assert group["reason"] == "it waits for messages of its key: 3 of 2 are in flight"
        await held[0].ack()
        await held[1].ack()
        (third,) = await take(subscription, 1, ack=False)
        assert third.value == b"3", "a message of the key must follow only once fewer than the limit are in flight"
        (group,) = (await api.messages("t").why(ids[4]))["groups"]
        assert group["reason"] == "it waits for messages of its key: 2 of 2 are in flight"
        await api.admin.update_group("t", "g")
        assert values(await take(subscription, 1)) == [b"4"]
        for message in (held[2], third):
            await message.ack()
        await api.produce("t", b"last", key="m")
        assert values(await take_until(subscription, b"last")) == [b"5"]


async def test_invalid_key_limits_are_refused(api: sandq.Client) -> None:
    wrong: list[tuple[str, dict[str, Any], str]] = [
        ("timer", {"ordering": "key", "max_in_flight_per_key": 1}, "it does not go with ordering key"),
        ("timer", {"max_in_flight_per_key": 0}, "0 is not within 1 to 1000"),
        *((kind, {"max_in_flight_per_key": 2}, "only timer topics") for kind in ("compacted", "priority")),
        ("fair", {"max_in_flight_per_key": 2}, "only timer topics"),
    ]
    for kind, given, words in wrong:
        with pytest.raises(InvalidSetting, match=f"^max_in_flight_per_key: {words}"):
            await api.admin.create_topic("t", kind=kind, **given)
    await api.admin.create_topic("t", max_in_flight_per_key=2)
    await api.admin.create_topic("free")
    with pytest.raises(InvalidSetting, match=r"^max_in_flight_per_key: it is 2 since the topic was created"):
        await api.admin.update_topic("t", max_in_flight_per_key=3)
    for topic in ("t", "free"):
        async with api.subscribe(topic, group="g"):
            pass
    with pytest.raises(InvalidSetting, match=r"^max_in_flight_per_key: 3 is more than the topic's, which is 2$"):
        await api.admin.update_group("t", "g", max_in_flight_per_key=3)
    with pytest.raises(InvalidSetting, match=r"^max_in_flight_per_key: the topic has none"):
        await api.admin.update_group("free", "g", max_in_flight_per_key=1)
