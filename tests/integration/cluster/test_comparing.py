"""Replicas whose rows differ are found, named, and rebuilt on request."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from sandq.errors import Conflict, InvalidRequest, TimedOut, UnknownPartition, UnknownTopic
from sandq.model.caller import NODE
from sandq.model.members import node_of
from sandq.partition.base import rows
from sandq.protocol.requests_admin import Rebuild
from sandq.storage.keys import store_prefix
from tests.support.nodes.three import NAMES, ThreeNodes, compared, three_nodes
from tests.support.waiting import until_answer, until_holds

COUNT = 30


def flip(nodes: ThreeNodes, name: str) -> None:
    """Change one bit of a message that one replica stores."""
    stores = nodes.running[name].broker.node_log.stores
    prefix = store_prefix(nodes.host(name).replica.store)
    start, stop = [prefix + bound for bound in rows.tag_bounds(rows.LOG)]
    (key, value), *_ = stores.scan(start, stop, limit=1, max_bytes=1 << 20)
    stores.write([(key, value[:-1] + bytes([value[-1] ^ 1]))])


def incarnations(nodes: ThreeNodes) -> Iterator[str]:
    return iter(nodes.host(next(iter(nodes.running))).members.voters)


def replaced_nodes(nodes: ThreeNodes, before: set[str]) -> set[str] | None:
    """Return the nodes whose replicas of partition 0 were replaced. None until all nodes report as many replicas as
    before."""
    found = [set(nodes.host(name).members.voters) for name in NAMES]
    if any(len(after) != len(NAMES) or after != found[0] for after in found):
        return None
    return {node_of(member) for member in before - found[0]}


def metadata_leader(nodes: ThreeNodes) -> str | None:
    return next((name for name, serving in nodes.running.items() if serving.broker.metadata_host.ready), None)


@pytest.mark.parametrize("leads", [False, True])
async def test_different_replica_is_named_and_rebuilt(tmp_path: Path, leads: bool) -> None:
    async with three_nodes(tmp_path) as nodes, nodes.connect() as client:
        await client.admin.create_topic("t", replicas=3)
        await client.admin.create_topic("one", replicas=1)
        ids = [await client.produce("t", f"{at}", delay="1h") for at in range(COUNT)]
        assert await compared(nodes, same=True) == ()
        leader = await nodes.until_led()
        odd = leader if leads else next(name for name in NAMES if name != leader)
        flip(nodes, odd)
        # The current leader reports the difference, also in the health findings.
        assert await compared(nodes, same=False) == (odd,)
        leader = await nodes.until_led()
        async with nodes.connect(leader) as asking:
            info = await asking.admin.cluster()
            if info["node"] == nodes.leader():
                assert info["different"] == [{"topic": "t", "partition": 0, "nodes": [odd]}]
        with pytest.raises(InvalidRequest, match="holds the only replica"):
            (partition,) = (await client.admin.topic("one")).partitions
            await client.admin.rebuild("one", 0, partition.nodes[0])
        with pytest.raises(UnknownTopic):
            await client.admin.rebuild("nothing", 0, odd)
        with pytest.raises(UnknownPartition):
            await client.admin.rebuild("t", 1, odd)
        with pytest.raises(InvalidRequest, match="does not hold partition 0"):
            await client.admin.rebuild("t", 0, "node9")
        before = set(incarnations(nodes))

        async def rebuild() -> bool:
            try:
                await client.admin.rebuild("t", 0, odd)
            except (TimedOut, Conflict):
                return False  # meanwhile the metadata group has a new leader
            return True

        await until_answer(rebuild, lambda is_done: is_done)
        await until_holds(lambda: replaced_nodes(nodes, before) == {odd})
        assert await compared(nodes, same=True) == ()
        found = [await client.messages("t").get(id=one) for one in ids]
        assert [message.value for message in found] == [b"%d" % at for at in range(COUNT)]


async def test_metadata_leader_stops_while_a_replica_is_rebuilt(tmp_path: Path) -> None:
    async with three_nodes(tmp_path) as nodes, nodes.connect() as client:
        await client.admin.create_topic("t", replicas=3)
        ids = [await client.produce("t", f"{at}", delay="1h") for at in range(COUNT)]
        await until_holds(lambda: metadata_leader(nodes) is not None)
        asked = nodes.running[metadata_leader(nodes) or ""].broker
        odd = next(name for name in NAMES if name != nodes.leader())
        before = set(incarnations(nodes))

        async def hand_over() -> None:
            """Move the leadership of the metadata group once the replica is no longer assigned."""
            group = nodes.host(NAMES[0]).number
            while odd in asked.metadata.partition(group).nodes:  # type: ignore[union-attr]
                await asked.metadata_host.changed()
            while asked.metadata_host.ready:
                asked.metadata_host.hand_over(set(NAMES))
                await asked.metadata_host.changed()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(hand_over)
            # The error is no redirect to the next leader, which would do the rebuild a second time.
            with pytest.raises(TimedOut, match="ask again"):
                await asked.administration.nodes.rebuild(Rebuild("t", 0, odd), NODE)
        asked.metadata_host.stop_leaving()
        await until_holds(lambda: replaced_nodes(nodes, before) in (set(), {odd}))
        assert await compared(nodes, same=True) == ()
        found = [await client.messages("t").get(id=one) for one in ids]
        assert [message.value for message in found] == [b"%d" % at for at in range(COUNT)]


async def test_interrupted_rebuild_reports_its_progress(tmp_path: Path) -> None:
    async with three_nodes(tmp_path) as nodes, nodes.connect() as client:
        await client.admin.create_topic("t", replicas=3)
        await until_holds(lambda: metadata_leader(nodes) is not None)
        asked = nodes.running[metadata_leader(nodes) or ""].broker
        odd = next(name for name in NAMES if name != nodes.leader())
        before, term = set(incarnations(nodes)), asked.metadata_host.group.term
        administration, backlog = asked.administration.nodes, asked.metadata_host._backlog
        until_dropped = administration._until_dropped

        async def until_dropped_and_full(group: int) -> Any:
            left = await until_dropped(group)
            backlog.bytes += backlog.limit_bytes
            return left

        administration._until_dropped = until_dropped_and_full  # type: ignore[method-assign]
        with pytest.raises(TimedOut, match="ask again"):
            await administration.rebuild(Rebuild("t", 0, odd), NODE)
        backlog.bytes -= backlog.limit_bytes
        catalogs = [nodes.running[name].broker.catalog for name in NAMES]
        # The metadata leader completes the rebuild. A new leader may have assigned the replica again before
        # it was dropped.
        await until_holds(
            lambda: (
                all(0 in each.topics["t"].partitions for each in catalogs)
                and (found := replaced_nodes(nodes, before)) is not None
                and (found == {odd} or (not found and asked.metadata_host.group.term != term))
            )
        )
        assert await compared(nodes, same=True) == ()


async def test_rebuild_is_refused_while_another_replica_is_away(tmp_path: Path) -> None:
    async with three_nodes(tmp_path) as nodes, nodes.connect() as client:
        await client.admin.create_topic("t", replicas=3)
        await client.produce("t", "a", delay="1h")
        await nodes.stop("node3")
        nodes.running.pop("node3", None)
        with pytest.raises(Conflict, match="nothing was dropped"):
            await client.admin.rebuild("t", 0, "node2")
        assert set((await client.admin.topic("t")).partitions[0].nodes) == set(NAMES)
