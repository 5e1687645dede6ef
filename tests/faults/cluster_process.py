"""Three real nodes of one cluster, each in a process of its own, to be killed, held up, wiped and started again."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import trio

import sandq
from sandq.errors import SandqError
from tests.faults.node_process import NodeProcess, free_port

NAMES = ("node1", "node2", "node3")
LOOPBACK = dict.fromkeys(NAMES, "127.0.0.1")
PATIENCE_S = 30.0
_LOOK_S = 0.05


class ClusterProcess:
    """`hosts`: where each listens; `options`: of some nodes' processes. `environ` is for all of them."""

    def __init__(
        self,
        directory: Path,
        *,
        hosts: Mapping[str, str] = LOOPBACK,
        options: Mapping[str, Mapping[str, Any]] | None = None,
        **environ: str,
    ) -> None:
        self.nodes: dict[str, NodeProcess] = {}
        for name in NAMES:
            (directory / name).mkdir()
            own = {**environ, **(options or {}).get(name, {})}
            self.nodes[name] = NodeProcess(directory / name, host=hosts[name], **own)
        peers = {name: f"{hosts[name]}:{free_port()}" for name in NAMES}
        for name, node in self.nodes.items():
            others = [
                f"{{id: {other}, peer: '{peers[other]}', client: '{self.nodes[other].address}', http: '127.0.0.1:1'}}"
                for other in NAMES
                if other != name
            ]
            node.set(
                NODE__ID=name,
                LISTEN__PEER=peers[name],
                CLUSTER__MEMBERSHIP="static",
                CLUSTER__PEERS=f"[{', '.join(others)}]",
            )

    def start(self, *names: str) -> None:
        """Start them, or all, and wait until they serve."""
        for name in names or NAMES:
            self.nodes[name].start(wait=False)
        for name in names or NAMES:
            self.nodes[name].wait_until_it_serves()

    def kill(self, *names: str) -> None:
        """SIGKILL to them, or all, at the same moment."""
        for name in names or NAMES:
            self.nodes[name].signal_kill()
        for name in names or NAMES:
            self.nodes[name].ended()

    def wipe(self, name: str) -> None:
        """Its disk is lost."""
        shutil.rmtree(self.nodes[name].data_dir)

    def close(self) -> None:
        for node in self.nodes.values():
            node.close()

    def output(self) -> str:
        return "\n".join(f"--- {name}\n{node.output()}" for name, node in self.nodes.items())
