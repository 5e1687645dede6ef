"""Tests of the founder election: exactly one of several nodes founds the cluster."""

from __future__ import annotations

import random
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from sandq.broker.bootstrap import founder_election
from sandq.broker.bootstrap.bootstrap import Bootstrap, BootstrapMode
from sandq.broker.bootstrap.founder_election import AGREES, ASKS, REFUSES, FounderElection
from sandq.broker.bootstrap.joining import Beginning
from sandq.broker.peers.handshake import Peer, PeerIdentity
from sandq.broker.peers.this_node import ThisNode
from sandq.errors import Conflict, Unavailable
from sandq.model.members import member_id
from sandq.protocol.peer import PeerFrame
from sandq.raft import Members
from sandq.storage.identity import Identity
from tests.support.examples import seeds
from tests.support.nodes.fake_links import FakeLinks


def peer(node: str, cluster_uuid: str | None = None) -> Peer:
    return Peer(
        PeerIdentity(node_id=node, store_uuid=f"store of {node}", cluster_uuid=cluster_uuid, addresses={}), known=True
    )


class Node:
    """A node whose messages wait in order on each link until the test delivers them."""

    def __init__(self, name: str, network: dict[str, Node]) -> None:
        self.name = name
        links = FakeLinks(own=name, on_send=self._send)
        self.links: dict[str, Peer] = links.peers
        self.sent: dict[str, list[str]] = {}
        self.knows = False
        self.founding = FounderElection(name, links, lambda: self.knows)
        self._network = network

    def _send(self, node: str, kind: int, body: Any) -> None:
        assert kind == PeerFrame.FOUND
        self.sent.setdefault(node, []).append(body)

    def deliver(self, node: str) -> None:
        """Deliver the first waiting message to this node."""
        assert self._network[node].founding.on_frame(self.name, PeerFrame.FOUND, self.sent[node].pop(0))


def linked(*names: str) -> dict[str, Node]:
    network: dict[str, Node] = {}
    for name in names:
        network[name] = Node(name, network)
        network[name].links.update({other: peer(other) for other in names if other != name})
    return network


async def test_single_node_founds(autojump_clock: trio.testing.MockClock) -> None:
    node = linked("a")["a"]
    assert await node.founding.decide(lambda: []) is None
    assert node.founding.decided
    with pytest.raises(Conflict):
        await node.founding.decide(lambda: [])


@pytest.mark.parametrize("seed", seeds(20, 60))
async def test_only_one_of_linked_nodes_founds(autojump_clock: trio.testing.MockClock, seed: int) -> None:
    """Nodes try at random times, messages take random times, and refused nodes may try again."""
    chance = random.Random(seed)
    network = linked("a", "b", "c")
    over = trio.Event()

    async def wants(node: Node) -> None:
        while not over.is_set():
            await trio.sleep(chance.uniform(0, 1))
            try:
                if await node.founding.decide(list) is None:
                    return
            except (Conflict, Unavailable):
                pass

    async def carry(sender: Node, node: str) -> None:
        while not over.is_set():
            await trio.sleep(chance.uniform(0, 0.3))
            if sender.sent.get(node):
                sender.deliver(node)

    async with trio.open_nursery() as nursery:
        for sender in network.values():
            nursery.start_soon(wants, sender)
            for node in sender.links:
                nursery.start_soon(carry, sender, node)
        await trio.sleep(60)
        assert sum(node.founding.decided for node in network.values()) == 1, seed
        over.set()
        nursery.cancel_scope.cancel()


async def test_smaller_of_two_simultaneous_founders_wins(autojump_clock: trio.testing.MockClock) -> None:
    network = linked("a", "b")
    a, b = network["a"], network["b"]
    results: dict[str, str | None] = {}

    async def decide(node: Node) -> None:
        results[node.name] = await node.founding.decide(list)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(decide, a)
        nursery.start_soon(decide, b)
        await trio.testing.wait_all_tasks_blocked()
        assert (a.sent, b.sent) == ({"b": [ASKS]}, {"a": [ASKS]})
        a.deliver("b")
        assert b.sent["a"] == [ASKS, AGREES]
        b.deliver("a")
        assert a.sent["b"] == [REFUSES]
        b.deliver("a")
        a.deliver("b")
    assert results == {"a": None, "b": "a"}
    assert a.founding.decided and not b.founding.decided


@pytest.mark.parametrize("reason", ["it belongs to a cluster", "it knows of one"])
async def test_node_that_cannot_agree_refuses(autojump_clock: trio.testing.MockClock, reason: str) -> None:
    network = linked("a", "b")
    network["b"].founding.decided = reason == "it belongs to a cluster"
    network["b"].knows = reason == "it knows of one"
    async with trio.open_nursery() as nursery:

        async def ask() -> None:
            assert await network["a"].founding.decide(list) == "b"

        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        network["a"].deliver("b")
        assert network["b"].sent["a"] == [REFUSES]
        network["b"].deliver("a")


async def test_silent_node_is_named(autojump_clock: trio.testing.MockClock) -> None:
    network = linked("a", "b")
    with pytest.raises(Unavailable, match=r"b, z did not say within 3 s"):
        await network["a"].founding.decide(lambda: ["z"])
    assert not network["a"].founding.decided


async def test_statement_on_an_earlier_link_does_not_count(autojump_clock: trio.testing.MockClock) -> None:
    network = linked("a", "b", "c")
    a, b = network["a"], network["b"]
    async with trio.open_nursery() as nursery:

        async def ask() -> None:
            with pytest.raises(Unavailable, match=r"b, c did not say"):
                await a.founding.decide(lambda: ["b"])

        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        a.deliver("b")
        b.deliver("a")
        del a.links["b"]
        await trio.sleep(1)
        a.links["b"] = peer("b")
        await trio.sleep(1)
        assert a.sent["b"] == [ASKS]


def test_other_frames_are_left_to_others() -> None:
    node = linked("a")["a"].founding
    assert not node.on_frame("b", PeerFrame.FOUND + 1, ASKS) and not node.on_frame("b", PeerFrame.FOUND, ["asks"])


# -- the choice -------------------------------------------------------------------------------------------------------


class Bed:
    """The other nodes as a node sees them by gossip and by links."""

    def __init__(self, mode: BootstrapMode, name: str = "b", belongs: str | None = None) -> None:
        self.seen: dict[str, Mapping[str, str]] = {}
        links = FakeLinks(own=name, on_send=self._send)
        self.links: dict[str, Peer] = links.peers
        self.welcomed: Beginning | None = None
        this_node = ThisNode(
            Identity(name, f"store of {name}", belongs), "z", 1, lambda: None, is_named=mode == "named"
        )
        progress: Any = SimpleNamespace(others={})
        directory: Any = SimpleNamespace(seen=lambda: list(self.seen.values()))
        joining: Any = self
        self.forming = Bootstrap(
            mode=mode,
            this_node=this_node,
            named=["c"] if mode == "named" else [],
            joining=joining,
            links=links,
            progress=progress,
            directory=directory,
        )
        self.found: Beginning | None = None

    def see(self, node: str, **tags: str) -> None:
        self.seen[node] = {"id": node, "cluster": "sandq", **tags}

    def link(self, node: str, cluster_uuid: str | None = None) -> None:
        """Link a node that agrees to everything."""
        self.links[node] = peer(node, cluster_uuid)

    def _send(self, node: str, kind: int, body: str) -> None:
        if body == ASKS:
            self.forming.on_frame(node, PeerFrame.FOUND, AGREES)

    async def until_welcome(self) -> Beginning:
        while self.welcomed is None:  # noqa: ASYNC110 - the test says when
            await trio.sleep(0.1)
        return self.welcomed

    async def form(self) -> None:
        self.found = await self.forming.formed()

    @property
    def founds(self) -> bool:
        return self.found == Beginning(Members((member_id("b", 1),)))


async def test_node_without_peers_founds_nothing(autojump_clock: trio.testing.MockClock) -> None:
    bed = Bed("meets")
    with trio.move_on_after(100):
        await bed.form()
    assert bed.found is None


@pytest.mark.parametrize("other", ["a", "c"])
async def test_founder_founds_after_meeting_a_node_that_is_no_founder(
    autojump_clock: trio.testing.MockClock, other: str
) -> None:
    bed = Bed("meets")
    bed.see(other)
    with trio.fail_after(10):
        await bed.form()
    assert bed.founds


async def test_smallest_founder_founds(autojump_clock: trio.testing.MockClock) -> None:
    bed = Bed("meets")
    bed.see("c", founder="1")
    bed.link("c")
    with trio.fail_after(10):
        await bed.form()
    assert bed.founds


async def test_smallest_founder_waits_for_agreement(autojump_clock: trio.testing.MockClock) -> None:
    """The other nodes may have founded the cluster, and gossip is late."""
    bed = Bed("meets")
    bed.see("c", founder="1")
    with trio.move_on_after(20):
        await bed.form()
    assert bed.found is None


async def test_other_founders_wait_and_join(autojump_clock: trio.testing.MockClock) -> None:
    bed = Bed("meets")
    bed.see("a", founder="1")
    bed.see("c")
    bed.link("a")
    members = Members((member_id("a", 1),), (member_id("b", 1),))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bed.form)
        await trio.sleep(20)
        assert bed.found is None and "a founds the cluster" in bed.forming.why()
        bed.see("a", uuid="u")
        await trio.sleep(1)
        assert bed.found is None and "the cluster of a" in bed.forming.why()
        bed.welcomed = Beginning(members, "u")
    assert bed.found == Beginning(members, "u")


async def test_next_founder_founds_when_the_smallest_is_gone(autojump_clock: trio.testing.MockClock) -> None:
    bed = Bed("meets")
    bed.see("a", founder="1")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bed.form)
        await trio.sleep(20)
        del bed.seen["a"]
        await trio.sleep(20)
        assert bed.found is None, "a node must not found alone: no other node is visible"
        bed.see("c")
    assert bed.founds


async def test_init_founds_after_seen_nodes_agree(autojump_clock: trio.testing.MockClock) -> None:
    bed = Bed("joins")
    bed.see("c")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bed.form)
        await trio.sleep(20)
        assert bed.found is None and founder_election.ANSWER_S < 10
        with pytest.raises(Unavailable, match="c did not say"):
            await bed.forming.init()
        bed.link("c")
        await bed.forming.init()
    assert bed.founds


@pytest.mark.parametrize("how", ["seen", "linked", "named"])
async def test_init_is_refused_if_a_cluster_or_a_member_is_missing(
    autojump_clock: trio.testing.MockClock, how: str
) -> None:
    bed = Bed("named" if how == "named" else "joins")
    if how == "seen":
        bed.see("c", uuid="u")
    elif how == "linked":
        bed.link("c", "u")
    with pytest.raises(Conflict, match="missing: c" if how == "named" else "c belongs to it"):
        await bed.forming.init()


async def test_node_with_cluster_uuid_founds_nothing(autojump_clock: trio.testing.MockClock) -> None:
    """Otherwise the node would found a second cluster with the same UUID."""
    bed = Bed("meets", belongs="u")
    bed.see("c")
    with trio.move_on_after(20):
        await bed.form()
    assert bed.found is None
