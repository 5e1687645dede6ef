"""A plugin for pytest: nodes in the tests' own process know what there is late, and leaders change now and then.

`pytest -p tests.support.flaky.unrest tests/integration/cluster tests/regressions`. On a loaded machine an election may
come at any moment, and a node may serve before it knows its topics: what a test takes for granted there fails here
without a load, and soon. `UNREST_SEED` is of the times.
"""

from __future__ import annotations

import os
import random

import trio

from sandq.broker.controller.reconciler import Reconciler
from sandq.broker.replication.raft_group import RaftGroup
from sandq.metadata.records import Topic

MOVES_S = (0.1, 1.0)
OPENED_LATE_S = 0.5

_rng = random.Random(int(os.environ.get("UNREST_SEED", "1")))
_start, _open = Reconciler.start, Reconciler._open


async def _move_leaders(of: Reconciler) -> None:
    hosts = of._node_log.hosts
    while True:
        await trio.sleep(_rng.uniform(*MOVES_S))
        led = [host.group for host in hosts.values() if host.group.is_leader and not host.group.is_only_voter]
        if led:
            group = _rng.choice(led)
            others = [member for member in group.members.voters if member != group.member]
            group.transfer(_rng.choice(others))
            hosts[group.number].send_commit_index()


async def _start_and_move(of: Reconciler, metadata: RaftGroup) -> None:
    await _start(of, metadata)
    of._nursery.start_soon(_move_leaders, of)


async def _open_late(of: Reconciler, topic: Topic) -> None:
    if len(of._catalog.view.nodes) > 1:
        await trio.sleep(_rng.uniform(0, OPENED_LATE_S))
    await _open(of, topic)


Reconciler.start = _start_and_move  # type: ignore[method-assign]
Reconciler._open = _open_late  # type: ignore[method-assign]
