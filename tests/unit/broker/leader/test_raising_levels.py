"""A leader raises its partition to the cluster's feature level once, as soon as this is allowed."""

from __future__ import annotations

import pytest

from sandq.broker.leader.partition_leader import RETRY_MS, PartitionLeader
from sandq.model.errors import NotLeader, Overloaded
from sandq.model.features import FIRST_LEVEL
from sandq.partition import commands as c
from tests.support.nodes.next_level import NEXT
from tests.support.partition.bench_host import BenchHost
from tests.support.simulation.any_window import AnyWindow
from tests.support.simulation.stepped import VirtualClock, VirtualTimers


class Bed:
    def __init__(self) -> None:
        self.level = FIRST_LEVEL
        """The feature level of the cluster."""
        self.clock = VirtualClock()
        self.timers = VirtualTimers(self.clock)
        self.host = BenchHost()
        self.leader = PartitionLeader(
            raft_group=self.host,  # type: ignore[arg-type]
            partition=0,
            clock=self.clock,  # type: ignore[arg-type]
            timers=self.timers,  # type: ignore[arg-type]
            window=AnyWindow(self.timers, ahead_ms=5),
            cluster_level=lambda: self.level,
            highest_level=NEXT.highest,
        )

    @property
    def proposed(self) -> list[int]:
        return [command.level for command, _ in self.host.proposed if isinstance(command, c.RaiseLevel)]

    def advance(self, ms: int) -> None:
        self.clock.ms += ms
        self.timers.fire()


@pytest.fixture
def bed() -> Bed:
    return Bed()


def test_a_new_leader_raises_it_once(bed: Bed) -> None:
    bed.leader.lead()
    assert bed.proposed == []
    bed.level = NEXT.highest
    bed.leader.lead()
    bed.leader.status_changed()
    bed.leader.raise_level()
    assert bed.proposed == [NEXT.highest]
    bed.host.apply()
    bed.leader.raise_level()
    assert (bed.proposed, bed.host.status.level) == ([], NEXT.highest)


def test_an_idle_partition_is_raised_with_the_cluster(bed: Bed) -> None:
    bed.leader.lead()
    bed.level = NEXT.highest
    bed.leader.raise_level()
    assert bed.proposed == [NEXT.highest]


def test_level_is_raised_at_most_to_the_known_one(bed: Bed) -> None:
    bed.level = NEXT.highest + 1
    bed.leader.lead()
    assert bed.proposed == [NEXT.highest]


def test_a_follower_proposes_nothing(bed: Bed) -> None:
    bed.host.works = False
    bed.level = NEXT.highest
    bed.leader.raise_level()
    bed.leader.status_changed()
    assert bed.proposed == []


def test_a_refusal_is_tried_again(bed: Bed) -> None:
    bed.level = NEXT.highest
    bed.host.refusal = Overloaded("too much waits")
    bed.leader.lead()
    bed.advance(RETRY_MS - 1)
    bed.host.refusal = None
    assert bed.proposed == []
    bed.advance(1)
    assert bed.proposed == [NEXT.highest]


def test_a_raise_that_is_lost_is_made_by_the_next_leader(bed: Bed) -> None:
    bed.level = NEXT.highest
    bed.leader.lead()
    ((_, done),) = bed.host.proposed
    bed.host.proposed.clear()
    bed.host.works = False
    done(NotLeader("another one leads"))
    bed.advance(RETRY_MS)
    assert bed.proposed == []
    bed.host.works = True
    bed.leader.lead()
    assert bed.proposed == [NEXT.highest]
