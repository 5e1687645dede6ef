"""Measure the cost of one request to a partition's state machine, by the number of messages that it holds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from benchmarks.result import Measured, Row, Setting
from sandq.model.batch import Column, encode
from sandq.model.names import TIMER
from sandq.model.settings import parse_settings
from sandq.partition import commands as c
from sandq.partition.base.view import View
from sandq.partition.state_machine import TimerPartition
from sandq.storage.stores import MemoryStores

RANGES = (10, 100, 1000)
"""Numbers of messages of the lease, or of waiting messages. Each message has a row of its own."""
GROUPS = (10, 100, 900)
HELD = (1000, 10_000, 100_000)
"""Numbers of messages that the group has leased, in leases of 1,000 messages."""
OPERATIONS, QUICK = 300, 10
DUE_MS, NOW_MS, LATER_MS, END_MS = 5, 10, 50_000, 10_000_000
LEASE_MS, LONG_MS = 30_000, 3_600_000
BATCH = 1000


class Partition:
    """A partition whose rows are in memory; times are ms since its first entry."""

    def __init__(self, **settings: Any) -> None:
        defaults = {"max_attempts": None, "backoff": {"kind": "fixed", "first": "1s", "jitter_percent": 0}}
        self._stores = MemoryStores()
        self._view = View(self._stores)
        self._machine = TimerPartition.load(0, parse_settings(defaults | settings, TIMER).record(), self._view)
        self._index = 0
        self.apply(0, c.OpenGroup("g", "earliest"))

    def apply(self, at_ms: int, *commands: c.Command) -> Any:
        """Run the apply thread once for an entry, with notifications and rows; return the first command's result."""
        self._index += 1
        result = self._machine.apply(self._index, c.Entry(at_ms, commands), self._view)[0]
        self._machine.status(self._view)
        self._machine.write_state(self._view)
        self._stores.write(self._view.drain())
        return result

    def append(self, count: int, at_ms: int, due_ms: int, *, ttl_ms: int | None = None, keys: bool = False) -> None:
        """Store messages in rows of their own."""
        columns: dict[int, Any] = {Column.VALUE: [b"v"] * count, Column.DELIVER_MS: [due_ms] * count}
        if ttl_ms is not None:
            columns[Column.TTL_MS] = [ttl_ms] * count
        if keys:
            columns[Column.KEY] = [b"%d" % number for number in range(count)]
        self.apply(at_ms, c.Append(encode(columns), split=True))

    def lease(self, limit: int, at_ms: int, lease_ms: int = LEASE_MS, consumer: str = "c", group: str = "g") -> Any:
        """Return the only lease."""
        (lease,) = self.apply(at_ms, c.Lease(group, at_ms, (c.Grant(consumer, limit, lease_ms),)))
        return lease


Step = Callable[[], object]
"""Measure one request."""


def acks(ranges: int) -> Iterator[Step]:
    partition = Partition(ordering="key")
    partition.append(ranges, 0, DUE_MS, keys=True)
    yield from _settled(partition, partition.lease(ranges, NOW_MS, LONG_MS), _ack)


def nacks(ranges: int) -> Iterator[Step]:
    """Measure messages that already had an attempt each, so that each has a history."""
    partition = Partition()
    partition.append(ranges, 0, DUE_MS)
    first = partition.lease(ranges, NOW_MS)
    for base, _ in list(first.ranges):
        partition.apply(NOW_MS, c.Nack([(first.token, [[base, 1]], 0, None)]))
    yield from _settled(partition, partition.lease(ranges, LATER_MS), _nack)


def extends(ranges: int) -> Iterator[Step]:
    partition = Partition()
    partition.append(ranges, 0, DUE_MS)
    token = partition.lease(ranges, NOW_MS).token
    while True:
        yield partial(partition.apply, NOW_MS, c.Extend([(token, LONG_MS)]))


def retakes(ranges: int, ttl_ms: int | None = None) -> Iterator[Step]:
    """Measure leasing one message at a time from a waiting entry of expired messages."""
    while True:
        partition = Partition()
        partition.append(ranges, 0, DUE_MS, ttl_ms=ttl_ms)
        partition.lease(ranges, NOW_MS)
        partition.apply(LATER_MS - 1000, c.Expire())
        for number in range(ranges // 2):
            yield partial(partition.lease, 1, LATER_MS, consumer=str(number))


def cancels(held: int) -> Iterator[Step]:
    """Measure a cancel that is too late, between two leases."""
    partition = Partition()
    for _ in range(held // BATCH):
        partition.append(BATCH, 0, DUE_MS)
    leases = [partition.lease(BATCH, NOW_MS, LONG_MS, consumer=str(number)) for number in range(held // BATCH)]
    leased = [lease.ranges[0].base for lease in leases]
    partition.append(BATCH, NOW_MS, NOW_MS)
    for number in range(BATCH):
        yield partial(_cancel_between, partition, leased[number % len(leased)], str(number))


def runs(groups: int) -> Iterator[Step]:
    """Measure an event for one group among idle groups that have not yet seen the due messages."""
    partition = Partition()
    partition.append(1, 0, DUE_MS)
    partition.apply(0, *[c.OpenGroup(f"idle{number}", "earliest") for number in range(groups)])
    partition.append(BATCH, 0, END_MS)
    for number in range(1000):
        yield partial(_run, partition, NOW_MS + number)


def _settled(partition: Partition, lease: Any, settle: Callable[[int, bytes], c.Command]) -> Iterator[Step]:
    for base, _ in list(lease.ranges):
        yield partial(partition.apply, LATER_MS, settle(lease.token, base))


def _ack(token: int, base: bytes) -> c.Command:
    return c.Ack([(token, [[base, 1]])])


def _nack(token: int, base: bytes) -> c.Command:
    return c.Nack([(token, [[base, 1]], 0, None)])


def _cancel_between(partition: Partition, offset: bytes, consumer: str) -> None:
    partition.lease(1, NOW_MS, consumer=consumer)
    partition.apply(NOW_MS, c.Cancel([(c.TARGET_ID, offset)]))


def _run(partition: Partition, at_ms: int) -> None:
    partition.apply(at_ms, c.Clock())
    partition.apply(at_ms, c.Touch(["g"]))
    partition.apply(at_ms, c.Upkeep())


def measured(steps: Callable[[int], Iterator[Step]], sizes: tuple[int, ...], each: int, setting: Setting) -> Measured:
    """Return the CPU time of a request with the largest number of messages held. The details have the CPU time with
    fewer messages."""
    wanted = setting.count(OPERATIONS, QUICK)
    found: dict[int, float] = {}
    done = 0
    for size in sizes[: setting.count(len(sizes), 2)]:
        used_s = 0.0
        done = 0
        while done < wanted:
            # the preparation between two requests does not count
            for step in steps(size):
                began_s = time.thread_time()
                step()
                used_s += time.thread_time() - began_s
                done += 1
                if done == wanted:
                    break
        found[size] = used_s * 1e6 / done / each
    value = found.popitem()[1]
    return Measured(done, value, details={f"us with {size:,}": us for size, us in found.items()})


def _row(name: str, what: str, steps: Callable[[int], Iterator[Step]], sizes: tuple[int, ...], each: int = 1) -> Row:
    return Row(f"held_{name}", "held", what, partial(measured, steps, sizes, each), "us", driver="none")


_LEASE = f"of a lease of {RANGES[-1]:,} ranges"
_WAITING = f"of {RANGES[-1]:,} ranges that expired together"
ROWS = (
    _row("ack", f"an ack of one message {_LEASE}, `ordering=key`", acks, RANGES),
    _row("nack", f"a nack of one message {_LEASE}, each with a history of its own", nacks, RANGES),
    _row("extend", f"an extension {_LEASE}", extends, RANGES),
    _row("retake", f"one message {_WAITING} is leased again", retakes, RANGES),
    _row("retake_ttl", "the same, with a ttl of their own", partial(retakes, ttl_ms=LONG_MS), RANGES),
    _row("cancel", f"a late cancel, {HELD[-1]:,} messages leased, and a lease in between", cancels, HELD),
    _row("runs", f"a run of the apply thread, with {GROUPS[-1]} idle groups", runs, GROUPS, each=3),
)
