"""What nodes tell each other reaches those whom it is for, and only from nodes of the same cluster."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sandq.broker.bootstrap.joining import JOIN
from sandq.broker.peers import dispatch
from sandq.broker.peers.dispatch import PeerDispatch
from sandq.broker.peers.handshake import Peer, PeerIdentity

FRAMES = [
    (dispatch.RAFT, ()),
    (dispatch.ROUTES, ((1, 1, True),)),
    (dispatch.FOLLOWED, 7),
    (dispatch.ASKED, 5),
    (dispatch.TOLD, (5, 9)),
    (dispatch.SETTLED, ((1, 1, True),)),
    (JOIN, None),
]


def peer(node: str, cluster_uuid: str | None) -> Peer:
    return Peer(PeerIdentity(node, f"store-{node}", cluster_uuid, {}), known=True)


class Bed:
    """Dispatch among parts that write down what they were told."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.sent: list[tuple[str, int, Any]] = []
        passes = SimpleNamespace(receive=self.note("raft"), connected=self.note("connected"))
        latest = SimpleNamespace(answer=self.note("asked"), told=self.note("told"))
        broker: Any = SimpleNamespace(
            routes=SimpleNamespace(heard=self.note("routes"), up=self.note("routes up")),
            catalog=SimpleNamespace(barrier=latest),
            reconciler=SimpleNamespace(index=3),
        )
        clocks: Any = SimpleNamespace(up=self.note("clocks up"), on_frame=lambda *frame: False)
        node_log: Any = SimpleNamespace(group_commit=passes, failed=None)
        controller: Any = SimpleNamespace(settled=self.note("settled"))
        self.dispatch = PeerDispatch(
            node_log, broker, clocks, controller, lambda peer: peer.identity.cluster_uuid == "ours", self.outside
        )
        up = {"a": peer("a", "ours"), "b": peer("b", "theirs"), "c": peer("c", None)}
        links: Any = SimpleNamespace(up=up, send=lambda *frame: self.sent.append(frame))
        self.dispatch.links = links

    def note(self, what: str) -> Any:
        return lambda *args: self.heard.append(what)

    def outside(self, node: str, kind: int, body: Any) -> bool:
        if kind == JOIN:
            self.heard.append("join")
        return kind == JOIN


async def test_a_node_of_this_cluster_is_heard() -> None:
    bed = Bed()
    for kind, body in FRAMES:
        bed.dispatch.on_frame("a", kind, body, 10)
    assert bed.heard == ["raft", "routes", "asked", "told", "settled", "join"]
    assert bed.dispatch.followed == {"a": 7}


@pytest.mark.parametrize("node", ["b", "c"])
async def test_of_others_only_what_joins_is_heard(node: str) -> None:
    """Every cluster numbers its groups alike: what is settled in another one says nothing of a group here."""
    bed = Bed()
    for kind, body in FRAMES:
        bed.dispatch.on_frame(node, kind, body, 10)
    assert bed.heard == ["join"] and bed.dispatch.followed == {}


async def test_only_a_node_of_this_cluster_is_told_what_is_led_here() -> None:
    bed = Bed()
    for node in "bc":
        bed.dispatch.up(bed.dispatch.links.up[node])
    assert bed.heard == [] and bed.sent == []
    bed.dispatch.up(bed.dispatch.links.up["a"])
    assert bed.heard == ["connected", "clocks up", "routes up"] and bed.sent == [("a", dispatch.FOLLOWED, 3)]
