"""Replicas that do not have the same rows are found and named, and made anew when somebody says so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sandq.errors import Conflict, InvalidRequest, UnknownPartition, UnknownTopic
from sandq.model.features import KNOWN
from sandq.partition import rows
from sandq.storage.keys import store_prefix
from tests.support.nodes.three import NAMES, ThreeNodes, three_nodes
from tests.support.waiting import until_answer, until_holds

COUNT = 30


async def compared(nodes: ThreeNodes, *, same: bool) -> tuple[str, ...]:
    """Compare partition 0 of "t" at whoever leads it, until that is what is found; who differs."""

    async def compare() -> tuple[bool | None, tuple[str, ...]]:
        leader = await nodes.until_led()
        digests, number = nodes.running[leader].digests, nodes.host(leader).number
        found = await digests.compare(number)
        # Of a node that has just come not all are heard; and who leads no more says nothing.
        if not all_heard(leader) or nodes.leader() != leader:
            return None, ()
        return found, digests.different.get(number, ())

    def all_heard(leader: str) -> bool:
        return len(nodes.host(leader).members.voters) == len(nodes.running)

    _, different = await until_answer(compare, lambda found: found[0] is same)
    return different


def flip(nodes: ThreeNodes, name: str) -> None:
    """A bit of a message that one replica stores."""
    stores = nodes.running[name].broker.node_log.stores
    prefix = store_prefix(nodes.host(name).replica.store)
    start, stop = [prefix + bound for bound in rows.tag_bounds(rows.LOG)]
    (key, value), *_ = stores.scan(start, stop, limit=1, max_bytes=1 << 20)
    stores.write([(key, value[:-1] + bytes([value[-1] ^ 1]))])


def incarnations(nodes: ThreeNodes) -> Iterator[str]:
    return iter(nodes.host(next(iter(nodes.running))).members.voters)


@pytest.mark.parametrize("leads", [False, True])
async def test_a_replica_that_differs_is_named_and_made_anew(tmp_path: Path, leads: bool) -> None:
    async with three_nodes(tmp_path) as nodes, nodes.connect() as client:
        await client.admin.create_topic("t", replicas=3)
        await client.admin.create_topic("one", replicas=1)
        await until_holds(lambda: all(s.broker.node_log.feature_level == KNOWN.highest for s in nodes.running.values()))
        ids = [await client.produce("t", f"{at}", delay="1h") for at in range(COUNT)]
        assert await compared(nodes, same=True) == ()
        leader = await nodes.until_led()
        odd = leader if leads else next(name for name in NAMES if name != leader)
        flip(nodes, odd)
        # Whoever leads by then says so, to people too.
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
        await client.admin.rebuild("t", 0, odd)
        await until_answer(lambda: client.admin.topic("t"), lambda topic: not topic.partitions[0].moving)
        assert await compared(nodes, same=True) == ()
        after = set(incarnations(nodes))
        assert {member.partition("#")[0] for member in before - after} == {odd} and len(after) == 3
        found = [await client.messages("t").get(id=one) for one in ids]
        assert [message.value for message in found] == [b"%d" % at for at in range(COUNT)]


async def test_no_replica_is_dropped_while_another_one_is_away(tmp_path: Path) -> None:
    async with three_nodes(tmp_path) as nodes, nodes.connect() as client:
        await client.admin.create_topic("t", replicas=3)
        await client.produce("t", "a", delay="1h")
        await nodes.stop("node3")
        nodes.running.pop("node3", None)
        with pytest.raises(Conflict, match="nothing was dropped"):
            await client.admin.rebuild("t", 0, "node2")
        assert set((await client.admin.topic("t")).partitions[0].nodes) == set(NAMES)
