"""A stalled store delays only groups that write much."""

from __future__ import annotations

import random
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing

from sandq.broker.event_loop import Signal
from sandq.broker.memory_budget import ROWS_SHARE
from sandq.broker.replication.inbox import Inbox
from sandq.broker.replication.node_log import Hooks, NodeLog
from sandq.broker.replication.raft_group import RaftGroup
from sandq.broker.replication.runner import Runner
from sandq.metadata.state import Partition, Topic
from sandq.model.batch import Column, encode
from sandq.model.errors import Overloaded, StorageFailed
from sandq.model.limits import Limits
from sandq.model.settings import parse_settings
from sandq.partition import commands as c
from sandq.raft import Members
from sandq.storage.memory_files import MemoryFiles
from sandq.storage.stores import MemoryStores
from sandq.storage.write_behind import STORE_SHARE
from tests.support.simulation.stepped import Stepped, VirtualClock
from tests.support.stalling_stores import StallingStores
from tests.support.storage.log_bed import SEGMENT_BYTES
from tests.support.waiting import PATIENCE_S, until_holds

GROUPS = 7, 8
NODE_BYTES = 4 << 20
STORE_BYTES = int(STORE_SHARE * NODE_BYTES)
LIMITS = Limits(memory_bytes=int(NODE_BYTES / ROWS_SHARE))
LARGE, SMALL = (encode({Column.VALUE: [bytes(size)]}) for size in (256 << 10, 100))


def partitions(node_log: NodeLog) -> list[RaftGroup]:
    """Two partitions of one topic whose only member is this node."""
    settings = parse_settings({}).record()
    placed = tuple(Partition(group, ("n1#1",), ("n1#1",)) for group in GROUPS)
    topic = Topic(
        name="t",
        number=1,
        kind="timer",
        initial_partitions=2,
        replicas=2,
        settings=settings,
        created_ms=0,
        partitions=placed,
        first_settings=settings,
    )
    node_log.install([(group, "n1#1", Members(("n1#1",))) for group in GROUPS])
    return [node_log.open_partition(topic, number) for number in range(2)]


def produce(host: RaftGroup, batch: bytes, answers: list[Any]) -> None:
    host.submit(c.Append(batch), answers.append, size=len(batch), messages=1)


class Bed(Stepped):
    """A node whose store is written when the test decides."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        super().__init__(random.Random(0), self.clock)
        self.below = MemoryStores()
        self.node_log = NodeLog(
            MemoryFiles(),
            self.below,
            node_id="n1",
            now_ms=self.clock.now_ms,
            publish=self.published.append,
            segment_bytes=SEGMENT_BYTES,
            limits=LIMITS,
        )
        self.hosts = partitions(self.node_log)
        self.settle()

    def write_rows(self) -> None:
        pass

    def settle(self) -> None:
        for _ in range(50):
            self.drive()

    def resume(self) -> None:
        """Let the store write its queued rows, and the rows that are admitted as a result."""
        while self.node_log.stores.progress is not None or self.node_log.has_held:
            self.node_log.stores.write_out()
            self.node_log.propose_again()
            self.settle()
            self.node_log.applier.write()


def test_stalled_store_delays_no_reply_until_its_limit() -> None:
    bed = Bed()
    one, other = bed.hosts
    large: list[Any] = []
    sent = 0
    while len(large) == sent:
        produce(one, LARGE, large)
        sent += 1
        bed.clock.ms += 100
        bed.settle()
        assert sent * len(LARGE) < 2 * STORE_BYTES, "the store must not accept rows without limit"
    assert bed.clock.ms - VirtualClock().ms >= 500 and bed.below.scan(b"", b"\xff") == [], "the store must have stalled"
    assert len(LARGE) * len(large) >= STORE_BYTES - len(LARGE)
    small: list[Any] = []
    for number in range(50):
        bed.clock.ms += 100
        produce(other, SMALL, small)
        bed.settle()
        assert len(small) == number + 1, "the other partition waits as well"
    for _ in range(9):
        produce(one, SMALL, large)
    bed.settle()
    assert len(large) == sent - 1, "later entries must keep their order"
    assert bed.node_log.memory.accounts["rows"].bytes < STORE_BYTES + 2 * len(LARGE)
    bed.resume()
    assert len(large) == sent + 9 and not any(isinstance(answer, Exception) for answer in large + small)
    ids = [base for base, _ in large]
    assert ids == sorted(ids) and not bed.node_log.backlog.bytes and not one.requests.unapplied_bytes
    for host in bed.hosts:
        bed.check_rows(host.replica)  # type: ignore[arg-type]


def test_request_that_waits_too_long_for_capacity_reports_nothing_stored() -> None:
    bed = Bed()
    host, answers = bed.hosts[0], list[Any]()
    for _ in range(2 * STORE_BYTES // len(LARGE)):
        produce(host, LARGE, answers)
    bed.settle()
    stored = len(answers)
    bed.node_log.expire(30)
    produce(host, SMALL, answers)
    assert len(answers) == stored, "the request has not waited yet"
    bed.node_log.expire(30)
    refused = answers[stored:]
    assert len(answers) == 2 * STORE_BYTES // len(LARGE), "the last request has just arrived"
    assert refused and all(isinstance(answer, Overloaded) and answer.retriable for answer in refused)
    assert "could not be proposed" in str(refused[0])
    bed.resume()
    assert not isinstance(answers[-1], Exception) and len(answers) == len(refused) + stored + 1
    assert bed.node_log.backlog.bytes == host.requests.unapplied_bytes == 0
    assert host.status.messages == stored + 1


def test_follower_refuses_entries_of_a_group_with_unwritten_rows() -> None:
    bed = Bed()
    one, other = bed.hosts
    assert bed.node_log._takes_entries(one.number)
    bed.node_log.stores.write([(one.replica._rows.prefix + b"x", bytes(STORE_BYTES))])  # type: ignore[attr-defined]
    assert not bed.node_log._takes_entries(one.number) and bed.node_log._takes_entries(other.number)
    bed.node_log.stores.write_out()
    assert bed.node_log._takes_entries(one.number)


class Threads:
    """The same test bed with the threads of a node."""

    def __init__(self) -> None:
        wakeup, inbox = Signal(), Inbox()
        self.below = StallingStores()
        self.node_log: NodeLog = NodeLog(
            MemoryFiles(),
            self.below,
            node_id="n1",
            now_ms=lambda: 1_800_000_000_000,
            publish=lambda news: inbox.put(self.node_log.published, news),
            segment_bytes=SEGMENT_BYTES,
            limits=LIMITS,
            hooks=Hooks(wake=wakeup.set),
        )
        self.runner = Runner(
            self.node_log,
            wakeup,
            inbox,
            lambda node, messages: None,
            checkpoint_bytes=1 << 30,
            checkpoint_interval_s=1e9,
        )
        self.hosts = partitions(self.node_log)


@asynccontextmanager
async def threads() -> AsyncIterator[Threads]:
    """Run a runner until all of its hosts are ready."""
    found = Threads()
    async with trio.open_nursery() as nursery:
        await nursery.start(found.runner.run)
        await until_holds(lambda: all(host.ready for host in found.hosts))
        with trio.fail_after(PATIENCE_S):
            yield found
        nursery.cancel_scope.cancel()
    found.below.resume()
    await found.runner.close()


async def test_requests_waiting_for_the_store_continue_after_the_stall() -> None:
    async with threads() as node:
        one, other = node.hosts
        node.below.stall()
        large: list[Any] = []
        count = 2 * STORE_BYTES // len(LARGE)
        for _ in range(count):
            produce(one, LARGE, large)
        await until_holds(lambda: node.below.has_stalled.is_set() and node.node_log.has_held)
        await other.call(c.Append(SMALL))
        assert node.runner.progress_of("rows") is not None
        assert len(large) < count
        node.below.resume()
        await until_holds(lambda: len(large) == count)
        assert not any(isinstance(answer, Exception) for answer in large)


async def test_rows_are_written_while_one_partition_works_on_something_long() -> None:
    async with threads() as node:
        one, other = node.hosts
        ended = threading.Event()
        answers: list[Any] = []
        count = 2 * STORE_BYTES // len(LARGE)

        def work() -> None:
            while not ended.is_set():
                node.node_log.applier.yield_now()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(node.runner.ask, work, group=one.number))
            try:
                for _ in range(count):
                    produce(other, LARGE, answers)
                await until_holds(lambda: len(answers) == count)
            finally:
                ended.set()


async def test_failing_store_ends_waiting_requests() -> None:
    async with threads() as node:
        one = node.hosts[0]
        node.below.error = StorageFailed("the disk fails")
        answers: list[Any] = []
        for _ in range(2 * STORE_BYTES // len(LARGE)):
            produce(one, LARGE, answers)
        await until_holds(lambda: node.node_log.failed is not None)
        with pytest.raises(StorageFailed, match="the disk fails"):
            await node.runner.ask(lambda: None)
        with pytest.raises(StorageFailed, match="the disk fails"):
            produce(one, SMALL, answers)
        await until_holds(lambda: len(answers) == 2 * STORE_BYTES // len(LARGE))
        assert not node.node_log.backlog.bytes


async def test_until_written_waits_until_rows_are_written() -> None:
    async with threads() as node:
        await node.runner.until_written()  # no requests may wait
        node.below.stall()
        key = node.hosts[0].replica._rows.prefix + b"x"  # type: ignore[attr-defined]
        for _ in range(3):
            await node.runner.ask(lambda: node.node_log.stores.write([(key, bytes(NODE_BYTES // 4))]))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.runner.until_written)
            await trio.testing.wait_all_tasks_blocked()
            assert nursery.child_tasks, "the call must wait for the store"
            node.below.resume()
        node.below.stall()
        for _ in range(3):
            await node.runner.ask(lambda: node.node_log.stores.write([(key, bytes(NODE_BYTES // 4))]))
        node.below.error = StorageFailed("the disk fails")
        async with trio.open_nursery() as nursery:

            async def wait() -> None:
                with pytest.raises(StorageFailed, match="the disk fails"):
                    await node.runner.until_written()

            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            node.below.resume()


async def test_rows_that_are_handed_over_are_written_before_a_node_ends() -> None:
    async with threads() as node:
        node.below.stall()
        await node.hosts[0].call(c.Append(LARGE))
        await node.runner.ask(node.node_log.applier.write)
    assert node.below.scan(b"", b"\xff")


def test_one_partition_does_not_fill_the_store_queue() -> None:
    bed = Bed()
    one, other = bed.hosts
    answers: list[Any] = []
    limit = bed.node_log.backlog.limit_bytes
    with pytest.raises(Overloaded, match=r"bytes wait to be stored in the partition \(limit \d+\)") as refusal:
        for _ in range(limit // len(LARGE)):
            produce(one, LARGE, answers)
    assert refusal.value.retriable
    produce(one, SMALL, answers)
    for _ in range(limit // len(LARGE) // 3):
        produce(other, LARGE, answers)
    bed.settle()
    bed.resume()
    assert not any(isinstance(answer, Exception) for answer in answers) and not bed.node_log.backlog.bytes
    assert len(answers) > limit // len(LARGE) // 3 * 2
    produce(one, LARGE, answers)
