"""Leaders, followers and all three nodes at once are killed with kill -9 under load."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import trio

from tests.support.processes.cluster import NAMES, ClusterProcess
from tests.support.processes.load import SETTINGS, under_load

SMALL = {"SANDQ_STORAGE__SEGMENT_BYTES": "1048576", "SANDQ_STORAGE__CHECKPOINT_BYTES": "1000000"}
SHORT = ("leader", "follower", "all")
TENANTS = ("a", "a.x", "b", "c.y.z")
LONG = ("leader", "leader", "follower", "all", "leader", "follower", "leader", "all", "all", "leader") * 2


@pytest.mark.parametrize(
    ("seed", "victims", "kind"),
    [
        (1, SHORT, "timer"),
        (7, ("leader",), "fair"),
        *(pytest.param(seed, LONG, "timer", marks=pytest.mark.long) for seed in range(2, 6)),
        *(pytest.param(seed, LONG, "fair", marks=pytest.mark.long) for seed in range(8, 10)),
    ],
)
def test_kills_under_load_lose_and_double_nothing(
    seed: int, victims: tuple[str, ...], kind: str, make_cluster: Callable[..., ClusterProcess]
) -> None:
    cluster = make_cluster(**SMALL)
    cluster.start()
    rng = random.Random(seed)

    async def scenario() -> None:
        async with cluster.connect() as client:
            await cluster.create(client, partitions=3, kind=kind, **SETTINGS)
            async with under_load(client, rng, tenants=TENANTS if kind == "fair" else ()) as record:
                for victim in victims:
                    await record.until_progress()
                    leader = await cluster.leader(client)
                    names = {
                        "leader": (leader,),
                        "follower": (rng.choice(cluster.others(leader)),),
                        "all": NAMES,
                    }[victim]
                    await trio.to_thread.run_sync(cluster.kill, *names)
                    if victim == "leader":
                        await cluster.leader(client, but=leader)
                    else:
                        await trio.sleep(rng.uniform(0, 0.5))
                    await trio.to_thread.run_sync(cluster.start, *names)
        record.judge(seed)

    trio.run(scenario)
    assert [cluster.nodes[name].stop() for name in NAMES] == [0, 0, 0], cluster.output()
