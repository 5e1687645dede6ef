"""Tests of the embedded broker under an event loop of trio or asyncio."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import anyio.to_thread
import pytest

import sandq
import sandq.testing
from sandq.errors import ClosedError, InvalidRequest, LeaseLost
from sandq.testing import AsyncBroker
from tests.support.waiting import PATIENCE_S

START = datetime(2030, 1, 1, tzinfo=UTC)
Test = Callable[[AsyncBroker], Any]
HASTY = {"patience": "100ms"}
"""A short time limit for tests that hold a message on purpose."""


@pytest.fixture(params=["trio", "asyncio"])
def run(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Run an async function with a broker, under one event loop or the other."""

    def run(test: Test, **options: Any) -> None:
        async def main() -> None:
            with anyio.fail_after(PATIENCE_S):
                async with sandq.testing.broker(**{"patience": "1h", **options}) as b:
                    await test(b)

        anyio.run(main, backend=request.param)

    return run


def test_handlers_run_at_their_time(run: Callable[..., None]) -> None:
    async def test(b: AsyncBroker) -> None:
        await b.create_topic("t")
        seen: list[tuple[bytes, timedelta]] = []

        async def handle(message: sandq.Message) -> None:
            seen.append((message.value, b.now() - START))

        async with b.client() as client, anyio.create_task_group() as tasks:
            tasks.start_soon(client.run, "t", "g", handle)
            await client.produce("t", b"day", delay="1d")
            await client.produce("t", b"hour", delay="1h")
            await b.advance("59m")
            assert seen == []
            await b.advance("30d")
            assert seen == [(b"hour", timedelta(hours=1)), (b"day", timedelta(days=1))]
            assert b.now() == START + timedelta(days=30, minutes=59)
            tasks.cancel_scope.cancel()
        assert await b.messages("t") == []

    run(test)


def test_a_month_of_retries_chains_and_leases_that_run_out(run: Callable[..., None]) -> None:
    async def test(b: AsyncBroker) -> None:
        backoff = {"kind": "fixed", "first": "6h", "cap": "6h", "jitter_percent": 0}
        await b.create_topic("t", max_attempts=5, backoff=backoff, lease="1h")
        seen: list[tuple[bytes, int, float]] = []
        stuck = anyio.Event()

        async def handle(message: sandq.Message) -> None:
            seen.append((message.value, message.attempt, (b.now() - START) / timedelta(hours=1)))
            if message.value == b"tick":
                await client.produce("t", b"tick", delay="1d")
            elif message.value == b"hangs" and message.attempt == 1:
                await stuck.wait()
            elif message.attempt < 3:
                raise ValueError("no")

        async with b.client() as client, anyio.create_task_group() as tasks:
            tasks.start_soon(client.run, "t", "g", handle)
            await client.produce("t", b"tick")
            await client.produce("t", b"fails", delay="36h")
            await client.produce("t", b"hangs", delay="60h")
            await b.advance("30d")
            stuck.set()
            tasks.cancel_scope.cancel()
        assert [at for value, _, at in seen if value == b"tick"] == [24 * day for day in range(31)]
        assert [(n, at) for value, n, at in seen if value == b"fails"] == [(1, 36), (2, 42), (3, 48)]
        # The lease of an hour expired, and six hours later the message came again. The second attempt fails.
        assert [(n, at) for value, n, at in seen if value == b"hangs"] == [(1, 60), (2, 67), (3, 73)]
        assert [at for _, _, at in seen] == sorted(at for _, _, at in seen)

    run(test, **HASTY)


def test_handlers_that_sleep_or_use_threads_are_waited_for(run: Callable[..., None]) -> None:
    async def test(b: AsyncBroker) -> None:
        await b.create_topic("t")
        seen: list[float] = []

        async def handle(message: sandq.Message) -> None:
            if message.value == b"sleeps":
                await anyio.sleep(0.03)
            else:
                await anyio.to_thread.run_sync(threading.Event().wait, 0.03)
            seen.append((b.now() - START) / timedelta(seconds=1))

        async with b.client() as client, anyio.create_task_group() as tasks:
            tasks.start_soon(client.run, "t", "g", handle)
            await client.produce("t", b"sleeps", delay="1s")
            await client.produce("t", b"thread", delay="2s")
            await b.advance("1h")
            assert seen == [1, 2]
            tasks.cancel_scope.cancel()

    run(test)


def test_a_subscription_that_is_read_after_the_advance(run: Callable[..., None]) -> None:
    async def test(b: AsyncBroker) -> None:
        await b.create_topic("t", lease="30s")
        async with b.client() as client, client.subscribe("t", group="g") as subscription:
            await client.produce("t", b"x", delay="3d")
            await b.advance("3d")
            message = await anext(subscription)
            assert message.deliver_at_ms == b.now_ms()
            await message.ack()
            await client.produce("t", b"y", delay="1s")
            await b.advance("1s")
            message = await anext(subscription)
            await b.advance("31s")
            with pytest.raises(LeaseLost):
                await message.ack()

    run(test, **HASTY)


def test_broker_returns_messages_and_dead_letters(run: Callable[..., None]) -> None:
    async def test(b: AsyncBroker) -> None:
        await b.create_topic("t", max_attempts=1, partitions=2)
        async with b.client() as client:
            for n in range(4):
                await client.produce("t", b"%d" % n, key=b"%d" % n, delay=f"{n}h")
            await b.advance("1h")
            assert [(m.value, m.state) for m in await b.messages("t")] == [
                (b"0", "ready"),
                (b"1", "ready"),
                (b"2", "delayed"),
                (b"3", "delayed"),
            ]
            (first, _) = await client.leases("t", "g").take(max=2)
            assert [m.value for m in await b.pending("t")] == [b"2", b"3"]
            await client.leases("t", "g").nack([first])
            assert [letter.value for letter in await b.dead("t", "g")] == [first.value]
            assert [m.value for m in await b.messages("t", "delayed")] == [b"2", b"3"]

    run(test)


def test_blocking_api_is_refused_under_an_event_loop(run: Callable[..., None]) -> None:
    async def test(b: AsyncBroker) -> None:
        with sandq.testing.broker() as blocking:
            for call in (
                lambda: blocking.advance("1s"),
                lambda: blocking.messages("t"),
                lambda: blocking.dead("t", "g"),
                lambda: blocking.create_topic("t"),
                lambda: blocking.wait_for_consumers("t", "g"),
            ):
                with pytest.raises(InvalidRequest, match="async with"):
                    call()
            assert blocking.now_ms() == b.now_ms()
            await blocking.for_async().advance("1s")
            assert blocking.now_ms() == b.now_ms() + 1000

    run(test)


def test_cancelled_in_the_middle_it_leaves_no_thread_behind(run: Callable[..., None]) -> None:
    async def test(b: AsyncBroker) -> None:
        with anyio.CancelScope() as scope:
            async with sandq.testing.broker() as other:
                await other.create_topic("t")
                async with other.client() as client, client.subscribe("t", group="g"):
                    scope.cancel()
                    await anyio.sleep_forever()
        assert [thread.name for thread in threading.enumerate()].count("sandq-testing") == 1
        with pytest.raises(ClosedError):
            await other.advance("1s")

    run(test)


def test_failing_test_reports_its_own_error(run: Callable[..., None]) -> None:
    async def test(b: AsyncBroker) -> None:
        async with b.client() as client:
            await b.create_topic("t")
            await client.produce("t", b"x")
            raise ZeroDivisionError

    with pytest.raises((ZeroDivisionError, ExceptionGroup)) as raised:
        run(test)
    error: BaseException = raised.value
    while isinstance(error, BaseExceptionGroup):
        (error,) = error.exceptions
    assert isinstance(error, ZeroDivisionError)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("sandq")]
