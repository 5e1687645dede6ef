"""Tests of the dispatch of peer messages: they reach their recipient, and only from nodes of the same cluster."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sandq.broker.cluster.dispatch import PeerDispatch
from sandq.broker.event_loop import Signal
from sandq.broker.health.sick_peers import SickPeers
from sandq.broker.peers.handshake import Peer, PeerIdentity
from sandq.broker.peers.metadata_progress import MetadataProgress
from sandq.broker.peers.this_node import ThisNode
from sandq.protocol.peer import PeerFrame
from sandq.storage.identity import Identity

FRAMES = [
    (PeerFrame.RAFT, ()),
    (PeerFrame.ROUTES, ((1, 1, True),)),
    (PeerFrame.FOLLOWED, 7),
    (PeerFrame.ASKED, 5),
    (PeerFrame.TOLD, (5, 9)),
    (PeerFrame.SETTLED, ((1, 1, True),)),
    (PeerFrame.JOIN, None),
]


def peer(node: str, cluster_uuid: str | None) -> Peer:
    return Peer(
        PeerIdentity(node_id=node, store_uuid=f"store-{node}", cluster_uuid=cluster_uuid, addresses={}), known=True
    )


class Bed:
    """A dispatcher whose parts record the calls that they get."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.sent: list[tuple[str, int, Any]] = []
        self.peers = {"a": peer("a", "ours"), "b": peer("b", "theirs"), "c": peer("c", None)}
        links: Any = SimpleNamespace(up=self.peers, send=lambda *frame: self.sent.append(frame))
        this_node = ThisNode(Identity("n", "store-n", "ours"), "default", 1, lambda: 1, is_named=False)
        self.progress = MetadataProgress(links, this_node)
        self.progress.index = 3
        self.sick_peers = SickPeers()
        group_commit = SimpleNamespace(receive=self.note("raft"), connected=self.note("connected"))
        node_log: Any = SimpleNamespace(group_commit=group_commit, failed=None)
        routes: Any = SimpleNamespace(heard=self.note("routes"), up=self.note("routes up"))
        barrier: Any = SimpleNamespace(on_request=self.note("asked"), on_reply=self.note("told"))
        clocks: Any = SimpleNamespace(up=self.note("clocks up"), on_frame=lambda *frame: False)
        controller: Any = SimpleNamespace(settled=self.note("settled"))
        digests: Any = SimpleNamespace(on_frame=lambda node, body: self.heard.append("digest") or True)
        limits: Any = SimpleNamespace(on_frame=lambda node, kind, body: self.heard.append("limits") or True)
        limit_pauses: Any = SimpleNamespace(on_frame=lambda *frame: self.heard.append("limit pauses") or True)
        outbox: Any = SimpleNamespace(on_frame=lambda node, kind, body: self.heard.append("outbox") or True)
        pauses: Any = SimpleNamespace(on_frame=lambda node, kind, body: self.heard.append("pauses") or True)
        restores: Any = SimpleNamespace(on_frame=lambda node, kind, body: self.heard.append("restores") or True)
        log_reads: Any = SimpleNamespace(on_frame=lambda node, body: self.heard.append("log reads") or True)
        usage: Any = SimpleNamespace(on_frame=lambda node, body: self.heard.append("usage") or True)
        shut: Any = SimpleNamespace(
            on_frame=lambda node, body: self.heard.append("shut") or True, up=self.note("shut up"), down=self.note("")
        )
        directory: Any = SimpleNamespace(
            on_frame=lambda body: self.heard.append("removed") or True, up=self.note("removed up")
        )
        joining: Any = SimpleNamespace(on_frame=self.join)
        bootstrap: Any = SimpleNamespace(on_frame=lambda node, kind, body: False)
        snapshots: Any = SimpleNamespace(receive=self.note("stream"))
        self.dispatch = PeerDispatch(
            node_log=node_log,
            links=links,
            this_node=this_node,
            routes=routes,
            progress=self.progress,
            barrier=barrier,
            clocks=clocks,
            controller=controller,
            sick_peers=self.sick_peers,
            digests=digests,
            limits=limits,
            limit_pauses=limit_pauses,
            outbox=outbox,
            pauses=pauses,
            restores=restores,
            log_reads=log_reads,
            usage=usage,
            shut_replicas=shut,
            directory=directory,
            joining=joining,
            bootstrap=bootstrap,
            snapshots=snapshots,
            changed=Signal(),
        )

    def note(self, what: str) -> Any:
        return lambda *args: self.heard.append(what)

    def join(self, node: str, kind: int, body: Any) -> bool:
        if kind == PeerFrame.JOIN:
            self.heard.append("join")
        return kind == PeerFrame.JOIN


async def test_node_reports_that_it_is_sick_or_has_no_space() -> None:
    bed = Bed()
    for body, told in (
        (("its disk hangs", False), ("its disk hangs", False)),
        (("no room", True), ("no room", True)),
        (("no room",), ("no room", True)),
        (None, ("no room", True)),
        ("no room", ("no room", True)),
    ):
        bed.dispatch.on_frame("a", PeerFrame.SICK, body, 10)
        bed.dispatch.on_frame("b", PeerFrame.SICK, body, 10)
        assert bed.sick_peers.now() == {"a": told}, "invalid frames and frames of another cluster are dropped"


async def test_a_node_of_this_cluster_is_heard() -> None:
    bed = Bed()
    for kind, body in FRAMES:
        bed.dispatch.on_frame("a", kind, body, 10)
    assert bed.heard == ["raft", "routes", "asked", "told", "settled", "join"]
    assert bed.progress.others == {"a": 7}


@pytest.mark.parametrize("node", ["b", "c"])
async def test_only_join_requests_of_other_clusters_are_handled(node: str) -> None:
    """All clusters use the same group numbers. So a decision of another cluster must not affect a group of this
    cluster."""
    bed = Bed()
    for kind, body in FRAMES:
        bed.dispatch.on_frame(node, kind, body, 10)
    assert bed.heard == ["join"] and bed.progress.others == {}


async def test_leaders_are_sent_only_to_nodes_of_this_cluster() -> None:
    bed = Bed()
    for node in "bc":
        bed.dispatch.up(bed.peers[node])
    assert bed.heard == [] and bed.sent == []
    bed.dispatch.up(bed.peers["a"])
    assert bed.heard == ["connected", "clocks up", "routes up", "shut up", "removed up"] and bed.sent == [
        ("a", PeerFrame.FOLLOWED, 3)
    ]
