"""Random commands on the partitions of a topic whose group has limits never exceed the limits.

Reports may be lost, late or repeated. Leaders of the home partition forget their state, and leaders use older settings
of the topic. Meanwhile, partitions are loaded from their rows, and limits change, end and begin. The number of leased
messages never exceeds the limit, unless more messages were leased when the limit was set. No time window has more
leases than rate and burst allow. If the rate has a unit, this holds for the costs of the leased messages. In the end
all messages are delivered."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from sandq.broker.delivery.limit_home import LimitHome, Report, newer, report_of
from sandq.model.batch import Column, encode
from sandq.model.group_limits import GroupLimit, limits_of, next_epoch, parse_limit, with_limit
from sandq.model.settings import parse_settings
from sandq.partition import commands as c
from sandq.partition.base.view import View
from sandq.partition.reader.look_aheads import LookAheads
from sandq.partition.reader.pieces import MessageReader
from sandq.partition.records.leases import Lease
from sandq.partition.state_machine import TimerPartition
from sandq.storage.stores import MemoryStores
from tests.support.examples import examples

T = 1_800_000_000_000
STEPS = 160
ENOUGH = 3000
"""Number of rounds after which a world without faults has delivered all messages."""
LEASE_MS = 3000
CHANCES = {
    "produce": 10,
    "lease": 20,
    "settle": 12,
    "wait": 10,
    "look": 14,
    "tell": 12,
    "deliver": 22,
    "lose": 3,
    "restart": 1,
    "forget": 1,
    "expire": 0.5,
    "add": 0.3,
}
"""Weights of the actions."""


class Partition:
    """One partition of the topic, whose clock differs from the clocks of the others."""

    def __init__(self, number: int, settings: dict[str, Any], skew_ms: int) -> None:
        self.number, self.skew_ms, self.settings = number, skew_ms, settings
        self.stores, self.index = MemoryStores(), 0
        self.restart()

    def restart(self) -> None:
        self.view = View(self.stores)
        self.machine = TimerPartition.load(self.number, self.settings, self.view, LookAheads())

    def apply(self, at: int, *commands: c.Command) -> list[Any]:
        self.index += 1
        entry = c.Entry.decode(c.Entry(T + at + self.skew_ms, commands).encode())
        results = self.machine.apply(self.index, entry, self.view)
        self.machine.write_state(self.view)
        self.stores.write(self.view.drain())
        return results

    def report(self, at: int) -> Report | None:
        return report_of(self.machine.status(self.view), "g", True, T + at + self.skew_ms)

    @property
    def leased(self) -> int:
        group = self.machine.groups.find("g")
        return 0 if group is None else group.in_flight


class World:
    def __init__(self, draw: random.Random, partitions: int, limit: dict[str, Any]) -> None:
        self.draw, self.at = draw, 0
        self.settings = parse_settings({"max_attempts": None}).record()
        skews = [draw.choice([0, draw.randint(0, 40), draw.randint(0, 5000)]) for _ in range(partitions)]
        self.parts = [Partition(number, self.settings, skew) for number, skew in enumerate(skews)]
        self.home = LimitHome()
        self.wires: list[tuple[int, str, Any]] = []
        """Frames in flight: target partition, kind, content."""
        self.held: list[tuple[Partition, Lease]] = []
        self.left = self.made = 0
        self.went: list[tuple[int, int, int, int]] = []
        """Leases: true time, epoch, number of messages and their total cost."""
        self.costs: list[int] = [1]
        """Costs from which messages draw theirs."""
        self.cost_of: list[int] = []
        """Cost of each message."""
        self.without: set[int] = set()
        """Epochs from which the settings have no limits."""
        self.known: dict[int, GroupLimit] = {}
        """Limits by epoch."""
        self.epoch = self.peak = 0
        """Epoch that is checked, and the smallest number of leased messages since it began."""
        for part in self.parts:
            part.apply(0, c.OpenGroup("g", "earliest"))
        self.limit(limit)

    # -- events ---------------------------------------------------------------------------------------------------

    def limit(self, given: dict[str, Any]) -> None:
        self.settings = with_limit(self.settings, "g", len(self.parts), parse_limit(given))
        if "g" not in limits_of(self.settings):
            self.without.add(next_epoch(self.settings))
        for part in self.parts:
            self.wires.append((part.number, "configure", self.settings))

    def add_partition(self) -> None:
        if len(self.parts) < 6:
            part = Partition(len(self.parts), self.settings, self.draw.randint(0, 5000))
            part.restart()
            part.apply(self.at, c.Configure(self.settings))
            part.apply(self.at, c.OpenGroup("g", "earliest"))
            self.parts.append(part)

    def produce(self) -> None:
        count = self.draw.randint(1, 4)
        values = [b"%d" % (self.made + number) for number in range(count)]
        columns: dict[int, Any] = {Column.VALUE: values}
        costs = [self.draw.choice(self.costs) for _ in values]
        if max(costs) > 1:
            columns[Column.COST] = [None if cost == 1 else cost for cost in costs]
        self.cost_of += costs
        append = c.Append(encode(columns), split=Column.COST in columns)
        self.draw.choice(self.parts).apply(self.at, append)
        self.made += count
        self.left += count

    def lease(self, part: Partition, most: int) -> None:
        allowed = part.machine.limits.status()
        before = None if allowed is None else allowed.allowances["g"]
        command = c.Lease("g", T + self.at + part.skew_ms + 5, [c.Grant("c", most, LEASE_MS)])
        for lease in part.apply(self.at, command)[0]:
            self.held.append((part, lease))
            if before is not None:
                self.went.append((self.at, before.epoch, lease.total, self._cost(part, lease)))
        self.check_in_flight()

    def _cost(self, part: Partition, lease: Lease) -> int:
        """Return the total cost of the messages of a lease."""
        values = [message.fields[Column.VALUE] for message in MessageReader().messages(part.view, lease.ranges)]
        assert len(values) == lease.total
        return sum(self.cost_of[int(value)] for value in values)

    def settle(self) -> None:
        part, lease = self.held.pop(self.draw.randrange(len(self.held)))
        if self.draw.random() < 0.7:
            if part.apply(self.at, c.Ack([(lease.token, None)])) == [[None]]:
                self.left -= lease.total
        else:
            part.apply(self.at, c.Nack([(lease.token, None, 0, None)]))

    def expire(self) -> None:
        self.at += LEASE_MS
        for part in self.parts:
            part.apply(self.at, c.Expire())
        self.held = [(part, lease) for part, lease in self.held if lease.token in part.machine.leases.by_token]

    def check_limits(self) -> None:
        """Let the leader of the home partition check the limits."""
        home = self.parts[0]
        status = home.machine.status(home.view)
        own = home.report(self.at)
        ledger = None if status.limits is None else status.limits.ledgers["g"]
        if own is None or ledger is None:
            return
        command = self.home.decide("g", ledger, own, self.at)
        if command is not None:
            assert home.apply(self.at, command) == [None]
            self.check_in_flight()
            ledger = home.machine.limits.ledger("g")
            assert ledger is not None
        for partition, asked in self.home.asks(ledger, own, self.at):
            self.wires.append((partition, "asked", asked))

    def send_report(self, part: Partition) -> None:
        report = part.report(self.at)
        if report is not None and part.number:
            self.wires.append((0, "report", (part.number, report)))

    def deliver(self, *, may_lose: bool) -> None:
        at = self.draw.randrange(len(self.wires))
        to, kind, what = self.wires[at]
        if not may_lose or self.draw.random() < 0.8:
            del self.wires[at]
        if kind == "configure":
            # A leader that does not know the newest settings proposes older ones.
            self.parts[to].apply(self.at, c.Configure(what))
            self.check_in_flight()
        elif kind == "asked":
            part = self.parts[to]
            if news := newer(part.machine.status(part.view), [what]):
                part.apply(self.at, c.AllowLimit([one[:-1] for one in news]))
            self.send_report(part)
        else:
            self.home.heard(what[0], what[1], self.at)

    # -- invariants -----------------------------------------------------------------------------------------------

    def check_in_flight(self) -> None:
        limit = limits_of(self.parts[0].machine.settings).get("g")
        if limit is None:
            return
        leased = sum(part.leased for part in self.parts)
        known = [next_epoch(part.machine.settings) for part in self.parts]
        if any(known[0] < one <= max(known) for one in self.without):
            self.peak = max(self.peak, leased)  # the limits were removed, and the home partition does not know it yet
            return
        ledger = self.parts[0].machine.limits.ledger("g")
        assert ledger is not None
        shares, most = ledger.shares, limit.max_in_flight
        if limit.epoch != self.epoch:
            self.epoch, self.peak = limit.epoch, leased
        if most is not None and not ledger.unheard:
            for partition, share in shares.items():
                assert self.parts[partition].leased <= share.held
            # More messages may have been leased when the limit was set. The number may only fall.
            assert leased <= max(most, self.peak), f"{leased} in flight of {most}"
            assert not ledger.own_in_flight or ledger.own_in_flight + ledger.given[0] <= most
            self.peak = min(self.peak, leased)
        else:
            self.peak = max(self.peak, leased)
        if limit.burst is not None:
            assert ledger.own_units + sum(share.held_units for share in shares.values()) == limit.burst

    def check_rate(self) -> None:
        """Check that no time window of an epoch has more than burst and rate allow."""
        by_epoch: dict[int, list[tuple[int, int, int]]] = {}
        for stamp, epoch, count, cost in sorted(self.went):
            by_epoch.setdefault(epoch, []).append((stamp, count, cost))
        for epoch, went in by_epoch.items():
            limit = self.known[epoch]
            if limit.interval_us is None or limit.burst is None:
                continue
            ahead_us, last_ms = 0, 0
            # A message whose cost is above the burst is leased alone, when the whole burst is free.
            most_us = max(limit.burst, max(self.cost_of) if limit.unit else 0) * limit.interval_us
            for stamp, count, cost in went:
                units = count if limit.unit is None else cost
                ahead_us = max(ahead_us - (stamp - last_ms) * 1000, 0) + units * limit.interval_us
                last_ms = stamp
                assert ahead_us <= most_us, f"{units} at {stamp} are too many"


LIMITS = st.fixed_dictionaries(
    {},
    optional={"max_in_flight": st.integers(1, 12), "rate": st.sampled_from([2, 10, 50, 1000])},
)


@hypothesis_settings(max_examples=examples(120), deadline=None)
@given(
    seed=st.integers(0, 1 << 32),
    partitions=st.integers(1, 5),
    limits=st.lists(LIMITS, min_size=1, max_size=4),
    burst=st.sampled_from([None, 1, 3, 20]),
    costs=st.sampled_from([None, (1, 2, 3), (1, 7), (3, 20, 50)]),
)
def test_limits_hold_and_everything_is_delivered(
    seed: int, partitions: int, limits: list[dict[str, Any]], burst: int | None, costs: tuple[int, ...] | None
) -> None:
    if costs is not None:
        limits = [
            given | ({"rate": 20 * given["rate"], "unit": "tokens"} if "rate" in given else {}) for given in limits
        ]
    limits = [given | ({"burst": burst} if "rate" in given else {}) for given in limits]
    world = World(random.Random(seed), partitions, limits[0])
    world.costs = list(costs or (1, 5))
    walk(world, limits[1:])
    finish(world)
    world.check_rate()


def walk(world: World, limits: list[dict[str, Any]]) -> None:
    draw = world.draw
    changes = {draw.randrange(STEPS): limit for limit in limits}
    for step in range(STEPS):
        world.known |= {limit.epoch: limit for limit in limits_of(world.settings).values()}
        if step in changes:
            world.limit(changes[step])
        match draw.choices(list(CHANCES), list(CHANCES.values()))[0]:
            case "produce":
                world.produce()
            case "lease":
                world.lease(draw.choice(world.parts), draw.randint(1, 8))
            case "settle" if world.held:
                world.settle()
            case "wait":
                world.at += draw.choice([1, 5, 50, 250, 1000])
            case "look":
                world.check_limits()
            case "tell":
                world.send_report(draw.choice(world.parts))
            case "deliver" if world.wires:
                world.deliver(may_lose=True)
            case "lose" if world.wires:
                at = draw.randrange(len(world.wires))
                if world.wires[at][1] != "configure":
                    del world.wires[at]
            case "restart":
                draw.choice(world.parts).restart()
            case "forget":
                world.home = LimitHome()
            case "expire":
                world.expire()
            case "add":
                world.add_partition()


def finish(world: World) -> None:
    """Let all messages be delivered, without faults."""
    world.known |= {limit.epoch: limit for limit in limits_of(world.settings).values()}
    for number, part in enumerate(world.parts):
        world.draw = random.Random(number)
        part.apply(world.at, c.Expire())
    for _ in range(ENOUGH):
        if not world.left:
            return
        world.at += 20
        for part in world.parts:
            world.lease(part, 8)
            world.send_report(part)
        while world.held:
            part, lease = world.held.pop()
            if part.apply(world.at, c.Ack([(lease.token, None)])) == [[None]]:
                world.left -= lease.total
        while world.wires:
            world.deliver(may_lose=False)
        world.check_limits()
        for part in world.parts:
            part.apply(world.at, c.Expire())
    raise AssertionError(f"{world.left} of {world.made} messages were not delivered")
