"""A group seeks while its consumers are working."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
import trio

import sandq
from sandq.errors import LeaseLost
from sandq.model import offsets
from sandq.node import run_node
from sandq.node.running import Serving
from sandq.protocol.frames import Type
from tests.support.nodes.hand_clock import HandClock
from tests.support.nodes.raw_client import RawClient, values_of
from tests.support.nodes.small_node import small_config
from tests.support.nodes.working import connected, take, take_until, values, with_topic
from tests.support.waiting import PATIENCE_S, until_answer

both_sizes = pytest.mark.parametrize("partitions", [1, 3])


async def fill(api: sandq.Client, count: int, partitions: int, first: int = 0) -> list[str]:
    return [
        await api.produce("t", b"%d" % number, partition=number % partitions) for number in range(first, first + count)
    ]


@both_sizes
async def test_back_to_the_beginning(api: sandq.Client, partitions: int) -> None:
    await api.admin.create_topic("t", partitions=partitions, delete_on_ack=False, max_attempts=2)
    ids = await fill(api, 12, partitions)
    async with api.subscribe("t", group="g", credit=100) as subscription:
        got = await take(subscription, 12, ack=False)
        for message in got[:3]:
            await message.ack()
        for message in got[3:6]:
            await message.nack(delay="1h")
        await got[6].nack(delay=0)
        (again,) = await take(subscription, 1, ack=False)
        await again.nack(error="dead")
        assert await api.dead("t", "g").counts() == {"nacked": 1}
        cursors = await api.admin.seek_group("t", "g", "earliest")
        assert sorted(cursors) == list(range(partitions))
        # Acked, waiting, leased and dead messages are all delivered again with new leases, as first attempts.
        second = await take(subscription, 12, ack=False)
        assert {message.id for message in second} == set(ids)
        assert {message.attempt for message in second} == {1}
        for message in got[7:]:
            with pytest.raises(LeaseLost):
                await message.ack()
        assert await api.dead("t", "g").counts() == {}
        for message in second:
            await message.ack()
        await api.produce("t", b"last")
        assert await take_until(subscription, b"last") == []
    rows = await api.admin.groups("t")
    assert sum(row["leased"] + row["waiting"] + row["dead"] + row["ready"] for row in rows) == 0


@both_sizes
async def test_forward_to_the_end(timed: Serving, hand: HandClock, partitions: int) -> None:
    async with connected(timed) as api, with_topic(api, partitions=partitions, delete_on_ack=False):
        await fill(api, 30, partitions)
        pending = await api.produce("t", b"pending", delay="10s")
        async with api.subscribe("t", group="g", credit=6) as subscription:
            got = await take(subscription, 6, ack=False)
            await got[0].nack(delay="5s")
            got += await take(subscription, 1, ack=False)
            await api.admin.seek_group("t", "g", "latest")
            for message in got[1:]:
                with pytest.raises(LeaseLost):
                    await message.ack()
            # Skipped messages are finished. Delayed messages are not skipped.
            await api.produce("t", b"last", delay="15s")
            hand.forward(20)
            assert [message.id for message in await take_until(subscription, b"last")] == [pending]


@both_sizes
async def test_seek_to_time_and_to_offset(node: Serving, api: sandq.Client, partitions: int) -> None:
    await api.admin.create_topic("t", partitions=partitions, delete_on_ack=False)
    old = await fill(api, 6, partitions)
    newest_ms = max(sandq.offset_time_ms(offset) for offset in old)

    async def now() -> int:
        return node.broker.clock.now_ms()

    middle_ms = await until_answer(now, lambda now_ms: now_ms > newest_ms + 1)
    young = await fill(api, 6, partitions, first=6)
    async with api.subscribe("t", group="g", credit=100) as subscription:
        await take(subscription, 12)
        await api.admin.seek_group("t", "g", middle_ms)
        assert {message.id for message in await take(subscription, 6)} == set(young)
        # An offset belongs to one partition: the cursors of the others stay.
        cursors = await api.admin.seek_group("t", "g", old[1])
        chosen = 1 % partitions
        assert list(cursors) == [chosen]
        expected = {offset for offset in old + young if offsets.unpack(sandq.offset_bytes(offset)).partition == chosen}
        expected = {offset for offset in expected if offset >= old[1]}
        assert {message.id for message in await take(subscription, len(expected))} == expected
        await api.produce("t", b"last")
        assert await take_until(subscription, b"last") == []


async def test_back_and_forth_under_load(api: sandq.Client, node: Serving) -> None:
    """After the last seek, every message is delivered again, and none twice."""
    await api.admin.create_topic("t", partitions=2, delete_on_ack=False)
    ids = set(await fill(api, 200, 2))
    acked: list[tuple[str, str]] = []
    last_seek = False

    async def work() -> None:
        async with connected(node) as client, client.subscribe("t", group="g", credit=20) as subscription:
            async for message in subscription:
                begun_after = last_seek
                with suppress(LeaseLost):
                    await message.ack()
                    if begun_after:
                        acked.append((message.id, message.lease_token))

    async def left() -> int:
        return sum(row["ready"] + row["leased"] + row["waiting"] for row in await api.admin.groups("t"))

    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(work)
            # The group exists once its first subscribe has completed.
            await until_answer(lambda: api.admin.groups("t"), lambda rows: len(rows) == 2)
            for number in range(9):
                await trio.sleep(0.03)
                await api.admin.seek_group("t", "g", "earliest" if number % 2 else "latest")
            last_seek = True
            await api.admin.seek_group("t", "g", "earliest")
            await until_answer(left, lambda count: count == 0)
            nursery.cancel_scope.cancel()
    assert {message_id for message_id, _ in acked} == ids
    assert len(set(acked)) == len(acked), "no message may be delivered twice under one lease"
    async with api.subscribe("t", group="g") as subscription:
        await api.produce("t", b"last")
        assert await take_until(subscription, b"last") == []


async def test_a_lease_that_was_not_pushed_yet_costs_no_credit(tmp_path: Path) -> None:
    """A lease is granted shortly before the message is due, and a seek follows before that time. No consumer gets the
    message, and it uses no credit."""
    hand = HandClock()
    config = small_config(tmp_path, DELIVERY__LEASE_AHEAD="50ms")
    async with run_node(config, clock=hand.guarded()) as node, connected(node) as api:
        await api.admin.create_topic("t")
        raw = await RawClient.connect(node.client_port)
        async with raw.stream:
            await raw.subscribe(credit=1)
            hand.hold()
            due_ms = hand.now_ms() + 40
            await api.produce("t", b"ahead", deliver_at=due_ms)

            async def leased() -> int:
                return int((await api.admin.groups("t"))[0]["leased"])

            await until_answer(leased, lambda count: count == 1)
            await raw.call(Type.GROUP_SEEK, "t", "g", due_ms + 1)
            assert await leased() == 0
            hand.run()
            hand.forward(1)
            await api.produce("t", b"next")
            with trio.fail_after(PATIENCE_S):
                assert values_of(await raw.push()) == [b"next"]


async def test_a_seek_takes_no_more_than_it_should(api: sandq.Client) -> None:
    """Seek while there is no message, and twice in a row."""
    await api.admin.create_topic("t")
    async with api.subscribe("t", group="g") as subscription:
        for _ in range(2):
            for to in ("earliest", "latest"):
                await api.admin.seek_group("t", "g", to)
        await api.produce("t", b"m")
        assert values(await take(subscription, 1)) == [b"m"]
