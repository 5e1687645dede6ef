"""Run the nodes of configs/node1..3.yaml or of gossip1..4.yaml as they ship, except for the ports.

The default ports may be in use on this machine, so the tests choose others."""

from __future__ import annotations

import re
from pathlib import Path

import trio

import sandq
from tests.support.paths import ROOT
from tests.support.ports import free_port
from tests.support.processes.node import NodeProcess
from tests.support.waiting import PATIENCE_S, until_answer

_ADDRESS = re.compile(r"127\.0\.0\.1:(\d+)")
_CLIENT_PORTS = {"node1": "7170", "node2": "7171", "node3": "7172", "node4": "7173"}


class ShippedCluster:
    """Runs each node in a directory of its own below `directory`."""

    def __init__(self, directory: Path, kind: str = "node") -> None:
        there = {name: ROOT / "configs" / f"{kind}{name.removeprefix('node')}.yaml" for name in _CLIENT_PORTS}
        files = {name: file for name, file in there.items() if file.exists()}
        texts = {name: file.read_text(encoding="utf-8") for name, file in files.items()}
        self.ports = {port: str(free_port()) for text in texts.values() for port in _ADDRESS.findall(text)}
        self.nodes: dict[str, NodeProcess] = {}
        for name, text in texts.items():
            (directory / name).mkdir()
            config = directory / name / "config.yaml"
            config.write_text(_ADDRESS.sub(lambda found: f"127.0.0.1:{self.ports[found[1]]}", text))
            node = NodeProcess(directory / name, program=("-m", "sandq.cli", "--config", str(config)))
            for variable in ("NODE__DATA_DIR", *(f"LISTEN__{what}" for what in ("CLIENT", "HTTP", "PEER", "GOSSIP"))):
                del node.environ[f"SANDQ_{variable}"]
            node.port = int(self.ports[_CLIENT_PORTS[name]])
            node.data_dir = directory / name / "data" / files[name].stem
            self.nodes[name] = node

    @property
    def addresses(self) -> list[str]:
        """Addresses of the first three nodes."""
        return [node.address for node in list(self.nodes.values())[:3]]

    def start(self) -> None:
        """Start the first three nodes, and wait until they serve and know each other."""
        three = list(self.nodes.values())[:3]
        for node in three:
            node.start(wait=False)
        for node in three:
            node.wait_until_it_serves()
        trio.run(self._until_registered)

    async def _until_registered(self) -> None:
        async with sandq.connect(*self.addresses, timeout=PATIENCE_S) as client:
            await until_answer(client.admin.cluster, lambda info: len(info["nodes"]) == 3)

    def close(self) -> None:
        for node in self.nodes.values():
            node.close()
