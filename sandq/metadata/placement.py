"""Which nodes hold which partition."""

from __future__ import annotations

from collections.abc import Sequence


def place(nodes: Sequence[str], partitions: int, replicas: int, turn: int) -> list[list[str]]:
    """For each partition the nodes that hold it; the first of them is meant to lead it, so each leads as many as any
    other. `turn`: another one for each topic, so that topics of one partition do not all have the same leader."""
    count = len(nodes)
    return [[nodes[(turn + partition + at) % count] for at in range(replicas)] for partition in range(partitions)]
