"""After each lease the leader leased again because of an older status, which cost an empty lease entry and a sync."""

from __future__ import annotations

from tests.support.simulation.node_world import Node, World


def test_lease_of_idle_group_is_one_entry() -> None:
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
    leases = group.journal.last_index - before - 1  # do not count the append
    assert node.held
    assert leases == 1, "one entry has the leases of both groups, and no further one follows"
