"""Tests of LEASE requests for one group: waiting and woken consumers, requested and released leases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from sandq.broker.delivery.group_waiters import GroupWaiters
from sandq.broker.delivery.lease_once import LeaseOnce, release
from sandq.model.caller import NODE
from sandq.model.errors import NotLeader, SandqError, Unavailable, UnknownTopic
from sandq.partition import commands as c
from sandq.partition.group_status import Limited
from sandq.partition.groups.group import RESETTING, SEEKING
from sandq.protocol.requests import Lease
from tests.support.simulation.stepped import VirtualClock, VirtualTimers

DAY_MS = 86_400_000
TOUCH_MS = 10_000


class Led:
    """A partition that this node leads. Its messages of one group are due now or later."""

    def __init__(self, clock: VirtualClock, partition: int = 0, *, paused: str | None = None) -> None:
        self.clock = clock
        self.partition = partition
        self.closed = False
        self.due_ms: list[int] = []
        self.asked: list[str] = []
        """Consumers, in the order in which they asked for leases."""
        self.released: list[str] = []
        self.touched = 0
        self.promoting = 0
        """Number of leases that it takes to promote the due messages."""
        self.lost: SandqError | None = None
        self.raft_group = self
        self.stalled = None
        self.watchers: list[Callable[[Any, SandqError | None], None]] = []
        self.groups: dict[str, Any] = {"g": SimpleNamespace(due_ms=None, paused=paused, limit=None)}

        self.held_up = 0
        """Number of requests for a larger share of the limits."""

    # The attributes of a partition leader and its Raft group.

    knows_limits, limits_wanted = True, None

    def watch(self, group: str, watcher: Callable[[Any, SandqError | None], None]) -> None:
        self.watchers.append(watcher)

    def unwatch(self, group: str, watcher: Callable[[Any, SandqError | None], None]) -> None:
        self.watchers.remove(watcher)

    def note_asked(self, group: str) -> None:
        self.held_up += 1

    def touch(self, group: str) -> int:
        self.touched += 1
        return self.clock.ms + TOUCH_MS

    @property
    def ready(self) -> bool:
        return self.lost is None

    def check_ready(self) -> None:
        if self.lost is not None:
            raise self.lost

    async def call(self, command: c.Lease, line: Any, *, work: int) -> list[Any]:
        """Lease messages that are due, as a partition does, but nothing while it is promoting."""
        (grant,) = command.grants
        self.asked.append(grant.consumer)
        await trio.lowlevel.checkpoint()  # the message is stored
        self.promoting = max(self.promoting - 1, 0)
        if self.promoting:
            return []
        there = [due_ms for due_ms in self.due_ms if due_ms <= self.clock.ms][: grant.limit]
        for due_ms in there:
            self.due_ms.remove(due_ms)
        if there:
            self.changed()
        return [SimpleNamespace(count=len(there), pieces=(), token=1)] if there else []

    def is_promoting(self, group: str) -> bool:
        return self.promoting > 0

    def submit(self, command: c.Release, done: Any) -> None:
        self.released.append(command.consumer)

    # Events of the partition.

    def add_due_messages(self, count: int, in_ms: int = 0) -> None:
        self.due_ms += [self.clock.ms + in_ms] * count
        self.changed()

    def changed(self) -> None:
        if "g" in self.groups:
            self.groups["g"].due_ms = min(self.due_ms, default=None)
        for watcher in list(self.watchers):
            watcher(self, None)


class Bed:
    """LEASE requests for partitions, each of a consumer with a name."""

    def __init__(self, nursery: trio.Nursery, partitions: int = 1) -> None:
        self.nursery = nursery
        self.clock = VirtualClock()
        self.timers = VirtualTimers(self.clock)
        self.partitions = [Led(self.clock, number) for number in range(partitions)]
        self.waiters = GroupWaiters("t", "g", self.clock, self.timers)  # type: ignore[arg-type]
        self.got: dict[str, int | SandqError] = {}
        self.opened = 0
        self.congested: set[str] = set()
        self.scopes: dict[str, trio.CancelScope] = {}

    async def _open(self, deliveries: Sequence[Any]) -> None:
        self.opened += len(deliveries)
        await trio.lowlevel.checkpoint()

    async def take(self, name: str, wait_ms: int = DAY_MS, most: int = 1) -> None:
        """Lease messages once for a consumer, and note how many it got."""
        request = Lease("t", "g", name, most, wait_ms, None, "earliest", False)
        deliveries: Any = self.partitions
        timers: Any = self.timers
        clock: Any = self.clock
        congested = partial(self.congested.__contains__, name)
        once = LeaseOnce(request, NODE, deliveries, self.waiters, 30_000, clock, timers, congested)
        with trio.CancelScope() as self.scopes[name]:
            try:
                with self.waiters.joined():
                    await self.waiters.add(deliveries, self._open)
                    self.got[name] = sum(lease.count for _, lease in await once.run())
            except SandqError as error:
                self.got[name] = error
            except trio.Cancelled:
                release(once.asked, request)
                raise

    async def wait(self, *names: str, **options: Any) -> None:
        """Start these consumers in this order and return when each of them waits."""
        for name in names:
            self.nursery.start_soon(partial(self.take, name, **options))
            await wait_all_tasks_blocked()

    def leave(self) -> None:
        for scope in self.scopes.values():
            scope.cancel()

    async def settle(self) -> None:
        await wait_all_tasks_blocked()
        self.timers.fire()
        await wait_all_tasks_blocked()

    async def advance(self, ms: int) -> None:
        self.clock.ms += ms
        await self.settle()


@pytest.fixture
async def bed(nursery: trio.Nursery) -> Bed:
    return Bed(nursery)


async def test_lease_without_messages_returns_none(bed: Bed) -> None:
    await bed.take("a", wait_ms=0)
    assert bed.got == {"a": 0} and bed.partitions[0].asked == []


@pytest.mark.parametrize(
    ("paused", "why"), [(SEEKING, "a seek is under way"), (RESETTING, "the partition's clock is being set back")]
)
async def test_lease_during_a_seek_or_pause_is_unavailable(nursery: trio.Nursery, paused: str, why: str) -> None:
    bed = Bed(nursery)
    bed.partitions = [Led(bed.clock, 0), Led(bed.clock, 3, paused=paused), Led(bed.clock, 1, paused=paused)]
    await bed.take("a", wait_ms=0)
    error = bed.got["a"]
    assert isinstance(error, Unavailable)
    assert error.message == f"group 'g', partition 1, 3: {why}; ask again in a moment"


async def test_few_waiting_consumers_request_one_message(bed: Bed) -> None:
    names = [f"c{number}" for number in range(100)]
    await bed.wait(*names)
    (led,) = bed.partitions
    assert led.asked == [] and len(led.watchers) == 1 and bed.opened == 1
    led.add_due_messages(1)
    await bed.settle()
    assert bed.got == {"c0": 1} and len(led.asked) <= 3
    led.asked.clear()
    led.add_due_messages(1)
    await bed.settle()
    assert len(bed.got) == 2 and len(led.asked) <= 3
    assert bed.got.keys() <= {"c0", "c1", "c2", "c3"}, (
        "the first consumers get the messages, except for those that were woken with them"
    )
    bed.leave()


async def test_a_slow_disk_has_no_more_of_them_ask(bed: Bed) -> None:
    """A consumer that requests a lease wakes no other one: the lease is in flight."""
    await bed.wait(*[f"c{number}" for number in range(100)])
    (led,) = bed.partitions
    grant, stored = led.call, trio.Event()

    async def call(command: c.Lease, line: Any, *, work: int) -> list[Any]:
        await stored.wait()
        return await grant(command, line, work=work)

    led.call = call  # type: ignore[method-assign]
    led.add_due_messages(1)
    await bed.settle()
    stored.set()
    await bed.settle()
    assert bed.got == {"c0": 1} and len(led.asked) <= 3
    bed.leave()


async def test_every_waiter_gets_a_message(bed: Bed) -> None:
    names = [f"c{number}" for number in range(100)]
    await bed.wait(*names)
    (led,) = bed.partitions
    led.add_due_messages(100)
    await bed.settle()
    assert bed.got == dict.fromkeys(names, 1)
    assert len(led.asked) <= 150 and led.watchers == [], "no watcher may remain after the last consumer"


async def test_large_request_is_served_from_all_partitions(nursery: trio.Nursery) -> None:
    bed = Bed(nursery, 3)
    await bed.wait("a", most=10)
    for led in bed.partitions:
        led.due_ms += [bed.clock.ms] * 4
    for led in bed.partitions:
        led.changed()
    await bed.settle()
    await bed.wait("b", most=10)
    assert bed.got == {"a": 10, "b": 2}


async def test_partitions_are_tried_alternately(nursery: trio.Nursery) -> None:
    bed = Bed(nursery, 3)
    for led in bed.partitions:
        led.add_due_messages(10)
    with bed.waiters.joined():  # other consumers wait
        for number in range(6):
            await bed.take(f"c{number}", wait_ms=0)
    assert [len(led.due_ms) for led in bed.partitions] == [8, 8, 8]


async def test_a_message_comes_at_its_time(bed: Bed) -> None:
    await bed.wait("a", "b")
    (led,) = bed.partitions
    led.add_due_messages(1, in_ms=1000)
    await bed.advance(999)
    assert bed.got == {} and led.asked == []
    await bed.advance(1)
    assert bed.got == {"a": 1}
    bed.leave()


async def test_share_of_the_limits_is_asked_for_when_a_message_is_due(bed: Bed) -> None:
    (led,) = bed.partitions
    await bed.wait("a")
    led.groups["g"].limit = Limited(bed.clock.ms + 1000, has_capacity=False, free_ms=None)
    led.watchers[0](led, None)
    await bed.advance(999)
    assert led.held_up == 0
    await bed.advance(1)
    assert (led.held_up, led.asked) == (1, []), "the partition asks for a share, and leases nothing"
    led.add_due_messages(1)
    await bed.settle()
    assert bed.got == {"a": 1}


async def test_empty_lease_is_retried_after_a_moment(bed: Bed) -> None:
    (led,) = bed.partitions
    await bed.wait("a")
    led.groups["g"].due_ms = bed.clock.ms  # due, but not available
    led.watchers[0](led, None)
    await bed.settle()
    assert led.asked == ["a"] and bed.got == {}
    led.due_ms.append(bed.clock.ms)
    await bed.advance(1000)
    assert bed.got == {"a": 1}


async def test_waiter_that_leaves_after_wakeup_wakes_the_next(bed: Bed) -> None:
    await bed.wait("a", "b")
    (led,) = bed.partitions
    bed.scopes["a"].cancel()
    led.add_due_messages(1)  # "a" is woken, but has left
    await bed.settle()
    assert bed.got == {"b": 1} and led.released == []


async def test_cancelled_request_gives_back_only_its_pending_lease(nursery: trio.Nursery) -> None:
    bed = Bed(nursery, 2)
    await bed.wait("a", "b")
    first, second = bed.partitions

    async def call(command: c.Lease, line: Any, *, work: int) -> list[Any]:
        await trio.sleep_forever()
        raise AssertionError

    first.call = call  # type: ignore[method-assign]
    first.add_due_messages(1)
    await bed.settle()
    bed.scopes["a"].cancel()
    await bed.settle()
    assert (first.released, second.released) == (["a"], [])
    bed.leave()


async def test_congested_client_lets_others_take_the_message(bed: Bed) -> None:
    await bed.wait("a", "b")
    bed.congested.add("a")
    (led,) = bed.partitions
    led.add_due_messages(1)
    await bed.settle()
    assert bed.got == {"b": 1}
    bed.congested.clear()
    led.add_due_messages(1)
    await bed.advance(1000)
    assert bed.got == {"b": 1, "a": 1}


@pytest.mark.parametrize("what", ["lost", "deleted", "no group", "others are led"])
async def test_all_waiting_consumers_are_notified_of_a_change(nursery: trio.Nursery, what: str) -> None:
    bed = Bed(nursery, 2)
    await bed.wait("a", "b", "c")
    led = bed.partitions[1]
    if what == "lost":
        led.lost = NotLeader("another leads it")
    elif what == "deleted":
        led.closed = True
    elif what == "no group":
        del led.groups["g"]
    led.changed()
    if what == "others are led":
        led.watchers[0](led, NotLeader("another one is led here as well"))
    await bed.settle()
    kind = {"deleted": UnknownTopic, "no group": Unavailable}.get(what, NotLeader)
    assert [type(bed.got[name]) for name in "abc"] == [kind] * 3
    assert bed.partitions[0].watchers == led.watchers == []


async def test_waiting_requests_end_at_their_wait_time(bed: Bed) -> None:
    await bed.wait("a", wait_ms=1000)
    await bed.wait("b", wait_ms=2000)
    await bed.advance(1000)
    assert bed.got == {"a": 0}
    await bed.advance(1000)
    assert bed.got == {"a": 0, "b": 0}


async def test_group_is_touched_once_for_all_waiters(bed: Bed) -> None:
    await bed.wait("a", "b", "c")
    (led,) = bed.partitions
    assert led.touched == 1
    for times in (2, 3):
        await bed.advance(TOUCH_MS)
        assert led.touched == times
    bed.leave()


async def test_a_partition_that_is_led_since(nursery: trio.Nursery) -> None:
    """Later consumers and waiting consumers use the new partition."""
    bed = Bed(nursery, 2)
    late = bed.partitions.pop()
    await bed.wait("a")
    bed.partitions.append(late)
    await bed.wait("b")
    assert bed.opened == 2
    late.add_due_messages(1)
    await bed.settle()
    assert bed.got == {"a": 1}
    bed.leave()


async def test_due_messages_are_promoted_before_the_reply(nursery: trio.Nursery) -> None:
    bed = Bed(nursery)
    bed.partitions[0].promoting = 3
    bed.partitions[0].add_due_messages(1)
    await bed.take("a", wait_ms=0)
    assert bed.got == {"a": 1}
    assert bed.partitions[0].asked == ["a"] * 3
