"""Provide fake links to other nodes, which record frames instead of sending them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sandq.broker.peers.links import PeerLinks


class FakeLinks(PeerLinks):
    """Links from node `own` to `peers`. A test adds and removes peers."""

    def __init__(self, *nodes: str, own: str = "n1", on_send: Callable[[str, int, Any], object] | None = None) -> None:
        """`on_send(node, kind, body)` is called for each frame. If it returns False, `send` fails as without a link."""
        self.own = own
        self.peers: dict[str, Any] = dict.fromkeys(nodes)
        self.sent: list[tuple[str, int, Any]] = []
        self._on_send = on_send

    @property
    def up(self) -> dict[str, Any]:
        return self.peers

    def reachable(self) -> set[str]:
        return {self.own, *self.peers}

    def send(self, node_id: str, kind: int, body: Any) -> bool:
        self.sent.append((node_id, kind, body))
        return self._on_send is None or self._on_send(node_id, kind, body) is not False

    def accepts(self, node_id: str) -> bool:
        return True
