"""Jobs of the broker cancel and move many pending messages in every partition."""

from __future__ import annotations

import secrets
from functools import partial
from typing import Any

import pytest
import trio

import sandq
from sandq.errors import InvalidRequest
from sandq.node.running import Serving
from sandq.protocol.frames import Type
from tests.integration.conftest import Dial
from tests.support.nodes.hand_clock import HandClock, Onward
from tests.support.nodes.working import connected, stored_messages, take, take_until, with_topic
from tests.support.waiting import PATIENCE_S, until_answer

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
EVERYTHING: dict[str, Any] = {"from_ms": 0, "until_ms": 2**48 - 1, "dry_run": False}

both_sizes = pytest.mark.parametrize("partitions", [1, 4])


async def schedule(api: sandq.Client, start_ms: int, count: int) -> list[str]:
    """Produce messages that are due one second apart. Every fourth has a unique key, the others have one of three
    keys."""
    async with api.producer("t") as producer:
        receipts = [
            await producer.send(
                b"%d" % number,
                deliver_at=start_ms + number * 1000,
                unique_key=f"u{number}" if number % 4 == 0 else None,
                key=None if number % 4 == 0 else f"k{number % 4}-{number % 10}",
            )
            for number in range(count)
        ]
        return [await receipt for receipt in receipts]


async def listed(api: sandq.Client, **options: Any) -> dict[str, int]:
    return {message.id: message.deliver_at_ms async for message in api.messages("t").list(**options)}


@both_sizes
async def test_cancelling_a_window(node: Serving, api: sandq.Client, partitions: int) -> None:
    await api.admin.create_topic("t", partitions=partitions)
    messages = api.messages("t")
    start_ms = node.broker.clock.now_ms() + HOUR_MS
    ids = await schedule(api, start_ms, 1500)
    window: dict[str, Any] = {"since": start_ms + 100_000, "until": start_ms + 1_300_000}
    assert await messages.cancel_all(**window, dry_run=True) == (1200, 0, 0)
    assert await stored_messages(api) == 1500
    reported: list[sandq.JobResult] = []
    assert await messages.cancel_all(**window, progress=reported.append) == (1200, 1200, 0)
    assert reported == sorted(reported)
    assert reported[-1] == (1200, 1200, 0)
    assert list(await listed(api)) == ids[:100] + ids[1300:]
    assert await messages.cancel_all(**window) == (0, 0, 0)
    # The unique keys of cancelled messages are free again.
    await api.produce("t", b"again", unique_key="u1200", delay="1h")
    assert await messages.cancel_all() == (301, 301, 0)
    assert await stored_messages(api) == 0
    assert (await api.admin.stats("t"))[0]["bytes"] == 0


@both_sizes
async def test_cancelling_by_a_prefix_of_the_key(node: Serving, api: sandq.Client, partitions: int) -> None:
    await api.admin.create_topic("t", partitions=partitions)
    messages = api.messages("t")
    await schedule(api, node.broker.clock.now_ms() + HOUR_MS, 1200)
    assert await messages.cancel_all(key_prefix="k1", dry_run=True) == (300, 0, 0)
    assert await messages.cancel_all(key_prefix=b"k1") == (300, 300, 0)
    assert await messages.cancel_all(key_prefix="nobody") == (0, 0, 0)
    left = [message.key async for message in messages.list()]
    assert len(left) == 900
    found = [message.unique_key async for message in messages.list(unique_key_prefix="u11", limit=200)]
    assert found and all(key is not None and key.startswith(b"u11") for key in found)
    assert await messages.move_all(unique_key_prefix="u11", shift="1s") == (len(found), len(found), 0)
    assert await messages.cancel_all(unique_key_prefix="u11") == (len(found), len(found), 0)
    assert [message async for message in messages.list(unique_key_prefix="u11")] == []
    assert not any(key is not None and key.startswith(b"k1") for key in left)


@both_sizes
async def test_moving_a_window_by_a_shift(node: Serving, api: sandq.Client, partitions: int) -> None:
    await api.admin.create_topic("t", partitions=partitions)
    messages = api.messages("t")
    start_ms = node.broker.clock.now_ms() + DAY_MS
    ids = await schedule(api, start_ms, 1500)
    until_ms = start_ms + 1_200_000
    assert await messages.move_all(until=until_ms, shift="1h", dry_run=True) == (1200, 0, 0)
    # The target time is within the selected window: moved messages are not moved again.
    assert await messages.move_all(until=until_ms, shift="10m") == (1200, 1200, 0)
    expected = {message_id: start_ms + number * 1000 for number, message_id in enumerate(ids)}
    expected |= {message_id: due_ms + 600_000 for message_id, due_ms in list(expected.items())[:1200]}
    assert await listed(api) == expected
    assert await messages.move_all(key_prefix="k2", shift="-1h") == (375, 375, 0)
    expected |= {message_id: expected[message_id] - HOUR_MS for message_id in ids[2::4]}
    assert await listed(api) == expected
    assert {message.moves async for message in messages.list()} == {0, 1, 2}
    for number in (0, 4, 1400):
        assert (await messages.get(unique_key=f"u{number}")).id == ids[number]


@both_sizes
async def test_moving_to_an_instant(timed: Serving, hand: HandClock, partitions: int) -> None:
    async with (
        connected(timed) as api,
        with_topic(api, partitions=partitions, lease="1h"),
        api.subscribe("t", group="g", credit=5000) as subscription,
    ):
        start_ms = hand.now_ms() + HOUR_MS
        ids = await schedule(api, start_ms, 1500)
        due_ms = hand.now_ms() + 60_000
        assert await api.messages("t").move_all(to=due_ms, until=start_ms + 1_000_000) == (1000, 1000, 0)
        hand.forward(61)
        got = await take(subscription, 1000, ack=False)
        assert {message.id for message in got} == set(ids[:1000])
        assert {message.deliver_at_ms for message in got} == {due_ms}
        # Moved into the past means due now. Leased messages were too late.
        assert await api.messages("t").move_all(shift="-7d") == (500, 500, 1000)
        rest = await take(subscription, 500)
        assert {message.id for message in rest} == set(ids[1000:])
        for message in got:
            message.ack()
        await api.produce("t", b"last")
        assert await take_until(subscription, b"last") == []


async def test_leased_messages_are_counted_as_too_late(node: Serving, api: sandq.Client) -> None:
    await api.admin.create_topic("t", retention="1h")
    messages = api.messages("t")
    for number in range(30):
        await api.produce("t", b"%d" % number, delay="1h" if number >= 20 else 0)
    async with api.subscribe("t", group="g", credit=10) as subscription:
        acks = [message.ack() for message in (await take(subscription, 10, ack=False))[:5]]
        for ack in acks:  # ack them together, so that their credit is returned in one frame
            await ack
        await until_answer(lambda: messages_in(api, "leased"), lambda count: count == 10)
        assert await messages.cancel_all() == (15, 15, 15)
    assert await stored_messages(api) == 15


async def messages_in(api: sandq.Client, state: str) -> int:
    return len([1 async for _ in api.messages("t").list(state=state)])


async def test_two_times_or_none_are_refused(api: sandq.Client) -> None:
    await api.admin.create_topic("t")
    wrong: list[dict[str, Any]] = [{}, {"to": 1_900_000_000_000, "shift": "1h"}]
    for times in wrong:
        with pytest.raises(InvalidRequest):
            await api.messages("t").move_all(**times)


async def test_bulk_calls_with_an_empty_filter_are_refused(api: sandq.Client) -> None:
    await api.admin.create_topic("t")
    await api.produce("t", b"x", key="k", delay="1h")
    messages, dead = api.messages("t"), api.dead("t", "g")
    for name in ("key_prefix", "unique_key_prefix"):
        for call in (messages.cancel_all, partial(messages.move_all, shift="1h")):
            for dry_run in (False, True):
                with pytest.raises(InvalidRequest, match=f"{name}: it is empty"):
                    await call(**{name: ""}, dry_run=dry_run)
    for settle in (dead.redrive, dead.purge):
        for which in ({"key_prefix": b""}, {"error": ""}):
            with pytest.raises(InvalidRequest, match=next(iter(which))):
                await settle(**which)
    assert len([1 async for _ in messages.list()]) == 1


async def test_a_job_is_begun_once_and_can_be_stopped(timed: Serving, hand: HandClock, dial: Dial) -> None:
    """On the wire, the same id is the same job; a stopped one keeps its progress."""
    hand.hold()
    client = await dial(timed)
    async with connected(timed) as api, with_topic(api, max_attempts=1):
        ids = await bury(api, 40)
        job_id = secrets.token_bytes(16)
        arguments = EVERYTHING | {"group": "g", "reason": None, "rate": 10}
        first = (await client.call(Type.JOB_START, "t", 0, job_id, "redrive", arguments))[2]
        again = (await client.call(Type.JOB_START, "t", 0, job_id, "redrive", arguments))[2]
        assert (first["state"], first["started_ms"]) == ("running", again["started_ms"])

        onward = Onward(hand, 0.1)

        async def status() -> dict[str, Any]:
            found: dict[str, Any] = (await client.call(Type.JOB_STATUS, "t", 0, job_id))[2]
            onward.saw(found["done"])
            return found

        await until_answer(status, lambda job: job["done"] >= 3)
        stopped = (await client.call(Type.JOB_STOP, "t", 0, job_id))[2]
        assert (stopped["state"], stopped["finished_ms"] >= stopped["started_ms"]) == ("stopped", True)
        done = stopped["done"]
        assert 3 <= done <= (stopped["finished_ms"] - stopped["started_ms"]) * 10 / 1000 + 1, (
            "the job must keep its rate"
        )
        # Another job takes the rest; the stopped one stays as it is.
        hand.forward(60)
        hand.run()
        assert await api.dead("t", "g").redrive() == (40 - done, 40 - done, 0)
        assert (await status()) == stopped
        async with api.subscribe("t", group="g", credit=40) as subscription:
            assert {message.id for message in await take(subscription, 40)} == set(ids)


async def test_leaving_a_job_stops_it(timed: Serving, hand: HandClock) -> None:
    hand.hold()
    async with connected(timed) as api, with_topic(api, max_attempts=1):
        await bury(api, 100)
        dead = api.dead("t", "g")
        onward, done = Onward(hand, 0.1), 0
        with trio.fail_after(PATIENCE_S), trio.CancelScope() as scope:

            def progress(result: sandq.JobResult) -> None:
                nonlocal done
                done = result.done
                onward.saw(result)
                if result.done >= 5:
                    scope.cancel()

            await dead.redrive(rate=50, progress=progress)
        assert scope.cancelled_caught
        left = (await dead.counts())["nacked"]
        assert 0 < left <= 100 - done
        # A job that still ran would change something every second.
        for _ in range(3):
            hand.forward(1)
            await api.produce("t", b"later", delay="1h")
        assert (await dead.counts())["nacked"] == left


async def bury(api: sandq.Client, count: int) -> list[str]:
    """Let messages of group "g" die by their last nack. Return their ids."""
    async with api.producer("t") as producer:
        ids = await (await producer.send_many([b"%d" % number for number in range(count)]))
    async with api.subscribe("t", group="g", credit=count) as subscription:
        for message in await take(subscription, count, ack=False):
            message.nack()
    return ids
