"""Whole nodes that find each other by Serf agents: as members beside them, and over them."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import trio

from sandq.model.config import NodeConfig
from tests.interop.serf_agent import SerfAgent, new_key
from tests.scenarios.cluster.found import FoundNodes
from tests.scenarios.working import take, values

NODES = ("node1", "node2")
RPC_AUTH = "a key of the site's"


class Nodes(FoundNodes):
    """Nodes whose settings are all in `own` and `environ`: none is another one's seed."""

    def config(self, name: str, **environ: str) -> NodeConfig:
        return super().config(name, **{"CLUSTER__SEEDS": "", "CLUSTER__BOOTSTRAP": "false", **environ})


async def work(nodes: FoundNodes) -> None:
    """They are one cluster: what one takes in, the other one hands out."""
    await nodes.until_registered(*NODES)
    assert len({serving.broker.metadata.cluster_uuid for serving in nodes.running.values()}) == 1
    async with nodes.connect("node1") as client:
        await client.admin.create_topic("t", partitions=2, replicas=2)
        for number in range(4):
            await client.produce("t", b"%d" % number)
    async with nodes.connect("node2") as client, client.subscribe("t", group="g") as sub:
        assert sorted(values(await take(sub, 4))) == [b"%d" % number for number in range(4)]
