"""Tests of the number of prefetched messages: it follows the speed of settling. Also its effect on held messages."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.lowlevel

from sandq.client.client import Client
from sandq.client.consumer.credit import KEEP_S, MOST, Prefetch
from tests.support.client.fake_server import FakeServer
from tests.support.client.helpers import take
from tests.support.waiting import until_holds

TOKEN = 5 << 16


def settle(prefetch: Prefetch, per_s: int, seconds: float, start_s: float = 100.0) -> float:
    """Settle single messages at a rate. Return the time of the last message."""
    now_s = start_s
    for number in range(1, int(per_s * seconds) + 1):
        now_s = start_s + number / per_s
        prefetch.settled(1, now_s)
    return now_s


def test_slow_work_holds_nothing_more() -> None:
    prefetch = Prefetch()
    settle(prefetch, 10, 20)
    assert prefetch.extra == 0


def test_prefetch_follows_the_settling_speed() -> None:
    prefetch = Prefetch()
    settle(prefetch, 5000, 1)
    assert abs(prefetch.extra - 5000 * KEEP_S) < 10


def test_prefetch_is_limited() -> None:
    prefetch = Prefetch()
    settle(prefetch, 1_000_000, 0.2)
    assert prefetch.extra == MOST


def test_prefetch_falls_when_work_becomes_slow() -> None:
    prefetch = Prefetch()
    now_s = settle(prefetch, 20_000, 1)
    assert prefetch.extra > 300
    settle(prefetch, 5, 3, now_s)
    assert prefetch.extra == 0


def test_prefetch_is_zero_at_the_beginning() -> None:
    prefetch = Prefetch()
    assert not prefetch.settled(1000, 5.0) and prefetch.extra == 0, "the begin of the period is unknown"


def test_credit_is_returned_in_batches(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        async with client.subscribe("t", group="g", credit=100) as subscription:
            subscribed = server.subscription()
            server.deliver(subscribed, [b"v"] * 100, token=TOKEN, last=True)
            messages = await take(subscription, 100)
            for message in messages[:24]:
                await message.ack()
            assert subscribed.credit == 0
            await messages[24].ack()
            await until_holds(lambda: subscribed.credit == 25)
            await messages[25].ack()
            assert subscribed.credit == 25
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(take, subscription, 1)
                await until_holds(lambda: subscribed.credit == 26)
                server.deliver(subscribed, [b"more"], token=TOKEN + 1, last=True)

    with_client(body)


def test_messages_behind_slow_work_are_given_back(with_client: Any) -> None:
    """After many quick messages a handler is slow. Other consumers may get the messages that it has not begun."""

    async def body(server: FakeServer, client: Client) -> None:
        quick = 2000
        slow, begun = anyio.Event(), []

        async def handle(message: Any) -> None:
            begun.append(message.value)
            if len(begun) > quick:
                await slow.wait()

        async def run() -> None:
            await client.run("t", "g", handle, concurrency=2)

        server.auto = True
        async with client.producer("t") as producer:
            await producer.send_many([b"%d" % number for number in range(2 * quick)])
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await until_holds(lambda: len(begun) == quick + 2)

            def given_back() -> int:
                named = {item[0] for nack in server.nacks for item in nack.items if item[4:] == [False]}
                return sum(row.token in named for row in rows if row.state == "leased")

            rows = server.stored["t", 0]
            # Each message has its own lease here. The two begun messages stay held.
            await until_holds(lambda: sum(row.state == "leased" for row in rows) - given_back() == 2)
            assert given_back() > 2 and len(begun) == quick + 2
            slow.set()
            await until_holds(lambda: len(begun) > quick + 2)
            tasks.cancel_scope.cancel()

    with_client(body)


def test_messages_with_one_attempt_are_not_prefetched(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        server.auto = True
        server.topics["t"].settings["max_attempts"] = 1
        async with client.producer("t") as producer:
            await producer.send_many([b"%d" % number for number in range(500)])
        done = 0
        async with client.subscribe("t", group="g") as subscription:
            async for message in subscription:
                await message.ack()
                done += 1
                assert sum(row.state == "leased" for row in server.stored["t", 0]) <= 10
                if done == 500:
                    break

    with_client(body)
