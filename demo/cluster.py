"""Nodes that find each other by gossip, each a process with its own data directory."""

from __future__ import annotations

from pathlib import Path

from demo.node import PROGRAM, Node, free_port

NAMES = ("node1", "node2", "node3")
"""Names of the nodes at the start. The first node founds the cluster."""


class Cluster:
    """Nodes with directories below `directory`."""

    def __init__(self, directory: Path, program: tuple[str, ...] = PROGRAM) -> None:
        self.nodes: dict[str, Node] = {}
        self._directory = directory
        self._program = program
        self._seed: str | None = None
        """Gossip address of the node that founds the cluster. A new node needs no other address."""
        for name in NAMES:
            self.add(name)

    def add(self, name: str) -> Node:
        """Return a new node, not started yet. The first node founds the cluster, and is the seed of all later nodes."""
        (self._directory / name).mkdir()
        node = Node(self._directory / name, name=name, program=self._program)
        gossip = f"127.0.0.1:{free_port()}"
        node.configure(
            NODE__ID=name,
            LISTEN__PEER=f"127.0.0.1:{free_port()}",
            LISTEN__GOSSIP=gossip,
            CLUSTER__MEMBERSHIP="gossip",
            CLUSTER__BOOTSTRAP="true" if self._seed is None else "false",
            CLUSTER__SEEDS=self._seed or "",
        )
        self._seed = self._seed or gossip
        self.nodes[name] = node
        return node

    @property
    def addresses(self) -> list[str]:
        return [node.address for node in self.nodes.values()]

    def check(self) -> None:
        """Raise NodeFailed if a node has ended by itself."""
        for node in self.nodes.values():
            node.check()

    def stop(self) -> None:
        """Stop all nodes at the same time, and wait."""
        for node in self.nodes.values():
            node.terminate()
        for node in self.nodes.values():
            node.stop()
