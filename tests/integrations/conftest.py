from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.processes.node import NodeProcess


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A node in a process. Tests use prefixes of their own."""
    node = NodeProcess(tmp_path_factory.mktemp("node"))
    node.start()
    yield node
    node.close()
