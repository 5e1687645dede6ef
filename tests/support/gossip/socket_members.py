"""Run members of the native backend on real sockets in this process, with short intervals."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Any

import trio

from sandq.gossip.keyring import Keyring
from sandq.gossip.tags import judge_of
from sandq.membership.gossip_backend import GossipMembership
from sandq.model.config_types import Address
from sandq.model.gossip_timing import Timing
from sandq.model.membership import Member, State
from tests.support.waiting import until_holds

QUICK = Timing(
    probe_interval_s=0.2,
    probe_timeout_s=0.1,
    suspicion_mult=3,
    gossip_interval_s=0.02,
    push_pull_interval_s=1.0,
    stream_timeout_s=1.0,
    dead_gossip_s=2.0,
    reconnect_interval_s=0.3,
)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Running:
    """A member with its address; a test can stop it."""

    def __init__(self, member: GossipMembership, scope: trio.CancelScope) -> None:
        self.member = member
        self.address = Address("", 0)
        self.ended = trio.Event()
        self._scope = scope

    @property
    def name(self) -> str:
        return self.member.name

    async def crash(self) -> None:
        self._scope.cancel()
        await self.ended.wait()

    def state(self, name: str) -> State | None:
        found = self.find(name)
        return found.state if found is not None else None

    def find(self, name: str) -> Member | None:
        return self.member.members().get(name)

    def tags(self, name: str) -> dict[str, str]:
        found = self.find(name)
        return dict(found.tags) if found is not None else {}


class Cluster:
    """Starts members of one cluster; all of them end with the test."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery

    async def start(
        self,
        name: str,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        cluster: str = "sandq",
        keyring: Keyring | None = None,
        timing: Timing = QUICK,
        seeds: Collection[Address] = (),
        known: Collection[Address] = (),
        joins: Running | None = None,
        **options: Any,
    ) -> Running:
        member = GossipMembership(
            name=name,
            listen=Address(host, port),
            advertised=Address(host, 0),
            tags={"cluster": cluster, "id": name, "store": f"store of {name}"},
            timing=timing,
            keyring=keyring,
            judge=judge_of(cluster, lambda: None),
            seeds=list(seeds),
            known=known,
            now_ms=now_ms,
            **options,
        )
        running = Running(member, trio.CancelScope())

        async def run(task_status: trio.TaskStatus[Address]) -> None:
            with running._scope:
                await member.run(task_status=task_status)
            running.ended.set()

        running.address = await self._nursery.start(run)
        if joins is not None:
            assert await member.join([joins.address]) == 1
        return running

    async def start_all(self, names: str, **options: Any) -> list[Running]:
        """Start members with these names and wait until they know each other."""
        found: list[Running] = []
        for name in names:
            found.append(await self.start(name, joins=found[0] if found else None, **options))
        await until_holds(lambda: agree(found))
        return found


def agree(running: Collection[Running]) -> bool:
    """Return whether each of these members lists exactly these as alive."""
    names = {one.name for one in running}
    return all(
        {name for name, member in one.member.members().items() if member.state is State.ALIVE} == names
        for one in running
    )


@asynccontextmanager
async def gossiping() -> AsyncIterator[Cluster]:
    async with trio.open_nursery() as nursery:
        yield Cluster(nursery)
        nursery.cancel_scope.cancel()
