"""Run three real nodes of one cluster in processes, which tests kill, pause, wipe and restart."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import sandq
from tests.support.ports import free_port
from tests.support.processes.node import NodeProcess
from tests.support.waiting import PATIENCE_S, until_answer, until_led

NAMES = ("node1", "node2", "node3")
LOOPBACK = dict.fromkeys(NAMES, "127.0.0.1")


class ClusterProcess:
    """A cluster of three nodes.

    `hosts`: the address of each node. `options`: options of single nodes. `environ`: settings of all nodes."""

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
            node.environ |= {
                "SANDQ_NODE__ID": name,
                "SANDQ_LISTEN__PEER": peers[name],
                "SANDQ_CLUSTER__MEMBERSHIP": "static",
                "SANDQ_CLUSTER__PEERS": f"[{', '.join(others)}]",
            }

    def start(self, *names: str) -> None:
        """Start nodes, by default all, and wait until they serve."""
        for name in names or self.nodes:
            self.nodes[name].start(wait=False)
        for name in names or self.nodes:
            self.nodes[name].wait_until_it_serves()

    def kill(self, *names: str) -> None:
        """Kill nodes, by default all, with SIGKILL at the same moment."""
        for name in names or self.nodes:
            self.nodes[name].signal(signal.SIGKILL)
        for name in names or self.nodes:
            self.nodes[name].ended()

    def wipe(self, name: str) -> None:
        """Delete the data directory of a node."""
        shutil.rmtree(self.nodes[name].data_dir)

    def close(self) -> None:
        for node in self.nodes.values():
            node.close()

    # -- state ----------------------------------------------------------------------------------------------------

    def connect(self, *names: str, **options: Any) -> Any:
        """Return a client that knows the addresses of these nodes, by default of all."""
        return sandq.connect(
            *[self.nodes[name].address for name in names or self.nodes], **{"timeout": PATIENCE_S, **options}
        )

    async def create(self, client: sandq.Client, topic: str = "t", partitions: int = 1, **settings: Any) -> None:
        """Create a topic with a replica on each node, once the nodes know each other."""
        await until_answer(client.admin.cluster, lambda info: len(info["nodes"]) == len(NAMES))
        await client.admin.create_topic(topic, partitions=partitions, replicas=len(NAMES), **settings)

    async def leader(self, client: sandq.Client, topic: str = "t", *, but: str | None = None) -> str:
        """Return the leader of partition 0, once it is a node other than `but`."""
        return await until_led(client, topic, but=but)

    def others(self, name: str) -> tuple[str, str]:
        first, second = (other for other in NAMES if other != name)
        return first, second

    def output(self) -> str:
        return "\n".join(f"--- {name}\n{node.output()}" for name, node in self.nodes.items())
