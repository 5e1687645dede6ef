"""An entry that cannot be applied shuts its partition, and nothing else, until it is skipped (ADR 46)."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from sandq.broker.replication import runner, worker
from sandq.broker.replication.node_log import NodeLog
from sandq.broker.replication.raft_group import RaftGroup
from sandq.broker.replication.shut import ApplyFailure, Step
from sandq.model.batch import Column, encode
from sandq.model.errors import Conflict, InvalidRequest
from sandq.node import STORES_NAME, run_node
from sandq.node.running import Serving
from sandq.partition.base import rows
from sandq.partition.state_machine import TimerPartition
from sandq.protocol.frames import Type
from sandq.storage.keys import store_prefix
from sandq.storage.level_stores import LevelStores
from tests.integration.conftest import Dial
from tests.support.nodes.planted import POISON, STEPS, Plan, planted
from tests.support.nodes.raw_client import Frame, RawClient
from tests.support.nodes.small_node import small_config
from tests.support.nodes.working import connected, take, values
from tests.support.waiting import until_holds


def host_of(node: Serving, topic: str = "t") -> RaftGroup:
    return node.broker.catalog.partition(topic, 0).raft_group


async def until_shut(node: Serving) -> ApplyFailure:
    await until_holds(lambda: (failure := host_of(node).shut) is not None and failure.is_exact)
    failure = host_of(node).shut
    assert failure is not None
    return failure


async def numbered(raw: RawClient, value: bytes, number: int) -> Frame:
    """Send a batch of an idempotent producer."""
    return await raw.call(Type.PRODUCE, "t", 0, 77, 1, number, 0, encode({Column.VALUE: [value]}))


@pytest.mark.parametrize("step", STEPS)
async def test_poison_entry_on_one_node_shuts_its_partition_until_it_is_skipped(
    tmp_path: Path, dial: Dial, step: str
) -> None:
    with planted(Plan(step)):
        async with run_node(small_config(tmp_path)) as node, connected(node) as client:
            await client.admin.create_topic("t")
            await client.admin.create_topic("other")
            await client.produce("t", b"before")
            raw = await dial(node)
            poisoned = await raw.produce(POISON)
            assert poisoned[2] == "TIMED_OUT" or step == "drain", "it may be applied later"
            failure = await until_shut(node)
            assert "Planted: planted at" in failure.error and failure.index is not None
            await client.produce("other", b"goes on")
            for refused in (await raw.produce(b"x"), await raw.call(Type.GROUP_LIST, "t")):
                assert refused[2] == "UNAVAILABLE" and "this replica is shut" in refused[3], refused
            info = await client.admin.cluster()
            assert [(row["topic"], row["partition"], row["leads"]) for row in info["shut"]] == [("t", 0, True)]
        async with run_node(small_config(tmp_path)) as node, connected(node) as client:
            failure = await until_shut(node)
            await client.produce("other", b"goes on")
            found = await client.admin.skip_entry("t", 0, dry_run=True)
            assert found["index"] == failure.index and not found["skipped"]
            with pytest.raises(InvalidRequest, match=f"is shut at entry {failure.index}, not 1"):
                await client.admin.skip_entry("t", 0, index=1)
            assert (await client.admin.skip_entry("t", 0, index=found["index"]))["skipped"]
            await until_holds(lambda: host_of(node).shut is None and host_of(node).ready)
            refused = await (await dial(node)).produce(POISON)
            assert refused[2] == "CONFLICT" and "skipped" in refused[3], "the command would shut the partition again"
            with pytest.raises(Conflict, match="not shut"):
                await client.admin.skip_entry("t", 0)
            await client.produce("t", b"after")
            async with client.subscribe("t", group="g") as subscription:
                assert values(await take(subscription, 2)) == [b"before", b"after"]
        async with run_node(small_config(tmp_path)) as node, connected(node) as client:
            await until_holds(lambda: host_of(node).ready)
            assert host_of(node).shut is None, "the decision must be in the log and in the rows"


async def test_entry_without_the_bug_is_applied_at_the_next_start(tmp_path: Path, dial: Dial) -> None:
    """A version without the bug applies the entry that shut the previous version."""
    with planted(Plan("first")):
        async with run_node(small_config(tmp_path)) as node, connected(node) as client:
            await client.admin.create_topic("t")
            await (await dial(node)).produce(POISON)
            await until_shut(node)
    async with (
        run_node(small_config(tmp_path)) as node,
        connected(node) as client,
        client.subscribe("t", group="g") as subscription,
    ):
        assert values(await take(subscription, 1)) == [POISON]


async def test_skip_of_an_idempotent_batch_uses_up_its_number(tmp_path: Path, dial: Dial) -> None:
    with planted(Plan("first")):
        async with run_node(small_config(tmp_path)) as node, connected(node) as client:
            await client.admin.create_topic("t")
            raw = await dial(node)
            for number, value in ((1, b"a"), (2, POISON)):
                await numbered(raw, value, number)
            await until_shut(node)
            await client.admin.skip_entry("t", 0)
            await until_holds(lambda: host_of(node).ready)
            again = await numbered(raw, POISON, 2)
            assert again[2] == "CONFLICT" and "skipped" in again[3]
            assert (await numbered(raw, b"b", 3))[0] == 0, "later messages must be stored"


async def test_shut_partition_does_not_keep_its_topic_from_being_changed_and_deleted(
    tmp_path: Path, dial: Dial
) -> None:
    with planted(Plan("first")):
        async with run_node(small_config(tmp_path)) as node, connected(node) as client:
            await client.admin.create_topic("t")
            await (await dial(node)).produce(POISON)
            await until_shut(node)
        async with run_node(small_config(tmp_path)) as node, connected(node) as client:
            await until_shut(node)
            await client.admin.update_topic("t", lease="7s")
            await client.admin.update_topic("t", partitions=2)
            await client.produce("t", b"elsewhere", partition=1)
            await client.admin.delete_topic("t")
            assert (await client.admin.cluster())["shut"] == []
            await client.admin.create_topic("t")
            await client.produce("t", b"anew")


def damage_rows(directory: Path, store: int = 2) -> None:
    """Make the state row of a store unreadable."""
    stores = LevelStores(directory / STORES_NAME, create=False)
    prefix = store_prefix(store)
    assert stores.get(prefix + rows.STATE_KEY) is not None
    stores.write([(prefix + rows.STATE_KEY, b"\xc1 damaged")])
    stores.flush()
    stores.close()


async def test_rows_that_cannot_be_read_shut_their_partition(tmp_path: Path, dial: Dial) -> None:
    config = small_config(tmp_path)
    async with run_node(config) as node, connected(node) as client:
        await client.admin.create_topic("t")
        await client.admin.create_topic("other")
        await client.produce("t", b"lost with its rows")
        store = host_of(node).replica.store
    damage_rows(Path(config.node.data_dir), store)
    async with run_node(config) as node, connected(node) as client:
        failure = await until_shut(node)
        assert (failure.step, failure.index) == (Step.LOAD, None)
        await client.produce("other", b"goes on")
        refused = await (await dial(node)).produce(b"x")
        assert refused[2] == "UNAVAILABLE" and "could not read its rows" in refused[3]
        with pytest.raises(Conflict, match="no entry is at fault"):
            await client.admin.skip_entry("t", 0)
        await client.admin.delete_topic("t")
        await client.admin.create_topic("t")
        await client.produce("t", b"anew")


async def test_second_poison_behind_a_skipped_one_is_skipped_as_well(tmp_path: Path, dial: Dial) -> None:
    """The rows stay below both entries. The first decision must not cause the replica to be reopened repeatedly."""
    opened = 0

    def count(self: NodeLog, *args: Any) -> Any:
        nonlocal opened
        opened += 1
        return reopen(self, *args)

    reopen = NodeLog.reopen
    with planted(Plan("first")), patch.object(NodeLog, "reopen", count):
        async with run_node(small_config(tmp_path)) as node, connected(node) as client:
            await client.admin.create_topic("t")
            raw = await dial(node)
            await client.produce("t", b"before")
            await raw.produce(POISON)
            await until_shut(node)
            await client.admin.skip_entry("t", 0)
            await until_holds(lambda: host_of(node).ready)
            await raw.produce(POISON, b"another batch")
            first = await until_shut(node)
            assert not host_of(node).reopens
            assert (await client.admin.skip_entry("t", 0))["index"] == first.index
            await until_holds(lambda: host_of(node).ready)
            assert opened == 2
            async with client.subscribe("t", group="g") as subscription:
                assert values(await take(subscription, 1)) == [b"before"]
        async with run_node(small_config(tmp_path)) as node:
            await until_holds(lambda: host_of(node).ready)


async def test_entry_that_does_not_end_shuts_its_partition(tmp_path: Path, dial: Dial) -> None:
    """The failing entry costs CPU time at every start, but has no other effect."""
    apply = TimerPartition.apply

    def endless(self: TimerPartition, index: int, entry: Any, view: Any) -> Any:
        if any(POISON in getattr(command, "batch", b"") for command in entry.commands):
            while True:
                pass
        return apply(self, index, entry, view)

    with (
        patch.object(TimerPartition, "apply", endless),
        patch.object(TimerPartition, "needs_no_disk", lambda self, entry: False),
        patch.object(runner, "ENDLESS_CPU_S", 0.1),
        patch.object(runner, "ENDLESS_CHECK_S", 0.05),
    ):
        async with run_node(small_config(tmp_path)) as node, connected(node) as client:
            await client.admin.create_topic("t")
            await client.admin.create_topic("other")
            await client.produce("t", b"before")
            await (await dial(node)).produce(POISON)
            assert "EndlessEntry" in (await until_shut(node)).error
            await client.produce("other", b"goes on")
        async with run_node(small_config(tmp_path)) as node, connected(node) as client:
            await until_shut(node)
            await client.produce("other", b"goes on")
            await client.admin.skip_entry("t", 0)
            await until_holds(lambda: host_of(node).ready)
            async with client.subscribe("t", group="g") as subscription:
                assert values(await take(subscription, 1)) == [b"before"]


async def test_entry_with_unwritable_rows_is_identified(tmp_path: Path, dial: Dial) -> None:
    """Rows of several entries are normally written together. The reloaded replica writes the rows of each entry
    separately."""
    with planted(Plan("drain")), patch.object(worker, "REST_S", 600.0):
        async with run_node(small_config(tmp_path)) as node, connected(node) as client:
            await client.admin.create_topic("t")
            raw = await dial(node)
            for value in (b"before", POISON, b"after", b"last"):
                assert (await raw.produce(value))[0] == Type.REPLY
            poison = host_of(node).status.applied_index - 2
            await node.broker._runner.ask(lambda: None)  # rows are written before this entry
            await until_holds(lambda: (failure := host_of(node).shut) is not None and failure.is_exact)
            assert (await client.admin.skip_entry("t", 0))["index"] == poison
            await until_holds(lambda: host_of(node).ready)
            async with client.subscribe("t", group="g") as subscription:
                assert values(await take(subscription, 3)) == [b"before", b"after", b"last"]
