"""Three nodes: they form a cluster, any of them serves, and one stops, returns, or loses its disk."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio

import sandq
from sandq.broker.replication import log_pin, node_log
from sandq.broker.snapshots import snapshots
from sandq.broker.snapshots.transfer import Throttle
from sandq.errors import InvalidRequest, NotLeader
from sandq.protocol.frames import Type
from tests.support.nodes.found import refusals
from tests.support.nodes.raw_client import RawClient
from tests.support.nodes.three import NAMES, ThreeNodes, three_nodes
from tests.support.nodes.working import take, values
from tests.support.waiting import until_answer, until_holds


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[ThreeNodes]:
    async with three_nodes(tmp_path) as nodes:
        yield nodes


async def registered(client: sandq.Client) -> None:
    await until_answer(client.admin.cluster, lambda info: len(info["nodes"]) == 3)


async def created(nodes: ThreeNodes, client: sandq.Client, partitions: int = 1, **settings: object) -> None:
    await registered(client)
    await client.admin.create_topic("t", partitions=partitions, replicas=3, **settings)


async def test_three_nodes_form_one_cluster(nodes: ThreeNodes) -> None:
    async def ask() -> list[dict[str, Any]]:
        infos = []
        for name in NAMES:
            async with nodes.connect(name) as client:
                infos.append(await client.admin.cluster())
        return infos

    def agree(infos: list[dict[str, Any]]) -> bool:
        """An election may be in progress, or a node may not have met all others yet."""
        up = [[(node["node"], node["up"]) for node in info["nodes"]] for info in infos]
        return up == [[(name, True) for name in NAMES]] * 3 and len({info["metadata_leader"] for info in infos}) == 1

    infos = await until_answer(ask, agree)
    assert len({info["cluster_uuid"] for info in infos}) == 1
    assert infos[0]["cluster_uuid"]
    rows = [(row["version"], row["gossip"]) for info in infos for row in info["nodes"]]
    assert rows == [(sandq.__version__, None)] * 9, "each node must know the versions of all nodes, without gossip"
    for name in NAMES:
        assert (nodes.data_dir(name) / "identity").exists()


async def test_every_node_serves_every_topic(nodes: ThreeNodes) -> None:
    for number, name in enumerate(NAMES):
        async with nodes.connect(name) as client:
            await registered(client)
            topic = f"t{number}"
            await client.admin.create_topic(topic, partitions=6, replicas=3)
            # Each node leads the same number of partitions once elections are over.
            await until_answer(
                lambda client=client, topic=topic: client.admin.topic(topic),  # type: ignore[misc]
                lambda record: Counter(row.leader for row in record.partitions) == dict.fromkeys(NAMES, 2),
            )
            sent = [b"%d" % n for n in range(30)]
            for value in sent:
                await client.produce(topic, value, key=value)
            async with client.subscribe(topic, group="g") as subscription:
                assert sorted(values(await take(subscription, 30))) == sorted(sent)


async def test_more_replicas_than_nodes_are_refused(nodes: ThreeNodes) -> None:
    async with nodes.connect() as client:
        await registered(client)
        with pytest.raises(InvalidRequest, match="4 replicas, and 3 nodes"):
            await client.admin.create_topic("t", replicas=4)


async def test_follower_names_the_leader(nodes: ThreeNodes) -> None:
    async with nodes.connect() as client:
        await created(nodes, client)
    leader = await nodes.until_led()

    def named(name: str) -> str | None:
        """Return the leader that a node names if it does not lead itself."""
        try:
            nodes.running[name].broker.catalog.partition("t", 0).raft_group.check_ready()
        except NotLeader as refused:
            return refused.details.get("node_id")
        return name

    def all_agree() -> bool:
        nonlocal leader
        leader = nodes.leader() or leader
        return {named(name) for name in NAMES} == {leader}

    await until_holds(all_agree)
    for name in NAMES:
        if name != leader:
            with pytest.raises(NotLeader):
                nodes.running[name].broker.led("t")
    raw = await RawClient.connect(nodes.client_ports[next(name for name in NAMES if name != leader)], hello=True)
    try:
        reply = await raw.call(Type.METADATA, ["t"])
        assert {node[0] for node in reply[2]} == set(NAMES)
    finally:
        await trio.aclose_forcefully(raw.stream)


async def test_a_leader_goes_and_nothing_is_lost(nodes: ThreeNodes) -> None:
    sent, acked = [b"%d" % number for number in range(200)], []
    async with nodes.connect() as client:
        await created(nodes, client)
        leader = await nodes.until_led()

        async def produce() -> None:
            for value in sent:
                await client.produce("t", value)
                acked.append(value)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(produce)
            await until_answer(lambda: _now(len(acked)), lambda count: count >= 50)
            await nodes.stop(leader)
        assert await nodes.until_led() != leader
        async with client.subscribe("t", group="g") as subscription:
            # Compare without order: if leadership moves meanwhile, messages arrive over two connections.
            assert sorted(values(await take(subscription, 200))) == sorted(sent), "each once"


async def _now(count: int) -> int:
    return count


async def test_cluster_continues_after_all_nodes_stopped(nodes: ThreeNodes) -> None:
    async with nodes.connect() as client:
        await created(nodes, client, partitions=3)
        for number in range(30):
            await client.produce("t", b"%d" % number)
    await nodes.stop(*NAMES)
    await nodes.start()
    async with nodes.connect() as client:
        async with client.subscribe("t", group="g") as subscription:
            assert sorted(values(await take(subscription, 30))) == sorted(b"%d" % number for number in range(30))
        assert (await client.admin.topic("t")).replicas == 3


async def test_returning_node_catches_up_and_may_lead(nodes: ThreeNodes) -> None:
    """The node first learns old metadata. A topic that is missing there must not be taken for deleted."""
    async with nodes.connect() as client:
        await created(nodes, client)
        for number in range(20):
            await client.produce("t", b"%d" % number)
        await nodes.stop("node3")
        for number in range(20, 40):
            await client.produce("t", b"%d" % number)
        await nodes.start("node3")
        await nodes.until_even()
        await nodes.stop("node1")
        await nodes.stop("node2")
        await nodes.start("node1")
        async with client.subscribe("t", group="g") as subscription:
            assert sorted(values(await take(subscription, 40))) == sorted(b"%d" % number for number in range(40))


async def test_returning_node_learns_of_a_deleted_topic(nodes: ThreeNodes) -> None:
    async with nodes.connect() as client:
        await created(nodes, client)
        await client.admin.create_topic("u", partitions=2, replicas=3)
        await nodes.stop("node3")
        await client.admin.delete_topic("t")
        await nodes.start("node3")
        catalog = nodes.running["node3"].broker.catalog
        pointers = nodes.running["node3"].broker.node_log.pointers
        await until_holds(lambda: set(catalog.topics) == {"u"})
        await until_holds(lambda: len(pointers.all()) == 3)  # the metadata group and two partitions


async def test_node_far_behind_gets_a_snapshot(
    nodes: ThreeNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_log, "KEPT_BYTES", 0)
    monkeypatch.setattr(node_log, "LAG_BYTES", 0)
    async with nodes.connect() as client:
        await created(nodes, client)
        await client.produce("t", b"first")
        await nodes.stop("node3")
        async with client.producer("t") as producer:
            await (await producer.send_many([b"%d" % number for number in range(300)]))
        later = await client.produce("t", b"later", delay="1h", unique_key="u")
        for name in ("node1", "node2"):
            await _checkpoint(nodes, name)
        await nodes.start("node3")
        await nodes.until_even()
        pointer = nodes.running["node3"].broker.node_log.pointers.get(nodes.host("node3").number)
        assert pointer is not None
        assert pointer.snapshot_index > 0, "the log had been cut: it came as a snapshot"
        status = nodes.host("node3").status
        assert status.messages == 302
        # After a restart, node3 continues from the installed snapshot. Only one other node runs.
        await nodes.stop("node3")
        await nodes.start("node3")
        await nodes.stop("node1")
        async with client.subscribe("t", group="g") as subscription:
            got = values(await take(subscription, 301))
        assert sorted(got) == sorted([b"first", *[b"%d" % number for number in range(300)]])
        assert await client.messages("t").cancel(unique_key="u") == later


LARGE = 50_000


async def test_outrun_snapshot_is_sent_again_faster(nodes: ThreeNodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Meanwhile, the leader keeps only as much of the log as the budget allows."""
    taken, rates = trio.Event(), []

    async def take(throttle: Throttle, size: int, times: int = 1) -> None:
        if size < LARGE:
            return  # snapshot of the metadata group
        rates.append(times)
        taken.set()
        if times == 1:
            await trio.sleep_forever()

    monkeypatch.setattr(Throttle, "take", take)
    monkeypatch.setattr(node_log, "KEPT_BYTES", 0)
    monkeypatch.setattr(node_log, "LAG_BYTES", 0)
    monkeypatch.setattr(log_pin, "PIN_BYTES", 100_000)
    monkeypatch.setattr(snapshots, "RETRY_S", 0.01)
    async with nodes.connect("node1", "node2") as client:
        await created(nodes, client)
        await nodes.stop("node3")
        for _ in range(10):
            await client.produce("t", bytes(LARGE))
        leader = await nodes.until_led()
        for name in ("node1", "node2"):
            await _checkpoint(nodes, name)
        await nodes.start("node3")
        with trio.fail_after(60):
            await taken.wait()
        (pin,) = nodes.host(leader).pins.values()
        for _ in range(5):
            await client.produce("t", bytes(10_000))
            await _checkpoint(nodes, leader)
            assert not pin.is_lost and nodes.host(leader).group.journal.bytes_above(pin.index) < 100_000
        for _ in range(20):
            await client.produce("t", bytes(10_000))
        await _checkpoint(nodes, leader)
        assert pin.is_lost
        assert nodes.host(leader).group.journal.size_bytes < 100_000
        await nodes.until_even()
        assert max(rates) > 1
        assert nodes.host("node3").status.messages == 35
        await until_holds(lambda: not nodes.host(leader).pins)


async def _checkpoint(nodes: ThreeNodes, name: str) -> None:
    broker = nodes.running[name].broker
    await broker._runner.checkpoint()


async def test_a_wiped_node_takes_part_in_nothing(nodes: ThreeNodes) -> None:
    async with nodes.connect() as client:
        await created(nodes, client)
        await client.produce("t", b"kept")
        await nodes.stop("node3")
        shutil.rmtree(nodes.data_dir("node3"))
        with refusals() as count:
            nodes._nursery.start_soon(nodes._start, "node3", {})
            await until_holds(lambda: count("node3", "store"))
        assert "node3" not in nodes.running, "the node must not be admitted"
        await client.produce("t", b"more")
        info = await client.admin.cluster()
        assert {node["node"]: node["up"] for node in info["nodes"]}["node3"] is False
        leader = await nodes.until_led()
        await nodes.stop(next(name for name in ("node1", "node2") if name != leader))
        await until_holds(lambda: nodes.leader() is None)  # one of three is no majority


async def test_leases_outlive_their_leader(nodes: ThreeNodes) -> None:
    """The token stays valid: an ack under it counts at the next leader."""
    async with nodes.connect() as client:
        await created(nodes, client)
        for value in (b"a", b"b", b"c"):
            await client.produce("t", value)
        async with client.subscribe("t", group="g", credit=3) as subscription:
            held = await take(subscription, 3, ack=False)
            leader = await nodes.until_led()
            await nodes.stop(leader)
            await held[0].ack()
            await held[1].ack()
            await client.produce("t", b"d")
            assert values(await take(subscription, 1)) == [b"d"], "held messages must not be delivered again"
            await held[2].ack()
        groups = await client.admin.groups("t")
        assert [(row["group"], row["ready"], row["leased"]) for row in groups] == [("g", 0, 0)]


async def test_settings_reach_every_leader(nodes: ThreeNodes) -> None:
    async with nodes.connect() as client:
        await created(nodes, client, partitions=3)
        await client.admin.update_topic("t", max_attempts=3)
        hosts = [nodes.host(name, "t", at) for at in range(3) for name in NAMES]
        await until_holds(lambda: all(host.status.settings["max_attempts"] == 3 for host in hosts))
