"""A pytest plugin that changes leaders at random times, and lets nodes of the test's process learn their topics late.

`pytest -p tests.support.flaky.unrest tests/integration/cluster tests/regressions`. On a loaded machine, an election may
begin at any moment, and a node may serve before it knows its topics. A test that relies on the opposite fails soon with
this plugin, without any load. `UNREST_SEED` is the seed of the random times.
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
