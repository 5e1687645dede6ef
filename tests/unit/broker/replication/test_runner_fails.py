"""Tests of a node's log that cannot be written, temporarily or permanently: each pending request gets a reply."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from sandq.broker.event_loop import Signal
from sandq.broker.replication import runner as runner_module
from sandq.broker.replication.inbox import Inbox
from sandq.broker.replication.node_log import KEPT_BYTES, Hooks, NodeLog
from sandq.broker.replication.raft_group import BATCH_BYTES, BATCH_WORK, RaftGroup
from sandq.broker.replication.runner import Runner
from sandq.model.errors import StorageFailed
from sandq.model.limits import Limits
from sandq.raft import Members
from sandq.storage.memory_files import MemoryFiles
from sandq.storage.stores import MemoryStores
from sandq.storage.wal import Record, WalFull
from tests.support.registered import register_node
from tests.support.storage.faulty_files import FaultyFiles, Plan
from tests.support.storage.log_bed import SEGMENT_BYTES
from tests.support.waiting import PATIENCE_S, until_holds


class Bed:
    """A node that is the only voter of its metadata group. The test can make its disk fail."""

    def __init__(self, checkpoint_bytes: int = 1 << 30) -> None:
        wakeup, inbox = Signal(), Inbox()
        self.plan = Plan()
        self.node_log: NodeLog = NodeLog(
            FaultyFiles(MemoryFiles(), self.plan),
            MemoryStores(),
            node_id="n1",
            now_ms=lambda: 1_800_000_000_000,
            publish=lambda news: inbox.put(self.node_log.published, news),
            limits=Limits(),
            segment_bytes=SEGMENT_BYTES,
            hooks=Hooks(wake=wakeup.set),
        )
        self.runner = Runner(
            self.node_log,
            wakeup,
            inbox,
            lambda node, messages: None,
            checkpoint_bytes=checkpoint_bytes,
            checkpoint_interval_s=1e9,
        )
        self.metadata: RaftGroup = self.node_log.open_metadata()

    async def fail(self) -> None:
        self.plan.fail_sync_at = 1
        self.metadata.submit(register_node("n1", "store", {}), lambda result: None)
        await until_holds(lambda: self.node_log.failed is not None)


@asynccontextmanager
async def bed(**options: int) -> AsyncIterator[Bed]:
    """Run a bed until its metadata is ready."""
    found = Bed(**options)
    async with trio.open_nursery() as nursery:
        await nursery.start(found.runner.run)
        await until_holds(lambda: found.metadata.ready)
        with trio.fail_after(PATIENCE_S):
            yield found
        nursery.cancel_scope.cancel()
    await found.runner.close()


async def test_members_are_not_changed_by_an_only_voter_that_cannot_write() -> None:
    """The node keeps leading to answer reads. A member change once waited forever for a pass."""
    async with bed() as node:
        await node.fail()
        assert node.metadata.ready
        with pytest.raises(StorageFailed):
            await node.metadata.change_members(Members(("n1#1",), ("n2#1",)))


async def test_between_batches_runs_at_once_without_batches() -> None:
    async with bed() as node:
        assert await node.runner.between_batches(lambda: 17) == 17
        await node.fail()
        with pytest.raises(StorageFailed):
            await node.runner.between_batches(lambda: 17)


async def test_waiter_between_commit_batches_gets_the_log_failure() -> None:
    syncing, free = trio.Event(), trio.Event()
    async with bed() as node:
        token = trio.lowlevel.current_trio_token()

        def on_sync(name: str) -> None:
            token.run_sync_soon(syncing.set)
            trio.from_thread.run(free.wait, trio_token=token)

        node.plan.on_sync = on_sync
        node.plan.fail_sync_at = 1
        node.metadata.submit(register_node("n1", "store", {}), lambda result: None)
        await syncing.wait()
        failures: list[StorageFailed] = []

        async def wait() -> None:
            with pytest.raises(StorageFailed) as caught:
                await node.runner.between_batches(lambda: None)
            failures.append(caught.value)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            free.set()
        assert failures == [node.node_log.failed]


async def test_a_log_that_has_grown_is_cut_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log is in memory until it is cut. In one second it may grow by all that the disk can write in a second."""
    monkeypatch.setattr(runner_module, "CHECKPOINT_CHECK_S", 1e9)
    async with bed(checkpoint_bytes=100_000) as node:
        for _ in range(10):
            await node.metadata.call(register_node("n1", "store", {"zone": "z" * 100_000}))
        await until_holds(lambda: node.metadata.group.journal.size_bytes < KEPT_BYTES)


async def test_log_written_during_flush_is_trimmed_by_the_next_checkpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A log that is too large is cut even if no further entry follows."""
    monkeypatch.setattr(runner_module, "CHECKPOINT_CHECK_S", 1e9)
    async with bed(checkpoint_bytes=100_000) as node:
        flush, flushing, may_flush = node.node_log.stores.flush, threading.Event(), threading.Event()

        def flush_slowly() -> None:
            flushing.set()
            may_flush.wait(PATIENCE_S)
            flush()

        monkeypatch.setattr(node.node_log.stores, "flush", flush_slowly)
        large = register_node("n1", "store", {"zone": "z" * 100_000})
        await node.metadata.call(large)
        await until_holds(flushing.is_set)
        for _ in range(4):
            await node.metadata.call(large)
        may_flush.set()
        await until_holds(lambda: node.metadata.group.journal.size_bytes < KEPT_BYTES)


async def test_proposal_is_not_kept_in_addition_to_its_entry() -> None:
    async with bed() as node:
        command = register_node("n1", "store", {})
        kept: list[object] = []
        node.metadata.submit(command, lambda result: None)
        node.metadata.flush()
        for requests in node.metadata.requests.proposed.values():
            kept += [request.command for request in requests]
        assert kept and kept == [None] * len(kept)


async def test_commit_batch_on_a_full_disk_waits_and_later_ones_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_module, "FULL_RETRY_S", 0.0)
    async with bed() as node:
        commit, seen = node.node_log.commit, []

        def full(records: Sequence[Record]) -> None:
            seen.append(node.runner.log_full)
            if len(seen) <= 3:
                raise WalFull("no space left")
            commit(records)

        monkeypatch.setattr(node.node_log, "commit", full)
        for _ in range(2):
            await node.metadata.call(register_node("n1", "store", {}))
            assert node.runner.log_full is None
        assert seen[:3] == [None, None, "the disk is full: no space left"] and len(seen) >= 5


async def test_entries_of_a_group_in_one_commit_batch_are_limited() -> None:
    """A small request waits only for the current commit batch, at any load."""
    async with bed() as node:
        host, done = node.metadata, list[object]()
        for _ in range(10):
            host.submit(register_node("n1", "store", {}), done.append, work=BATCH_WORK // 4)
        host.flush()
        assert len(host.requests.proposed) == 4 and len(host.requests.waiting) == 6
        host.flush()
        assert len(host.requests.proposed) == 8
        host.flush()
        assert len(host.requests.proposed) == 8, "no further entries before some are applied"
        await until_holds(lambda: len(done) == 10)


async def test_bytes_of_a_group_in_one_commit_batch_are_limited() -> None:
    """Large entries are written and synced in parts."""
    size = BATCH_BYTES // 2
    async with bed() as node:
        host, done = node.metadata, list[object]()
        for _ in range(6):
            host.submit(register_node("n1", "s" * size, {}), done.append, size=size)
        for proposed in (2, 4, 6):
            host.flush()
            assert sum(map(len, host.requests.proposed.values())) == proposed
        await until_holds(lambda: len(done) == 6)


async def test_large_requests_let_others_of_the_group_proceed() -> None:
    """Sixteen large requests wait, and only a limited number is proposed at once. A later small request is next."""
    async with bed() as node:
        host, done = node.metadata, list[str]()

        def submit(name: str, line: str | None, work: int) -> None:
            command = register_node("n1", "store", {})
            host.submit(command, lambda result: done.append(name), work=work, line=line)

        for number in range(16):
            submit(f"large {number}", "one", BATCH_WORK // 2)
        host.flush()
        submit("small", "other", 100)
        submit("after all", None, 100)
        submit("later", "third", 100)
        await until_holds(lambda: len(done) == 19)
        assert done.index("small") == 2
        assert done[-2:] == ["after all", "later"]
