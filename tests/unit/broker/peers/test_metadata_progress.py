"""Tests of the metadata progress of this node and its peers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import trio
import trio.testing

from sandq.broker.peers.handshake import Peer, PeerIdentity
from sandq.broker.peers.metadata_progress import MetadataProgress
from sandq.broker.peers.this_node import ThisNode
from sandq.protocol.peer import PeerFrame
from sandq.storage.identity import Identity


class Bed:
    """A node with links to "a" and "b" of its cluster and to "x" of a different cluster."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, int, Any]] = []
        clusters = {"a": "ours", "b": "ours", "x": "theirs"}
        self.up = {
            node: Peer(
                PeerIdentity(node_id=node, store_uuid=f"store-{node}", cluster_uuid=uuid, addresses={}), known=True
            )
            for node, uuid in clusters.items()
        }
        links: Any = SimpleNamespace(up=self.up, send=lambda *frame: self.sent.append(frame))
        this_node = ThisNode(Identity("n", "store-n", "ours"), "default", 1, lambda: 1, is_named=False)
        self.progress = MetadataProgress(links, this_node)


async def test_waiter_continues_once_this_node_reached_the_index() -> None:
    bed, done = Bed(), []

    async def wait(index: int) -> None:
        await bed.progress.until(index)
        done.append(index)

    async with trio.open_nursery() as nursery:
        for index in (0, 3, 4):
            nursery.start_soon(wait, index)
        await trio.testing.wait_all_tasks_blocked()
        assert done == [0]
        bed.progress.advance(3)
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(done) == [0, 3]
        bed.progress.advance(5)
    assert bed.sent == [(node, PeerFrame.FOLLOWED, index) for index in (3, 5) for node in "abx"]


async def test_until_others_waits_for_linked_nodes_of_this_cluster() -> None:
    bed = Bed()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bed.progress.until_others, 7)
        bed.progress.heard("a", 8)
        await trio.testing.wait_all_tasks_blocked()
        assert nursery.child_tasks, "b has reported nothing"
        del bed.up["b"]
        bed.progress.down("b")
    assert bed.progress.others == {"a": 8}


async def test_reconnected_link_gets_progress_again_and_starts_without_progress() -> None:
    bed = Bed()
    bed.progress.advance(2)
    bed.progress.heard("a", 2)
    bed.progress.down("a")
    bed.sent.clear()
    bed.progress.report_to("a")
    assert bed.sent == [("a", PeerFrame.FOLLOWED, 2)] and bed.progress.others == {}
