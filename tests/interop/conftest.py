from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.support.gossip.gossip_bed import GossipBed
from tests.support.gossip.serf_agent import SERF, SerfAgent, new_key

pytest.register_assert_rewrite("tests.support.gossip.membership_contract")


@pytest.fixture
def make_agent(tmp_path: Path) -> Iterator[Callable[..., SerfAgent]]:
    """Return a function that makes Serf agents, which end with the test: `make_agent(name, tags=...)`.

    Start each agent with `await agent.start()`."""
    agents: list[SerfAgent] = []

    def make(name: str, **options: Any) -> SerfAgent:
        if SERF is None:
            pytest.skip("`serf` is not installed: make system, or apt-get install serf")
        agents.append(SerfAgent(tmp_path, name, **options))
        return agents[-1]

    yield make
    for agent in agents:
        agent.close()


@pytest.fixture(params=["plain text", "encrypted"])
def key(request: pytest.FixtureRequest) -> str | None:
    """Return a key of a cluster's gossip, in the format of Serf's agents; None for plain text."""
    return new_key() if request.param == "encrypted" else None


@pytest.fixture
async def bed(make_agent: Callable[..., SerfAgent], key: str | None) -> AsyncIterator[GossipBed]:
    """Return a bed of the native backend. Modules of other backends define their own fixture `bed`."""
    async with trio.open_nursery() as nursery:
        yield GossipBed(nursery, make_agent, key)
        nursery.cancel_scope.cancel()
