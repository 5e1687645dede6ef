from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.interop.serf_agent import SERF, SerfAgent

pytest.register_assert_rewrite("tests.interop.membership_contract")


@pytest.fixture
def make_agent(tmp_path: Path) -> Iterator[Callable[..., SerfAgent]]:
    """Makes Serf agents that end with the test: `make_agent(name, tags=...)`, then `await agent.start()`."""
    if SERF is None:
        pytest.skip("`serf` is not installed: make system, or apt-get install serf")
    agents: list[SerfAgent] = []

    def make(name: str, **options: Any) -> SerfAgent:
        agents.append(SerfAgent(tmp_path, name, **options))
        return agents[-1]

    yield make
    for agent in agents:
        agent.close()
