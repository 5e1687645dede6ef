"""Tests of batch consumers: a batch is one item on the wire, without work per message."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandq.client.client import Client
from sandq.client.consumer.ack_ranges import OFFSET_STEP, ranges_of
from sandq.client.consumer.subscription import Subscription
from sandq.model import offsets
from sandq.model.batch import Column
from sandq.model.errors import ClosedError, InvalidRequest, InvalidTime, LeaseLost, Overloaded
from sandq.protocol.frames import Type, encode_reply
from sandq.protocol.requests import Ack
from tests.support.client.fake_server import NOW_MS, FakeServer
from tests.support.client.helpers import take, take_batches
from tests.support.waiting import until_holds

TOKEN = 5 << 16


def test_batch_has_the_pushed_messages(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        async with client.subscribe("t", group="g") as subscription:
            subscribed = server.subscription()
            assert subscribed.credit == 10
            keys = {Column.KEY: [b"k", None, None]}
            server.deliver(subscribed, [b"a", b"b", b"c"], token=TOKEN, columns=keys, attempt=2, last=True)
            server.deliver(subscribed, [b"d", b"e", b"f", b"g"], token=TOKEN + 1, live=[[0, 1], [2, 2]], last=True)
            first, second = await take_batches(subscription, 2)
            await until_holds(lambda: subscribed.credit == 10_000 - 6)
            assert (len(first), first.values, first.keys) == (3, [b"a", b"b", b"c"], [b"k", None, None])
            assert (first.topic, first.partition, first.attempt) == ("t", 0, 2)
            assert [message.value for message in first.messages] == first.values
            assert first.messages[0].key == b"k" and first.lease_token == first.messages[0].lease_token
            assert (len(second), second.values, second.keys) == (3, [b"d", b"f", b"g"], [None] * 3)
            assert [message.value for message in second.messages] == second.values
            assert "of 3" in repr(second)
            await first.ack()
            await second.ack()
            assert subscribed.credit == 10_000 - 6, "few settled messages return no credit while no caller waits"
        assert [ack.items for ack in server.acks] == [[[TOKEN, None]], [[TOKEN + 1, None]]]

    with_client(body)


def test_batch_ack_sends_one_item(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        async with client.subscribe("t", group="g", credit=30_000) as subscription:
            subscribed = server.subscription()
            assert subscribed.credit == 30_000
            bases = [server.deliver(subscribed, [b"v"] * 1000, token=TOKEN) for _ in range(3)]
            batches = await take_batches(subscription, 3)
            for batch in batches[:2]:
                batch.ack()
            await batches[1].ack()  # again, but awaited
            (ack,) = server.acks
            assert ack.items == [[TOKEN, [[bases[0], 1000], [bases[1], 1000]]]]
            assert not [message for batch in batches for message in batch._chunk.events]
            assert await batches[2].extend("1m") > server.clock_ms()
            await batches[2].nack(delay="5s", error="no")
            assert server.nacks[0].items == [[TOKEN, [[bases[2], 1000]], 5000, "no"]]
            await batches[2].nack()
            batches[2].ack()  # the batch was settled, so the ack does nothing
            assert len(server.nacks) == 1
            with pytest.raises(InvalidRequest):
                batches[2].extend(0)
        with pytest.raises(ClosedError):
            batches[2].ack()

    with_client(body)


def test_batch_is_rejected_or_snoozed_completely(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        async with client.subscribe("t", group="g", credit=30_000) as subscription:
            bases = [server.deliver(server.subscription(), [b"v"] * 3, token=TOKEN) for _ in range(2)]
            first, second = await take_batches(subscription, 2)
            await first.dead("410 gone")
            with pytest.raises(InvalidRequest, match="delay and delay_ms: one of them"):
                second.nack(delay=1, delay_ms=1000)
            with pytest.raises(InvalidTime, match="delay_ms: a whole number of milliseconds"):
                second.messages[0].nack(delay_ms=1.5)
            await second.nack(delay_ms=1000, count=False)
            assert [item for nack in server.nacks for item in nack.items] == [
                [TOKEN, [[bases[0], 3]], None, "410 gone", True, None, 1],
                [TOKEN, [[bases[1], 3]], 1000, None, True, None, 2],
            ]
            with pytest.raises(InvalidRequest, match="given up already"):
                first.messages[0].ack()

    with_client(body)


def test_messages_that_were_not_begun_are_given_back(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        async with client.subscribe("t", group="g", credit=30_000) as subscription:
            bases = [server.deliver(server.subscription(), [b"v"] * 3, token=TOKEN) for _ in range(2)]
            first, second = await take_batches(subscription, 2)
            await first.give_back()
            await second.messages[0].give_back(delay="10s", error="the host is busy")
            with pytest.raises(InvalidTime):
                second.give_back(delay="-1s")
            assert [item for nack in server.nacks for item in nack.items] == [
                [TOKEN, [[bases[0], 3]], None, None, False],
                [TOKEN, [[bases[1], 1]], 10_000, "the host is busy", False],
            ]

    with_client(body)


def test_single_messages_of_a_batch_may_be_settled_first(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        async with client.subscribe("t", group="g", credit=100) as subscription:
            base = server.deliver(server.subscription(), [b"v"] * 10, token=TOKEN)
            (batch,) = await take_batches(subscription, 1)
            messages = batch.messages
            await messages[3].nack()
            messages[5].ack()
            await batch.ack()
            acked: set[bytes] = set().union(
                *(server.named(what) or set() for ack in server.acks for _, what in ack.items)
            )
            assert acked == {*offsets.run(base, 10)} - {offsets.shift(base, 3)}
            with pytest.raises(InvalidRequest, match="nacked already"):
                messages[3].ack()

    with_client(body)


def test_messages_and_batches_of_one_subscription(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        async with client.subscribe("t", group="g", credit=100) as subscription:
            base = server.deliver(server.subscription(), [b"a", b"b", b"c"], token=TOKEN)
            (message,) = await take(subscription, 1)
            (batch,) = await take_batches(subscription, 1)
            assert (message.value, batch.values) == (b"a", [b"b", b"c"])
            await batch.ack()
            assert server.acks[0].items == [[TOKEN, [[offsets.shift(base, 1), 2]]]]
            await message.ack()

    with_client(body)


def test_ack_of_batch_with_lost_lease_raises_lease_lost(with_client: Any, caplog: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        async with client.subscribe("t", group="g", credit=100) as subscription:
            base = server.deliver(server.subscription(), [b"v"] * 5, token=TOKEN)
            server.deliver(server.subscription(), [b"v"] * 5, token=TOKEN)
            first, second = await take_batches(subscription, 2)
            lost = [[offsets.shift(base, 2), 1]]
            server.script[Type.ACK].append(lambda to, frame: to.send(encode_reply(frame[1], [lost])))
            with pytest.raises(LeaseLost) as caught:
                await first.ack()
            assert caught.value.details["lease"] == first.lease_token
            with pytest.raises(LeaseLost):
                await first.ack()
            server.script[Type.ACK].append(lambda to, frame: to.send(encode_reply(frame[1], [[]])))
            second.ack()
        assert "5 acks came too late" in caplog.text
        assert "1 acks came too late" not in caplog.text  # the caller awaited the other ack

    with_client(body)


def test_batches_that_lapsed_are_not_given(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        async with client.subscribe("t", group="g", credit=10, lease="100ms", auto_extend=False) as subscription:
            subscribed = server.subscription()
            server.deliver(subscribed, [b"a"] * 5, token=TOKEN, lease_ms=100)
            (held,) = await take_batches(subscription, 1)
            server.deliver(subscribed, [b"b"] * 5, token=TOKEN, lease_ms=100)
            await until_holds(lambda: subscribed.credit == 10)
            server.deliver(subscribed, [b"c"], token=TOKEN + 1)
            (batch,) = await take_batches(subscription, 1)
            assert batch.values == [b"c"]
            await held.ack()  # the broker decides
            assert len(server.acks) == 1

    with_client(body)


def test_delivery_after_the_end_of_its_lease_is_dropped(with_client: Any) -> None:
    """A delayed push is dropped, because another consumer may have got the message."""

    async def body(server: FakeServer, client: Client) -> None:
        async with client.subscribe("t", group="g", credit=10, auto_extend=False) as subscription:
            subscribed = server.subscription()
            server.deliver(subscribed, [b"late"] * 5, token=TOKEN, lease_ms=-1000)
            server.deliver(subscribed, [b"in time"], token=TOKEN + 1)
            (batch,) = await take_batches(subscription, 1)
            assert batch.values == [b"in time"]
            await until_holds(lambda: subscribed.credit == 9)  # dropped messages use no credit

    with_client(body)


def test_a_lease_that_lapsed_and_is_pushed_again_lapses_again(with_client: Any) -> None:
    """Such a lease was once neither extended nor released, so its credit was lost."""

    async def body(server: FakeServer, client: Client) -> None:
        async with client.subscribe("t", group="g", credit=10, lease="100ms", auto_extend=False) as subscription:
            subscribed = server.subscription()
            for value in (b"a", b"b"):
                server.deliver(subscribed, [value] * 5, token=TOKEN, lease_ms=100)
                await until_holds(lambda: subscribed.credit == 5)
                await until_holds(lambda: subscribed.credit == 10)
            assert subscription is not None

    with_client(body)


def test_a_batch_is_acked_again_after_overload_and_a_cut(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        async with client.subscribe("t", group="g", credit=100) as subscription:
            base = server.deliver(server.subscription(), [b"v"] * 50, token=TOKEN, live=[[0, 20], [30, 20]])
            (batch,) = await take_batches(subscription, 1)
            server.script[Type.ACK] += [Overloaded("later"), lambda to, frame: to.cut()]
            await batch.ack()
            (ack,) = server.acks
            assert server.named(ack.items[0][1]) == {*offsets.run(base, 20), *offsets.run(offsets.shift(base, 30), 20)}

    with_client(body)


def test_several_tasks_share_the_batches(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        seen: list[bytes] = []

        async def worker(subscription: Subscription) -> None:
            with pytest.raises(ClosedError):
                async for batch in subscription.batches():
                    seen.extend(batch.values)
                    batch.ack()

        async with anyio.create_task_group() as tasks, client.subscribe("t", group="g", credit=100) as subscription:
            for _ in range(3):
                tasks.start_soon(worker, subscription)
            for number in range(9):
                server.deliver(server.subscription(), [b"%d" % number] * 3, token=TOKEN + number)
            await until_holds(lambda: len(seen) == 27)
        assert sorted(seen) == sorted(b"%d" % number for number in range(9) for _ in range(3))

    with_client(body)


BASE = int.from_bytes(offsets.pack(NOW_MS, 9, 1000, 3), "big")


@given(
    positions=st.sets(st.integers(0, 3000), min_size=1, max_size=400),
    later=st.sets(st.integers(0, 200_000), max_size=20),
)
def test_ranges_of_names_the_given_offsets(positions: set[int], later: set[int]) -> None:
    numbers = {BASE + place * OFFSET_STEP for place in positions} | {
        BASE + (1 << 80) + place * OFFSET_STEP for place in later
    }
    rows = ranges_of((number, 1) for number in sorted(numbers, reverse=True))
    named = FakeServer.named(rows)
    assert named == {number.to_bytes(16, "big") for number in numbers}
    Ack.parse([9, 1, 7, 3, [[TOKEN, rows]]])  # as the broker accepts it


def test_ranges_are_as_short_as_may_be() -> None:
    every_other = [(BASE + place * OFFSET_STEP, 1) for place in range(0, 1000, 2)]
    ((_, bitmap),) = ranges_of(every_other)
    assert isinstance(bitmap, bytes) and len(bitmap) == 125
    far_apart = [(BASE + place * OFFSET_STEP, 1) for place in range(0, 60_000, 5000)]
    assert [extent for _, extent in ranges_of(far_apart)] == [1] * 12
    assert [extent for _, extent in ranges_of([(BASE, 5), (BASE + 5 * OFFSET_STEP, 7)])] == [12]
    # Two dense ranges that are far apart become two bitmaps.
    other = [(number + 50_000 * OFFSET_STEP, count) for number, count in every_other]
    assert [len(extent) for _, extent in ranges_of(every_other + other)] == [125, 125]
    # Moved messages have their own due times.
    moved = [(BASE + (place << 80), 1) for place in range(5)]
    assert len(ranges_of(moved)) == 5


def test_scattered_acks_of_offsets_that_are_no_run_are_a_bitmap(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        async with client.subscribe("t", group="g", credit=100) as subscription:
            column = [offsets.pack(NOW_MS, 9, place * 2, 0) for place in range(64)]
            server.deliver(server.subscription(), [b"v"] * 64, token=TOKEN, column=b"".join(column))
            for message in (await take(subscription, 64))[::-2]:
                message.ack()
            await until_holds(lambda: server.acks)
            ((_, what),) = server.acks[0].items
            assert len(what) == 1 and server.named(what) == {*column[1::2]}

    with_client(body)


def test_a_batch_has_columns_of_priorities_and_tenants(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        server.add_topic("f", kind="fair")
        async with client.subscribe("f", group="g") as subscription:
            ranks = {Column.PRIORITY: [5, None, -1], Column.TENANT: [b"acme", b"shop", None]}
            server.deliver(server.subscription(), [b"a", b"b", b"c"], token=TOKEN, columns=ranks, live=[[1, 2]])
            server.deliver(server.subscription(), [b"d"], token=TOKEN)
            first, second = await take_batches(subscription, 2)
            assert (first.priorities, first.tenants) == ([0, -1], ["shop", None])
            assert (second.priorities, second.tenants) == ([0], [None])
            await first.nack(priority=9)
            assert server.nacks[0].items[0][4:] == [True, {"priority": 9}]
            second.ack()

    with_client(body)
