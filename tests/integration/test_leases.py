"""Leasing without a subscription: ready messages, a bounded wait, tokens that are settled later and elsewhere."""

from __future__ import annotations

from typing import Any

import pytest
import trio

import sandq
from sandq.errors import InvalidRequest, Overloaded, UnknownTopic
from sandq.model import offsets as offset_model
from sandq.node.running import Serving
from sandq.partition import commands as c
from sandq.protocol.frames import Type
from tests.integration.conftest import Dial
from tests.support.nodes.hand_clock import HandClock
from tests.support.nodes.raw_client import RawClient
from tests.support.nodes.working import connected, take, with_topic
from tests.support.waiting import PATIENCE_S, until_answer


async def lag(api: sandq.Client, group: str = "g") -> int:
    """Return the number of due messages that the group has not acked."""
    return sum(row["lag"] for row in await api.admin.groups("t") if row["group"] == group)


async def test_lease_without_wait_returns_only_ready_messages(api: sandq.Client) -> None:
    async with with_topic(api, partitions=5):
        for n in range(40):
            await api.produce("t", b"%d" % n, key=b"%d" % n)
        await api.produce("t", b"later", delay="1h")
        leases = api.leases("t", "g")
        first = await leases.take(15)
        rest = await leases.take(1000)
        assert len(first) == 15 and len(rest) == 25
        assert {int(message.value) for message in [*first, *rest]} == set(range(40))
        assert await leases.take(10) == []
        assert {message.attempt for message in first} == {1}
        assert await leases.ack(first) == []
        assert await leases.ack([message.held for message in rest]) == []
        assert await lag(api) == 0


async def test_messages_given_back_do_not_count_an_attempt(api: sandq.Client) -> None:
    async with with_topic(api, backoff={"kind": "fixed", "first": "5m"}, max_attempts=1):
        for value in (b"a", b"b", b"c"):
            await api.produce("t", value)
        leases = api.leases("t", "g")
        a, b, c = await leases.take(3)
        assert await leases.ack([a]) == []
        assert await leases.give_back([a, b, c]) == [a.held]
        again = await leases.take(3, wait="1m")
        assert [(message.value, message.attempt) for message in again] == [(b"b", 1), (b"c", 1)]
        assert await leases.give_back(again, delay="10m", error="the host is down") == []
        assert await leases.take(3) == []
        (told,) = (await api.messages("t").why(again[0].offset))["groups"]
        assert (told["state"], told["error"]) == ("waiting", "the host is down")


async def test_leased_message_has_all_its_fields(timed: Serving, hand: HandClock) -> None:
    hand.hold()
    async with connected(timed) as api, with_topic(api, partitions=3):
        offset = await api.produce("t", b"v", key=b"k", headers={"a": 1}, partition=2)
        (message,) = await api.leases("t", "g").take(lease="1m")
        assert (message.id, message.offset, message.topic, message.partition) == (offset, offset, "t", 2)
        assert (message.value, message.key, message.headers) == (b"v", b"k", {"a": 1})
        lease = offset_model.parse_lease(message.lease_token)
        assert lease.partition == 2
        assert message.lease_until_ms - message.created_ms == 60_000
        assert "attempt=1" in repr(message)


async def test_lease_waits_for_a_message(api: sandq.Client) -> None:
    async with with_topic(api, partitions=4):
        leases = api.leases("t", "g")
        async with trio.open_nursery() as nursery:
            found: list[list[sandq.LeasedMessage]] = []

            async def wait() -> None:
                found.append(await leases.take(10, wait="30s"))

            nursery.start_soon(wait)
            await until_answer(lambda: api.admin.groups("t"), lambda rows: len(rows) == 4)
            await api.produce("t", b"now")
        assert [message.value for message in found[0]] == [b"now"]


async def test_lease_waits_for_the_delivery_time_of_a_message(api: sandq.Client) -> None:
    async with with_topic(api):
        await api.produce("t", b"soon", delay="80ms")
        (message,) = await api.leases("t", "g").take(10, wait="1m")
        lease = message.lease_until_ms - 30_000
        assert lease >= message.deliver_at_ms, "the message must not be leased before its time"


async def test_a_wait_ends_with_nothing(api: sandq.Client) -> None:
    async with with_topic(api):
        with trio.fail_after(PATIENCE_S):
            assert await api.leases("t", "g").take(wait="30ms") == []


async def test_acked_before_they_are_sent(api: sandq.Client) -> None:
    async with with_topic(api, partitions=2):
        for n in range(10):
            await api.produce("t", b"%d" % n, partition=n % 2)
        taken = await api.leases("t", "g").take(10, ack=True)
        assert len(taken) == 10
        assert await lag(api) == 0
        assert await api.leases("t", "g").ack(taken) == [], "a repeated settlement must count once"


async def test_nacked_they_come_again(api: sandq.Client) -> None:
    async with with_topic(api, backoff={"kind": "none"}):
        await api.produce("t", b"m")
        leases = api.leases("t", "g")
        first = await leases.take()
        assert await leases.nack(first, error="no") == []
        (again,) = await leases.take(wait="1m")
        assert again.attempt == 2
        assert await leases.nack([again], delay="1h") == []
        assert await leases.take() == []


async def test_a_token_without_an_offset_is_all_of_the_lease(api: sandq.Client) -> None:
    async with with_topic(api):
        for n in range(5):
            await api.produce("t", b"%d" % n)
        leases = api.leases("t", "g")
        taken = await leases.take(5)
        assert len({message.lease_token for message in taken}) == 1
        assert await leases.ack([sandq.Held(taken[0].lease_token)]) == []
        assert await lag(api) == 0


async def test_leases_that_end_are_lost(timed: Serving, hand: HandClock) -> None:
    async with connected(timed) as api, with_topic(api, backoff={"kind": "none"}):
        await api.produce("t", b"a")
        await api.produce("t", b"b")
        leases = api.leases("t", "g")
        a = await leases.take(1, lease="10m")
        b = await leases.take(1, lease="10m")
        (until_ms,) = await leases.extend(b, "1h")
        assert until_ms is not None and until_ms > a[0].lease_until_ms + 2_900_000
        hand.forward(601)
        (again,) = await leases.take(10, wait="1m")
        assert (again.value, again.attempt) == (b"a", 2)
        assert await leases.ack([*a, *b]) == [a[0].held]
        assert await leases.extend(a, "1h") == [None]
        assert await leases.nack(a) == [a[0].held]


async def test_lease_and_subscription_share_messages(api: sandq.Client) -> None:
    """Waiting clients compete: every message goes to one of them."""
    async with with_topic(api):
        async with api.subscribe("t", group="g", credit=3) as subscription:
            for n in range(10):
                await api.produce("t", b"%d" % n)
            pushed = await take(subscription, 3, ack=False)
            pulled = await api.leases("t", "g").take(100)
        assert sorted(int(m.value) for m in [*pushed, *pulled]) == list(range(10))


async def test_cancelled_lease_request_gives_messages_back(api: sandq.Client) -> None:
    """Even if the message arrives at the last moment, it is not leased to a client that has gone."""
    async with with_topic(api, lease="1h"):
        leases = api.leases("t", "g")
        held = await leases.take()
        for n in range(30):
            with trio.move_on_after(0.001 * (n % 6)):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(api.produce, "t", b"m")
                    held += await leases.take(1, wait="1m")
        await api.produce("t", b"m")  # after the cancelled requests, whose replies were not read
        # Messages that no client got are ready for others, without an expired lease.
        await until_answer(lambda: api.admin.groups("t"), lambda rows: rows[0]["leased"] == len(held))
        left = await lag(api) - len(held)
        assert len(await leases.take(100)) == left


async def test_a_lost_connection_gives_back(node: Serving, api: sandq.Client, dial: Dial) -> None:
    async with with_topic(api):
        raw = await dial(node)
        await raw.send(Type.LEASE, 77, "t", "g", "c1", 10, 60_000, None, "earliest", False)
        await until_answer(lambda: api.admin.groups("t"), bool)
        await trio.aclose_forcefully(raw.stream)
        await until_answer(lambda: _connections(node), lambda count: count == 1)
        await api.produce("t", b"m")
        (message,) = await api.leases("t", "g").take(wait="1m")
        assert message.attempt == 1


async def _connections(node: Serving) -> int:
    return sum(
        1
        for task in _tasks(trio.lowlevel.current_root_task())
        if task.name.endswith("server.connection.Connection._write")
    )


def _tasks(task: trio.lowlevel.Task | None) -> list[trio.lowlevel.Task]:
    if task is None:
        return []
    return [task, *(found for nursery in task.child_nurseries for one in nursery.child_tasks for found in _tasks(one))]


async def test_unsubscribing_from_it_ends_the_wait(client: RawClient) -> None:
    await client.create()
    await client.send(Type.LEASE, 77, "t", "g", "c1", 10, 60_000, None, "earliest", False)
    await client.send(Type.UNSUBSCRIBE, 78, 77)
    assert {tuple(await client.receive()), tuple(await client.receive())} == {(0, 78), (0, 77, 0)}


async def test_bad_requests(client: RawClient) -> None:
    await client.create()
    for fields, message in (
        (("t", "g", "c", 0, 0, None, "earliest", False), "max"),
        (("t", "g", "c", 1001, 0, None, "earliest", False), "max"),
        (("t", "g", "c", 1, 60_001, None, "earliest", False), "wait_ms"),
        (("t", "g", "", 1, 0, None, "earliest", False), "consumer_id"),
        (("t", "g", "c", 1, 0, 1, "earliest", False), "a lease of 1 ms"),
        (("t", "g", "c", 1, 0, None, "someday", False), "start"),
        (("t", "g/h", "c", 1, 0, None, "earliest", False), "group"),
        (("nope", "g", "c", 1, 0, None, "earliest", False), "nope"),
        (("t", "g", "c", 1, 0, None, "earliest"), "ack"),
    ):
        reply = await client.call(Type.LEASE, *fields)
        assert reply[0] == Type.ERROR and message in reply[3], (fields, reply)


async def test_waiting_lease_fails_if_the_topic_is_deleted(api: sandq.Client) -> None:
    async with with_topic(api), trio.open_nursery() as nursery:

        async def wait() -> None:
            with pytest.raises(UnknownTopic):
                await api.leases("t", "g").take(wait="1m")

        nursery.start_soon(wait)
        await until_answer(lambda: api.admin.groups("t"), bool)
        await api.admin.delete_topic("t")


async def test_bad_arguments(api: sandq.Client) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"max": 0}, "max"), ({"max": True}, "max"), ({"max": 1001}, "max"), ({"wait": "61s"}, "wait"),
        ({"wait": -1}, "negative"), ({"lease": 0}, "lease"), ({"start": "someday"}, "start"),
    ]  # fmt: skip
    async with with_topic(api):
        for options, message in wrong:
            with pytest.raises(InvalidRequest, match=message):
                await api.leases("t", "g").take(**options)


async def test_bad_tokens(api: sandq.Client) -> None:
    async with with_topic(api):
        await api.produce("t", b"m")
        leases = api.leases("t", "g")
        (message,) = await leases.take()
        for held in [("nonsense", None), ("1.2", None), (message.lease_token, "nonsense")]:
            with pytest.raises(InvalidRequest):
                await leases.ack([held])
        with pytest.raises(InvalidRequest, match="list"):
            await leases.ack(message.lease_token)  # type: ignore[arg-type]
        foreign = [("99.0.5", None), ("99.0.5", message.offset)]
        assert await leases.ack(foreign) == [sandq.Held(*held) for held in foreign]
        assert await leases.ack([(message.lease_token, message.offset)]) == []


async def test_an_ack_that_fails_in_one_partition_loses_nothing_of_the_others(
    node: Serving, api: sandq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only acked messages are returned. Others are given back."""
    async with with_topic(api, partitions=2):
        for partition in (0, 1):
            await api.produce("t", b"p%d" % partition, partition=partition)
        host = node.broker.catalog.partition("t", 1).raft_group
        submit = host.submit

        def overloaded(command: object, *arguments: Any, **options: Any) -> None:
            if isinstance(command, c.Ack):
                raise Overloaded("not now")
            submit(command, *arguments, **options)

        leases = api.leases("t", "g")
        with monkeypatch.context() as patch:
            patch.setattr(host, "submit", overloaded)
            assert [message.value for message in await leases.take(10, ack=True)] == [b"p0"]
        (rest,) = await leases.take(10, wait="1m", ack=True)
        assert (rest.value, rest.attempt) == (b"p1", 1)
        assert await lag(api) == 0


async def test_lease_revoked_by_seek_is_not_returned_as_acked(
    node: Serving, api: sandq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with with_topic(api, retention="1h"):
        await api.produce("t", b"m")
        await api.leases("t", "g").take(wait=0, max=1, lease="1h")
        await api.admin.seek_group("t", "g", "earliest")
        host = node.broker.catalog.partition("t", 0).raft_group
        submit = host.submit

        def after_a_seek(command: object, *arguments: Any, **options: Any) -> None:
            if isinstance(command, c.Ack):
                submit(c.Seek("g", "earliest"), lambda result: None)
            submit(command, *arguments, **options)

        leases = api.leases("t", "g")
        with monkeypatch.context() as patch:
            patch.setattr(host, "submit", after_a_seek)
            assert await leases.take(ack=True) == []
        assert [message.value for message in await leases.take(wait="1m", ack=True)] == [b"m"]


async def until_applied(serving: Serving) -> None:
    """Wait until everything proposed so far is applied."""
    runner = serving.broker._runner
    while runner.is_busy():
        await runner.drain()
    await runner.drain()


async def test_a_group_that_is_only_taken_from_is_in_use(timed: Serving, hand: HandClock) -> None:
    """A group that is polled without messages is kept, while an unused group is deleted."""
    async with connected(timed) as api, with_topic(api, group_ttl="1m"):
        for group in ("g", "unused"):
            await api.leases("t", group).take()
        await api.admin.update_group("t", "g", max_attempts=3)
        with trio.fail_after(PATIENCE_S):
            while any(row["group"] == "unused" for row in await api.admin.groups("t")):
                assert await api.leases("t", "g").take(start="latest") == []
                await until_applied(timed)  # the use of the group is recorded before the clock moves by ten seconds
                hand.forward(10)
        (row,) = await api.admin.groups("t")
        assert (row["group"], row["settings"]["max_attempts"]) == ("g", 3), "the group must be the same, not a new one"


async def test_waiting_leaves_nothing_behind(node: Serving, api: sandq.Client) -> None:
    """Timers cannot be cancelled: the remaining ones hold no message, and there are few of them."""
    async with with_topic(api, partitions=8):
        timers = node.broker._timers
        before = len(timers._heap)

        async def wait(found: list[sandq.LeasedMessage]) -> None:
            found += await api.leases("t", "g").take(1, wait="1m")

        found: list[sandq.LeasedMessage] = []
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(wait, found)
            await until_answer(lambda: api.admin.groups("t"), lambda rows: len(rows) == 8)
            for n in range(200):
                await api.produce("t", b"later %d" % n, delay="1h")
            assert len(timers._heap) - before < 5 * 3 + 30
            for _ in range(5):
                await api.produce("t", b"now")
        assert len(found) == 5
        assert not any(delivery.watchers for delivery in node.broker.catalog.topic("t").partitions.values())
