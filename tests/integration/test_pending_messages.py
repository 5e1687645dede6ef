"""A producer reads, cancels and moves its pending messages, by id and by unique key."""

from __future__ import annotations

import random
from typing import Any

import pytest

import sandq
from sandq.errors import NotFound, TooLate
from sandq.model import offsets
from sandq.node.running import Serving
from tests.support.nodes.hand_clock import HandClock
from tests.support.nodes.working import connected, refusals, take, take_until, values, waits_until_trimmed, with_topic
from tests.support.waiting import until_answer

AHEAD_MS = 20
"""Delay in ms. Leases are granted less far ahead, so that such messages follow the leased ones."""
HOUR_MS = 3_600_000
MINUTE_MS = 60_000

both_sizes = pytest.mark.parametrize("partitions", [1, 4])


async def schedule(api: sandq.Client, start_ms: int, count: int = 8) -> list[str]:
    """Produce messages that are due one minute apart. Every other one has a unique key, the rest have a key. Return
    their ids."""
    return [
        await api.produce(
            "t",
            b"%d" % number,
            deliver_at=start_ms + number * MINUTE_MS,
            headers={"n": number},
            unique_key=f"u{number}" if number % 2 == 0 else None,
            key=f"k{number}" if number % 2 else None,
        )
        for number in range(count)
    ]


# -- looking --------------------------------------------------------------------------------------------------------


@both_sizes
async def test_a_message_is_found_by_its_id_and_by_its_unique_key(
    node: Serving, api: sandq.Client, partitions: int
) -> None:
    await api.admin.create_topic("t", partitions=partitions)
    messages = api.messages("t")
    start_ms = node.broker.clock.now_ms() + HOUR_MS
    ids = await schedule(api, start_ms)
    for number, message_id in enumerate(ids):
        found = await messages.get(message_id)
        assert (found.id, found.offset, found.state, found.value) == (message_id, message_id, "delayed", b"%d" % number)
        assert found.deliver_at_ms == found.due_ms == start_ms + number * MINUTE_MS
        assert (found.headers, found.size, found.moves, found.moved_ms) == ({"n": number}, 1, 0, None)
        if number % 2 == 0:
            assert (found.unique_key, found.key) == (b"u%d" % number, None)
            assert await messages.get(unique_key=f"u{number}") == found
        else:
            assert (found.unique_key, found.key) == (None, b"k%d" % number)
    with pytest.raises(NotFound):
        await messages.get(unique_key="nobody")
    with pytest.raises(NotFound):
        await messages.get(sandq.offset_text(offsets.pack(start_ms, 10_000, 0, partitions - 1)))
    with pytest.raises(NotFound):
        await messages.get(sandq.offset_text(offsets.pack(start_ms, 10_000, 0, partitions + 7)))


@both_sizes
async def test_messages_are_listed_in_the_order_of_delivery_over_all_partitions(
    node: Serving, api: sandq.Client, partitions: int
) -> None:
    await api.admin.create_topic("t", partitions=partitions)
    messages = api.messages("t")
    start_ms = node.broker.clock.now_ms() + HOUR_MS
    ids = await schedule(api, start_ms)
    ready = [await api.produce("t", b"now", key=f"k-now-{number}") for number in range(3)]

    async def listed(**options: Any) -> list[str]:
        return [message.id async for message in messages.list(**options)]

    assert await listed() == sorted(ready) + ids
    assert await listed(state="delayed") == ids
    assert await listed(state="ready") == sorted(ready)
    assert await listed(since=start_ms + MINUTE_MS, until=start_ms + 3 * MINUTE_MS) == ids[1:3], (
        "the end time is excluded"
    )
    assert await listed(until=start_ms) == sorted(ready)
    assert await listed(key_prefix="k", state="delayed") == ids[1::2]
    assert await listed(key_prefix="k-now", limit=2) == sorted(ready)[:2]
    for state in ("leased", "waiting", "acked"):
        assert await listed(state=state) == []
    found = [message.value async for message in messages.list(state="delayed", values=True)]
    assert found == [b"%d" % number for number in range(8)]
    assert [message.value async for message in messages.list(limit=1)] == [None]


async def test_a_long_list_comes_in_pages(api: sandq.Client, node: Serving) -> None:
    await api.admin.create_topic("t", partitions=2)
    start_ms = node.broker.clock.now_ms() + HOUR_MS
    async with api.producer("t") as producer:
        for number in range(5000):
            await producer.send(b"%d" % number, key=f"{'a' if number % 50 else 'b'}{number}", deliver_at=start_ms)
    messages = api.messages("t")
    found = [message async for message in messages.list()]
    assert len({message.id for message in found}) == 5000
    assert [message.offset for message in found] == sorted(message.offset for message in found)
    assert len([1 async for message in messages.list(key_prefix="b")]) == 100, "most pages may have few rows"


@both_sizes
async def test_why_explains_the_state_in_each_group(api: sandq.Client, partitions: int) -> None:
    await api.admin.create_topic("t", partitions=partitions, max_attempts=2)
    messages = api.messages("t")
    delayed = await api.produce("t", b"later", unique_key="later", delay="1h")
    assert (await messages.why(delayed))["groups"] == []
    first = await api.produce("t", b"m", unique_key="m")
    async with api.subscribe("t", group="idle"):
        pass
    async with api.subscribe("t", group="g", credit=1) as subscription:
        (held,) = await take(subscription, 1, ack=False)
        told = await messages.why(unique_key="later")
        assert (told["id"], told["state"], "value" in told) == (delayed, "delayed", False)
        assert {group["group"]: group["state"] for group in told["groups"]} == {"idle": "delayed", "g": "delayed"}
        told = await messages.why(first)
        assert (told["state"], told["partition"]) == ("leased", held.partition)
        groups = {group["group"]: group for group in told["groups"]}
        assert (groups["idle"]["state"], groups["idle"]["consumers"]) == ("ready", 0)
        assert (
            groups["idle"]["reason"]
            == "it waits for a consumer that may receive more; the group has no consumer on this node"
        )
        assert (groups["g"]["state"], groups["g"]["attempt"], groups["g"]["consumers"]) == ("leased", 1, 1)
        assert groups["g"]["consumer"] in groups["g"]["reason"]
        assert groups["g"]["lease_token"] == held.lease_token and groups["idle"]["lease_token"] is None
        await held.nack(delay="1h", error="no stock")
        (group,) = [group for group in (await messages.why(first))["groups"] if group["group"] == "g"]
        assert (group["state"], group["attempt"], group["error"]) == ("waiting", 1, "no stock")
        ((attempt, consumer, leased_ms, ended_ms, outcome, error),) = group["history"]
        assert (attempt, outcome, error) == (1, "nacked", "no stock")
        assert consumer.startswith("sandq-python-")
        assert leased_ms <= ended_ms
        assert group["due_ms"] == ended_ms + HOUR_MS
    with pytest.raises(NotFound):
        await messages.why(unique_key="nobody")


# -- taking back ----------------------------------------------------------------------------------------------------


@both_sizes
async def test_cancelled_message_is_not_delivered(api: sandq.Client, node: Serving, partitions: int) -> None:
    await api.admin.create_topic("t", partitions=partitions)
    messages = api.messages("t")
    due_ms = node.broker.clock.now_ms() + 250
    ids = [
        await api.produce("t", b"%d" % number, deliver_at=due_ms, unique_key=f"u{number}" if number % 2 else None)
        for number in range(12)
    ]
    # also messages of a ready batch, which share one row
    async with api.producer("t") as producer:
        receipts = await producer.send_many([b"r%d" % number for number in range(6)])
    ready = await receipts
    for number in range(0, 12, 3):
        named = {"unique_key": f"u{number}"} if number % 2 else {"id": ids[number]}
        assert await messages.cancel(**named) == ids[number]
        assert await messages.cancel(**named) == ids[number], "a repeated cancel must get the first reply"
        with pytest.raises(NotFound):
            await messages.get(ids[number])
        with pytest.raises(TooLate) as refused:
            await messages.move(**named, delay="1h")
        assert refused.value.details["state"] == "gone"
    for message_id in (ready[0], ready[3], ready[5]):
        assert await messages.cancel(message_id) == message_id
        assert await messages.cancel(message_id) == message_id
    listed = {message.id async for message in messages.list()}
    left = {message_id for number, message_id in enumerate(ids) if number % 3} | {ready[1], ready[2], ready[4]}
    assert listed == left
    async with api.subscribe("t", group="g") as subscription:
        got = await take(subscription, len(left))
        assert {message.id for message in got} == left
        expected = [b"%d" % number for number in range(12) if number % 3] + [b"r1", b"r2", b"r4"]
        assert sorted(values(got)) == sorted(expected)
        await api.produce("t", b"last")
        assert await take_until(subscription, b"last") == []
    await waits_until_trimmed(api)


async def test_a_cancel_is_remembered_for_ten_minutes(timed: Serving, hand: HandClock) -> None:
    hand.hold()
    async with connected(timed) as api:
        await api.admin.create_topic("t")
        messages = api.messages("t")
        far = await api.produce("t", b"far", delay="1h", unique_key="far")
        moved = await api.produce("t", b"moved", delay="1h")
        await messages.move(moved, delay="2h")
        assert await messages.cancel(far) == far
        assert await messages.cancel(moved) == moved
        hand.forward(599)
        assert await messages.cancel(far) == far
        assert await messages.cancel(unique_key="far") == far
        assert await messages.cancel(moved) == moved
        hand.forward(2)
        with pytest.raises(NotFound):
            await messages.cancel(unique_key="far")
        # By id, the state changes once upkeep has removed the rows.
        await until_answer(lambda: outcome_of_cancel(messages, far), lambda outcome: outcome == "not found")
        await until_answer(lambda: outcome_of_cancel(messages, moved), lambda outcome: outcome == "not found")


async def outcome_of_cancel(messages: sandq.Messages, message_id: str) -> str:
    """Cancel a message, and return the outcome as a word."""
    try:
        await messages.cancel(message_id)
    except NotFound:
        return "not found"
    except TooLate as error:
        return str(error.details["state"])
    return "cancelled"


# -- moving ---------------------------------------------------------------------------------------------------------


@both_sizes
@pytest.mark.parametrize(("from_ms", "to_ms"), [(200, 500), (600, 250), (400, 400)])
async def test_a_moved_message_comes_once_at_its_new_time_and_never_before(
    timed: Serving, hand: HandClock, partitions: int, from_ms: int, to_ms: int
) -> None:
    async with (
        connected(timed) as api,
        with_topic(api, partitions=partitions),
        api.subscribe("t", group="g", credit=100) as subscription,
    ):
        messages = api.messages("t")
        hand.hold()
        now_ms = hand.now_ms()
        ids = [
            await api.produce("t", b"%d" % number, deliver_at=now_ms + from_ms, unique_key=f"u{number}")
            for number in range(10)
        ]
        last_ms = now_ms + max(from_ms, to_ms) + 100
        await api.produce("t", b"last", deliver_at=last_ms, partition=0)
        new = {}
        for number, message_id in enumerate(ids):
            named = {"unique_key": f"u{number}"} if number % 2 else {"id": message_id}
            new[message_id] = await messages.move(**named, deliver_at=now_ms + to_ms)
            assert sandq.offset_time_ms(new[message_id]) == now_ms + to_ms
        hand.forward_to(now_ms + to_ms - AHEAD_MS)
        for partition in range(partitions):
            await api.produce("t", b"before", partition=partition)
        assert values(await take(subscription, partitions)) == [b"before"] * partitions, "nothing early"
        hand.forward_to(now_ms + to_ms)
        seen = await take(subscription, 10)
        assert {message.id: message.offset for message in seen} == new
        assert {message.deliver_at_ms for message in seen} == {now_ms + to_ms}
        hand.forward_to(last_ms)
        assert values(await take(subscription, 1)) == [b"last"]
        await api.produce("t", b"end")
        assert await take_until(subscription, b"end") == [], "nothing may be delivered at the old time"
        with pytest.raises(TooLate):
            await messages.move(ids[0], delay="1h")


async def test_a_message_keeps_its_id_through_moves(node: Serving, api: sandq.Client) -> None:
    await api.admin.create_topic("t")
    messages = api.messages("t")
    message_id = await api.produce("t", b"m", delay="1h", unique_key="u", headers={"a": 1})
    first = await messages.get(message_id)
    now_ms = node.broker.clock.now_ms()
    offset = await messages.move(message_id, deliver_at=now_ms + 2 * HOUR_MS)
    second = await messages.move(unique_key="u", delay="3h")
    assert offset != second != message_id
    for named in ({"id": message_id}, {"unique_key": "u"}, {"id": second}):
        found = await messages.get(**named)
        assert (found.id, found.offset, found.state, found.moves) == (message_id, second, "delayed", 2)
        assert (found.due_ms, found.created_ms) == (first.due_ms, first.created_ms)
        assert found.deliver_at_ms == sandq.offset_time_ms(second)
        assert found.moved_ms is not None and now_ms <= found.moved_ms <= found.deliver_at_ms - 3 * HOUR_MS
        assert (found.value, found.headers, found.unique_key) == (b"m", {"a": 1}, b"u")
    # a past time means now
    past = await messages.move(message_id, deliver_at=now_ms - HOUR_MS)
    assert now_ms <= sandq.offset_time_ms(past) <= node.broker.clock.now_ms()
    assert (await messages.get(message_id)).state == "ready"
    # A ready message may be delayed again. It leaves nothing in the ready queue.
    later = await messages.move(message_id, delay="1h")
    assert [(m.id, m.offset) async for m in messages.list()] == [(message_id, later)]
    assert await messages.cancel(message_id) == message_id
    assert await messages.cancel(message_id) == message_id


async def test_a_message_of_8_mib_is_moved_and_comes_intact(node: Serving, api: sandq.Client) -> None:
    await api.admin.create_topic("t")
    messages = api.messages("t")
    value = random.Random(8).randbytes(8 << 20)
    message_id = await api.produce("t", value, delay="1h", headers={"a": "b"})
    gone = await api.produce("t", value, delay="1h")
    before = (await api.admin.stats("t"))[0]["bytes"]
    await messages.move(message_id, delay="2h")
    assert (await api.admin.stats("t"))[0]["bytes"] == before
    assert (await messages.get(message_id)).value == value
    due_ms = node.broker.clock.now_ms() + 200
    offset = await messages.move(message_id, deliver_at=due_ms)
    assert await messages.cancel(gone) == gone
    async with api.subscribe("t", group="g") as subscription:
        (message,) = await take(subscription, 1)
        assert node.broker.clock.now_ms() >= due_ms
    assert (message.id, message.offset, message.headers) == (message_id, offset, {"a": "b"})
    assert message.value == value
    await waits_until_trimmed(api)
    assert (await api.admin.stats("t"))[0]["bytes"] == 0


# -- too late -------------------------------------------------------------------------------------------------------


@both_sizes
async def test_too_late_in_each_state(api: sandq.Client, partitions: int) -> None:
    await api.admin.create_topic("t", partitions=partitions, retention="1h", max_attempts=2)
    messages = api.messages("t")
    ids = {}
    for name in ("leased", "waiting", "acked", "dead"):
        ids[name] = await api.produce("t", name.encode(), unique_key=name)
    async with api.subscribe("t", group="g") as subscription:
        for message in await take(subscription, 4, ack=False):
            match message.value:
                case b"acked":
                    await message.ack()
                case b"waiting":
                    await message.nack(delay="1h")
                case b"dead":
                    await message.nack(delay=0)
        (again,) = await take(subscription, 1, ack=False)
        await again.nack(error="no")
        assert (again.value, again.attempt) == (b"dead", 2)
        assert await refusals(messages, ids["leased"], "leased") == {"leased"}
        assert await refusals(messages, ids["acked"], "acked") == {"acked"}
        assert await refusals(messages, ids["dead"], "dead") == {"dead"}
        states = {name: (await messages.get(ids[name])).state for name in ids}
        assert states == {name: name for name in ids}
        for state in ("leased", "waiting", "acked"):
            assert [message.id async for message in messages.list(state=state)] == [ids[state]]
    for missing in ("nobody", "else"):
        with pytest.raises(NotFound):
            await messages.cancel(unique_key=missing)
        with pytest.raises(NotFound):
            await messages.move(unique_key=missing, delay=1)


async def test_cancel_of_trimmed_message_is_too_late(api: sandq.Client) -> None:
    await api.admin.create_topic("t")
    messages = api.messages("t")
    acked = await api.produce("t", b"acked", unique_key="acked")
    async with api.subscribe("t", group="g") as subscription:
        await take(subscription, 1)
    await waits_until_trimmed(api)
    assert await refusals(messages, acked, "acked") == {"gone"}
    with pytest.raises(NotFound):
        await messages.get(acked)


async def test_cancel_of_dead_trimmed_message_is_too_late(api: sandq.Client) -> None:
    await api.admin.create_topic("t", max_attempts=1)
    messages = api.messages("t")
    message_id = await api.produce("t", b"m", unique_key="u")
    async with api.subscribe("t", group="g") as subscription:
        (message,) = await take(subscription, 1, ack=False)
        await message.nack(error="no")
    await waits_until_trimmed(api)
    assert await refusals(messages, message_id, "u") == {"dead"}
    found = await messages.get(message_id)
    assert (found.id, found.offset, found.state, found.value) == (message_id, message.offset, "dead", b"m")


async def test_cancel_after_lease_by_one_of_two_groups_is_too_late(api: sandq.Client) -> None:
    await api.admin.create_topic("t")
    messages = api.messages("t")
    async with api.subscribe("t", group="slow"):
        pass
    message_id = await api.produce("t", b"m", unique_key="u")
    async with api.subscribe("t", group="fast") as subscription:
        (message,) = await take(subscription, 1, ack=False)
        assert await refusals(messages, message_id, "u") == {"leased"}
        await message.ack()
    assert await refusals(messages, message_id, "u") == {"acked"}
    assert (await messages.get(message_id)).state == "ready", "the other group must still receive the message"
    async with api.subscribe("t", group="slow") as subscription:
        assert values(await take(subscription, 1)) == [b"m"]


async def test_message_given_back_can_be_cancelled(api: sandq.Client) -> None:
    await api.admin.create_topic("t")
    messages = api.messages("t")
    message_id = await api.produce("t", b"m", unique_key="u")
    async with api.subscribe("t", group="g") as subscription:
        await take(subscription, 1, ack=False)
    assert (await messages.get(message_id)).state == "ready"
    assert await messages.cancel(unique_key="u") == await messages.cancel(message_id) == message_id
    assert await api.leases("t", "g").take(10) == []


async def test_message_waiting_for_retry_can_be_cancelled_and_moved(timed: Serving, hand: HandClock) -> None:
    async with connected(timed) as api, with_topic(api), api.subscribe("t", group="g") as subscription:
        messages = api.messages("t")
        ids = [await api.produce("t", value) for value in (b"cancelled", b"moved", b"as it was")]
        hand.hold()
        first = await take(subscription, 3, ack=False)
        for message in first:
            await message.nack(delay="10m")
        assert await messages.cancel(ids[0]) == ids[0]
        assert await messages.move(ids[1], delay="20m") == ids[1], "the message must keep its offset"
        (group,) = (await messages.why(ids[1]))["groups"]
        assert (group["state"], group["attempt"], len(group["history"])) == ("waiting", 1, 1)
        hand.forward(600)
        assert values(await take(subscription, 1)) == [b"as it was"]
        hand.forward(599)
        assert (await messages.get(ids[1])).state == "waiting"
        hand.forward(1)
        (message,) = await take(subscription, 1)
        assert (message.value, message.id, message.attempt) == (b"moved", ids[1], 2)
