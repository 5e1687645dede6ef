"""Tests of `subscription.gather`: lists of batches with a minimum number of messages."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from sandq.client.client import Client
from sandq.model.errors import ClosedError, InvalidRequest, InvalidTime
from tests.support.client.fake_server import FakeServer
from tests.support.waiting import until_holds

TOKEN = 5 << 16


def test_list_comes_once_enough_messages_have_arrived(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        async with client.subscribe("t", group="g") as subscription, anyio.create_task_group() as tasks:
            lists: list[list[list[bytes]]] = []
            begun = anyio.current_time()

            async def consume() -> None:
                async for batches in subscription.gather(5, max_wait="1m"):
                    lists.append([batch.values for batch in batches])
                    for batch in batches:
                        batch.ack()

            tasks.start_soon(consume)
            to = server.subscription()
            await until_holds(lambda: to.credit == 10_000)
            for number in range(2):
                server.deliver(to, [b"%d" % number] * 2, token=TOKEN + number)
                await anyio.sleep(10)
            assert not lists
            server.deliver(to, [b"2"] * 2, token=TOKEN + 2)
            await until_holds(lambda: len(server.acks) >= 1)
            assert lists == [[[b"0"] * 2, [b"1"] * 2, [b"2"] * 2]]
            assert anyio.current_time() - begun < 25, "the rest of the minute did not pass"
            tasks.cancel_scope.cancel()
        assert sum(len(ack.items) for ack in server.acks) == 3

    with_client(body)


def test_list_has_fewer_messages_once_the_first_has_waited(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        async with client.subscribe("t", group="g") as subscription:
            gathered = subscription.gather(5, max_wait="2s")
            server.deliver(server.subscription(), [b"a", b"b"], token=TOKEN)
            begun = anyio.current_time()
            (batch,) = await anext(gathered)
            assert batch.values == [b"a", b"b"] and 1.9 <= anyio.current_time() - begun <= 2.1
            # The wait begins with the first message, not with the call.
            await anyio.sleep(30)
            server.deliver(server.subscription(), [b"c"], token=TOKEN + 1)
            (batch,) = await anext(gathered)
            assert batch.values == [b"c"]

    with_client(body)


def test_messages_that_arrived_before_are_in_the_first_list(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        async with client.subscribe("t", group="g", credit=100) as subscription:
            server.deliver(server.subscription(), [b"a", b"b", b"c"], token=TOKEN)
            first = await anext(subscription)
            assert first.value == b"a"
            (batch,) = await anext(subscription.gather(2, max_wait="1m"))
            assert batch.values == [b"b", b"c"]
            batch.ack()
            await first.ack()

    with_client(body)


def test_two_tasks_share_the_lists(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        async with client.subscribe("t", group="g", credit=100) as subscription, anyio.create_task_group() as tasks:
            seen: list[bytes] = []

            async def consume() -> None:
                async for batches in subscription.gather(4, max_wait="1s"):
                    seen.extend(value for batch in batches for value in batch.values)

            for _ in range(2):
                tasks.start_soon(consume)
            for number in range(10):
                server.deliver(server.subscription(), [b"%d" % number] * 3, token=TOKEN + number)
                await anyio.sleep(0.3)
            await until_holds(lambda: len(seen) == 30)
            assert sorted(seen) == sorted(b"%d" % number for number in range(10) for _ in range(3))
            tasks.cancel_scope.cancel()

    with_client(body)


def test_end_of_the_subscription_ends_the_wait(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        async def consume() -> None:
            with pytest.raises(ClosedError):
                await anext(gathered)

        async with anyio.create_task_group() as tasks:
            async with client.subscribe("t", group="g") as subscription:
                gathered = subscription.gather(5, max_wait="1m")
                server.deliver(server.subscription(), [b"a"], token=TOKEN)
                await until_holds(lambda: subscription.has_arrived)
                tasks.start_soon(consume)
                await anyio.wait_all_tasks_blocked()
                begun = anyio.current_time()
            assert anyio.current_time() - begun < 10

    with_client(body)


def test_wrong_arguments_are_refused(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        async with client.subscribe("t", group="g", credit=100) as subscription:
            for wrong in (0, -1, 1.5, True, "5", 10**9):
                with pytest.raises(InvalidRequest, match=r"min_messages: an int within 1\.\."):
                    subscription.gather(wrong)  # type: ignore[arg-type]
            with pytest.raises(InvalidRequest, match="101 is more than the credit of the subscription, 100"):
                subscription.gather(101)
            with pytest.raises(InvalidRequest, match="max_wait: at most 60 s is expected, not '61s'"):
                subscription.gather(1, max_wait="61s")
            with pytest.raises(InvalidTime):
                subscription.gather(1, max_wait=-1)

    with_client(body)
