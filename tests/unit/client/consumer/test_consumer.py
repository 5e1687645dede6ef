"""Tests of consumers: messages, acks, credit, and leases."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from sandq.client.client import Client
from sandq.client.consumer.subscription import Subscription
from sandq.model import offsets
from sandq.model.batch import Column, headers_pack
from sandq.model.errors import (
    ClosedError,
    InvalidName,
    InvalidRequest,
    Overloaded,
    Unavailable,
    UnknownTopic,
)
from sandq.protocol.frames import Type
from tests.support.client.fake_server import GROUP_NUMBER, NOW_MS, SILENCE, FakeServer
from tests.support.client.helpers import take
from tests.support.waiting import until_holds

TOKEN = 5 << 16


def test_message_has_all_its_fields(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        async with client.subscribe("t", group="g", credit=7, lease="45s", start="latest") as subscription:
            subscribed = server.subscription()
            request = subscribed.request
            assert (request.topic, request.group, request.credit) == ("t", "g", 7)
            assert (request.lease_ms, request.start, request.held) == (45_000, "latest", [])
            assert request.consumer_id.startswith("test-")
            base = offsets.pack(NOW_MS, 9, 3, 0)
            ids = offsets.pack(1, 1, 1, 0) + offsets.pack(2, 2, 2, 0)
            created = (5).to_bytes(8, "little") + (6).to_bytes(8, "little")
            columns = {Column.KEY: [b"k", None], Column.HEADERS: [None, headers_pack({"h": 1})]}
            server.deliver(
                subscribed,
                [b"a", b"b"],
                base=base,
                token=TOKEN,
                ids=ids,
                created_ms=created,
                columns=columns,
                attempt=3,
            )
            first, second = await take(subscription, 2)
            assert (first.value, first.key, first.headers) == (b"a", b"k", {})
            assert (second.value, second.key, second.headers) == (b"b", None, {"h": 1})
            assert first.offset == offsets.to_text(base)
            assert second.offset == offsets.to_text(offsets.shift(base, 1))
            assert second.id == offsets.to_text(ids[16:])
            assert (first.created_ms, second.created_ms) == (5, 6)
            assert (first.deliver_at_ms, first.attempt, first.partition, first.topic) == (NOW_MS, 3, 0, "t")
            assert first.lease_token == f"{GROUP_NUMBER}.0.{TOKEN}"
            assert "attempt=3" in repr(first)

    with_client(body)


def test_acks_of_a_run_are_one_range(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        async with client.subscribe("t", group="g", credit=100) as subscription:
            base = server.deliver(server.subscription(), [b"v"] * 50, token=TOKEN)
            for message in await take(subscription, 50):
                message.ack()
            await until_holds(lambda: server.acks)
        (ack,) = server.acks
        assert (ack.group_number, ack.partition) == (GROUP_NUMBER, 0)
        assert ack.items == [[TOKEN, [[base, 50]]]]

    with_client(body)


def test_complete_lease_is_acked_without_ranges(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        async with client.subscribe("t", group="g", credit=100) as subscription:
            server.deliver(server.subscription(), [b"v"] * 3, token=TOKEN)
            server.deliver(server.subscription(), [b"v"] * 3, token=TOKEN, last=True)
            messages = await take(subscription, 6)
            await messages[0].ack()
            for message in messages[1:]:
                message.ack()
            await messages[5].ack()
        first, second = server.acks
        assert first.items[0][1] is not None
        assert second.items == [[TOKEN, None]]

    with_client(body)


def test_scattered_acks_are_a_bitmap(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        async with client.subscribe("t", group="g", credit=100) as subscription:
            base = server.deliver(server.subscription(), [b"v"] * 64, token=TOKEN, live=[[8, 56]])
            messages = await take(subscription, 56)
            for message in messages[::-3]:
                message.ack()
            await until_holds(lambda: server.acks)
        ((token, what),) = server.acks[0].items
        expected = {offsets.shift(base, 63 - 3 * place) for place in range(19)}
        assert token == TOKEN and server.named(what) == expected
        assert len(what) == 1 and isinstance(what[0][1], bytes)

    with_client(body)


def test_offsets_that_are_no_run(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        async with client.subscribe("t", group="g", credit=100) as subscription:
            column = [offsets.pack(NOW_MS + place // 2, 9, place, 0) for place in range(6)]
            server.deliver(server.subscription(), [b"v"] * 6, token=TOKEN, column=b"".join(column))
            messages = await take(subscription, 6)
            assert [message.offset for message in messages] == [offsets.to_text(one) for one in column]
            assert messages[5].deliver_at_ms == NOW_MS + 2
            for message in messages[:5]:
                message.ack()
            await until_holds(lambda: server.acks)
            assert server.acks[0].items == [[TOKEN, [[column[0], 2], [column[2], 2], [column[4], 1]]]]

    with_client(body)


def test_leaving_confirms_acks_and_unsubscribes(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        async with client.subscribe("t", group="g") as subscription:
            server.deliver(server.subscription(), [b"a", b"b"], token=TOKEN)
            first, second = await take(subscription, 2)
            first.ack()
        assert len(server.acks) == 1 and len(server.unsubscribed) == 1
        kinds = [frame[0] for frame in server.frames]
        assert kinds.index(Type.ACK) < kinds.index(Type.UNSUBSCRIBE)
        for use in (second.ack, second.nack, lambda: second.extend("1s")):
            with pytest.raises(ClosedError):
                use()
        with pytest.raises(ClosedError):
            await subscription.__anext__()
        with pytest.raises(ClosedError):
            async with subscription:
                pass

    with_client(body)


def test_cancelling_still_sends_acks(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        with anyio.CancelScope() as scope:
            async with client.subscribe("t", group="g") as subscription:
                server.deliver(server.subscription(), [b"a"], token=TOKEN)
                async for message in subscription:
                    message.ack()
                    scope.cancel()
        assert scope.cancelled_caught
        await until_holds(lambda: server.acks and server.unsubscribed)

    with_client(body)


def test_consumer_waiting_at_another_node_is_cancelled(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        ended: list[str] = []

        async def worker(subscription: Subscription) -> None:
            try:
                async for message in subscription:
                    message.ack()
            except ClosedError:
                ended.append("closed")

        async with anyio.create_task_group() as tasks:
            async with client.subscribe("t", group="g") as subscription:
                for _ in range(3):
                    tasks.start_soon(worker, subscription)
                server.deliver(server.subscription(), [b"a"] * 10, token=TOKEN)
                await anyio.wait_all_tasks_blocked()
            await anyio.wait_all_tasks_blocked()
        assert ended == ["closed"] * 3

    with_client(body)


def test_overload_is_tried_again_and_the_rest_is_raised(with_client: Any, caplog: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        server.script[Type.SUBSCRIBE] += [Overloaded("later"), Unavailable("later")]
        async with client.subscribe("t", group="g") as subscription:
            server.script[Type.ACK] += [Overloaded("later"), Overloaded("later")]
            server.script[Type.NACK] += [Overloaded("later")]
            server.script[Type.EXTEND] += [Overloaded("later")]
            server.deliver(server.subscription(), [b"a", b"b", b"c"], token=TOKEN)
            first, second, third = await take(subscription, 3)
            await third.extend("1m")
            await first.ack()
            await second.nack()
            assert len(server.acks) == len(server.nacks) == len(server.extends) == 1
            server.script[Type.ACK] += [UnknownTopic("gone")]
            with pytest.raises(UnknownTopic):
                await third.ack()
        with pytest.raises(UnknownTopic):
            async with client.subscribe("nope", group="g"):
                pass

    with_client(body)


def test_a_deleted_topic_ends_the_iteration(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        async with client.subscribe("t", group="g") as subscription:
            server.topics.clear()
            server.cut_all()
            with pytest.raises(UnknownTopic):
                await subscription.__anext__()

    with_client(body)


def test_subscribe_without_reply_raises_unavailable(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        server.script[Type.SUBSCRIBE] += [SILENCE] * 10
        with pytest.raises(Unavailable, match="no node accepted"):
            async with client.subscribe("t", group="g"):
                pass

    with_client(body, timeout_s=0.1)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"credit": 0}, InvalidRequest),
        ({"credit": True}, InvalidRequest),
        ({"credit": 1_000_001}, InvalidRequest),
        ({"start": "yesterday"}, InvalidRequest),
        ({"lease": 0}, InvalidRequest),
        ({"group": "no good"}, InvalidName),
    ],
)
def test_wrong_arguments(with_client: Any, arguments: Any, error: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        with pytest.raises(error):
            client.subscribe("t", **{"group": "g", **arguments})

    with_client(body)


def test_garbage_pushed_closes_the_connection_only(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        async with client.subscribe("t", group="g") as subscription:
            subscribed = server.subscription()
            server.deliver(subscribed, [b"a"] * 3, token=TOKEN, column=bytes(32))
            await until_holds(lambda: len(server.subscribed) == 2)
            server.deliver(server.subscription(), [b"a"], token=TOKEN)
            (message,) = await take(subscription, 1)
            await message.ack()

    with_client(body)
