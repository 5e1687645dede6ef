"""Tests of `client.run`: the outcome of messages, the concurrency, and the shutdown."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any

import anyio
import anyio.from_thread
import anyio.lowlevel
import pytest

import sandq
from sandq.client.client import Client
from sandq.client.consumer.end_rules import failure_text
from sandq.client.consumer.message import Message
from sandq.client.consumer.threaded import Message as ThreadedMessage
from sandq.client.consumer.worker import check_options
from sandq.model import offsets
from sandq.model.errors import ClosedError, InvalidRequest, InvalidTime, UnknownTopic
from sandq.model.limits import FIXED
from sandq.protocol.frames import Type, encode_error, encode_reply
from tests.support.client.fake_server import FakeServer
from tests.support.client.helpers import running, subscribed
from tests.support.waiting import PATIENCE_S, until_holds

TOKEN = 5 << 16


async def produce(client: Client, *values: bytes) -> None:
    async with client.producer("t") as producer:
        await producer.send_many(list(values))


def states(server: FakeServer) -> dict[bytes, str]:
    return {row.value: row.state for rows in server.stored.values() for row in rows}


def nack_texts(server: FakeServer) -> list[tuple[int | None, str | None]]:
    return [(item[2], item[3]) for nack in server.nacks for item in nack.items]


def test_handler_result_settles_the_message(with_client: Any, caplog: Any) -> None:
    seen: list[bytes] = []

    async def handler(message: Message) -> None:
        seen.append(message.value)
        match message.value:
            case b"bad":
                raise ValueError("no such account")
            case b"later":
                raise sandq.Retry("5m", "out of stock")
            case b"later, because":
                raise sandq.Retry(7) from KeyError("shelf")
            case b"in a group":
                raise ExceptionGroup("several", [ExceptionGroup("inner", [OSError("disk"), ValueError("x")])])
            case b"own ack":
                await message.ack()
                raise RuntimeError("after its own ack")
            case b"own nack":
                message.nack(delay=3, error="by itself")

    async def body(server: FakeServer, client: Client) -> None:
        server.auto = True
        await produce(
            client, b"fine", b"bad", b"later", b"later, because", b"in a group", b"own ack", b"own nack", b"z"
        )
        async with running(client, handler, concurrency=1):
            await until_holds(lambda: states(server)[b"z"] == "acked" and len(nack_texts(server)) == 5)
        assert {value for value, state in states(server).items() if state == "acked"} == {b"fine", b"own ack", b"z"}
        assert sorted(nack_texts(server), key=str) == sorted(
            [
                (None, "ValueError: no such account"),
                (300_000, "out of stock"),
                (7000, "KeyError: 'shelf'"),
                (None, "OSError: disk (and 1 more)"),
                (3000, "by itself"),
            ],
            key=str,
        )
        assert len(seen) == 8, "each message was handled once"

    with_client(body)
    failed = [record for record in caplog.records if record.exc_info]
    assert [record.exc_info[0] for record in failed] == [ValueError, ExceptionGroup, RuntimeError]
    assert all(record.name == "sandq.client" for record in failed)


def test_a_handler_gives_messages_up_and_snoozes_them(with_client: Any, caplog: Any) -> None:
    async def handler(message: Message) -> None:
        match message.value:
            case b"gone":
                raise sandq.Dead("410 gone")
            case b"too many":
                raise sandq.Retry("1m", "429", count=False)
            case b"bad":
                raise ValueError("never right")
            case b"down":
                raise ConnectionError("refused")
            case b"own":
                await message.dead("by itself")
                raise ConnectionError("after its own end")

    async def body(server: FakeServer, client: Client) -> None:
        server.auto = True
        await produce(client, b"gone", b"too many", b"bad", b"down", b"own")
        async with running(client, handler, retry_on=OSError, dead_on=(KeyError,)):
            await until_holds(lambda: len(nack_texts(server)) == 5)
        items = sorted((item[2:] for nack in server.nacks for item in nack.items), key=lambda item: str(item[1]))
        assert items == [
            [None, "410 gone", True, None, 1],
            [60_000, "429", True, None, 2],
            [None, "ConnectionError: refused"],
            [None, "ValueError: never right", True, None, 1],
            [None, "by itself", True, None, 1],
        ]

    with_client(body)
    assert {type(record.exc_info[1]) for record in caplog.records if record.exc_info} == {ValueError, ConnectionError}
    assert "raised Dead: the message is dead: 410 gone" in caplog.text
    assert "failed, and the message is dead: ValueError: never right" in caplog.text


def test_a_handler_that_takes_too_long_is_cancelled_and_its_message_nacked(with_client: Any, caplog: Any) -> None:
    ended: list[bytes] = []

    async def handler(message: Message) -> None:
        try:
            if message.value != b"fast":
                await anyio.sleep_forever()
        except BaseException:
            if message.value != b"swallows it":
                raise
        finally:
            ended.append(message.value)
            if message.value == b"fails then":
                raise OSError("no more disk")
            if message.value == b"gives up":
                raise sandq.Dead("closed")

    async def body(server: FakeServer, client: Client) -> None:
        server.auto = True
        await produce(client, b"hangs", b"fails then", b"fast", b"swallows it", b"gives up")
        async with running(client, handler, timeout="20ms", retry_on=()):
            await until_holds(lambda: len(ended) == 5 and states(server)[b"fast"] == "acked")
        # The acks of messages that were settled by then have been sent.
        assert {value for value, state in states(server).items() if state == "acked"} == {b"fast"}
        assert {(item[3], *item[4:]) for nack in server.nacks for item in nack.items} == {
            ("took longer than 20ms, and then: OSError: no more disk",),
            ("took longer than 20ms",),
            ("closed", True, None, 1),
        }
        assert sorted(ended) == sorted([b"fails then", b"fast", b"hangs", b"swallows it", b"gives up"])

    with_client(body)
    assert "took longer than 20ms: it was cancelled" in caplog.text


def test_slow_synchronous_handler_keeps_its_slot(with_client: Any, caplog: Any) -> None:
    go = threading.Event()
    begun: list[bytes] = []
    reported: list[str] = []

    def handler(message: ThreadedMessage) -> None:
        begun.append(message.value)
        if message.value == b"hangs":
            go.wait(PATIENCE_S)
            assert not message.is_held
            try:
                message.ack()
            except InvalidRequest as error:
                reported.append(str(error))
            raise ValueError("too late to matter")

    async def body(server: FakeServer, client: Client) -> None:
        async with running(client, handler, timeout="20ms", concurrency=1, dead_on=ValueError, credit=10):
            server.deliver(await subscribed(server), [b"hangs", b"next"], token=TOKEN)
            await until_holds(lambda: nack_texts(server))
            assert begun == [b"hangs"], "the hanging handler uses the only slot"
            go.set()
            await until_holds(lambda: server.acks)
        assert nack_texts(server) == [(None, "took longer than 20ms")]
        assert begun == [b"hangs", b"next"]

    with_client(body)
    assert reported == ["the message was nacked already, it cannot be acked"]
    assert "goes on in its thread, which cannot be cancelled" in caplog.text


def test_a_plain_handler_in_time_fails_as_without_a_timeout(with_client: Any) -> None:
    def handler(message: ThreadedMessage) -> None:
        if message.value == b"bad":
            raise ValueError("no")
        if message.value == b"dead":
            message.dead("by itself").wait(PATIENCE_S)

    async def body(server: FakeServer, client: Client) -> None:
        server.auto = True
        await produce(client, b"fine", b"bad", b"dead")
        async with running(client, handler, timeout="1h"):
            await until_holds(lambda: len(nack_texts(server)) == 2 and states(server)[b"fine"] == "acked")
        assert sorted(nack_texts(server), key=str) == [(None, "ValueError: no"), (None, "by itself")]

    with_client(body)


def test_concurrency_limits_running_handlers(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        server.auto = True
        most = now = 0
        go = anyio.Event()

        async def handler(message: Message) -> None:
            nonlocal most, now
            now += 1
            most = max(most, now)
            await go.wait()
            now -= 1

        await produce(client, *[b"%d" % n for n in range(20)])
        async with running(client, handler, concurrency=3):
            await until_holds(lambda: now == 3)
            held = sum(state == "leased" for state in states(server).values())
            assert held == 3, "no message may wait in the client for a worker"
            go.set()
            await until_holds(lambda: set(states(server).values()) == {"acked"})
        assert most == 3
        assert server.subscribed[0].credit == 3

    with_client(body)


def test_a_long_handler_keeps_its_lease(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        held: list[bool] = []

        async def handler(message: Message) -> None:
            for leases in (1, 2):
                await until_holds(lambda leases=leases: len(server.extends) >= leases)
                held.append(message.is_held)

        async with running(client, handler, lease="300ms"):
            server.deliver(await subscribed(server), [b"long"], token=TOKEN, lease_ms=300)
            await until_holds(lambda: server.acks)
        assert held == [True] * 2
        assert server.acks[0].items[0][0] == TOKEN
        assert not server.nacks

    with_client(body)


def test_a_long_plain_handler_keeps_its_lease(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        enough = threading.Event()

        def handler(message: ThreadedMessage) -> None:
            assert enough.wait(PATIENCE_S)
            assert message.is_held

        async with running(client, handler, lease="300ms"):
            server.deliver(await subscribed(server), [b"long"], token=TOKEN, lease_ms=300)
            await until_holds(lambda: len(server.extends) >= 2)
            enough.set()
            await until_holds(lambda: server.acks)

    with_client(body)


def test_cancelled_it_lets_handlers_end_and_gives_the_rest_back_at_once(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        begun: list[bytes] = []
        go = anyio.Event()

        async def handler(message: Message) -> None:
            begun.append(message.value)
            await go.wait()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(client.run, "t", "g", handler, concurrency=2, credit=5))
            base = server.deliver(await subscribed(server), [b"1", b"2", b"3", b"4"], token=TOKEN)
            await until_holds(lambda: len(begun) == 2)
            tasks.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                await until_holds(lambda: server.nacks)
                assert server.nacks[0].items == [[TOKEN, [[offsets.shift(base, 2), 2]], None, None, False]]
                late = server.deliver(server.subscription(), [b"late"], token=TOKEN + 1)
                await until_holds(lambda: len(server.nacks) == 2)
                (item,) = server.nacks[1].items
                assert item in ([TOKEN + 1, [[late, 1]], None, None, False], [TOKEN + 1, None, None, None, False])
                assert server.subscription().credit == 0, "no further messages are requested"
                assert not server.unsubscribed and not server.acks, "handlers have their grace time"
                go.set()
        assert begun == [b"1", b"2"], "no further message was begun"
        assert [item[1] for ack in server.acks for item in ack.items] in (
            [[[base, 2]]],
            [[[base, 1]], [[offsets.shift(base, 1), 1]]],
        )
        kinds = [frame[0] for frame in server.frames if frame[0] in (Type.ACK, Type.UNSUBSCRIBE)]
        assert kinds[-1] == Type.UNSUBSCRIBE, "the acks were confirmed first"

    with_client(body)


def test_handlers_that_do_not_end_are_cancelled_and_their_messages_given_back(with_client: Any, caplog: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        begun: list[bytes] = []
        ended: list[str] = []

        async def handler(message: Message) -> None:
            begun.append(message.value)
            try:
                await anyio.sleep_forever()
            except BaseException as error:
                ended.append(type(error).__name__)
                if message.value == b"clean-up fails":
                    raise OSError("no more disk") from None
                raise

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(client.run, "t", "g", handler, grace="20ms"))
            server.deliver(await subscribed(server), [b"hangs", b"clean-up fails"], token=TOKEN)
            await until_holds(lambda: len(begun) == 2)
            tasks.cancel_scope.cancel()
        assert len(ended) == 2
        assert server.unsubscribed and not server.acks
        assert nack_texts(server) == [(None, "OSError: no more disk")]

    with_client(body)
    assert "did not end in 0.02 s and was cancelled: given back" in caplog.text


def test_permanent_error_is_raised(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        async def handler(message: Message) -> None:
            del server.topics["t"]
            (subscription,) = server.connections[0].subscriptions
            server.connections[0].send(encode_error(subscription, UnknownTopic("topic 't' was deleted")))

        async def deliver() -> None:
            server.deliver(await subscribed(server), [b"one"], token=TOKEN)

        async def run() -> None:
            with pytest.raises(UnknownTopic, match="was deleted"):
                await client.run("t", "g", handler)

        with pytest.raises(UnknownTopic):
            await client.run("nope", "g", handler)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(deliver)
            tasks.start_soon(run)

    with_client(body)


def test_closing_the_client_ends_it(run: Any) -> None:
    async def main() -> None:
        errors: list[str] = []

        async def handler(message: Message) -> None: ...

        async def consume(client: Client) -> None:
            try:
                await client.run("t", "g", handler)
            except ClosedError as error:
                errors.append(str(error))

        async with anyio.create_task_group() as tasks:
            server = FakeServer()
            server.add_topic("t")
            await server.start(tasks)
            async with anyio.create_task_group() as inner, sandq.connect(server.address) as client:
                inner.start_soon(consume, client)
                await subscribed(server)
            tasks.cancel_scope.cancel()
        assert errors == ["the subscription to topic 't' is closed"]

    run(main)


@pytest.mark.parametrize("error", [SystemExit(3), BaseExceptionGroup("both", [SystemExit(3), ValueError("x")])])
def test_exception_beyond_the_handler_ends_the_worker(with_client: Any, error: BaseException) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        async def handler(message: Message) -> None:
            raise error

        async def deliver() -> None:
            server.deliver(await subscribed(server), [b"one"], token=TOKEN)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(deliver)
            with pytest.raises(type(error)) as raised:
                await client.run("t", "g", handler)
        assert raised.value is error
        assert [text for _, text in nack_texts(server)] == [failure_text(error)], "the attempt counts"

    with_client(body)


def test_ctrl_c_in_a_handler_is_not_the_messages_fault(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        async def handler(message: Message) -> None:
            raise KeyboardInterrupt

        async def deliver() -> None:
            server.deliver(await subscribed(server), [b"one"], token=TOKEN)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(deliver)
            with pytest.raises(KeyboardInterrupt):
                await client.run("t", "g", handler)
        assert not server.nacks and not server.acks and server.unsubscribed

    with_client(body)


def test_foreign_cancellation_in_a_handler_fails_the_message(with_client: Any, backend: str) -> None:
    async def handler(message: Message) -> None:
        if message.value == b"awaits what is cancelled" and backend == "asyncio":
            other = asyncio.get_running_loop().create_future()
            other.cancel()
            await other
        elif message.value == b"awaits what is cancelled":
            with anyio.CancelScope() as scope:
                scope.cancel()
                await anyio.lowlevel.checkpoint()
            raise RuntimeError("trio's cancellation does not leave its scope")

    async def body(server: FakeServer, client: Client) -> None:
        async with running(client, handler, concurrency=1):
            server.deliver(await subscribed(server), [b"awaits what is cancelled", b"fine"], token=TOKEN)
            await until_holds(lambda: server.nacks and server.acks)
        assert nack_texts(server)[0][1] in (
            "CancelledError: ",
            "RuntimeError: trio's cancellation does not leave its scope",
        )

    with_client(body)


def test_handlers_go_on_while_the_server_restarts(with_client: Any, caplog: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        go = anyio.Event()
        begun: list[bytes] = []

        async def handler(message: Message) -> None:
            begun.append(message.value)
            if message.value != b"new":
                await go.wait()

        async with running(client, handler) as tasks:
            server.deliver(await subscribed(server), [b"1", b"2"], token=TOKEN, last=True)
            await until_holds(lambda: len(begun) == 2)
            await server.stop()
            go.set()
            await until_holds(lambda: not server.connections)
            await server.start(tasks)
            await until_holds(lambda: server.acks)
            assert server.acks[0].items == [[TOKEN, None]]
            server.deliver(await subscribed(server), [b"new"], token=TOKEN + 1)
            await until_holds(lambda: len(server.acks) == 2)
        assert begun == [b"1", b"2", b"new"]

    with_client(body)


def test_lost_lease_is_reported(with_client: Any, caplog: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        heard: list[bool] = []

        async def handler(message: Message) -> None:
            if message.value == b"loses it":
                await until_holds(lambda: not message.is_held)
                heard.append(message.is_held)

        async with running(client, handler, lease="300ms", concurrency=1):
            server.script[Type.EXTEND].append(lambda to, frame: to.send(encode_reply(frame[1], [None])))
            server.deliver(await subscribed(server), [b"loses it"], token=TOKEN, lease_ms=300)
            await until_holds(lambda: heard)
            server.deliver(server.subscription(), [b"next"], token=TOKEN + 1, lease_ms=30_000)
            await until_holds(lambda: server.acks)
        assert [item[0] for ack in server.acks for item in ack.items] == [TOKEN + 1]

    with_client(body)
    assert "came too late: the lease was lost" in caplog.text


def test_two_at_once_on_one_client(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        server.add_topic("u")
        server.auto = True
        seen: list[tuple[str, bytes]] = []

        async def handler(message: Message) -> None:
            seen.append((message.topic, message.value))
            if message.value == b"poison":
                raise ValueError

        await produce(client, b"poison", b"a")
        await client.produce("u", b"b")
        async with running(client, handler) as tasks:
            tasks.start_soon(client.run, "u", "g", handler)
            await until_holds(lambda: len(seen) == 3)
        assert sorted(seen) == [("t", b"a"), ("t", b"poison"), ("u", b"b")]

    with_client(body)


def test_a_plain_function_runs_in_a_thread(with_client: Any) -> None:
    here = threading.get_ident()
    threads: set[int] = set()

    def handler(message: ThreadedMessage) -> None:
        threads.add(threading.get_ident())
        match message.value:
            case b"bad":
                raise ValueError("no")
            case b"later":
                raise sandq.Retry("5s")
            case b"own ack":
                message.ack().wait()
                assert message.is_settled
            case b"own nack":
                message.nack(delay=3)
            case b"extends":
                assert message.extend("1m").wait(PATIENCE_S) > 0
            case b"produces":
                assert len(anyio.from_thread.run(message_client[0].produce, "t", b"child")) == 26

    message_client: list[Client] = []

    async def body(server: FakeServer, client: Client) -> None:
        message_client.append(client)
        server.auto = True
        await produce(client, b"fine", b"bad", b"later", b"own ack", b"own nack", b"extends", b"produces")
        async with running(client, handler, concurrency=4):
            await until_holds(lambda: states(server).get(b"child") == "acked" and len(nack_texts(server)) == 3)
            wanted = {b"fine", b"own ack", b"extends", b"produces", b"child"}
            await until_holds(lambda: {value for value, state in states(server).items() if state == "acked"} == wanted)
        assert sorted(nack_texts(server), key=str) == [
            (3000, None), (5000, "to be tried again"), (None, "ValueError: no")
        ]  # fmt: skip
        assert len(server.extends) == 1

    with_client(body)
    assert here not in threads and threads


def test_thread_that_does_not_end_is_abandoned(with_client: Any, caplog: Any) -> None:
    go, ended = threading.Event(), threading.Event()
    late: list[Any] = []

    def handler(message: ThreadedMessage) -> None:
        late.append(message)
        go.wait(PATIENCE_S)
        try:
            message.ack()
        except ClosedError as error:
            late.append(str(error))
        ended.set()

    async def body(server: FakeServer, client: Client) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(client.run, "t", "g", handler, grace="10ms"))
            server.deliver(await subscribed(server), [b"hangs"], token=TOKEN)
            await until_holds(lambda: late)
            tasks.cancel_scope.cancel()
        assert server.unsubscribed and not server.acks
        go.set()
        await until_holds(ended.is_set)

    with_client(body)
    assert late[1] == "the subscription to topic 't' is closed"


async def _without_a_message() -> None: ...


def _with_two(message: Any, other: Any) -> None: ...


def _by_name(*, message: Any) -> None: ...


WRONG_HANDLERS: list[tuple[Any, str]] = [
    (_without_a_message, r"_without_a_message\(\)"),
    (_with_two, "_with_two"),
    (_by_name, "_by_name"),
    (partial(_with_two, 1, 2), "partial"),
    (lambda: None, "lambda"),
]


@pytest.mark.parametrize("handler", [lambda m, other=1: None, lambda *args: None, partial(_with_two, 1), print, str])
def test_callable_with_one_argument_is_a_handler(handler: Any) -> None:
    check_options(handler, 1)


def test_argument_that_is_no_handler_is_refused(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        async def fine(message: Message) -> None: ...

        handler: Any
        for handler in (None, "name", 3):
            with pytest.raises(InvalidRequest, match="handler"):
                await client.run("t", "g", handler)
        for concurrency in (0, -1, 1.5, True, 10_001):
            with pytest.raises(InvalidRequest, match="concurrency"):
                await client.run("t", "g", fine, concurrency=concurrency)  # type: ignore[arg-type]
        for wrong, shown in WRONG_HANDLERS:
            with pytest.raises(InvalidRequest, match=f"handler: .*{shown}.* cannot be called with one argument"):
                await client.run("t", "g", wrong)
        with pytest.raises(InvalidTime):
            await client.run("t", "g", fine, timeout="soon")
        with pytest.raises(InvalidRequest, match="timeout: it must be greater than 0"):
            await client.run("t", "g", fine, timeout=0)
        with pytest.raises(InvalidRequest, match="dead_on: a class of exceptions"):
            await client.run("t", "g", fine, dead_on="ValueError")  # type: ignore[arg-type]
        with pytest.raises(InvalidTime):
            await client.run("t", "g", fine, grace="soon")
        with pytest.raises(InvalidTime):
            await client.run("t", "g", fine, lease="soon")
        assert not server.subscribed, "nothing was begun"

    with_client(body)


async def _work(message: object) -> None: ...


def _generator(message: object) -> Iterator[None]:
    yield


async def _async_generator(message: object) -> AsyncIterator[None]:
    yield


async def _returns_a_coroutine(message: object) -> object:
    return _work(message)


async def _returns_a_generator(message: object) -> object:
    return _generator(message)


class _Yields:
    def __call__(self, message: object) -> Iterator[None]:
        yield


@pytest.mark.parametrize(
    ("handler", "returned"),
    [
        (lambda message: _work(message), "something to be awaited"),
        (lambda message: _generator(message), "a generator"),
        (lambda message: _async_generator(message), "a generator"),
        (_returns_a_coroutine, "something to be awaited"),
        (_returns_a_generator, "a generator"),
        (lambda message: Future(), "a future of work that has not ended"),
        (lambda message: map(print, [message]), "a map"),
        (lambda message: filter(print, [message]), "a filter"),
    ],
)
@pytest.mark.parametrize("timeout", [None, "1h"])
def test_handler_that_returns_an_awaitable_ends_the_run(
    with_client: Any, handler: Any, returned: str, timeout: str | None
) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        async def deliver() -> None:
            server.deliver(await subscribed(server), [b"one"], token=TOKEN)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(deliver)
            with pytest.raises(InvalidRequest, match=f"handler: .* returned {returned}"):
                await client.run("t", "g", handler, timeout=timeout)
        assert not server.acks and not server.nacks

    with_client(body)


@pytest.mark.parametrize("handler", [_generator, _async_generator, _Yields(), partial(_generator)])
def test_a_handler_with_a_yield_is_refused_before_anything_is_leased(handler: Any) -> None:
    with pytest.raises(InvalidRequest, match="has a `yield`, so a call runs no code"):
        check_options(handler, 1)


def test_an_async_handler_that_blocks_past_its_lease_is_named(with_client: Any, caplog: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        async def blocks(message: Message) -> None:
            while anyio.current_time() < message._piece.lease.expires_at:
                pass

        async with running(client, blocks, lease="300ms", concurrency=1):
            server.deliver(await subscribed(server), [b"1"], token=TOKEN, lease_ms=300)
            await until_holds(lambda: "blocked the event loop" in caplog.text)

    with_client(body)
    assert "blocks a plain function, which runs in a thread" in caplog.text


def test_objects_and_partials_are_handlers(with_client: Any) -> None:
    class Shop:
        seen = 0

        async def __call__(self, message: Message) -> None:
            self.seen += 1

        async def method(self, prefix: str, message: Message) -> None:
            self.seen += 1

    async def body(server: FakeServer, client: Client) -> None:
        server.auto = True
        shop = Shop()
        await produce(client, b"1")
        async with running(client, shop):
            await until_holds(lambda: states(server)[b"1"] == "acked")
        await produce(client, b"2")
        async with running(client, partial(shop.method, "x")):
            await until_holds(lambda: states(server)[b"2"] == "acked")
        assert shop.seen == 2

    with_client(body)


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("this one has no text")


def test_errors_that_cannot_be_encoded_do_not_stop_the_run(with_client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # pytest's workers cannot exchange such text, and their reports contain the log.
    monkeypatch.setattr(logging.getLogger("sandq.client"), "disabled", True)

    async def handler(message: Message) -> None:
        match message.value:
            case b"surrogates":
                raise FileNotFoundError("no \udcff here")
            case b"long":
                raise ValueError("x" * 3000)
            case b"unspeakable":
                raise Unspeakable

    async def body(server: FakeServer, client: Client) -> None:
        server.auto = True
        await produce(client, b"surrogates", b"long", b"unspeakable", b"fine")
        async with running(client, handler, concurrency=1):
            await until_holds(lambda: states(server)[b"fine"] == "acked" and len(nack_texts(server)) == 3)
        assert [text for _, text in nack_texts(server)] == [
            "FileNotFoundError: no \\udcff here",
            ("ValueError: " + "x" * 3000)[: FIXED.error_chars],
            "Unspeakable",
        ]

    with_client(body)


def test_a_retry_says_why() -> None:
    assert str(sandq.Retry()) == "to be tried again"
    assert str(sandq.Retry("5m", ValueError("x"))) == "ValueError: x"
    with pytest.raises(InvalidTime):
        sandq.Retry("soon")


def test_refused_extension_is_not_logged_as_blocked_loop(with_client: Any, caplog: Any, monkeypatch: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        monkeypatch.setattr(server, "do_extend", lambda connection, frame: ([None],))
        ended = anyio.Event()

        async def waits(message: Message) -> None:
            await until_holds(lambda: anyio.current_time() > message._piece.lease.expires_at)
            ended.set()

        async with running(client, waits, lease="300ms", concurrency=1):
            server.deliver(await subscribed(server), [b"1"], token=TOKEN, lease_ms=300)
            await ended.wait()
            await until_holds(lambda: "lease was lost" in caplog.text)
        assert "blocked the event loop" not in caplog.text

    with_client(body)
