"""After each lease the deliverer asked once more by a status from before it: an empty lease entry, and a sync, each."""

from __future__ import annotations

from tests.support.simulation.node_world import Node, World


def test_an_idle_group_is_not_leased_twice() -> None:
    world = World(1)
    node = Node(world)
    group = node.host.group
    for _ in range(20):
        node.drive()
    before = group.journal.last_index
    node.produce()
    world.clock.ms += 5000
    for _ in range(20):
        node.drive()
    leases = group.journal.last_index - before - 1  # but the append
    assert node.held
    assert leases == 1, "the leases of both groups in one entry, and none behind it"
