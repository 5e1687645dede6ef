"""Three nodes that form a cluster, each a process of its own with its own data directory."""

from __future__ import annotations

from pathlib import Path

from demo.node import PROGRAM, Node, free_port

NAMES = ("node1", "node2", "node3")


class Cluster:
    """Nodes over directories below `directory`."""

    def __init__(self, directory: Path, program: tuple[str, ...] = PROGRAM) -> None:
        self.nodes: dict[str, Node] = {}
        for name in NAMES:
            (directory / name).mkdir()
            self.nodes[name] = Node(directory / name, name=name, program=program)
        peer_ports = {name: free_port() for name in NAMES}
        for name, node in self.nodes.items():
            peers = [
                f"{{id: {other}, peer: '127.0.0.1:{peer_ports[other]}', client: '{self.nodes[other].address}', "
                "http: '127.0.0.1:1'}"  # HTTP is not served here
                for other in NAMES
                if other != name
            ]
            node.configure(
                NODE__ID=name,
                LISTEN__PEER=f"127.0.0.1:{peer_ports[name]}",
                CLUSTER__MEMBERSHIP="static",
                CLUSTER__PEERS=f"[{', '.join(peers)}]",
            )

    @property
    def addresses(self) -> list[str]:
        return [node.address for node in self.nodes.values()]

    def check(self) -> None:
        """NodeFailed when one has ended without having been told to."""
        for node in self.nodes.values():
            node.check()

    def stop(self) -> None:
        """All at once, and wait."""
        for node in self.nodes.values():
            node.terminate()
        for node in self.nodes.values():
            node.stop()
