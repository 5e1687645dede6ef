"""After a run a leader checks only the changed groups. If the changes are unknown, it checks all groups."""

from __future__ import annotations

from collections.abc import Callable

from sandq.broker.leader.partition_leader import PartitionLeader
from sandq.model.errors import SandqError
from sandq.partition import commands as c
from tests.support.partition.leader_bed import LeaderBed
from tests.unit.broker.leader.test_moved_leases import MOVED


class Watched(LeaderBed):
    def __init__(self) -> None:
        super().__init__()
        self.notified: list[str] = []
        self.call(c.OpenGroup("h", "earliest"))
        for name in ("g", "h", "none"):
            self.delivery.watch(name, self._watcher(name))

    def _watcher(self, name: str) -> Callable[[PartitionLeader, SandqError | None], None]:
        def watcher(delivery: PartitionLeader, error: SandqError | None) -> None:
            assert delivery is self.delivery
            self.notified.append(name if error is None else f"{name}: {error.code}")

        return watcher

    def take(self) -> list[str]:
        notified, self.notified = self.notified, []
        return notified


def test_waiter_of_a_group_is_notified_of_that_group_only() -> None:
    bed = Watched()
    bed.take()
    bed.call(c.Touch(["h"]))
    assert bed.take() == ["h"]
    bed.call(c.Clock())
    assert bed.take() == []
    bed.produce(0)
    assert bed.take() == ["g", "h"]
    bed.call(c.OpenGroup("none", "latest"))
    assert bed.take() == ["none"]
    bed.call(c.DropGroup("h"))
    assert bed.take() == ["h"]


def test_all_waiters_are_notified_of_an_unknown_change() -> None:
    bed = Watched()
    bed.take()
    listeners = bed.host._listeners
    heard, listeners.status = listeners.status, []
    bed.call(c.Touch(["g"]))  # a status that the leader does not see
    listeners.status = heard
    assert bed.take() == []
    bed.call(c.Touch(["h"]))
    assert bed.take() == ["g", "h", "none"]


def test_all_waiters_are_notified_when_leadership_begins_and_ends() -> None:
    bed = Watched()
    bed.take()
    bed.delivery.lead()
    assert bed.take() == ["g", "h", "none"]
    bed.delivery.end_subscriptions(MOVED)
    assert bed.take() == ["g: NOT_LEADER", "h: NOT_LEADER", "none: NOT_LEADER"]


def test_removed_watchers_leave_nothing() -> None:
    bed = LeaderBed()

    def first(delivery: PartitionLeader, error: SandqError | None) -> None:
        raise AssertionError("it waits no more")

    def second(delivery: PartitionLeader, error: SandqError | None) -> None:
        pass

    bed.delivery.watch("g", first)
    bed.delivery.watch("g", second)
    bed.delivery.unwatch("g", first)
    bed.call(c.Touch(["g"]))
    bed.delivery.unwatch("g", second)
    bed.delivery.unwatch("g", second)
    assert bed.delivery.watchers == {}
