"""Tests of held messages: credit, extensions, nacks, and lost leases."""

from __future__ import annotations

from typing import Any

import pytest

from sandq.client.client import Client
from sandq.model import offsets
from sandq.model.batch import headers_pack
from sandq.model.errors import (
    InvalidRequest,
    LeaseLost,
)
from sandq.protocol.frames import Type, encode_reply
from tests.support.client.fake_server import FakeServer
from tests.support.client.helpers import take
from tests.support.waiting import until_holds

TOKEN = 5 << 16


def test_confirmed_acks_and_lost_leases(with_client: Any, caplog: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        async with client.subscribe("t", group="g", credit=100) as subscription:
            base = server.deliver(server.subscription(), [b"v"] * 4, token=TOKEN)
            first, second, third, fourth = await take(subscription, 4)
            await first.ack()
            await first.ack()
            assert len(server.acks) == 1

            lost = [[offsets.shift(base, 2), 1]]
            server.script[Type.ACK].append(lambda to, frame: to.send(encode_reply(frame[1], [lost])))
            results: list[str] = []

            # Both acks are queued before the connection can send, so they are in one request.
            for message, ack in [(message, message.ack()) for message in (second, third)]:
                try:
                    await ack
                    results.append("ok")
                except LeaseLost as error:
                    assert error.details["lease"] == message.lease_token
                    results.append("lost")
            assert results == ["ok", "lost"]
            with pytest.raises(LeaseLost):
                await third.ack()

            server.script[Type.ACK].append(lambda to, frame: to.send(encode_reply(frame[1], [[]])))
            fourth.ack()
        assert "1 acks came too late" in caplog.text

    with_client(body)


def test_lost_lease_drops_messages_that_were_not_yielded(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        async with client.subscribe("t", group="g", credit=4) as subscription:
            subscribed = server.subscription()
            server.deliver(subscribed, [b"a", b"b", b"c"], token=TOKEN)
            (first,) = await take(subscription, 1)
            server.script[Type.ACK].append(lambda to, frame: to.send(encode_reply(frame[1], [[]])))
            with pytest.raises(LeaseLost):
                await first.ack()
            server.deliver(subscribed, [b"b"], token=TOKEN + 1)
            (again,) = await take(subscription, 1)
            assert (again.value, again.lease_token[-6:]) == (b"b", str(TOKEN + 1))

    with_client(body)


def test_nack_and_extend(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        async with client.subscribe("t", group="g", credit=100) as subscription:
            base = server.deliver(server.subscription(), [b"v"] * 5, token=TOKEN)
            messages = await take(subscription, 5)
            messages[0].nack()
            messages[1].nack()
            await messages[2].nack(delay="5s", error=ValueError("no good"))
            assert server.nacks[0].items == [
                [TOKEN, [[base, 2]], None, None],
                [TOKEN, [[offsets.shift(base, 2), 1]], 5000, "ValueError: no good"],
            ]
            with pytest.raises(InvalidRequest, match="nacked already"):
                messages[0].ack()
            messages[3].ack()
            with pytest.raises(InvalidRequest, match="acked already"):
                messages[3].nack()

            assert await messages[4].extend("1m") - server.clock_ms() in range(55_000, 60_001)
            assert server.extends[-1].items == [[TOKEN, 60_000, [[offsets.shift(base, 4), 1]]]]
            server.script[Type.EXTEND].append(lambda to, frame: to.send(encode_reply(frame[1], [None])))
            with pytest.raises(LeaseLost):
                await messages[4].extend("1m")
            with pytest.raises(LeaseLost):
                await messages[4].ack()
            with pytest.raises(InvalidRequest):
                messages[4].extend(0)

    with_client(body)


def test_loop_holds_the_configured_number(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        server.auto = True
        async with client.producer("t") as producer:
            await producer.send_many([b"%d" % number for number in range(25)])
        seen = 0
        async with client.subscribe("t", group="g", credit=10) as subscription:
            assert server.subscription().request.credit == 10
            async for message in subscription:
                seen += 1
                assert sum(row.state == "leased" for row in server.stored["t", 0]) <= 10
                await message.ack()
                if seen == 25:
                    break

    with_client(body)


def test_credit_comes_back_with_the_ack(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        async with client.subscribe("t", group="g", credit=5) as subscription:
            subscribed = server.subscription()
            server.deliver(subscribed, [b"v"] * 5, token=TOKEN)
            messages = await take(subscription, 5)
            assert subscribed.credit == 0
            await messages[0].ack()
            await messages[1].nack()
            await until_holds(lambda: subscribed.credit == 2)
            for message in messages[2:]:
                message.ack()
            await until_holds(lambda: subscribed.credit == 5)
            kinds = [frame[0] for frame in server.frames if frame[0] in (Type.ACK, Type.NACK, Type.CREDIT)]
            assert kinds[0] == Type.ACK and kinds.count(Type.CREDIT) <= 3

    with_client(body)


def test_leases_are_extended_while_messages_are_held(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        async with client.subscribe("t", group="g", lease="300ms") as subscription:
            base = server.deliver(server.subscription(), [b"a", b"b"], token=TOKEN, lease_ms=300)
            server.deliver(server.subscription(), [b"c"], token=TOKEN + 1, lease_ms=300)
            first, second, third = await take(subscription, 3)
            await third.ack()
            await first.ack()
            for seen in (1, 2):
                await until_holds(lambda seen=seen: len(server.extends) >= seen)
            begun = [[offsets.shift(base, 1), 1]]  # the broker learns the messages that were begun but not settled
            assert all(item == [TOKEN, 300, begun] for extend in server.extends for item in extend.items)
            await second.ack()
            assert not list(subscription._consumers["t"].leases())  # no lease is left to extend

    with_client(body)


def test_without_auto_extend_a_lease_lapses(with_client: Any, caplog: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        async with client.subscribe("t", group="g", credit=3, lease="100ms", auto_extend=False) as subscription:
            subscribed = server.subscription()
            server.deliver(subscribed, [b"a", b"b", b"c"], token=TOKEN, lease_ms=100)
            (first,) = await take(subscription, 1)
            # the held message and the messages that were not yielded yet
            await until_holds(lambda: subscribed.credit == 3)
            assert not server.extends
            server.deliver(subscribed, [b"b"], token=TOKEN + 1)
            (second,) = await take(subscription, 1)
            assert second.value == b"b"
            await first.ack()  # the broker decides
            await second.ack()
            await until_holds(lambda: subscribed.credit == 3)

    with_client(body)
    assert "ended before they were settled" in caplog.text


def test_a_nack_may_change_priority_and_headers(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        server.add_topic("p", kind="priority")
        async with client.subscribe("p", group="g", credit=100) as subscription:
            base = server.deliver(server.subscription(), [b"v"] * 6, token=TOKEN)
            messages = await take(subscription, 6)
            messages[0].nack()
            messages[1].nack(priority=-3, headers={})
            messages[2].nack(priority=-3, headers={})
            messages[3].nack(priority=0, delay=5, error="no")
            await messages[4].nack(headers={"a": 1})
            assert [nack.items for nack in server.nacks] == [
                [[TOKEN, [[base, 1]], None, None]],
                [
                    [TOKEN, [[offsets.shift(base, 1), 2]], None, None, True, {"priority": -3, "headers": b""}],
                    [TOKEN, [[offsets.shift(base, 3), 1]], 5000, "no", True, {"priority": 0}],
                    [TOKEN, [[offsets.shift(base, 4), 1]], None, None, True, {"headers": headers_pack({"a": 1})}],
                ],
            ], "a changing item has its own frame"
            for priority in (2**31, "1", True):
                with pytest.raises(InvalidRequest, match="priority"):
                    messages[5].nack(priority=priority)
            with pytest.raises(InvalidRequest, match="headers"):
                messages[5].nack(headers={"a": object()})  # type: ignore[dict-item]
            assert messages[5].is_held

    with_client(body)


def test_giving_up_and_snoozing(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        async with client.subscribe("t", group="g", credit=100) as subscription:
            base = server.deliver(server.subscription(), [b"v"] * 7, token=TOKEN)
            messages = await take(subscription, 7)
            messages[0].nack()
            messages[1].dead("410 gone")
            messages[2].dead("410 gone")
            messages[3].nack(delay="5s", error="429", count=False)
            messages[4].nack(headers={}, count=False)
            await messages[5].dead(ValueError("bad"))
            at = [offsets.shift(base, place) for place in range(6)]
            assert [nack.items for nack in server.nacks] == [
                [[TOKEN, [[at[0], 1]], None, None]],
                [
                    [TOKEN, [[at[1], 2]], None, "410 gone", True, None, 1],
                    [TOKEN, [[at[3], 1]], 5000, "429", True, None, 2],
                    [TOKEN, [[at[4], 1]], None, None, True, {"headers": b""}, 2],
                    [TOKEN, [[at[5], 1]], None, "ValueError: bad", True, None, 1],
                ],
            ], "an item that an older broker refuses has its own frame"
            assert messages[5].is_settled and not messages[5].is_held
            await messages[5].dead("again is once")
            for settle in (messages[5].ack, messages[5].nack):
                with pytest.raises(InvalidRequest, match="the message was given up already"):
                    settle()
            with pytest.raises(InvalidRequest, match="the message was nacked already, it cannot be given up"):
                messages[0].dead()
            with pytest.raises(InvalidRequest, match="count: True or False is expected, not 0"):
                messages[6].nack(count=0)  # type: ignore[arg-type]
            assert messages[6].is_held and len(server.nacks) == 2

    with_client(body)


def test_dead_under_lost_lease_raises_lease_lost(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        async with client.subscribe("t", group="g", credit=100) as subscription:
            server.deliver(server.subscription(), [b"v"], token=TOKEN)
            (message,) = await take(subscription, 1)
            server.script[Type.NACK].append(lambda to, frame: to.send(encode_reply(frame[1], [[]])))
            with pytest.raises(LeaseLost):
                await message.dead()
            assert message.is_lost

    with_client(body)


def test_priority_in_nack_is_refused_for_timer_topics(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        async with client.subscribe("t", group="g", credit=100) as subscription:
            server.deliver(server.subscription(), [b"v"] * 2, token=TOKEN)
            (message, _) = await take(subscription, 2)
            with pytest.raises(InvalidRequest, match="priority: topic 't' is a timer topic"):
                message.nack(priority=1)
            await message.nack(headers={"a": "b"})
            assert server.nacks[0].items[0][5] == {"headers": headers_pack({"a": "b"})}

    with_client(body)
