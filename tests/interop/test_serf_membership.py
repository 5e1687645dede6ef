"""The backend `serf` works over real Serf agents, which are encrypted and require a key for their RPC."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import pytest
import trio

from sandq.gossip.tags import OURS
from sandq.membership.serf_backend import SerfMembership
from sandq.model.config_types import Address
from sandq.model.errors import StartupError, TooLarge
from sandq.model.membership import Member, State
from tests.support.gossip.membership_contract import ClusterContract, Follower, ours
from tests.support.gossip.serf_agent import SerfAgent, new_key

pytestmark = pytest.mark.interop

RPC_AUTH = "a key of the site's"


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class SerfBed:
    """Starts members: a backend, and its Serf agent, which has a tag that the backend must keep."""

    def __init__(self, nursery: trio.Nursery, make_agent: Callable[..., SerfAgent]) -> None:
        self._nursery = nursery
        self._make_agent = make_agent
        self._encrypt_key = new_key()
        self._members: dict[str, SerfMembership] = {}
        self._scopes: dict[str, trio.CancelScope] = {}
        self.agents: dict[str, SerfAgent] = {}

    async def start_agent(self, name: str, **tags: str) -> SerfAgent:
        agent = self._make_agent(name, tags=tags, encrypt_key=self._encrypt_key, rpc_auth=RPC_AUTH)
        self.agents[name] = agent
        await agent.start()
        return agent

    async def start(self, name: str, tags: Mapping[str, str], **options: Any) -> SerfMembership:
        agent = self.agents.get(name) or await self.start_agent(name, role="web")
        member = SerfMembership(agent.rpc, RPC_AUTH, ours=OURS, tags=tags, now_ms=now_ms, **options)
        scope = self._scopes[name] = trio.CancelScope()

        async def run(task_status: trio.TaskStatus[None]) -> None:
            with scope:
                await member.run(task_status=task_status)

        await self._nursery.start(run)
        self._members[name] = member
        return member

    def address(self, name: str) -> Address:
        return self.agents[name].gossip

    async def stop(self, name: str) -> None:
        await self._members[name].leave()
        self._scopes[name].cancel()

    async def kill(self, name: str) -> None:
        self._scopes[name].cancel()
        await self.agents[name].kill()

    def has_left(self, member: Member) -> bool:
        """Return whether the agent lacks the backend's tags. It stays alive, because it belongs to the site."""
        return member.state is State.ALIVE and member.tags == {"role": "web"}


@pytest.fixture
async def bed(make_agent: Callable[..., SerfAgent]) -> AsyncIterator[SerfBed]:
    async with trio.open_nursery() as nursery:
        yield SerfBed(nursery, make_agent)
        nursery.cancel_scope.cancel()


class TestSerf(ClusterContract):
    async def test_agent_gets_its_own_tags_back_after_stop(self, bed: SerfBed) -> None:
        agent = await bed.start_agent("a", role="web", zone="of an earlier run")
        await bed.start("a", {"id": "1", "zone": "x"})
        assert (await agent.members())["a"]["tags"] == {"role": "web", "id": "1", "zone": "x"}
        await bed.stop("a")
        found = (await agent.members())["a"]
        assert (found["tags"], found["status"]) == ({"role": "web"}, "alive")

    async def test_machines_of_the_site_are_listed_and_an_agent_that_leaves_has_left(self, bed: SerfBed) -> None:
        machine = await bed.start_agent("machine", role="db")
        a = await bed.start("a", {"id": "1"})
        await machine.join(bed.address("a"))
        follower = Follower(a.changes())
        found = await follower.until("machine", lambda member: member.state is State.ALIVE)
        assert found.tags == {"role": "db"} and found.address == machine.gossip
        await machine.leave()
        await follower.until("machine", lambda member: member.state is State.LEFT)

    async def test_an_agent_that_starts_again_or_reads_its_configuration_again(self, bed: SerfBed) -> None:
        a = await bed.start("a", {"id": "1"}, refresh_s=0.5)
        agent = bed.agents["a"]
        follower = Follower(a.changes())
        await follower.until("a", lambda member: ours(member) == {"id": "1"})
        agent.reload()
        await follower.until("a", lambda member: not ours(member))
        await follower.until("a", lambda member: ours(member) == {"id": "1"})
        await agent.kill()
        await a.set_tags({"id": "2"})
        assert list(a.members()) == ["a"]
        await agent.start()
        await follower.until("a", lambda member: ours(member) == {"id": "2"})
        assert (await agent.members())["a"]["tags"] == {"role": "web", "id": "2"}

    async def test_tags_of_site_count_for_limit(self, bed: SerfBed) -> None:
        await bed.start_agent("a", role="x" * 400)
        a = await bed.start("a", {"id": "1"})
        with pytest.raises(TooLarge, match="role 4"):
            await a.set_tags({"id": "1", "zone": "x" * 100})
        assert ours(a.members()["a"]) == {"id": "1"}

    @pytest.mark.parametrize(("key", "said"), [("a guess", "the given key is wrong"), (None, "none was given")])
    async def test_a_key_that_is_not_the_agents(self, bed: SerfBed, key: str | None, said: str) -> None:
        agent = await bed.start_agent("a")
        with pytest.raises(StartupError, match=said):
            await SerfMembership(agent.rpc, key, ours=OURS, tags={}, now_ms=now_ms).run()
