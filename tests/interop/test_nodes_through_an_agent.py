"""Whole nodes find each other through Serf agents, as members of the agents' gossip or as clients of the agents."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from sandq.model.membership import State
from sandq.node import run_node
from sandq.node.running import Serving
from tests.support.gossip.serf_agent import SerfAgent, new_key
from tests.support.nodes.found import FoundNodes
from tests.support.nodes.working import take, values
from tests.support.waiting import until_holds

pytestmark = pytest.mark.interop

NODES = ("node1", "node2")
RPC_AUTH = "a key of the site's"


class Nodes(FoundNodes):
    """Nodes that a test can stop cleanly, as an operator does."""

    def __init__(self, directory: Path, nursery: trio.Nursery) -> None:
        super().__init__(directory, nursery)
        self._ends = {name: trio.Event() for name in NODES}

    async def leave(self, name: str) -> None:
        self._ends[name].set()
        await until_holds(lambda: name not in self.running)

    async def _run(
        self, name: str, options: dict[str, Any], task_status: trio.TaskStatus[Serving] = trio.TASK_STATUS_IGNORED
    ) -> None:
        try:
            async with run_node(self.config(name), **options) as serving:
                task_status.started(serving)
                await self._ends[name].wait()
        finally:
            self.running.pop(name, None)


async def work_together(nodes: FoundNodes) -> None:
    """Check that each node delivers messages that the other one stored."""
    await nodes.until_registered(*NODES)
    assert len({serving.broker.metadata.cluster_uuid for serving in nodes.running.values()}) == 1
    async with nodes.connect("node1") as client:
        await client.admin.create_topic("t", partitions=2, replicas=2)
        for number in range(4):
            await client.produce("t", b"%d" % number)
    async with nodes.connect("node2") as client, client.subscribe("t", group="g") as sub:
        assert sorted(values(await take(sub, 4))) == [b"%d" % number for number in range(4)]


def secret_file(path: Path, content: str) -> str:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
        file.write(content)
    return str(path)


async def test_an_agent_is_the_only_seed(tmp_path: Path, make_agent: Callable[..., SerfAgent], key: str | None) -> None:
    agent = make_agent("machine", tags={"role": "web"}, encrypt_key=key)
    await agent.start()
    async with trio.open_nursery() as nursery:
        nodes = Nodes(tmp_path, nursery)
        own = {"CLUSTER__SEEDS": str(agent.gossip)}
        if key is not None:
            own["GOSSIP__KEYS_FILE"] = secret_file(tmp_path / "keys", key)
        nodes.own = {"node1": {"CLUSTER__BOOTSTRAP": "true", **own}, "node2": own}
        await nodes.start(*NODES)
        await work_together(nodes)
        for name in NODES:
            uuid = nodes.running[name].broker.metadata.cluster_uuid
            await agent.until(name, "alive", id=name, uuid=str(uuid))
            await nodes.until_believed(name, State.ALIVE, *NODES)
        for name in NODES:
            await nodes.leave(name)
            await agent.until(name, "left")
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("first", ["agents", "nodes"])
async def test_each_over_an_agent_of_its_own(tmp_path: Path, make_agent: Callable[..., SerfAgent], first: str) -> None:
    key = new_key()
    auth_file = secret_file(tmp_path / "auth", RPC_AUTH)
    agents = {
        name: make_agent(f"machine-of-{name}", tags={"role": "web"}, encrypt_key=key, rpc_auth=RPC_AUTH)
        for name in NODES
    }

    async def start_agents() -> None:
        for agent in agents.values():
            await agent.start()
        await agents["node1"].join(agents["node2"].gossip)

    async with trio.open_nursery() as nursery:
        nodes = Nodes(tmp_path, nursery)
        for name, agent in agents.items():
            nodes.own[name] = {
                "CLUSTER__MEMBERSHIP": "serf",
                "CLUSTER__SEEDS": "",
                "SERF__RPC": str(agent.rpc),
                "SERF__AUTH_FILE": auth_file,
            }
        if first == "agents":
            await start_agents()
        # The founder waits for no other node, and a node that joins waits for its agent.
        nodes.launch("node2")
        await nodes.start("node1")
        if first == "nodes":
            await start_agents()
        await until_holds(lambda: len(nodes.running) == 2)
        await work_together(nodes)
        for name in NODES:
            await nodes.until_believed(name, State.ALIVE, *NODES)
            await agents["node1"].until(f"machine-of-{name}", "alive", id=name, role="web")
        for name in NODES:
            await nodes.leave(name)
        for agent in agents.values():
            for name in NODES:
                machine = await agent.until_listed(
                    f"machine-of-{name}", lambda listed: listed["tags"] == {"role": "web"}
                )
                assert machine["status"] == "alive"
        nursery.cancel_scope.cancel()
