"""Run a node that compares the replicas of its partitions every few seconds, and logs each comparison."""

from __future__ import annotations

import structlog

from sandq.broker.health import replica_digests
from sandq.cli import main

replica_digests.FIRST_S = 5.0  # type: ignore[misc]
replica_digests.ROUND_S = 5.0  # type: ignore[misc]
_compare = replica_digests.ReplicaDigests.compare
log = structlog.get_logger("sandq.health")


async def _compared(self: replica_digests.ReplicaDigests, group: int) -> bool | None:
    same = await _compare(self, group)
    log.info("replicas were compared", group=group, same=same)
    return same


replica_digests.ReplicaDigests.compare = _compared  # type: ignore[method-assign]

if __name__ == "__main__":
    main()
