"""A real node is killed repeatedly with kill -9 under load. The test records acknowledged messages itself."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import trio

import sandq
from tests.support.processes.load import SETTINGS, under_load
from tests.support.processes.node import NodeProcess
from tests.support.waiting import PATIENCE_S, until_holds

SHORT, LONG = 4, 20
A_LIFE = (50, 500)
"""Minimum and maximum number of messages to store before the node is killed again."""


@pytest.mark.parametrize(
    ("seed", "kills"), [(1, SHORT), *(pytest.param(seed, LONG, marks=pytest.mark.long) for seed in range(1, 8))]
)
def test_kills_of_node_lose_nothing_acknowledged(seed: int, kills: int, make_node: Callable[..., NodeProcess]) -> None:
    node = make_node(SANDQ_STORAGE__SEGMENT_BYTES="262144", SANDQ_STORAGE__CHECKPOINT_BYTES="400000")
    node.start()
    rng = random.Random(seed)

    async def scenario() -> None:
        async with sandq.connect(node.address, timeout=PATIENCE_S) as client:
            await client.admin.create_topic("t", **SETTINGS)
            async with under_load(client, rng) as record:
                for _ in range(kills):
                    until = len(record.stored) + rng.randint(*A_LIFE)
                    await until_holds(lambda until=until: len(record.stored) >= until)
                    await trio.to_thread.run_sync(node.kill)
                    await trio.to_thread.run_sync(node.start)
        record.judge(seed)

    trio.run(scenario)
    assert node.stop() == 0, node.output()
