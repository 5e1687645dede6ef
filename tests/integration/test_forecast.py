"""How many messages are due when: as scheduled, and after cancels and moves."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

import sandq
from sandq.broker.leader.partition_leader import UPKEEP_PAUSE_MS
from sandq.node.running import Serving
from tests.support.nodes.hand_clock import HandClock
from tests.support.nodes.working import connected, take

LOOK_S = 0.005
UNITS_MS = {"second": 1000, "minute": 60_000, "hour": 3_600_000}
ASKED = [("second", 60), ("second", 3600), ("minute", 1), ("minute", 60), ("minute", 3000), ("hour", 24)]


@pytest.fixture
async def api(timed: Serving, hand: HandClock) -> AsyncIterator[sandq.Client]:
    """A node whose messages do not become due by themselves."""
    hand.hold()
    async with connected(timed) as client:
        yield client


@asynccontextmanager
async def time_passes(hand: HandClock) -> AsyncIterator[None]:
    """Advance the clock a little at each read inside the block, because a job pauses between two steps."""

    async def pass_time() -> None:
        while True:
            hand.forward(UPKEEP_PAUSE_MS / 1000)
            await trio.sleep(LOOK_S)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(pass_time)
        yield
        nursery.cancel_scope.cancel()


def expected(due_ms: list[int], now_ms: int, unit: str, count: int) -> tuple[list[tuple[int, int]], int]:
    """Return a forecast of messages that are all due after its first second."""
    unit_ms = UNITS_MS[unit]
    end_ms = now_ms // unit_ms * unit_ms + count * unit_ms
    buckets = Counter(at_ms // unit_ms * unit_ms for at_ms in due_ms if at_ms < end_ms)
    return sorted(buckets.items()), sum(at_ms >= end_ms for at_ms in due_ms)


async def check(api: sandq.Client, due_ms: list[int]) -> None:
    for unit, count in ASKED:
        told = await api.admin.forecast("t", unit, count)
        assert (told.buckets, told.later) == expected(due_ms, told.now_ms, unit, count), (unit, count)


async def test_forecast_of_fair_topic_counts_pending_messages(hand: HandClock, api: sandq.Client) -> None:
    """This also holds if a changed priority left the message in place."""
    start_ms = hand.now_ms() + 3_600_000
    await api.admin.create_topic("t", kind="fair", partitions=2)
    steps = [number % 7 * 60_000 for number in range(40)]
    ids = [
        await api.produce("t", b"m", deliver_at=start_ms + step_ms, tenant=f"t{step_ms % 3}", priority=step_ms % 5)
        for step_ms in steps
    ]
    await api.messages("t").set_priority(ids[0], priority=-9)
    await api.messages("t").cancel(ids[1])
    await check(api, [start_ms + step_ms for at, step_ms in enumerate(steps) if at != 1])


@pytest.mark.parametrize("partitions", [1, 4])
async def test_forecast_counts_pending_messages(hand: HandClock, api: sandq.Client, partitions: int) -> None:
    await api.admin.create_topic("t", partitions=partitions)
    start_ms = hand.now_ms() + 3_600_000  # later than all steps below, by this clock
    steps = [(number % 40) * 700 + (number % 7) * 3_600_000 + (number % 3) * 86_400_000 for number in range(600)]
    due: dict[str, int] = {}
    async with api.producer("t") as producer:
        receipts = []
        for number, step_ms in enumerate(steps):
            key = f"u{number}" if number % 5 == 0 else None
            receipt = await producer.send(b"m", deliver_at=start_ms + step_ms, unique_key=key)
            receipts.append((receipt, start_ms + step_ms))
        for receipt, at_ms in receipts:
            due[await receipt] = at_ms
    await check(api, list(due.values()))
    messages = api.messages("t")
    for number, message_id in enumerate(list(due)):
        if number % 4 == 0:
            await messages.cancel(message_id)
            del due[message_id]
        elif number % 4 == 1:
            due[message_id] = start_ms + 5_000_000 + number
            await messages.move(message_id, deliver_at=due[message_id])
    await check(api, list(due.values()))
    day_ms = start_ms + 86_400_000
    async with time_passes(hand):
        moved = (await messages.move_all(since=day_ms, shift="-2h")).done
    assert moved == sum(at_ms >= day_ms for at_ms in due.values())
    due = {message_id: at_ms - 7_200_000 if at_ms >= day_ms else at_ms for message_id, at_ms in due.items()}
    await check(api, list(due.values()))
    async with time_passes(hand):
        await messages.cancel_all(until=start_ms + 10_000_000)
    await check(api, [at_ms for at_ms in due.values() if at_ms >= start_ms + 10_000_000])
    async with time_passes(hand):
        await messages.cancel_all()
    await check(api, [])


async def test_due_messages_are_not_in_the_forecast(hand: HandClock, api: sandq.Client) -> None:
    await api.admin.create_topic("t")
    for number in range(10):
        await api.produce("t", b"%d" % number)
    later_ms = hand.now_ms() + 30_000
    await api.produce("t", b"later", deliver_at=later_ms)
    async with api.subscribe("t", group="g", credit=100) as subscription:
        await take(subscription, 10)
    told = await api.admin.forecast("t", "second", 60)
    assert [bucket for bucket in told.buckets if bucket[0] > told.now_ms] == [(later_ms // 1000 * 1000, 1)]
    assert told.later == 0
