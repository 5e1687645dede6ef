"""Nodes are paused (SIGSTOP) for longer than an election, and continue (SIGCONT) without noticing the pause."""

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
def test_pauses_under_load_lose_nothing(seed: int, rounds: int, make_cluster: Callable[..., ClusterProcess]) -> None:
    cluster = make_cluster()
    cluster.start()
    rng = random.Random(seed)

    async def scenario() -> None:
        async with cluster.connect(timeout=REQUEST) as client:
            await cluster.create(client, **SETTINGS)
            async with under_load(client, rng, least=200) as record:
                for number in range(rounds):
                    await trio.sleep(rng.uniform(0.1, 0.5))
                    leader = await depose_paused_leader(cluster, number)
                    await record.until_progress()
                    follower = rng.choice(cluster.others(leader))
                    cluster.nodes[follower].pause()
                    # Two of three nodes continue. A client may send a request to the paused node first. It then
                    # continues with another node, without waiting for the timeout of that request.
                    await record.until_progress()
                    cluster.nodes[follower].resume()
        record.judge(seed)

    trio.run(scenario)


async def depose_paused_leader(cluster: ClusterProcess, number: int) -> str:
    """Depose a paused leader and send it requests. It must not answer from its old state. Return the new leader."""
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
