"""Nodes that stand still (SIGSTOP) for longer than an election, and go on (SIGCONT) as if nothing had been."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import trio

from tests.support.processes.cluster import ClusterProcess
from tests.support.processes.deposed_leader import Questions
from tests.support.processes.load import SETTINGS, under_load

REQUEST = "10m"


@pytest.mark.parametrize(
    ("seed", "rounds"), [(1, 1), *(pytest.param(seed, 6, marks=pytest.mark.long) for seed in (2, 3, 4))]
)
def test_they_stand_still_under_load(seed: int, rounds: int, make_cluster: Callable[..., ClusterProcess]) -> None:
    cluster = make_cluster()
    cluster.start()
    rng = random.Random(seed)

    async def scenario() -> None:
        async with cluster.connect(timeout=REQUEST) as client:
            await cluster.create(client, **SETTINGS)
            async with under_load(client, rng, least=200) as record:
                for number in range(rounds):
                    await trio.sleep(rng.uniform(0.1, 0.5))
                    leader = await a_leader_is_deposed_and_does_not_know(cluster, number)
                    await record.goes_on()
                    follower = rng.choice(cluster.others(leader))
                    cluster.nodes[follower].pause()
                    # Two of three go on, whoever of them a client asks first: it does not wait for the one until
                    # the request's own time is over.
                    await record.goes_on()
                    cluster.nodes[follower].resume()
        record.judge(seed)

    trio.run(scenario)


async def a_leader_is_deposed_and_does_not_know(cluster: ClusterProcess, number: int) -> str:
    """The first that it sees when it goes on are questions: none may be answered from what it knew. Who leads now."""
    async with cluster.connect() as client:
        leader = await cluster.leader(client)
        await client.produce("t", b"", delay="1h", unique_key=f"old{number}")
    questions = await Questions.to(cluster.nodes[leader], f"old{number}", f"new{number}")
    cluster.nodes[leader].pause()
    async with cluster.connect(*cluster.others(leader)) as client:
        successor = await cluster.leader(client, but=leader)
        await client.messages("t").cancel(unique_key=f"old{number}")
        await client.produce("t", b"", delay="1h", unique_key=f"new{number}")
    await questions.ask()
    cluster.nodes[leader].resume()
    await questions.check()
    return successor
