"""Nodes that stand still (SIGSTOP) for longer than an election, and go on (SIGCONT) as if nothing had been."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import trio

from sandq.errors import NotLeader
from sandq.protocol.frames import Type
from sandq.protocol.requests_messages import BY_UNIQUE_KEY
from tests.faults.cluster_process import PATIENCE_S, ClusterProcess
from tests.faults.load import SETTINGS, under_load
from tests.scenarios.raw_client import RawClient

STOOD_STILL_S = 1.5
FAR = 2**48 - 1


def questions(old: str, new: str) -> list[tuple[Any, ...]]:
    """What has changed since is asked for in every way that there is."""
    return [
        (Type.GET, "t", 0, [BY_UNIQUE_KEY, new.encode()]),
        (Type.GET, "t", 0, [BY_UNIQUE_KEY, old.encode()]),
        (Type.WHY, "t", 0, [BY_UNIQUE_KEY, new.encode()]),
        (Type.LIST, "t", 0, "delayed", 0, FAR, None, 1000, None, True),
        (Type.FORECAST, "t", "hour", 24),
        (Type.GROUP_LIST, "t"),
    ]


@pytest.mark.parametrize(
    ("seed", "rounds"), [(1, 1), *(pytest.param(seed, 6, marks=pytest.mark.long) for seed in (2, 3, 4))]
)
def test_they_stand_still_under_load(seed: int, rounds: int, make_cluster: Callable[..., ClusterProcess]) -> None:
    cluster = make_cluster()
    cluster.start()
    rng = random.Random(seed)

    async def scenario() -> None:
        async with cluster.connect() as client:
            await cluster.create(client, **SETTINGS)
            async with under_load(client, rng) as record:
                for number in range(rounds):
                    await trio.sleep(rng.uniform(0.1, 0.5))
                    await a_leader_is_deposed_and_does_not_know(cluster, number)
                    assert record.stored
                    follower = rng.choice(cluster.others(await cluster.leader(client)))
                    stored = len(record.stored)
                    cluster.nodes[follower].pause()
                    await trio.sleep(STOOD_STILL_S)
                    assert len(record.stored) > stored, "two of three go on"
                    cluster.nodes[follower].resume()
        record.judge(seed)

    trio.run(scenario)


async def a_leader_is_deposed_and_does_not_know(cluster: ClusterProcess, number: int) -> None:
    """The first that it sees when it goes on are questions: none may be answered from what it knew."""
    old, new = f"old{number}", f"new{number}"
    async with cluster.connect() as client:
        leader = await cluster.leader(client)
        await client.produce("t", b"", delay="1h", unique_key=old)
    asking = await RawClient.connect(cluster.nodes[leader].port)
    cluster.nodes[leader].pause()
    async with cluster.connect(*cluster.others(leader)) as client:
        await cluster.leader(client, but=leader)
        await client.messages("t").cancel(unique_key=old)
        await client.produce("t", b"", delay="1h", unique_key=new)
    asked = questions(old, new)
    for request_id, (kind, *fields) in enumerate(asked):
        await asking.send(kind, request_id, *fields)
    cluster.nodes[leader].resume()
    with trio.fail_after(PATIENCE_S):
        answers = [await asking.receive() for _ in asked]
    await trio.aclose_forcefully(asking.stream)
    for answer in answers:
        assert (answer[0], answer[2]) == (Type.ERROR, NotLeader.code), (asked[answer[1]], answer)
