"""A leader marks groups as in use, even after its clock was ahead and was corrected."""

from __future__ import annotations

import pytest

from sandq.broker.leader.partition_leader import TOUCH_MS, PartitionLeader
from sandq.partition import commands as c
from tests.support.partition.bench import T
from tests.support.partition.bench_host import BenchHost
from tests.support.simulation.any_window import AnyWindow
from tests.support.simulation.stepped import VirtualClock, VirtualTimers

YEAR = 365 * 86_400_000


class Bed:
    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.clock.ms = T + YEAR
        self.host = BenchHost()
        self.host.bench.open(at=0)
        timers = VirtualTimers(self.clock)
        self.leader = PartitionLeader(
            raft_group=self.host, partition=0, clock=self.clock, timers=timers, window=AnyWindow(timers, ahead_ms=5)
        )  # type: ignore[arg-type]

    def touched(self) -> list[str]:
        """Return the groups that were proposed to be touched, and apply the proposals."""
        found = [name for command, _ in self.host.proposed if isinstance(command, c.Touch) for name in command.groups]
        self.host.apply(self.clock.ms - T)
        return found


@pytest.fixture
def bed() -> Bed:
    return Bed()


def test_groups_are_in_use_when_a_node_begins_to_lead(bed: Bed) -> None:
    bed.leader.lead()
    assert bed.touched() == ["g"]
    bed.leader.status_changed()
    assert bed.touched() == []


def test_groups_are_in_use_still_when_the_clock_is_right_again(bed: Bed) -> None:
    bed.leader.lead()
    assert bed.touched() == ["g"]
    bed.clock.ms = T + 1000
    bed.leader.status_changed()
    assert bed.touched() == ["g"]
    bed.leader.status_changed()
    assert bed.touched() == []


def test_consumer_keeps_its_group_in_use_after_a_clock_correction(bed: Bed) -> None:
    bed.leader.lead()
    bed.touched()
    assert bed.leader.touch("g") == bed.clock.ms + TOUCH_MS
    assert bed.touched() == ["g"]
    bed.clock.ms = T + 1000
    assert bed.leader.touch("g") == T + 1000 + TOUCH_MS
    assert bed.touched() == ["g"]
    bed.touched()
    assert bed.leader.touch("g") == T + 1000 + TOUCH_MS
    assert bed.touched() == []
