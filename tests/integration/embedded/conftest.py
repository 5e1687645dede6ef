"""An embedded node has an event loop of its own, in real time. So its clock must not be that of the tests' loops."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def node_time() -> None:
    """Leave the clocks of nodes as they are."""
