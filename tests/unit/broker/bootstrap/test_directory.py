"""Tests of the nodes that a node knows: which links it keeps, and which stores it refuses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sandq.broker.bootstrap.directory import REMOVED_MOST, PeerDirectory
from sandq.broker.event_loop import Signal
from sandq.broker.peers.handshake import Peer, PeerIdentity
from sandq.broker.replication.replica import METADATA_GROUP
from sandq.metadata.records import RemovedNode
from sandq.model.errors import Conflict
from sandq.model.features import Levels
from sandq.protocol.peer import PeerFrame
from sandq.storage.known_peers import KnownPeers
from sandq.storage.memory_files import MemoryFiles


class Links:
    """The links that exist."""

    def __init__(self, **levels: Levels) -> None:
        self.up = {
            node: Peer(
                PeerIdentity(node_id=node, store_uuid=f"store-{node}", cluster_uuid="uuid", addresses={}, levels=known),
                True,
            )
            for node, known in levels.items()
        }

        self.sent: list[tuple[str, int, Any]] = []

    def send(self, node_id: str, kind: int, body: Any) -> bool:
        self.sent.append((node_id, kind, body))
        return True

    def send_to_all(self, kind: int, body: Any) -> None:
        self.sent += [(node, kind, body) for node in self.up]

    def end(self, node_id: str, why: str) -> None:
        self.up.pop(node_id, None)


def test_links_with_nodes_that_do_not_know_the_level_end() -> None:
    links, node_log = Links(a=Levels(1, 2), b=Levels(1, 1), c=Levels(2, 3)), SimpleNamespace(feature_level=None)
    others: Any = SimpleNamespace()
    directory = PeerDirectory(
        cluster="sandq",
        this_node=others,
        links=links,
        known=others,
        membership=others,
        node_log=node_log,
        runner=others,
        catalog=others,
        changed=Signal(),
    )  # type: ignore[arg-type]
    directory.end_unfit()
    assert set(links.up) == {"a", "b", "c"}, "the node is in no cluster yet"
    node_log.feature_level = 2
    directory.end_unfit()
    assert set(links.up) == {"a", "c"}
    node_log.feature_level = 3
    directory.end_unfit()
    assert set(links.up) == {"c"}


class Bed:
    """A node n2 whose metadata does not say yet that n1 was removed, unless `removed` is set."""

    def __init__(self) -> None:
        self.links = Links(n3=Levels(1, 1))
        self.known = KnownPeers(MemoryFiles(), "known", {"n1": "old", "n3": "store-n3"})
        self.view = SimpleNamespace(removed={}, nodes={})
        others: Any = SimpleNamespace()
        self.hosts = {METADATA_GROUP: SimpleNamespace(status=self.view)}
        node_log: Any = SimpleNamespace(hosts=self.hosts)
        runner: Any = SimpleNamespace(on_maintenance=self._call)
        this_node: Any = SimpleNamespace(name="n2")
        catalog: Any = SimpleNamespace(view=self.view)
        self.changed = Signal()
        self.directory = PeerDirectory(
            cluster="sandq",
            this_node=this_node,
            links=self.links,  # type: ignore[arg-type]
            known=self.known,
            membership=others,
            node_log=node_log,
            runner=runner,
            catalog=catalog,
            changed=self.changed,
        )

    @staticmethod
    async def _call(function: Any) -> Any:
        return function()


async def test_node_whose_metadata_is_behind_hears_of_removed_stores() -> None:
    bed = Bed()
    assert bed.directory.on_frame((("n1", "old"),))
    await bed.directory.pin_registered()
    bed.known.check("n1", "new")
    with pytest.raises(Conflict, match="removed"):
        bed.known.check("n1", "old")
    with pytest.raises(Conflict, match="another data directory"):
        bed.known.check("n3", "other")


async def test_nodes_report_removed_stores() -> None:
    bed = Bed()
    bed.directory.up("n3")
    bed.view.removed["n1"] = RemovedNode("n1", 1, ("old", "older"))
    await bed.directory.pin_registered()
    await bed.directory.pin_registered()
    bed.directory.up("n3")
    rows = [("n1", "old"), ("n1", "older")]
    assert bed.links.sent == [("n3", PeerFrame.REMOVED, body) for body in ([], rows, rows)]


@pytest.mark.parametrize(
    "body",
    [
        None,
        "n1",
        [["n1", "old"]],
        (("n1",),),
        (("n1", b"old"),),
        (("n1", ""),),
        (("n1", "x" * 65),),
        (("n" * 250, "old"),),
        (("n1", "old"),) * (REMOVED_MOST + 1),
    ],
)
async def test_malformed_frame_bans_nothing(body: Any) -> None:
    bed = Bed()
    assert not bed.directory.on_frame(body)
    await bed.directory.pin_registered()
    bed.known.check("n1", "old")


async def test_node_does_not_ban_its_own_store() -> None:
    bed = Bed()
    assert bed.directory.on_frame((("n2", "own"),))
    await bed.directory.pin_registered()
    assert not bed.known.is_removed("own")


async def test_node_without_metadata_tells_nothing() -> None:
    bed = Bed()
    bed.hosts.clear()
    bed.directory.up("n3")
    assert bed.links.sent == [("n3", PeerFrame.REMOVED, [])]
