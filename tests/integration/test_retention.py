"""Acked messages stay as long as the topic's retention: they can be read and replayed, and are trimmed afterwards."""

from __future__ import annotations

from typing import Any

import pytest

import sandq
from sandq.node.running import Serving
from tests.support.nodes.hand_clock import HandClock, Onward
from tests.support.nodes.working import (
    connected,
    stored_messages,
    take,
    take_until,
    values,
    waits_until_trimmed,
    with_topic,
)
from tests.support.waiting import until_answer

HOUR_MS = 3_600_000


async def trimmed_in_time(api: sandq.Client, hand: HandClock, topic: str = "t", left: int = 0) -> int:
    """Move the clock by minutes until no message is left; return that time."""

    onward = Onward(hand, 300)

    async def ask() -> int:
        count = await stored_messages(api, topic)
        onward.saw(count)  # small steps, so that leases stay alive while nothing changes
        return count

    await until_answer(ask, lambda count: count == left)
    return hand.now_ms()


async def others_are_trimmed(api: sandq.Client, hand: HandClock, **settings: Any) -> None:
    """Let hours pass: acked messages of a topic with these settings are trimmed, and the rest stays."""
    await api.admin.create_topic("other", **settings)
    await api.produce("other", b"m")
    async with api.subscribe("other", group="g") as subscription:
        await take(subscription, 1)
    hand.forward(2 * 3600)
    await trimmed_in_time(api, hand, "other")


async def fetched(api: sandq.Client, partition: int = 0) -> list[bytes]:
    return [message.value async for message in api.fetch("t", partition)]


async def test_acked_messages_are_kept_for_the_retention_time(timed: Serving, hand: HandClock) -> None:
    hand.hold()
    async with connected(timed) as api, with_topic(api, retention="1h"):
        async with api.subscribe("t", group="g", credit=100) as subscription:
            for number in range(5):
                await api.produce("t", b"%d" % number)
            got = await take(subscription, 5)
            acked_ms = hand.now_ms()
            hand.forward(1)
            assert await stored_messages(api) == 5
            assert await fetched(api) == [b"0", b"1", b"2", b"3", b"4"]
            states = [message.state async for message in api.messages("t").list()]
            assert states == ["acked"] * 5
            # The messages are replayed by the group, and by a second group that starts with them.
            await api.admin.seek_group("t", "g", "earliest")
            assert [message.id for message in await take(subscription, 5)] == [message.id for message in got]
            async with api.subscribe("t", group="late", credit=100) as late:
                assert [message.id for message in await take(late, 5)] == [message.id for message in got]
            assert await trimmed_in_time(api, hand) >= acked_ms + HOUR_MS, "not before its time"
        assert await fetched(api) == []
        assert (await api.admin.stats("t"))[0]["bytes"] == 0


@pytest.mark.parametrize("kind", ["priority", "fair"])
async def test_acked_messages_of_ranked_topics_are_kept_for_the_retention_time(
    timed: Serving, hand: HandClock, kind: str
) -> None:
    hand.hold()
    async with connected(timed) as api, with_topic(api, kind=kind, retention="1h"):
        for number in (2, 0, 1):
            await api.produce("t", b"%d" % number, priority=number)
        async with api.subscribe("t", group="g", credit=1) as subscription:
            assert values(await take(subscription, 3)) == [b"0", b"1", b"2"]
            acked_ms = hand.now_ms()
            hand.forward(1)
            assert await fetched(api) == [b"2", b"0", b"1"], "messages are fetched in stored order"
            await api.admin.seek_group("t", "g", "earliest")
            assert values(await take(subscription, 3)) == [b"0", b"1", b"2"], "ranked anew"
            assert await trimmed_in_time(api, hand) >= acked_ms + HOUR_MS, "not before its time"


@pytest.mark.parametrize("kind", ["priority", "fair"])
async def test_ranked_log_keeps_acked_messages_for_the_retain_time(timed: Serving, hand: HandClock, kind: str) -> None:
    hand.hold()
    async with connected(timed) as api, with_topic(api, kind=kind, delete_on_ack=False, retain="1h", lease="12h"):
        old = await api.produce("t", b"old", priority=5)
        async with api.subscribe("t", group="g", credit=1, auto_extend=False) as subscription:
            await take(subscription, 1)
            assert await trimmed_in_time(api, hand) >= sandq.offset_time_ms(old) + HOUR_MS, "not before its time"
            await api.produce("t", b"held", priority=9)
            (held,) = await take(subscription, 1, ack=False)
            await others_are_trimmed(api, hand, kind=kind, delete_on_ack=False, retain="1h")
            assert (await api.messages("t").get(held.id)).state == "leased", (
                "a message that a group has not acked must stay at any age"
            )
            await held.ack()
            await trimmed_in_time(api, hand)


async def test_pending_messages_of_a_group_are_kept_at_any_age(api: sandq.Client) -> None:
    await api.admin.create_topic("t", retention="0s")
    for group in ("slow", "fast"):
        async with api.subscribe("t", group=group):
            pass
    for number in range(6):
        await api.produce("t", b"%d" % number)
    async with api.subscribe("t", group="fast") as subscription:
        await take(subscription, 6)
    async with api.subscribe("t", group="slow", credit=100) as subscription:
        got = await take(subscription, 6, ack=False)
        for message in got[:3]:
            await message.ack()
        await waits_until_trimmed(api, left=3)
        assert await fetched(api) == [b"3", b"4", b"5"]
        for message in got[3:]:
            await message.ack()
    await waits_until_trimmed(api)


async def test_without_a_group_everything_stays(timed: Serving, hand: HandClock) -> None:
    async with connected(timed) as api, with_topic(api, retention="1h"):
        await api.produce("t", b"m")
        await others_are_trimmed(api, hand, retention="1h")
        assert await fetched(api) == [b"m"]
        async with api.subscribe("t", group="g") as subscription:
            assert values(await take(subscription, 1)) == [b"m"]


async def test_log_keeps_acked_messages_for_the_retain_time(timed: Serving, hand: HandClock) -> None:
    hand.hold()
    settings: dict[str, Any] = {"delete_on_ack": False, "retain": "1h"}
    async with connected(timed) as api, with_topic(api, **settings, lease="12h"):
        old = await api.produce("t", b"old")
        delayed = await api.produce("t", b"delayed", delay="30d")
        async with api.subscribe("t", group="g", auto_extend=False) as subscription:
            await take(subscription, 1)
            hand.forward(1)
            assert await fetched(api) == [b"old"]
            assert await trimmed_in_time(api, hand, left=1) >= sandq.offset_time_ms(old) + HOUR_MS, (
                "not before its time"
            )
            assert (await api.messages("t").get(delayed)).state == "delayed", (
                "the age of a message counts from its delivery time"
            )
            # Messages that a group has not acked stay at any age.
            await api.produce("t", b"held")
            (held,) = await take(subscription, 1, ack=False)
            await others_are_trimmed(api, hand, **settings)
            assert await fetched(api) == [b"held"]
            await held.ack()
            await trimmed_in_time(api, hand, left=1)


async def test_log_keeps_at_most_retain_bytes(api: sandq.Client) -> None:
    await api.admin.create_topic("t", delete_on_ack=False, retain_bytes="1MiB")
    async with api.subscribe("t", group="g", credit=100) as subscription:
        for number in range(6):
            await api.produce("t", b"%d" % number * 300_000)
            await take(subscription, 1)
        await waits_until_trimmed(api, left=3)
        assert [value[:1] for value in await fetched(api)] == [b"3", b"4", b"5"]
        assert (await api.admin.stats("t"))[0]["bytes"] <= 1 << 20


async def test_a_log_without_bounds_keeps_everything(api: sandq.Client) -> None:
    await api.admin.create_topic("t", delete_on_ack=False)
    async with api.subscribe("t", group="g", credit=100) as subscription:
        for number in range(20):
            await api.produce("t", b"%d" % number)
        await take(subscription, 20)
    assert await stored_messages(api) == 20
    # Change the setting: acked messages are trimmed.
    await api.admin.update_topic("t", delete_on_ack=True)
    await waits_until_trimmed(api)


@pytest.mark.parametrize("partitions", [1, 3])
async def test_purging_a_topic(api: sandq.Client, partitions: int) -> None:
    await api.admin.create_topic("t", partitions=partitions, max_attempts=1)
    async with api.subscribe("t", group="g", credit=4) as subscription:
        for number in range(4):
            await api.produce("t", b"%d" % number, partition=number % partitions)
        got = await take(subscription, 4, ack=False)
        for message in got[:2]:
            await message.nack(error="no")
        rest = [await api.produce("t", b"ready", partition=partitions - 1) for _ in range(20)]
        rest += [await api.produce("t", b"delayed", delay="1h", partition=0) for _ in range(30)]
        taken = await take(subscription, 2, ack=False)
        result = await api.admin.purge_topic("t")
        assert (result.done, result.matched) == (50, 50), "18 ready, 30 delayed, 2 dead"
        assert await api.dead("t", "g").counts() == {}
        # Leased messages stay with their consumer.
        for message in got[2:] + taken:
            await message.ack()
        await api.produce("t", b"last")
        assert await take_until(subscription, b"last") == []
    assert len(rest) == 50
    await waits_until_trimmed(api)
    assert [row["group"] for row in await api.admin.groups("t")] == ["g"] * partitions
