from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes.cluster import ClusterProcess
from tests.support.processes.node import NodeProcess


@pytest.fixture
def make_node(tmp_path: Path) -> Iterator[Callable[..., NodeProcess]]:
    """Return a function that makes nodes, which end with the test."""
    nodes: list[NodeProcess] = []

    def make(**options: Any) -> NodeProcess:
        directory = tmp_path / f"node{len(nodes)}"
        directory.mkdir()
        nodes.append(NodeProcess(directory, **options))
        return nodes[-1]

    yield make
    for node in nodes:
        node.close()


@pytest.fixture
def make_cluster(tmp_path: Path) -> Iterator[Callable[..., ClusterProcess]]:
    """Return a function that makes clusters, which end with the test."""
    clusters: list[ClusterProcess] = []

    def make(**options: Any) -> ClusterProcess:
        clusters.append(ClusterProcess(tmp_path, **options))
        return clusters[-1]

    yield make
    for cluster in clusters:
        cluster.close()
