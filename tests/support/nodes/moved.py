"""Move partitions between nodes of this process under load, and check what must hold."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager

import trio

import sandq
from sandq.broker.replication.raft_group import RaftGroup
from sandq.metadata import commands as m
from sandq.metadata.records import DRAINING, IN, Partition
from sandq.model.errors import NotLeader, TimedOut, Unavailable
from sandq.node.running import Serving
from sandq.storage.keys import store_of
from tests.support.nodes.found import FoundNodes
from tests.support.processes.load import SETTINGS, Record, under_load
from tests.support.waiting import PATIENCE_S, until_holds

BEFORE = 40
"""Number of messages that are stored before the load begins; half of them are due later."""
LATER_MS = 2000
PAUSE_S = 0.1
LEAST = 100


@asynccontextmanager
async def used_topic(nodes: FoundNodes, seed: int, *, partitions: int, replicas: int) -> AsyncIterator[Record]:
    """Produce into topic "t" and consume from it while the block runs.

    At its end, check that no partition is moving, that every replica is where the metadata assigns it, and that each
    acknowledged message was delivered once."""
    rng = random.Random(seed)
    async with nodes.connect(*nodes.running) as client:
        await client.admin.create_topic("t", partitions=partitions, replicas=replicas, **SETTINGS)
        async with under_load(client, rng, pause_s=PAUSE_S, least=LEAST) as record:
            await _put(client, record)
            yield record
            await until_settled(nodes)
        record.judge(seed)
    await until_even(nodes)
    await until_swept(nodes)


async def _put(client: sandq.Client, record: Record) -> None:
    receipts = {}
    async with client.producer("t") as producer:
        for number in range(BEFORE):
            value = b"before%d" % number
            record.due_ms[value] = int(time.time() * 1000) + number % 2 * LATER_MS
            receipts[value] = await producer.send(value, deliver_at=record.due_ms[value])
        for value, receipt in receipts.items():
            record.stored[value] = await receipt


# -- requests ---------------------------------------------------------------------------------------------------------


async def drain(nodes: FoundNodes, name: str, *, undo: bool = False) -> None:
    """Drain a node, or undo the drain."""
    await _change(nodes, m.ChangeStanding(name, IN if undo else DRAINING))


async def assign(nodes: FoundNodes, partition: Partition, names: Sequence[str]) -> None:
    """Assign a partition to other nodes."""
    await _change(nodes, m.Assign(partition.group, partition.epoch, list(names)))


async def _change(nodes: FoundNodes, command: m.Command) -> None:
    """Execute a command on the leader of the metadata; retry until it is committed."""
    with trio.fail_after(PATIENCE_S):
        while True:
            for serving in list(nodes.running.values()):
                metadata = serving.broker.metadata_host
                if metadata.ready:
                    try:
                        await metadata.call(command)
                        return
                    except (NotLeader, TimedOut, Unavailable):
                        pass  # another node leads now
            await trio.sleep(0.05)


# -- what must hold -------------------------------------------------------------------------------------------------


def all_partitions(serving: Serving) -> list[Partition]:
    return [part for topic in serving.broker.metadata.topics.values() for part in topic.partitions]


def led(nodes: FoundNodes) -> dict[int, RaftGroup]:
    """Return the groups of partitions that a node leads and can serve."""
    hosts = [host for serving in nodes.running.values() for host in serving.broker.node_log.hosts.values()]
    return {host.number: host for host in hosts if host.number and host.ready}


def unsettled(nodes: FoundNodes) -> Iterator[str]:
    """Yield a text for each state that must still change."""
    if len({serving.broker.metadata.applied_index for serving in nodes.running.values()}) > 1:
        yield "not all nodes know the same of metadata"
    leaders = led(nodes)
    for name, serving in nodes.running.items():
        parts = all_partitions(serving)
        view = {record.node_id: record for record in serving.broker.metadata.nodes.values()}
        leaving = [node for node, record in view.items() if record.standing != IN]
        here = {part.group for part in parts if name in part.nodes}
        pointed = {pointer.group for pointer in serving.broker.node_log.pointers.all() if pointer.group}
        if serving.broker.node_log.failed is not None:
            yield f"{name} has failed"
        if here != serving.broker.catalog.by_group.keys() or here != pointed:
            yield f"{name} is to hold {here}, runs {set(serving.broker.catalog.by_group)}, has stores for {pointed}"
        for part in parts:
            host = leaders.get(part.group)
            if part.moving or part.former or set(part.nodes) & set(leaving):
                yield f"{part} is on its way"
            elif host is None:
                yield f"nobody leads {part}"
            elif sorted(host.members.voters) != sorted(part.members) or host.members.learners:
                yield f"{part} has {host.members}"


async def until_settled(nodes: FoundNodes) -> None:
    with trio.move_on_after(PATIENCE_S):
        while any(unsettled(nodes)):  # noqa: ASYNC110 - it is several nodes
            await trio.sleep(0.05)
        return
    raise AssertionError(sorted(set(unsettled(nodes))))


async def until_even(nodes: FoundNodes) -> None:
    """Wait until the running replicas of each partition have applied the same entries, and compare their status."""

    def replicas() -> dict[int, list[RaftGroup]]:
        found: dict[int, list[RaftGroup]] = {}
        for serving in nodes.running.values():
            for number, host in serving.broker.node_log.hosts.items():
                if number:
                    found.setdefault(number, []).append(host)
        return found

    def even() -> bool:
        for hosts in replicas().values():
            if len({(host.status.applied_index, host.group.journal.last_index) for host in hosts}) > 1:
                return False
        return True

    await until_holds(even)
    for number, hosts in replicas().items():
        statuses = [(h.status.messages, h.status.now_ms, sorted(map(str, h.status.groups))) for h in hosts]
        assert all(status == statuses[0] for status in statuses), (number, statuses)


async def until_swept(nodes: FoundNodes) -> None:
    """Wait until each node has deleted all rows of stores to which no pointer refers."""
    for serving in nodes.running.values():
        node_log = serving.broker.node_log
        runner = serving.broker._runner

        def stores(node_log: object = node_log) -> set[int]:
            rows = node_log.stores.scan(b"", b"\xff" * 5, limit=1_000_000, max_bytes=1 << 30)  # type: ignore[attr-defined]
            return {store_of(key) for key, _ in rows}

        with trio.fail_after(PATIENCE_S):
            while True:
                kept = {pointer.store for pointer in node_log.pointers.all()} | node_log.filling
                if await runner.ask(stores) <= kept:
                    break
                await trio.sleep(0.1)
