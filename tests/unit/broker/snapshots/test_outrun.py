"""Tests that the count of outrun snapshots is kept as long as its member needs a snapshot."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from sandq.broker.snapshots.snapshots import Snapshots

KEY = (1, "b#1")


def test_member_that_needs_a_snapshot_is_not_forgotten() -> None:
    """A member can lag again at once. If it were forgotten, the next snapshot would be sent as slowly as the first."""
    group = SimpleNamespace(lagging={"b#1"}, is_leader=True, has_caught_up=lambda member: True)
    host = SimpleNamespace(failed=None, group=group, members=(("a#1", "b#1"), ()))
    hosts = {1: host}
    node_log: Any = SimpleNamespace(hosts=hosts, memory=SimpleNamespace(measure=lambda *account: None))
    nothing: Any = None
    snapshots = Snapshots(node_log, nothing, 1 << 20, nothing, nothing)
    snapshots._outrun[KEY] = 3
    snapshots._forget_outrun()
    assert snapshots._outrun == {KEY: 3}
    group.lagging.clear()
    group.has_caught_up = lambda member: False
    snapshots._forget_outrun()
    assert snapshots._outrun == {KEY: 3}, "the member gets the rest from the log"
    group.has_caught_up = lambda member: True
    snapshots._forget_outrun()
    assert snapshots._outrun == {}
    snapshots._outrun[KEY] = 3
    hosts.clear()
    snapshots._forget_outrun()
    assert snapshots._outrun == {}
