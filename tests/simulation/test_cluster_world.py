"""A partition on three nodes keeps its promises under all faults.

No acknowledged message is lost or stored twice, no message is early, no acked message is redelivered, only one consumer
has a leased message, and all replicas are equal. In some worlds, all clocks are wrong by the same amount for a while,
and the partition's clock is set back. In the end all faults heal, and the cluster must make progress.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from sandq.broker.leader.partition_leader import PartitionLeader
from sandq.broker.replication.raft_group import RaftGroup
from sandq.broker.snapshots.snapshots import needing
from sandq.model.errors import Corruption
from sandq.partition.producers.producers import Producers
from sandq.raft import guards
from tests.support.simulation.cluster_node import ClusterNode
from tests.support.simulation.cluster_world import ClusterWorld
from tests.support.simulation.seeds import few_of, run_each

Fault = Callable[[pytest.MonkeyPatch], None]
STEPS = 1200
"""Number of steps before healing: 17 seconds of virtual time."""
SEEDS, BLOCKS = 30, 3
BLOCKS_OF_SEEDS = [range(block * SEEDS // BLOCKS, (block + 1) * SEEDS // BLOCKS) for block in range(BLOCKS)]
EVENTFUL = (0, 1, 4, 8)
"""Seeds of worlds that together have enough events of each kind."""
CLOCKS = [(12, 45), (3, 6, 13, 14, 22)]
"""Seeds of worlds in which all clocks become wrong, after the cluster has learned to set a partition's clock back."""


def run_world(seed: int, steps: int = STEPS, *, moments: bool = True) -> ClusterWorld:
    world = ClusterWorld(seed, moments=moments)
    try:
        world.live(steps)
        world.heal()
    finally:
        world.close()
    return world


@pytest.mark.parametrize("seeds", few_of([EVENTFUL, *BLOCKS_OF_SEEDS], 1), ids=str)
def test_worlds(seeds: Sequence[int]) -> None:
    worlds = run_each(run_world, seeds)
    for what, least in (("crashes", 20), ("snapshots", 2), ("elections", 10), ("compared", 50)):
        assert sum(getattr(world, what) for world in worlds) > least, f"too few events: {what}"
    oracles = [world.clients.oracle for world in worlds]
    assert sum(oracle.deliveries for oracle in oracles) > 3000
    assert sum(oracle.redeliveries for oracle in oracles) > 300
    assert sum(message.cancelled for oracle in oracles for message in oracle.sent.values()) > 5
    assert sum(len(oracle.together()) for oracle in oracles) > 20, "too few events: batch rows due at one moment"
    assert sum(producer.repeated for world in worlds for producer in world.clients.producers) > 100


@pytest.mark.parametrize("seeds", few_of(CLOCKS, 1), ids=str)
def test_worlds_with_wrong_clocks(seeds: Sequence[int]) -> None:
    worlds = run_each(run_world, seeds)
    assert all(world.clocks_go_wrong for world in worlds)
    assert sum(world.resets for world in worlds) > 2, "too few events: resets"


@pytest.mark.long
@pytest.mark.parametrize("block", range(40))
def test_many_worlds(block: int) -> None:
    run_each(run_world, range(100_000 + 25 * block, 100_025 + 25 * block))


def test_a_seed_replays() -> None:
    first, second = run_world(3), run_world(3)
    assert first.clients.oracle.acked == second.clients.oracle.acked
    assert first.clock.ms == second.clock.ms


# -- planted faults --------------------------------------------------------------------------------------------------


def nothing_is_remembered(patch: pytest.MonkeyPatch) -> None:
    """Store each batch that is resent a second time."""
    patch.setattr(Producers, "answered", lambda *args: None)


def leads_at_once(patch: pytest.MonkeyPatch) -> None:
    """Let a new leader answer before it has applied the entries that earlier leaders acknowledged."""
    patch.setattr(RaftGroup, "ready", property(lambda host: host.group.is_leader and host.failed is None))


def ends_in_silence(patch: pytest.MonkeyPatch) -> None:
    """Do not notify consumers when another node leads."""
    patch.setattr(PartitionLeader, "end_subscriptions", lambda *args: None)


def snapshots_of_ready_leaders(patch: pytest.MonkeyPatch) -> None:
    """Send snapshots only from ready leaders, although a leader may become ready only after a member has a snapshot.

    Usually some member needs no snapshot. So let members with a conflict request entries below the leader's log."""

    def needed(host: RaftGroup) -> list[str]:
        return needing(host) if host.ready else []

    patch.setattr(guards, "kept_start", lambda tried, peer, next_index, first: next_index)
    patch.setattr("tests.support.simulation.cluster_snapshots.needing", needed)


def sweep_during_transfer(patch: pytest.MonkeyPatch) -> None:
    """Let the sweep delete the store into which a snapshot is being written."""
    sweep = ClusterNode.sweep

    def sweep_all(node: ClusterNode) -> None:
        node.node_log.filling.clear()
        sweep(node)

    patch.setattr(ClusterNode, "sweep", sweep_all)


def answers_before_the_sync(patch: pytest.MonkeyPatch) -> None:
    """Send frames in the same tick as the records that they acknowledge, before the sync of these records."""
    tick = ClusterNode.tick

    def tick_and_send(node: ClusterNode) -> None:
        tick(node)
        node.send()

    patch.setattr(ClusterNode, "tick", tick_and_send)


def run_plain_world(seed: int) -> ClusterWorld:
    """Run a world without moments, as when the seed of each planted fault was searched."""
    return run_world(seed, moments=False)


@pytest.mark.parametrize(
    ("fault", "seed"),
    [
        (nothing_is_remembered, 0),
        (leads_at_once, 36),
        (ends_in_silence, 9),
        (snapshots_of_ready_leaders, 382),
        (sweep_during_transfer, 56),
        (answers_before_the_sync, 48),
    ],
)
def test_a_fault_is_found(fault: Fault, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    fault(monkeypatch)
    with pytest.raises((AssertionError, Corruption)):  # from the checks, or from the node itself
        run_each(run_plain_world, range(seed, seed + 60))
