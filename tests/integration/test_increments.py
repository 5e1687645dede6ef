"""Entries after a backup are followed as increments, and a cluster is restored as of a point in time."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

import sandq
from sandq.backup import (
    BackupFollower,
    BackupKey,
    NoBackup,
    create_backup,
    list_backups,
    open_location,
    restore_backup,
    verify_chain,
)
from sandq.client.backups import BackupTransfer
from sandq.errors import InvalidRequest, TopicExists, Unavailable
from sandq.node import run_node
from sandq.node.running import Serving
from tests.support.nodes.hand_clock import HandClock
from tests.support.nodes.small_node import small_config
from tests.support.nodes.working import connected, take


@pytest.fixture
def location(tmp_path: Path) -> Any:
    return open_location(str(tmp_path / "backups"))


@pytest.fixture
async def api(timed: Serving) -> AsyncIterator[sandq.Client]:
    """A client of a node whose clock the test moves."""
    async with connected(timed) as client:
        yield client


State = list[tuple[str, int, int]]


async def _state(api: sandq.Client, topic: str) -> State:
    """Return (id, due time, attempts) of all messages that a group has not finished, and the number of dead ones."""
    there = [one async for one in api.messages(topic).list() if one.state not in ("acked", "dead")]
    dead = sum(row["dead"] for row in await api.admin.groups(topic))
    return [*sorted((one.id, one.deliver_at_ms, 0) for one in there), ("dead", dead, 0)]


async def test_each_moment_between_increments_comes_back(
    timed: Serving, api: sandq.Client, hand: HandClock, location: Any, tmp_path: Path
) -> None:
    await api.admin.create_topic("t", partitions=2, max_attempts=2, backoff={"kind": "none"})
    await api.admin.create_topic("k", kind="compacted")
    await api.produce("t", b"base", delay="10h", key=b"a")
    manifest = await create_backup(api, location, follow=True)
    follower = BackupFollower(api, location, manifest)
    moments: dict[str, int] = {}
    expected: dict[str, State] = {}

    async def note(name: str) -> None:
        moments[name], expected[name] = hand.now_ms(), await _state(api, "t")
        hand.forward(1)

    await note("first")
    moved = await api.produce("t", b"moved", delay="10h", partition=0)
    cancelled = await api.produce("t", b"cancelled", delay="10h", partition=1)
    await api.kv("k").put("a", b"1")
    await note("produced")
    assert (await follower.step()).number == 0
    async with api.subscribe("t", group="g", credit=1) as subscription:
        await api.produce("t", b"acked", partition=0)
        await take(subscription, 1)
        await note("acked")
        await api.produce("t", b"twice", partition=0)
        (message,) = await take(subscription, 1, ack=False)
        await message.nack(error="no")
        (message,) = await take(subscription, 1, ack=False)
        await note("nacked")
        await message.nack(error="no")
        await note("died")
    await api.messages("t").move(moved, delay="20h")
    await api.messages("t").cancel(cancelled)
    await api.kv("k").put("a", b"2")
    await note("changed")
    await api.admin.create_topic("new")
    await api.produce("new", b"x", delay="1h")
    hand.forward(1)
    made = await follower.step()
    assert made.number == 1 and not made.gone and not made.errors and made.reach_ms is not None
    (listed,) = await list_backups(location)
    assert listed.increments == 2 and listed.reach_ms == made.reach_ms and listed.problem is None
    whole = await verify_chain(location, manifest.backup_id, replay=True)
    assert whole.increments == 2 and whole.replayed == 4
    async with run_node(small_config(tmp_path / "other")) as other, connected(other) as api2:
        for name, at_ms in moments.items():
            restored = await restore_backup(
                api2, location, manifest.backup_id, prefix=f"{name}-", at_ms=at_ms, topics=["t", "k"]
            )
            assert await _state(api2, f"{name}-t") == expected[name], name
            assert not restored.warnings
        assert await api2.kv("first-k").get("a") is None
        assert (await api2.kv("produced-k").get("a")).value == b"1"
        assert (await api2.kv("changed-k").get("a")).value == b"2"
        latest = await restore_backup(api2, location, manifest.backup_id)
        assert set(latest.topics) == {"t", "k", "new"}
        assert await _state(api2, "t") == expected["changed"] and len(await _state(api2, "new")) == 2
        base = await restore_backup(api2, location, manifest.backup_id, prefix="base-", with_increments=False)
        assert set(base.topics) == {"t", "k"} and await _state(api2, "base-t") == expected["first"]
        with pytest.raises(InvalidRequest, match="partition 0 of topic"):
            await restore_backup(api2, location, manifest.backup_id, prefix="x-", at_ms=made.reach_ms + 60_000)
        with pytest.raises(NoBackup, match="no topic 'new' as of"):
            await restore_backup(api2, location, manifest.backup_id, topics=["new"], at_ms=moments["first"])


async def test_empty_increments_are_not_written_and_a_second_follower_is_reported(
    api: sandq.Client, location: Any
) -> None:
    await api.admin.create_topic("t")
    key = BackupKey(os.urandom(32))
    manifest = await create_backup(api, location, key=key, follow=True)
    follower, other = [BackupFollower(api, location, manifest, key=key) for _ in range(2)]
    assert (await follower.step()).number == 0, "topics are checked"
    assert (await follower.step()).number is None
    assert (await follower.step(always=True)).number == 1
    await api.produce("t", b"x", delay="1h")
    assert (await other.step()).number == 2
    with pytest.raises(sandq.errors.Conflict, match="another process follows"):
        await follower.step()
    assert (await follower.step(always=True)).number == 3, "it looks again"
    await verify_chain(location, manifest.backup_id, key=key, replay=True)


async def test_point_in_time_under_load_has_exactly_the_stored_messages(
    node: Serving, location: Any, tmp_path: Path
) -> None:
    """Producers and a consumer work while increments are followed; their confirmed operations are compared with several
    restored times."""
    sent: dict[str, tuple[int, int]] = {}
    """By message id: time when it was sent, and time when it was confirmed, both in ms."""
    acked: dict[str, tuple[int, int]] = {}
    reaches: list[int] = []

    def now_ms() -> int:
        return node.broker.clock.now_ms()

    async def produce(api: sandq.Client, partition: int) -> None:
        while len(reaches) < 6:
            began_ms = now_ms()
            message_id = await api.produce("t", b"x" * 50, partition=partition)
            sent[message_id] = began_ms, now_ms()

    async def consume(api: sandq.Client) -> None:
        async with api.subscribe("t", group="g", credit=50) as subscription:
            async for message in subscription:
                began_ms = now_ms()
                await message.ack()
                acked[message.id] = began_ms, now_ms()

    async with connected(node) as api:
        await api.admin.create_topic("t", partitions=3, delete_on_ack=False, retention="1h")
        manifest = await create_backup(api, location, follow=True)
        follower = BackupFollower(api, location, manifest)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(consume, api)
            for partition in range(3):
                nursery.start_soon(produce, api, partition)
            while len(reaches) < 6:
                made = await follower.step(always=True)
                assert not made.gone and not made.errors and made.reach_ms is not None
                reaches.append(made.reach_ms)
                await trio.sleep(0.1)
            nursery.cancel_scope.cancel()
        await verify_chain(location, manifest.backup_id, replay=True)
        assert len(sent) > 100 and len(acked) > 10
        for number, at_ms in enumerate([reaches[1], (reaches[2] + reaches[4]) // 2, reaches[4]]):
            name = f"r{number}-t"
            await restore_backup(api, location, manifest.backup_id, prefix=f"r{number}-", at_ms=at_ms, work=tmp_path)
            states = {one.id: one.state async for one in api.messages(name).list()}
            assert {i for i, (_, stored_ms) in sent.items() if stored_ms < at_ms} <= states.keys(), "lost"
            assert not {i for i, (began_ms, _) in sent.items() if began_ms > at_ms} & states.keys(), "too late"
            assert all(states[i] == "acked" for i, (_, done_ms) in acked.items() if done_ms < at_ms), "not acked"
            late = {i for i, (began_ms, _) in acked.items() if began_ms > at_ms}
            assert not {i for i in late if states.get(i) == "acked"}, "acked too early"


async def test_a_restore_of_a_moment_that_was_stopped_goes_on(
    timed: Serving, api: sandq.Client, hand: HandClock, location: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second restore from the same increments gives the same result, chunk by chunk."""
    await api.admin.create_topic("t", partitions=2)
    manifest = await create_backup(api, location, follow=True)
    await (await api.produce_many("t", [{"value": b"%d" % n, "delay": "5h", "key": b"%d" % n} for n in range(60)]))
    before, at_ms = await _state(api, "t"), hand.now_ms()
    hand.forward(1)
    await api.produce("t", b"later", delay="5h")
    await BackupFollower(api, location, manifest).step()
    ends: list[int] = []
    end = BackupTransfer.end_partition

    async def once(self: Any, *args: Any) -> Any:
        ends.append(1)
        if len(ends) == 2:
            raise Unavailable("stopped here")
        return await end(self, *args)

    monkeypatch.setattr(BackupTransfer, "end_partition", once)
    restore = partial(restore_backup, api, location, manifest.backup_id, names={"t": "u"}, work=tmp_path, at_once=1)
    with pytest.raises(Unavailable):
        await restore(at_ms=at_ms)
    assert "restoring" in (await api.admin.topic("u")).settings
    with pytest.raises(TopicExists):
        await restore()
    assert (await restore(at_ms=at_ms)).partitions == 2
    assert await _state(api, "u") == before


async def test_a_restore_does_not_go_on_with_other_rows(
    timed: Serving, api: sandq.Client, hand: HandClock, location: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restore is interrupted, and then the chain grows. The next restore ignores the incomplete set of chunks."""
    await api.admin.create_topic("t")
    manifest = await create_backup(api, location, follow=True)
    follower, at_ms = BackupFollower(api, location, manifest), hand.now_ms() + 3_600_000
    monkeypatch.setattr(timed.broker.backups._log_reads, "_now_ms", lambda: at_ms)
    await api.produce("t", b"first", delay="5h")
    await follower.step()
    end = BackupTransfer.end_partition

    async def stopped(self: Any, *args: Any) -> Any:
        raise Unavailable("stopped here")

    restore = partial(restore_backup, api, location, manifest.backup_id, names={"t": "u"}, work=tmp_path, at_ms=at_ms)
    monkeypatch.setattr(BackupTransfer, "end_partition", stopped)
    with pytest.raises(Unavailable):
        await restore()
    monkeypatch.setattr(BackupTransfer, "end_partition", end)
    await api.produce("t", b"second", delay="5h")
    expected = await _state(api, "t")
    await follower.step()
    with pytest.raises(TopicExists):
        await restore()
    await api.admin.delete_topic("u")
    await restore()
    assert await _state(api, "u") == expected and len(expected) == 3


async def test_named_limits_of_a_moment_are_restored(
    api: sandq.Client, hand: HandClock, location: Any, tmp_path: Path
) -> None:
    await api.admin.set_limit("llm", max_in_flight=3)
    await api.admin.create_topic("t")
    await api.admin.limit_group("t", "g", limit="llm")
    manifest = await create_backup(api, location, follow=True)
    hand.forward(1)
    await api.admin.set_limit("llm", max_in_flight=6)
    await api.admin.set_limit("later", max_in_flight=1)
    await BackupFollower(api, location, manifest).step()
    async with run_node(small_config(tmp_path / "other")) as other, connected(other) as api2:
        some = await restore_backup(api2, location, manifest.backup_id, topics=["t"])
        assert ({*some.topics}, some.limits, some.partitions) == ({"t"}, ["llm"], 1)
        rest = await restore_backup(api2, location, manifest.backup_id, topics=["sandq.limits"])
        assert ({*rest.topics}, rest.limits) == (set(), ["later"])
        assert {row["limit"]: row["max_in_flight"] for row in await api2.admin.limits()} == {"llm": 6, "later": 1}
