"""A new leader marks all groups as used before it drops any, because no consumer could use them without a leader."""

from __future__ import annotations

from sandq.broker.replication.raft_group import RaftGroup
from tests.support.partition.leader_bed import LeaderBed

DAY_MS = 86_400_000


def test_groups_survive_while_the_leader_cannot_write() -> None:
    """The situation after a start: the node's clock was not compared with other clocks yet."""
    bed = LeaderBed()
    waits: list[str] = ["its clock was not compared yet"]

    def reason_to_wait(host: RaftGroup) -> str | None:
        return waits[0] if waits else None

    bed.host._reason_to_wait = reason_to_wait
    bed.clock.ms += 8 * DAY_MS  # the partition had no leader for longer than `group_ttl`
    bed.delivery.lead()
    for _ in range(3):
        bed.clock.ms += 1000
        bed.settle()
    waits.clear()
    for _ in range(3):
        bed.clock.ms += 1000
        bed.settle()
    assert [group.name for group in bed.delivery.groups] == ["g"]
    bed.clock.ms += 8 * DAY_MS
    bed.settle()
    assert [group.name for group in bed.delivery.groups] == []
