"""Faults that a review found, one test each."""

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


def test_a_group_opened_at_latest_amid_an_entry_gets_what_comes_behind_it() -> None:
    """Its cursor stood above what the same entry stored later: memory and rows disagreed."""
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


def test_a_lease_command_reads_a_bounded_number_of_bytes() -> None:
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


def test_an_ack_that_names_the_same_again_and_again_is_not_searched_for() -> None:
    """One frame of overlapping ranges kept the apply thread busy for minutes."""
    bench = Bench()
    bench.open()
    column = bench.append(*["m"] * 1000, due=list(range(1000)))
    lease = bench.one(limit=1000, at=1000)
    first = column[:16]
    lost = bench.ack(lease.token, [[first, 65_536]] * 50_000, at=1000)
    assert len(lost) == 50_000
    assert bench.state_of(first) == "leased"


async def test_a_group_is_opened_in_all_partitions_at_once(tmp_path: Path) -> None:
    """One pass a partition: with many partitions and a slow disk the client gave up before it was through."""
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


async def test_leaving_while_the_subscription_is_being_opened(tmp_path: Path) -> None:
    """UNSUBSCRIBE found nothing, and the subscription went on for nobody."""
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
            assert values_of(pushed) == [b"m"], "given back, the attempt not counted"


async def test_no_room_for_the_next_segment_stops_nothing_yet(tmp_path: Path) -> None:
    """A disk with less room than a segment could not even be started on, to consume what was there."""
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


async def test_partitions_due_at_one_instant_are_served_together(tmp_path: Path) -> None:
    """The first one reserved all credit: the others waited for its pass, one after the other."""
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
            assert plan.syncs - before < 30, "not a pass for each partition"
