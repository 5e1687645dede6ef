"""Tests of the links that a node keeps when the feature level of the cluster changes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from sandq.broker.bootstrap.directory import PeerDirectory
from sandq.broker.event_loop import Signal
from sandq.broker.peers.handshake import Peer, PeerIdentity
from sandq.model.features import Levels


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

    def end(self, node_id: str, why: str) -> None:
        del self.up[node_id]


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
