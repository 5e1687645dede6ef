"""Run any number of real nodes, each in its own process. The nodes find each other by gossip."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import sandq
from tests.support.ports import free_port
from tests.support.processes.cluster import ClusterProcess
from tests.support.processes.node import NodeProcess
from tests.support.waiting import until_answer

QUICK = {
    "SANDQ_GOSSIP__PROFILE": "local",
    "SANDQ_STORAGE__SEGMENT_BYTES": "1048576",
    "SANDQ_STORAGE__CHECKPOINT_BYTES": "1000000",
}


class FoundCluster(ClusterProcess):
    """A cluster of nodes with these names. The first node founds the cluster."""

    def __init__(self, directory: Path, names: Sequence[str], **environ: str) -> None:
        self.nodes: dict[str, NodeProcess] = {}
        self._gossip = {name: f"127.0.0.1:{free_port()}" for name in names}
        self._founder = names[0]
        self._directory = directory
        self._environ = environ
        for name in names:
            self.add(name)

    def add(self, name: str) -> None:
        """Add a node without starting it."""
        (self._directory / name).mkdir()
        gossip = self._gossip.setdefault(name, f"127.0.0.1:{free_port()}")
        others = [address for other, address in self._gossip.items() if other != name]
        begin = {"SANDQ_CLUSTER__BOOTSTRAP": "true"} if name == self._founder else {}
        seeds = {} if begin else {"SANDQ_CLUSTER__SEEDS": ",".join(others)}
        self.nodes[name] = NodeProcess(self._directory / name, **{**QUICK, **begin, **seeds, **self._environ})
        self.nodes[name].environ |= {
            "SANDQ_NODE__ID": name,
            "SANDQ_LISTEN__GOSSIP": gossip,
            "SANDQ_LISTEN__PEER": f"127.0.0.1:{free_port()}",
        }

    async def until_registered(self, client: sandq.Client) -> None:
        async def there() -> list[dict[str, Any]]:
            return [row for row in (await client.admin.cluster())["nodes"] if row["up"]]

        await until_answer(there, lambda rows: len(rows) == len(self.nodes))
