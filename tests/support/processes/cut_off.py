"""Cut nodes on separate hosts off from each other under load.

Run `python -m tests.support.processes.cut_off DIRECTORY SEED CUT...` in a network of its own (`hosts.IN_A_NETWORK`)."""

from __future__ import annotations

import itertools
import random
import sys
from pathlib import Path

import trio

import sandq
from tests.support.processes.cluster import NAMES, ClusterProcess
from tests.support.processes.deposed_leader import Questions
from tests.support.processes.hosts import Hosts
from tests.support.processes.load import SETTINGS, Record, under_load
from tests.support.waiting import until_answer


class Scene:
    def __init__(self, directory: Path, seed: int) -> None:
        self._rng = random.Random(seed)
        self._seed = seed
        self.hosts = Hosts(NAMES)
        secret = directory / "secret"
        secret.write_text("a secret of these nodes")
        secret.chmod(0o600)
        self.cluster = ClusterProcess(
            directory,
            hosts=self.hosts.addresses,
            options={name: {"launcher": self.hosts.launcher(name)} for name in NAMES},
            SANDQ_CLUSTER__SECRET_FILE=str(secret),
        )

    async def play(self, cuts: list[str]) -> None:
        self.cluster.start()
        async with self.cluster.connect() as client:
            await self.cluster.create(client, **SETTINGS)
            async with under_load(client, self._rng, least=300) as record:
                for number, cut in enumerate(cuts):
                    await record.until_progress()
                    await self._cut(client, record, cut, number)
            print(f"{len(record.stored)} stored, {record.redelivered} redelivered, {len(record.unsure)} acks unsure")
        record.judge(self._seed)

    async def _cut(self, client: sandq.Client, record: Record, cut: str, number: int) -> None:
        leader = await self.cluster.leader(client)
        others = self.cluster.others(leader)
        if cut == "follower":
            alone = self._rng.choice(others)
            directions = directions_between(alone, self.cluster.others(alone))
        else:
            out, back = [(leader, other) for other in others], [(other, leader) for other in others]
            directions = {"silent": out, "deaf": back, "both": out + back}[cut]
        await client.produce("t", b"", delay="1h", unique_key=f"old{number}")
        questions = await Questions.to(self.cluster.nodes[leader], f"old{number}", f"new{number}")
        for direction in directions:
            self.hosts.cut(*direction)
        if cut != "follower":
            async with self.cluster.connect(*others) as elsewhere:
                await self.cluster.leader(elsewhere, but=leader)
                await elsewhere.messages("t").cancel(unique_key=f"old{number}")
                await elsewhere.produce("t", b"", delay="1h", unique_key=f"new{number}")
            await questions.ask()
            await questions.check()
        await record.until_progress()
        for direction in directions:
            self.hosts.heal(*direction)
        await until_answer(client.admin.cluster, lambda info: all(node["up"] for node in info["nodes"]))


def directions_between(alone: str, others: tuple[str, str]) -> list[tuple[str, str]]:
    return [direction for other in others for direction in itertools.permutations((alone, other))]


def main(directory: str, seed: str, *cuts: str) -> None:
    scene = Scene(Path(directory), int(seed))
    try:
        trio.run(scene.play, list(cuts))
    finally:
        scene.cluster.close()
        scene.hosts.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
