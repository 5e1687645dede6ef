"""Groups as a whole: their start positions, their ends, their own settings."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

import sandq
import sandq.sync
from sandq.broker.replication.replica import PartitionReplica
from sandq.errors import (
    Conflict,
    InvalidRequest,
    InvalidSetting,
    InvalidTime,
    LeaseLost,
    NotFound,
    TooLarge,
    UnknownGroup,
    UnknownTopic,
)
from sandq.model import offsets
from sandq.model.limits import FIXED
from sandq.model.times import format_instant
from sandq.node import run_node
from sandq.node.running import Serving
from sandq.partition.base import rows
from sandq.partition.groups import part_pauses
from sandq.server.http.overview_rows import findings
from tests.support.nodes.hand_clock import HandClock
from tests.support.nodes.small_node import small_config
from tests.support.nodes.working import connected, take, take_until, values, waits_until_trimmed
from tests.support.waiting import until_answer

both_sizes = pytest.mark.parametrize("partitions", [1, 3])


async def fill(api: sandq.Client, count: int, partitions: int, first: int = 0) -> list[str]:
    return [
        await api.produce("t", b"%d" % number, partition=number % partitions) for number in range(first, first + count)
    ]


async def group_rows(api: sandq.Client) -> list[dict[str, Any]]:
    """Return the group without the time when a consumer was last seen, which a restart resets."""
    return [row | {"touched_ms": 0} for row in await api.admin.groups("t")]


async def group_names(api: sandq.Client) -> set[str]:
    return {row["group"] for row in await api.admin.groups("t")}


def is_from(offset: str, start: str) -> bool:
    """Return whether a group that starts at an offset gets a message: in other partitions the time decides."""
    partitions = {offsets.unpack(sandq.offset_bytes(one)).partition for one in (offset, start)}
    return offset >= start if len(partitions) == 1 else sandq.offset_time_ms(offset) >= sandq.offset_time_ms(start)


# -- beginning ------------------------------------------------------------------------------------------------------


@both_sizes
async def test_group_starts_at_the_given_position(node: Serving, api: sandq.Client, partitions: int) -> None:
    await api.admin.create_topic("t", partitions=partitions, delete_on_ack=False)
    old = await fill(api, 6, partitions)
    newest_ms = max(sandq.offset_time_ms(offset) for offset in old)

    async def now() -> int:
        return node.broker.clock.now_ms()

    middle_ms = await until_answer(now, lambda now_ms: now_ms > newest_ms + 1)
    young = await fill(api, 6, partitions, first=6)
    pending = await api.produce("t", b"pending", delay="1h")
    expected: list[tuple[str, str | int, set[str]]] = [
        ("earliest", "earliest", {*old, *young, pending}),
        ("latest", "latest", {pending}),
        ("time", middle_ms, {*young, pending}),
        ("offset", young[3], {*(offset for offset in young if is_from(offset, young[3])), pending}),
    ]
    async with AsyncExitStack() as stack:
        subscriptions = {
            group: await stack.enter_async_context(api.subscribe("t", group=group, start=start, credit=100))
            for group, start, _ in expected
        }
        for group, _, ids in expected:
            got = await take(subscriptions[group], len(ids) - 1)
            assert {message.id for message in got} == ids - {pending}, group
        await api.messages("t").move(pending, delay=0)
        last_ms = max(sandq.offset_time_ms((await api.messages("t").get(pending)).offset), node.broker.clock.now_ms())
        await api.produce("t", b"last", deliver_at=last_ms + 100)
        for group, _, _ in expected:
            assert [message.id for message in await take_until(subscriptions[group], b"last")] == [pending], group
    # The start applies only to a new group.
    await api.produce("t", b"next")
    for group, _, _ in expected:
        async with api.subscribe("t", group=group, start="earliest") as subscription:
            assert await take_until(subscription, b"next") == []


# -- ending ---------------------------------------------------------------------------------------------------------


def rows_of_groups(node: Serving) -> int:
    """Rows in the store that belong to some group, over all partitions of the topic; on the apply thread. Leases that
    have ended are kept for a while (ADR 2)."""
    count = 0
    for delivery in node.broker.catalog.topic("t").partitions.values():
        replica = delivery.raft_group.replica
        assert isinstance(replica, PartitionReplica)
        for tag in (rows.GROUP, rows.WAITING, rows.DEAD, rows.KEPT, rows.BLOCKED):
            count += len(replica.queries._view.scan(*rows.tag_bounds(tag), limit=10_000, max_bytes=1 << 30))
    return count


async def test_deleting_a_group_takes_everything_of_it(node: Serving, api: sandq.Client) -> None:
    await api.admin.create_topic("t", partitions=2, max_attempts=2, delete_on_ack=False)
    await fill(api, 40, 2)
    async with api.subscribe("t", group="g", credit=100) as subscription:
        got = await take(subscription, 40, ack=False)
        for message in got[:10]:
            await message.nack(delay=0)
        for message in await take(subscription, 10, ack=False):
            await message.nack(error="dead")
        for message in got[10:20]:
            await message.nack(delay="1h")
        for message in got[20:30]:
            await message.ack()
        with pytest.raises(Conflict, match="has 1 consumers"):
            await api.admin.delete_group("t", "g")
        assert await api.dead("t", "g").counts() == {"nacked": 10}
        assert await node.broker.ask(partial(rows_of_groups, node)) >= 20
    with pytest.raises(Conflict, match="has yet to finish 20 messages"):
        await api.admin.delete_group("t", "g")
    assert await group_names(api) == {"g"}
    await api.admin.delete_group("t", "g", force=True)
    assert await group_names(api) == set()
    for refused in (api.admin.delete_group("t", "g"), api.dead("t", "g").counts(), api.dead("t", "g").redrive()):
        with pytest.raises(UnknownGroup):
            await refused

    async def left() -> int:
        return await node.broker.ask(partial(rows_of_groups, node))

    await until_answer(left, lambda count: count == 0)
    # A new group of the same name begins at its start. The messages are still stored.
    async with api.subscribe("t", group="g", credit=100) as subscription:
        got = await take(subscription, 40)
        assert {message.attempt for message in got} == {1}
        assert await api.dead("t", "g").counts() == {}


async def test_a_deleted_group_keeps_nothing_in_the_log(api: sandq.Client) -> None:
    await api.admin.create_topic("t", partitions=2)
    for group in ("slow", "fast"):
        async with api.subscribe("t", group=group):
            pass
    await fill(api, 20, 2)
    async with api.subscribe("t", group="fast", credit=100) as subscription:
        await take(subscription, 20)
    assert sum(row["messages"] for row in await api.admin.stats("t")) == 20
    await api.admin.delete_group("t", "slow")
    await waits_until_trimmed(api)


async def test_unused_group_is_deleted(timed: Serving, hand: HandClock) -> None:
    async with connected(timed) as api:
        await api.admin.create_topic("t", partitions=2)
        await api.admin.update_topic("t", group_ttl="1m")
        async with api.subscribe("t", group="idle"):
            pass
        async with api.subscribe("t", group="used"):
            await until_answer(lambda: group_names(api), lambda names: names == {"idle", "used"})
            for _ in range(4):
                hand.forward(35)
                # Each touch of the group with a consumer is visible in its rows.
                await until_answer(lambda: touched_lately(api, timed, "used"), lambda lately: lately)
            await until_answer(lambda: group_names(api), lambda names: names == {"used"})
        with pytest.raises(UnknownGroup):
            await api.dead("t", "idle").counts()
        await api.admin.update_topic("t", group_ttl=None)
        hand.forward(600)
        await api.produce("t", b"m")
        assert await group_names(api) == {"used"}, "without a ttl the group must stay"
        await api.admin.update_topic("t", group_ttl="1h")
        hand.forward(3600)
        await until_answer(lambda: group_names(api), lambda names: names == set())


async def touched_lately(api: sandq.Client, node: Serving, group: str) -> bool:
    rows_of = [row for row in await api.admin.groups("t") if row["group"] == group]
    return all(node.broker.clock.now_ms() - row["touched_ms"] < 20_000 for row in rows_of)


async def test_consumer_of_deleted_group_starts_again(timed: Serving, hand: HandClock) -> None:
    """The group was deleted meanwhile. A new subscription creates the group again at the given start."""
    async with connected(timed) as api:
        await api.admin.create_topic("t", group_ttl="1m", delete_on_ack=False)
        await fill(api, 3, 1)
        async with api.subscribe("t", group="g") as subscription:
            await take(subscription, 3)
        hand.forward(61)
        await until_answer(lambda: group_names(api), lambda names: names == set())
        async with api.subscribe("t", group="g") as subscription:
            assert values(await take(subscription, 3)) == [b"0", b"1", b"2"]


async def test_overview_names_expired_group_with_kept_messages(timed: Serving, hand: HandClock) -> None:
    async with connected(timed) as api:
        info = await api.admin.cluster()
        await api.admin.create_topic("t", group_ttl="1m", delete_on_ack=False)
        await fill(api, 1, 1)
        async with api.subscribe("t", group="g") as subscription:
            (delivery,) = await take(subscription, 1, ack=False)
            await delivery.nack(delay="1h")
        hand.forward(3600 + 61)

        async def found() -> list[str]:
            seen = await api.admin.overview()
            told = findings(info, seen, seen.topics.values())
            return [one["found"] for one in told if one["situation"] == "group-expired"]

        (text,) = await until_answer(found, lambda texts: texts)
        assert text == "g of t has expired (group_ttl): it keeps 1 message to finish, and gets no others"


# -- settings -------------------------------------------------------------------------------------------------------


async def test_settings_of_a_group(api: sandq.Client) -> None:
    await api.admin.create_topic("t", partitions=2)
    async with api.subscribe("t", group="g"):
        pass
    await api.admin.update_group("t", "g", max_attempts=3)
    assert [row["settings"] for row in await api.admin.groups("t")] == [{"max_attempts": 3}] * 2
    await api.admin.update_group("t", "g", backoff={"kind": "fixed", "first": "5s"})
    (settings, other) = [row["settings"] for row in await api.admin.groups("t")]
    assert settings == other
    assert "max_attempts" not in settings, "new settings must replace the old ones"
    assert (settings["backoff"]["kind"], settings["backoff"]["first_ms"]) == ("fixed", 5000)
    await api.admin.update_group("t", "g", max_attempts=None)
    assert [row["settings"] for row in await api.admin.groups("t")] == [{"max_attempts": None}] * 2
    await api.admin.update_group("t", "g")
    assert [row["settings"] for row in await api.admin.groups("t")] == [None] * 2
    wrong: list[dict[str, Any]] = [{"lease": "1m"}, {"max_attempts": 0}, {"backoff": {"kind": "wild"}}, {"backof": {}}]
    for change in wrong:
        with pytest.raises(InvalidSetting):
            await api.admin.update_group("t", "g", **change)
    with pytest.raises(UnknownGroup):
        await api.admin.update_group("t", "nobody", max_attempts=3)
    with pytest.raises(UnknownTopic):
        await api.admin.update_group("nothing", "g", max_attempts=3)
    with pytest.raises(NotFound):
        await api.admin.seek_group("t", "nobody", "latest")
    with pytest.raises(InvalidRequest):
        await api.admin.seek_group("t", "g", "yesterday")


async def test_a_group_is_paused_and_resumed(api: sandq.Client) -> None:
    await api.admin.create_topic("t", partitions=2)
    async with api.subscribe("t", group="g", credit=1) as subscription:
        await fill(api, 2, 2)
        first = await take(subscription, 1, ack=False)
        await api.admin.pause_group("t", "g")
        await fill(api, 2, 2, first=2)
        assert [row["reason"] for row in await api.admin.groups("t")] == ["it is paused until it is resumed"] * 2
        assert await api.leases("t", "g").take(max=10) == []
        waiting = (await api.leases("t", "other").take(max=10))[-1]
        told = {row["group"]: row["reason"] for row in (await api.messages("t").why(waiting.id))["groups"]}
        assert told["g"] == "the group is stopped: it is paused until it is resumed"
        await first[0].ack()
        await api.admin.resume_group("t", "g")
        assert {message.value for message in first + await take(subscription, 3)} == {b"0", b"1", b"2", b"3"}
    for change in (api.admin.pause_group, api.admin.resume_group):
        with pytest.raises(UnknownGroup):
            await change("t", "nobody")
        with pytest.raises(UnknownTopic):
            await change("nothing", "g")


async def test_a_pause_ends_by_itself(api: sandq.Client) -> None:
    await api.admin.create_topic("t", partitions=2)
    async with api.subscribe("t", group="g") as subscription:
        await api.admin.pause_group("t", "g", for_="400ms")
        paused_at = time.time()
        await fill(api, 2, 2)
        rows = await api.admin.groups("t")
        for row in rows:
            assert row["reason"] == f"it is paused until {format_instant(row['paused_until_ms'])}"
        assert {message.value for message in await take(subscription, 2)} == {b"0", b"1"}
        assert time.time() >= paused_at + 0.3
    assert [row["reason"] for row in await api.admin.groups("t")] == [None] * 2
    await api.admin.pause_group("t", "g", until=datetime.now(UTC) + timedelta(hours=1))
    await fill(api, 2, 2)
    assert await api.leases("t", "g").take(max=10) == []
    await api.admin.pause_group("t", "g", for_="200ms")  # replaces the end
    assert len(await api.leases("t", "g").take(max=10, wait=10)) >= 1
    for wrong, match in (("2020-01-01T00:00:00Z", "would have ended already"), (days_ahead(367), "at most 366d")):
        with pytest.raises(InvalidTime, match=match):
            await api.admin.pause_group("t", "g", until=wrong)
    with pytest.raises(InvalidRequest, match="until or for_, not both"):
        await api.admin.pause_group("t", "g", until=days_ahead(1), for_=1)


async def test_a_tenant_and_a_key_are_paused(api: sandq.Client) -> None:
    await api.admin.create_topic("t", kind="fair", partitions=2)
    leases = api.leases("t", "g")
    await leases.take()
    for tenant in ("acme", "acme.eu", "beta"):
        await api.produce("t", tenant.encode(), tenant=tenant)
    await api.admin.pause_group("t", "g", tenant="acme")
    assert [message.value for message in await leases.take(max=10)] == [b"beta"]
    rows = await api.admin.groups("t")
    assert [(row["paused_tenants"], row["paused_keys"]) for row in rows] == [(1, 0)] * 2
    assert await api.admin.pauses("t", "g") == ([("tenant", "acme", None, None, 2)], 0)
    async with api.subscribe("t", group="g") as subscription:
        await api.admin.pause_group("t", "g", tenant="acme", for_="300ms")
        assert sorted([message.value for message in await take(subscription, 2)]) == [b"acme", b"acme.eu"]
    await api.admin.create_topic("ordered", ordering="key", partitions=2)
    leases = api.leases("ordered", "g")
    await leases.take()
    await api.admin.pause_group("ordered", "g", key="k")
    await api.admin.pause_group("ordered", "g", key=b"\xff" * 1025, for_="1h")
    named, long = (await api.admin.pauses("ordered", "g")).pauses
    assert named == ("key", None, b"k", None, 2)
    assert (long.key, long.partitions) == (None, 2) and long.until_ms is not None
    await api.admin.resume_group("ordered", "g", key=b"\xff" * 1025)
    ids = [await api.produce("ordered", b"%d" % number, key="k") for number in range(2)]
    assert await leases.take(max=10) == []
    (found,) = (await api.messages("ordered").why(ids[0]))["groups"]
    assert found["reason"].startswith("its key is paused until it is resumed")
    await api.admin.resume_group("ordered", "g", key="k")
    assert (await api.admin.pauses("ordered", "g")).pauses == []
    with pytest.raises(UnknownGroup):
        await api.admin.pauses("ordered", "other")
    held = await leases.take(max=10)
    assert [message.value for message in held] == [b"0"]
    async with api.subscribe("ordered", group="g") as subscription:
        await api.admin.pause_group("ordered", "g", key="k", for_="300ms")
        await leases.ack(held)
        assert [message.value for message in await take(subscription, 1)] == [b"1"]
    for topic, part in (("ordered", {"tenant": "acme"}), ("t", {"key": "k"})):
        with pytest.raises(InvalidRequest, match="pause the group"):
            await api.admin.pause_group(topic, "g", **part)
    with pytest.raises(InvalidRequest, match="a tenant or a key, not both"):
        await api.admin.pause_group("t", "g", tenant="acme", key="k")


async def test_a_consumer_pauses_parts_of_its_group(api: sandq.Client, node: Serving) -> None:
    await api.admin.create_topic("t", kind="fair")
    await api.admin.create_topic("ordered", ordering="key")
    for number in range(3):
        await api.produce("t", b"%d" % number, tenant="acme")
        await api.produce("ordered", b"%d" % number, key="k")
    async with api.subscribe("t", group="g", credit=1) as subscription:
        (first,) = await take(subscription, 1, ack=False)
        end_ms = await first.pause_tenant(for_="30m")
        assert await first.pause_tenant(for_="1m") == end_ms
        await first.ack()
        assert await api.leases("t", "g").take(max=5) == []
        with pytest.raises(LeaseLost):
            await first.pause_tenant(for_="1m")
    leases = api.leases("ordered", "g")
    (held,) = await leases.take(max=5)
    for wrong in ("61m", 0):
        with pytest.raises(InvalidTime, match=r"at most 1h are allowed \(consumer_pause_most_ms"):
            await leases.pause_key(held, for_=wrong)
    with pytest.raises(InvalidRequest, match="only messages of a fair topic have tenants"):
        await leases.pause_tenant(held, for_=1)
    end_ms = await leases.pause_key(held, for_="10m")
    await leases.ack([held])
    assert await leases.take(max=5) == []
    with pytest.raises(LeaseLost):
        await leases.pause_key(held, for_="10m")

    def blocking() -> None:
        with sandq.sync.connect(f"127.0.0.1:{node.client_port}") as client:
            client.admin.resume_group("ordered", "g", key="k")
            with client.subscribe("ordered", group="g", credit=1) as subscription:
                message = next(iter(subscription))
                assert message.pause_group(for_="5m") > end_ms - 600_000
                message.ack().wait()
                assert client.leases("ordered", "g").take(1) == []

    await trio.to_thread.run_sync(blocking)


async def test_a_consumer_pauses_its_group_in_all_partitions(api: sandq.Client) -> None:
    await api.admin.create_topic("t", partitions=3)
    leases = api.leases("t", "g")
    assert await leases.take() == []
    await api.produce("t", b"1", partition=1)
    (held,) = await leases.take()
    with pytest.raises(InvalidRequest, match="does not belong to group 'other'"):
        await api.leases("t", "other").pause_group(held, for_="5m")
    end_ms = await leases.pause_group(held, for_="5m")
    assert [row["paused_until_ms"] for row in await api.admin.groups("t")] == [end_ms] * 3
    await api.admin.resume_group("t", "g")
    async with api.subscribe("t", group="g", credit=1) as subscription:
        await api.produce("t", b"2", partition=2)
        (message,) = await take(subscription, 1, ack=False)
        end_ms = await message.pause_group(for_="6m")
        assert [row["paused_until_ms"] for row in await api.admin.groups("t")] == [end_ms] * 3


async def test_a_pause_names_the_partitions_that_refuse_it(api: sandq.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part_pauses, "FIXED", replace(FIXED, paused_parts=1))
    await api.admin.create_topic("t", partitions=3, ordering="key")
    leases = api.leases("t", "g")
    assert await leases.take() == []
    await api.produce("t", b"1", key="k")
    (held,) = await leases.take()
    await leases.pause_key(held, for_="5m")
    with pytest.raises(InvalidRequest, match=f"in 2 of 3 partitions: partition {held.partition} refused") as caught:
        await api.admin.pause_group("t", "g", key="other", for_="5m")
    assert caught.value.details["refused"] == [held.partition]
    assert {row.partitions for row in (await api.admin.pauses("t", "g")).pauses} == {1, 2}


def days_ahead(days: int) -> datetime:
    return datetime.now(UTC) + timedelta(days=days)


async def test_a_paused_group_is_paused_in_partitions_that_come(tmp_path: Path) -> None:
    config = small_config(tmp_path)
    async with run_node(config) as node, connected(node) as api:
        await api.admin.create_topic("t")
        async with api.subscribe("t", group="g"):
            pass
        await api.admin.pause_group("t", "g")
    async with run_node(config) as node, connected(node) as api:
        await api.admin.update_topic("t", partitions=3)
        await fill(api, 6, 3)
        assert await api.leases("t", "g").take(max=10) == []
        assert len([row for row in await api.admin.groups("t") if row["reason"]]) == 3
        await api.admin.resume_group("t", "g")
        came = await api.leases("t", "g").take(max=10)
        assert sorted(message.value for message in came) == [b"%d" % number for number in range(6)]


async def test_settings_and_positions_of_groups_survive_a_restart(tmp_path: Path) -> None:
    config = small_config(tmp_path)
    async with run_node(config) as node, connected(node) as first:
        await first.admin.create_topic("t", partitions=2, max_attempts=1, delete_on_ack=False)
        await fill(first, 10, 2)
        async with first.subscribe("t", group="g", credit=100) as subscription:
            got = await take(subscription, 10, ack=False)
            for message in got[:5]:
                await message.nack(error="no")
            for message in got[5:8]:
                await message.ack()
        await first.admin.update_group("t", "g", max_attempts=7)
        before = await group_rows(first)
    async with run_node(config) as node, connected(node) as second:
        assert await group_rows(second) == before
        letters = [letter.id async for letter in second.dead("t", "g").list()]
        assert letters == sorted(message.id for message in got[:5])
        async with second.subscribe("t", group="g") as subscription:
            assert {message.id for message in await take(subscription, 2)} == {message.id for message in got[8:]}


async def test_committed_position_of_group_can_be_fetched(api: sandq.Client) -> None:
    """This is also true after the second message of a batch is acked, although the next offset would belong to
    another partition."""
    for partitions in (1, 3):
        topic = f"t{partitions}"
        # Messages that a seek to the end has passed are acked: they must still be there for the seek to the beginning.
        await api.admin.create_topic(topic, partitions=partitions, delete_on_ack=False)
        for partition in range(partitions):
            async with api.producer(topic) as producer:
                await producer.send_many([b"a", b"b", b"c"], partition=partition)
        leases = api.leases(topic, "g")
        for _ in range(2 * partitions):
            await leases.ack(await leases.take(1))
        for row in await api.admin.groups(topic):
            found = [m.value async for m in api.fetch(topic, row["partition"], row["committed"], limit=1)]
            assert found in ([b"a"], [b"b"], [b"c"], []), row
        for start, values_there in (("latest", []), ("earliest", [b"a"])):
            await api.admin.seek_group(topic, "g", start)
            for row in await api.admin.groups(topic):
                found = [m.value async for m in api.fetch(topic, row["partition"], row["committed"], limit=1)]
                assert found == values_there, row


# -- how many ---------------------------------------------------------------------------------------------------------


async def test_group_limit_of_a_node_holds_for_every_request(tmp_path: Path) -> None:
    config = small_config(tmp_path, LIMITS__GROUPS="6")
    refused = r"would have 7 groups, .* 6 are allowed \(limits.groups\): delete some, or raise it"
    async with run_node(config) as node, connected(node) as api:
        await api.admin.create_topic("t", partitions=2)
        await api.admin.create_topic("one")
        for group in ("a", "b"):
            await api.leases("t", group).take()
        for group in ("c", "d"):
            await api.leases("one", group).take()
        with pytest.raises(TooLarge, match=refused) as found:
            await api.leases("one", "e").take()
        assert found.value.details["limit"] == "groups"
        with pytest.raises(TooLarge, match=refused):
            async with api.subscribe("one", group="e"):
                pass
        await api.admin.delete_group("t", "a")
        await until_answer(api.leases("t", "e").take)
    async with run_node(small_config(tmp_path, LIMITS__GROUPS="1")) as node, connected(node) as api:
        await api.produce("one", b"m")
        async with api.subscribe("one", group="c") as subscription:
            assert (await anext(subscription)).value == b"m", "existing groups must continue"
        with pytest.raises(TooLarge, match="1 are allowed"):
            await api.leases("one", "f").take()
