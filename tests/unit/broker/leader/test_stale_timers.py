"""Tests that obsolete timers use no memory: a changed next message of a group, and a LEASE that was answered early."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import trio

from sandq.broker.delivery.group_waiters import GroupWaiters
from sandq.broker.delivery.lease_once import LeaseOnce
from sandq.broker.leader.partition_leader import PartitionLeader
from sandq.model.caller import NODE
from sandq.protocol.requests import Lease
from tests.support.partition.leader_bed import LEASE_MS, LeaderBed
from tests.support.waiting import PATIENCE_S
from tests.unit.broker.leader.test_moved_leases import MOVED

HOUR_MS = 3_600_000


def test_group_has_one_timer_for_its_next_message() -> None:
    bed = LeaderBed()
    bed.delivery.attach(bed.subscription("s"))
    before = bed.timers.live()
    for number in range(50):
        bed.produce(HOUR_MS - 1000 * number)
    assert bed.timers.live() - before <= 2
    bed.delivery.end_subscriptions(MOVED)
    assert bed.timers.live() <= before


async def opens(deliveries: Sequence[PartitionLeader]) -> None:
    """Wait until the group exists."""


async def test_a_lease_that_is_answered_leaves_no_timer() -> None:
    bed = LeaderBed()
    before = bed.timers.live()
    for number in range(20):
        bed.produce(0)
        bed.produce(HOUR_MS * (number + 1))
        request = Lease("t", "g", "c", 1, 30_000, LEASE_MS, "earliest", False)
        clock: Any = bed.clock
        timers: Any = bed.timers
        waiters = GroupWaiters("t", "g", clock, timers)
        once = LeaseOnce(request, NODE, [bed.delivery], waiters, LEASE_MS, clock, timers, lambda: False)
        taken = []

        async def run(once: LeaseOnce = once, waiters: GroupWaiters = waiters, taken: list[object] = taken) -> None:
            with waiters.joined():
                await waiters.add([bed.delivery], opens)
                taken += await once.run()

        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(run)
                while not taken:
                    await trio.lowlevel.checkpoint()
                    bed.drive()
        assert len(taken) == 1
    # One timer of the next lease end, one timer of upkeep.
    assert bed.timers.live() - before <= 2
