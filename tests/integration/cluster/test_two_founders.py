"""Several nodes may found the cluster and are each other's seeds: exactly one founds it."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from sandq.broker.bootstrap.founder_election import FounderElection
from tests.support.nodes.found import BootstrapChecks, FoundNodes
from tests.support.simulation.seeds import few_of
from tests.support.waiting import until_holds


def founders(directory: Path, nursery: trio.Nursery, *names: str) -> FoundNodes:
    nodes = FoundNodes(directory, nursery)
    for name in names:
        seeds = [nodes.gossip(other) for other in names if other != name]
        nodes.own[name] = {"CLUSTER__BOOTSTRAP": "true", "CLUSTER__SEEDS": f"[{', '.join(seeds)}]"}
    return nodes


def uuids(nodes: FoundNodes) -> set[str | None]:
    return {serving.broker.metadata.cluster_uuid for serving in nodes.running.values()}


@pytest.mark.parametrize("pause_s", few_of([0, 0.3, 0.05, 1], 2))
@pytest.mark.parametrize("order", [("node1", "node2"), ("node2", "node1")])
async def test_two_become_one_cluster(tmp_path: Path, order: tuple[str, str], pause_s: float) -> None:
    async with trio.open_nursery() as nursery:
        nodes = founders(tmp_path, nursery, *order)
        for name in order:
            nodes.launch(name)
            await trio.sleep(pause_s)
        await until_holds(lambda: len(nodes.running) == 2)
        await nodes.until_registered("node1", "node2")
        assert len(uuids(nodes)) == 1
        await nodes.stop("node1", "node2")
        nursery.cancel_scope.cancel()


async def test_three_and_one_that_founds_nothing(tmp_path: Path) -> None:
    names = ("node2", "node3", "node4")
    async with trio.open_nursery() as nursery:
        nodes = founders(tmp_path, nursery, *names)
        nodes.own["node5"] = {"CLUSTER__SEEDS": nodes.gossip("node3")}
        for name in ("node5", *reversed(names)):
            nodes.launch(name)
        await until_holds(lambda: len(nodes.running) == 4)
        await nodes.until_registered("node5", *names)
        assert len(uuids(nodes)) == 1
        await nodes.stop(*nodes.running)
        nursery.cancel_scope.cancel()


async def test_next_candidate_founds_after_the_first_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decide, is_stuck = FounderElection.decide, trio.Event()
    checks = BootstrapChecks(monkeypatch)

    async def stuck(self: FounderElection, seen: object) -> str | None:
        if self._own_node == "node1":
            is_stuck.set()
            await trio.sleep_forever()
        return await decide(self, seen)  # type: ignore[arg-type]

    monkeypatch.setattr(FounderElection, "decide", stuck)
    async with trio.open_nursery() as nursery:
        nodes = founders(tmp_path, nursery, "node1", "node2")
        nodes.own["node3"] = {"CLUSTER__SEEDS": f"[{nodes.gossip('node1')}, {nodes.gossip('node2')}]"}
        for name in ("node1", "node2"):
            nodes.launch(name)
        await is_stuck.wait()  # the two have met. With an earlier third node, node2 might have founded the cluster
        nodes.launch("node3")
        await checks.until_more("node2")
        assert not nodes.running
        await nodes.stop("node1")
        await until_holds(lambda: len(nodes.running) == 2)
        await nodes.until_registered("node2", "node3")
        assert len(uuids(nodes)) == 1
        await nodes.stop("node2", "node3")
        nursery.cancel_scope.cancel()
