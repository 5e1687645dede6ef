"""Valid and damaged requests of every type never end a node. Each node restarts after a kill."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from tests.support.fuzz.__main__ import wait_until_compared
from tests.support.fuzz.nodes import Fuzz, one_node, three_nodes

HOST = "127.0.0.1"


@pytest.mark.parametrize(
    ("seed", "rounds", "tokens"),
    [
        (1, 25, False),
        (2, 25, True),
        *(pytest.param(seed, 600, seed % 2 == 0, marks=pytest.mark.long) for seed in range(3, 11)),
    ],
)
def test_node_with_fuzzed_requests_survives(tmp_path: Path, seed: int, rounds: int, tokens: bool) -> None:
    nodes = one_node(tmp_path / "nodes", HOST, tokens=tokens)
    try:
        nodes[0].start()
        fuzz = Fuzz(nodes, seed, replicas=1, tokens=tokens)

        async def scenario() -> None:
            await fuzz.prepare()
            for _ in range(2):
                await fuzz.run(None, rounds, connections=3)
                await fuzz.kill(0)

        trio.run(scenario)
        assert nodes[0].stop() == 0
        assert fuzz.faults() == [], f"seed {seed}"
        assert {"REPLY", "INVALID", "UNKNOWN_TOPIC"} <= {*fuzz.codes}
    finally:
        nodes[0].close()


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("seed", "tokens"), [(21, False), (22, True), (23, False)])
def test_replicas_after_fuzzed_requests_are_equal(tmp_path: Path, seed: int, tokens: bool) -> None:
    cluster = three_nodes(tmp_path / "nodes", HOST, tokens=tokens)
    nodes = [*cluster.nodes.values()]
    try:
        cluster.start()
        fuzz = Fuzz(nodes, seed, replicas=3, tokens=tokens)

        async def scenario() -> None:
            await fuzz.prepare()
            for number in range(3):
                await fuzz.run(None, 200, connections=3)
                await fuzz.kill(number)

        trio.run(scenario)
        assert wait_until_compared(nodes) > 0
        assert [node.stop() for node in nodes] == [0, 0, 0]
        assert fuzz.faults() == [], f"seed {seed}"
    finally:
        cluster.close()
