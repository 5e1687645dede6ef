"""Run three nodes of a cluster in this process, each with a directory of its own, connected on loopback."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from sandq.broker.replication.raft_group import RaftGroup
from sandq.model.config import NodeConfig, load_config
from sandq.node.running import Serving
from tests.support.nodes.patient import patient_client
from tests.support.nodes.with_http import run_node
from tests.support.ports import free_port
from tests.support.waiting import PATIENCE_S, until_answer, until_holds

NAMES = ("node1", "node2", "node3")


class ThreeNodes:
    def __init__(self, directory: Path, nursery: trio.Nursery, **environ: str) -> None:
        ports = [free_port() for _ in range(2 * len(NAMES))]
        self.client_ports = dict(zip(NAMES, ports, strict=False))
        self.peer_ports = dict(zip(NAMES, ports[len(NAMES) :], strict=True))
        self.running: dict[str, Serving] = {}
        self.environ = environ
        self._directory = directory
        self._nursery = nursery
        self._scopes: dict[str, tuple[trio.CancelScope, trio.Event]] = {}

    def data_dir(self, name: str) -> Path:
        return self._directory / name

    def config(self, name: str, **environ: str) -> NodeConfig:
        others = [
            (other, f"127.0.0.1:{self.peer_ports[other]}", f"127.0.0.1:{self.client_ports[other]}")
            for other in NAMES
            if other != name
        ]
        peers = [f"{{id: {o}, peer: '{peer}', client: '{client}', http: '127.0.0.1:1'}}" for o, peer, client in others]
        settings = {
            "NODE__ID": name,
            "NODE__DATA_DIR": str(self.data_dir(name)),
            "LISTEN__CLIENT": f"127.0.0.1:{self.client_ports[name]}",
            "LISTEN__PEER": f"127.0.0.1:{self.peer_ports[name]}",
            "LISTEN__HTTP": "none",
            "CLUSTER__MEMBERSHIP": "static",
            "CLUSTER__PEERS": f"[{', '.join(peers)}]",
            "STORAGE__SEGMENT_BYTES": "1048576",
            **self.environ,
            **environ,
        }
        return load_config(None, {f"SANDQ_{key}": value for key, value in settings.items()})

    async def start(self, *names: str, **options: Any) -> None:
        """Start nodes, by default all, and wait until they serve."""
        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as starting:
                for name in names or NAMES:
                    starting.start_soon(self._start, name, options)

    async def _start(self, name: str, options: dict[str, Any]) -> None:
        self.running[name] = await self._nursery.start(self._run, name, options)

    async def _run(
        self, name: str, options: dict[str, Any], task_status: trio.TaskStatus[Serving] = trio.TASK_STATUS_IGNORED
    ) -> None:
        ended = trio.Event()
        try:
            with trio.CancelScope() as scope:
                self._scopes[name] = (scope, ended)
                async with run_node(self.config(name), **options) as serving:
                    task_status.started(serving)
                    await trio.sleep_forever()
        finally:
            self.running.pop(name, None)
            ended.set()

    async def stop(self, *names: str) -> None:
        for name in names:
            scope, ended = self._scopes[name]
            scope.cancel()
            await ended.wait()

    # -- state ----------------------------------------------------------------------------------------------------

    def connect(self, *names: str) -> Any:
        """Return a patient client that knows the addresses of these nodes, by default of all."""
        return patient_client(*[f"127.0.0.1:{self.client_ports[name]}" for name in names or NAMES])

    def host(self, name: str, topic: str = "t", partition: int = 0) -> RaftGroup:
        return self.running[name].broker.catalog.partition(topic, partition).raft_group

    def leader(self, topic: str = "t", partition: int = 0) -> str | None:
        """Return the node that leads a partition and can serve it; None if there is none."""
        for name, serving in self.running.items():
            opened = serving.broker.catalog.topics.get(topic)
            if opened is not None and opened.partitions[partition].raft_group.ready:
                return name
        return None

    async def until_led(self, topic: str = "t", partition: int = 0) -> str:
        await until_holds(lambda: self.leader(topic, partition) is not None)
        leader = self.leader(topic, partition)
        assert leader is not None
        return leader

    async def hand_over(self, *to: str, topic: str = "t", partition: int = 0) -> None:
        """Transfer the leadership of a partition to one of these nodes.

        The transfer is requested repeatedly: the targets may lack entries of the log, and the leader may change
        meanwhile."""

        def is_done() -> bool:
            leader = self.leader(topic, partition)
            if leader is not None and leader not in to:
                self.host(leader, topic, partition).hand_over(to)
            return leader in to

        await until_holds(is_done)
        for serving in self.running.values():
            for opened in serving.broker.catalog.topics.values():
                for delivery in opened.partitions.values():
                    delivery.raft_group.stop_leaving()

    async def until_even(self, topic: str = "t", partition: int = 0) -> None:
        """Wait until all running nodes have applied the same entries."""
        topics = [serving.broker.catalog.topics for serving in self.running.values()]

        def even() -> bool:
            if any(topic not in known for known in topics):
                return False
            hosts = [known[topic].partitions[partition].raft_group for known in topics]
            ends = {(host.status.applied_index, host.group.journal.last_index) for host in hosts}
            return len(ends) == 1 and all(applied == last for applied, last in ends)

        await until_holds(even)


async def leading(nodes: ThreeNodes) -> Serving:
    """Return the node that leads the metadata; wait for the end of an election."""
    await until_holds(lambda: any(serving.broker.metadata_host.ready for serving in nodes.running.values()))
    return next(serving for serving in nodes.running.values() if serving.broker.metadata_host.ready)


async def compared(nodes: ThreeNodes, *, same: bool) -> tuple[str, ...]:
    """Compare the replicas of partition 0 of "t" until they are equal (`same`) or not. Return the nodes that differ."""

    async def compare() -> tuple[bool | None, tuple[str, ...]]:
        leader = await nodes.until_led()
        digests, number = nodes.running[leader].digests, nodes.host(leader).number
        found = await digests.compare(number)
        # Ignore the result while digests of new nodes are missing, or if the leader has changed.
        if not are_all_voters(leader) or nodes.leader() != leader:
            return None, ()
        return found, digests.different.get(number, ())

    def are_all_voters(leader: str) -> bool:
        return len(nodes.host(leader).members.voters) == len(nodes.running)

    _, different = await until_answer(compare, lambda found: found[0] is same)
    return different


@asynccontextmanager
async def three_nodes(directory: Path, **environ: str) -> AsyncIterator[ThreeNodes]:
    """Run a new cluster."""
    async with trio.open_nursery() as nursery:
        nodes = ThreeNodes(directory, nursery, **environ)
        await nodes.start()
        yield nodes
        await nodes.stop(*nodes.running)
        nursery.cancel_scope.cancel()
