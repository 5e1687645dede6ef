"""Moves of partitions did not end under load, or after a crash of the metadata leader."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import trio

from sandq.broker.peers.metadata_barrier import MetadataBarrier
from sandq.broker.replication.runner import Runner
from tests.support.nodes import moved
from tests.support.nodes.found import FoundNodes, found_nodes
from tests.support.waiting import until_holds, until_led

NAMES = ("node1", "node2", "node3")


async def drained(nodes: FoundNodes, name: str) -> None:
    await moved.drain(nodes, name)
    await until_holds(lambda: not any(moved.unsettled(nodes)))


@pytest.mark.parametrize("replicas", [1, 2])
async def test_partition_move_under_constant_load_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replicas: int
) -> None:
    """A learner with a slower disk never had all committed entries, so the move never ended."""
    slow: set[str] = set()
    committed = Runner._committed

    async def a_moment_later(*args: Any) -> None:
        await trio.sleep(0.02)
        committed(*args)

    def later(self: Runner, *args: Any) -> None:
        if self.node_log.node_id in slow:
            trio.lowlevel.spawn_system_task(a_moment_later, self, *args)
        else:
            committed(self, *args)

    monkeypatch.setattr(Runner, "_committed", later)
    async with found_nodes(tmp_path, *NAMES) as nodes, nodes.connect(*NAMES) as client:
        await until_holds(lambda: len(nodes.voters("node1")) == 3)
        await client.admin.create_topic("t", partitions=1, replicas=replicas)
        leader = await until_led(client)
        (partition,) = (await client.admin.topic("t")).partitions
        slow.update(set(NAMES) - set(partition.nodes))
        async with trio.open_nursery() as producing:
            for _ in range(5):
                producing.start_soon(_produce, client)
            await drained(nodes, leader)
            producing.cancel_scope.cancel()


async def _produce(client: Any) -> None:
    for number in count():
        await client.produce("t", b"%d" % number)


async def test_partition_moves_with_lost_metadata_answers_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The nodes whose requests were lost made no more moves."""
    answer, lost = MetadataBarrier.answer, ["the first", "the second"]

    def answers(self: MetadataBarrier, done: Callable[[int | None], None]) -> None:
        if lost:
            lost.pop()
        else:
            answer(self, done)

    async with found_nodes(tmp_path, *NAMES) as nodes, nodes.connect(*NAMES) as client:
        await until_holds(lambda: len(nodes.voters("node1")) == 3)
        await client.admin.create_topic("t", partitions=3, replicas=2)
        monkeypatch.setattr(MetadataBarrier, "answer", answers)
        await drained(nodes, "node2")
        assert not lost
