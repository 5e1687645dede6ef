"""A node of the cluster that says what makes no sense: the others go on."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from trio.testing import wait_all_tasks_blocked

from sandq.broker.peers.links import PeerLinks
from sandq.protocol.peer import PeerFrame
from tests.support.nodes.three import three_nodes
from tests.support.simulation.seeds import few_of
from tests.support.waiting import until_holds

PLAIN = (0, 1, -1, 5, 2**31, 2**63, 2**64 - 1, 1.5, None, True, False, "", "node1", "asks", b"", b"x" * 40, "x" * 5000)
FRAMES = 400
AT_ONCE = 20


def body_of(rng: random.Random, depth: int = 0) -> Any:
    if depth < 4 and rng.random() < 0.6:
        parts = [body_of(rng, depth + 1) for _ in range(rng.randrange(6))]
        return {str(at): part for at, part in enumerate(parts)} if rng.random() < 0.1 else parts
    return rng.choice(PLAIN)


def deep(rng: random.Random) -> Any:
    nested: Any = rng.choice(PLAIN)
    for _ in range(rng.choice((20, 300))):
        nested = [nested]
    return nested


@pytest.mark.parametrize("seed", few_of(range(30), 1))
async def test_frames_that_make_no_sense_from_a_proved_peer(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    async with three_nodes(tmp_path) as nodes, nodes.connect() as client:
        await client.admin.create_topic("t", replicas=3)
        await nodes.until_led()
        await client.produce("t", b"before")
        links: PeerLinks = nodes.running["node1"].broker.up.__self__  # type: ignore[attr-defined]
        others = ("node2", "node3")
        for at in range(FRAMES):
            kind = rng.choice([*PeerFrame, rng.randrange(1, 256)])
            body = deep(rng) if rng.random() < 0.05 else body_of(rng)
            to = rng.choice(others)
            if not links.send(to, kind, body):
                await until_holds(lambda: {*others} <= {*links.up})  # the link has ended, and comes again
            if at % AT_ONCE == 0:
                await wait_all_tasks_blocked()  # what was sent has come, and been looked at
        await until_holds(lambda: {*others} <= {*links.up})
        await nodes.until_led()
        await client.produce("t", b"after")
        assert {*nodes.running} == {"node1", "node2", "node3"}, f"seed {seed}"
