"""Requests of one client used too much time, memory or syncs of a node, or had a wrong effect."""

from __future__ import annotations

from pathlib import Path

import trio

from sandq.model.batch import encode
from sandq.node import run_node
from sandq.partition import commands as c
from sandq.partition.leasing.lease_grants import LEASE_BYTES
from sandq.protocol.frames import Type
from sandq.storage.files import RealFiles
from tests.support.nodes.raw_client import RawClient, values_of
from tests.support.nodes.small_node import small_config
from tests.support.partition.bench import Bench, T
from tests.support.storage.faulty_files import FaultyFiles, Plan
from tests.support.waiting import PATIENCE_S


def test_group_opened_at_latest_within_entry_gets_later_messages() -> None:
    """The cursor was above messages that the same entry stored later, so memory and rows disagreed."""
    bench = Bench()
    bench.open("g")
    before, opened, after = (encode({1: [value]}) for value in (b"before", b"", b"after"))
    del opened
    bench.apply(5, c.Append(before), c.OpenGroup("late", "latest"), c.Append(after))
    for restarted in (False, True):
        if restarted:
            bench.restart()
        status = bench.status()
        assert [group.next_ms for group in status.groups if group.name == "late"] == [T + 5]
    assert bench.values(bench.lease(group="late", at=5)) == ["after"]


def test_lease_with_many_grants_reads_limited_bytes() -> None:
    """Sixty messages of 8 MiB were read at once."""
    bench = Bench()
    bench.open()
    for _ in range(12):
        bench.append("x" * (1 << 20))
    grants = tuple(c.Grant("c", 1000, 30_000) for _ in range(64))
    leases = bench.apply(1, c.Lease("g", T + 1, grants))[0]
    assert 8 <= sum(lease.total for lease in leases) <= LEASE_BYTES // (1 << 20) + 1
    bench.release(at=2)
    leases = bench.apply(2, c.Lease("g", T + 2, grants))[0]
    assert 8 <= sum(lease.total for lease in leases) <= LEASE_BYTES // (1 << 20) + 2


def test_ack_with_repeated_ranges_is_cheap() -> None:
    """One frame of overlapping ranges kept the apply thread busy for minutes."""
    bench = Bench()
    bench.open()
    column = bench.append(*["m"] * 1000, due=list(range(1000)))
    lease = bench.one(limit=1000, at=1000)
    first = column[:16]
    lost = bench.ack(lease.token, [[first, 65_536]] * 50_000, at=1000)
    assert len(lost) == 50_000
    assert bench.state_of(first) == "leased"


async def test_group_opening_in_many_partitions_needs_few_syncs(tmp_path: Path) -> None:
    """Each partition used its own commit batch, so with many partitions and a slow disk the client timed out."""
    plan = Plan()
    (tmp_path / "data").mkdir()
    async with run_node(small_config(tmp_path), files=FaultyFiles(RealFiles(tmp_path / "data"), plan)) as node:
        client = await RawClient.connect(node.client_port)
        async with client.stream:
            await client.call(Type.TOPIC_CREATE, "t", "timer", 200, 1, {})
            before = plan.syncs
            assert len((await client.subscribe())[2]) == 200
            assert plan.syncs - before < 20
            before = plan.syncs
            await client.call(Type.UNSUBSCRIBE, 1)
            assert plan.syncs - before < 20


async def test_unsubscribe_during_subscribe_ends_subscription(tmp_path: Path) -> None:
    """UNSUBSCRIBE found no subscription, and the subscription continued without a consumer."""
    async with run_node(small_config(tmp_path)) as node:
        client = await RawClient.connect(node.client_port)
        async with client.stream:
            await client.call(Type.TOPIC_CREATE, "t", "timer", 50, 1, {})
            await client.produce(b"m")
            await client.send(Type.SUBSCRIBE, 500, 1, "t", "g", "c", 10, None, "earliest", [])
            await client.send(Type.SUBSCRIBE, 501, 1, "t", "g", "c", 10, None, "earliest", [])
            await client.send(Type.UNSUBSCRIBE, 502, 1)
            answers = {}
            while len(answers) < 3:
                frame = await client.receive()
                if frame[0] != Type.DELIVER:
                    answers[frame[1]] = frame
            assert answers[500][0] == 0
            assert answers[501][2] == "CONFLICT"
            assert answers[502][0] == 0
            assert await client.subscribe(consumer="other")
            with trio.fail_after(PATIENCE_S):
                pushed = await client.push()
                while pushed[1] != 1 or pushed[5] != 1:
                    pushed = await client.push()
            assert values_of(pushed) == [b"m"], "the messages are given back without counting the attempt"


async def test_start_without_space_for_next_segment_serves_consumers(tmp_path: Path) -> None:
    """A node did not start on a disk with less free space than a segment, so its messages could not be consumed."""
    async with run_node(small_config(tmp_path)) as node:
        client = await RawClient.connect(node.client_port)
        async with client.stream:
            await client.create()
            await client.produce(b"m")
    plan = Plan(budget_bytes=300_000)
    async with run_node(small_config(tmp_path), files=FaultyFiles(RealFiles(tmp_path / "data"), plan)) as node:
        client = await RawClient.connect(node.client_port)
        async with client.stream:
            await client.subscribe()
            with trio.fail_after(PATIENCE_S):
                pushed = await client.push()
            assert values_of(pushed) == [b"m"]
            assert (await client.ack(pushed))[2] == [None]


async def test_partitions_due_at_one_time_share_commit_batches(tmp_path: Path) -> None:
    """The first partition reserved all credit: the others waited for its commit batch, one after the other."""
    plan = Plan()
    (tmp_path / "data").mkdir()
    async with run_node(small_config(tmp_path), files=FaultyFiles(RealFiles(tmp_path / "data"), plan)) as node:
        client = await RawClient.connect(node.client_port)
        async with client.stream:
            await client.call(Type.TOPIC_CREATE, "t", "timer", 60, 1, {})
            await client.subscribe(credit=600)
            due_ms = (await client.call(Type.PING))[2] + 400
            for partition in range(60):
                await client.produce(b"%d" % partition, partition=partition, deliver_ms=[due_ms])
            before = plan.syncs
            got: set[bytes | None] = set()
            with trio.fail_after(PATIENCE_S):
                while len(got) < 60:
                    got.update(values_of(await client.push()))
            assert plan.syncs - before < 30, "not one commit batch for each partition"
