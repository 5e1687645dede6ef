from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.nodes.three import ThreeNodes, three_nodes
from tests.support.waiting import until_holds


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[ThreeNodes]:
    """Three nodes that know each other."""
    async with three_nodes(tmp_path) as nodes:
        for serving in nodes.running.values():
            await until_holds(lambda serving=serving: len(serving.broker.metadata.nodes) == 3)  # type: ignore[misc]
        yield nodes
