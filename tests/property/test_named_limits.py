"""Random commands on the partitions of two topics whose groups share a named limit never exceed the limit.

Frames may be lost, late or repeated. The home's leader forgets its state, and partitions are loaded from their rows.
Meanwhile, the limit changes, groups cease to use it and use it again, and a topic is deleted. The messages in flight
never exceed the limit, unless more were in flight when the limit or the use of it was set. No time window has more
leases than rate and burst allow. A member that has confirmed a pause of the limit leases nothing before its end. In the
end all messages are delivered."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from sandq.broker.delivery.limit_home import LEFT, LimitHome, Report, left, newer, report_of
from sandq.model.batch import Column, encode
from sandq.model.group_limits import GroupLimit, limit_used, limits_of, parse_limit, with_limit
from sandq.model.pauses import FOREVER
from sandq.model.settings import parse_settings
from sandq.partition import commands as c
from sandq.partition.limits.ledger import LedgerStatus, Member
from sandq.partition.records.leases import Lease
from tests.property.test_group_limits import LEASE_MS, Partition, T
from tests.support.examples import examples

STEPS = 200
ENOUGH = 3000
NAME = "llm"
CHANCES = {
    "produce": 10,
    "lease": 22,
    "settle": 12,
    "wait": 10,
    "check": 16,
    "report": 14,
    "deliver": 26,
    "lose": 3,
    "restart": 1,
    "forget": 1,
    "expire": 0.5,
    "leave": 0.7,
    "pause": 1,
    "resume": 0.7,
}
"""Weights of the actions."""


class World:
    """Partitions 1 and more belong to topics of users. Each is its own Raft group, and a topic of its own if
    `is_alone`."""

    def __init__(self, draw: random.Random, members: int, limit: dict[str, Any]) -> None:
        self.draw, self.at = draw, 0
        record = parse_settings({"max_attempts": None}).record()
        self.definition = dict(record)
        self.home_part = Partition(0, record, draw.randint(0, 2000))
        # The partitions of two topics: numbers 0 and 1 in each.
        self.parts = [Partition(at % 2, record, draw.choice([0, draw.randint(0, 5000)])) for at in range(members)]
        self.settings = [record for _ in self.parts]
        self.home = LimitHome()
        self.joining: dict[Member, Report] = {}
        self.wires: list[tuple[int, str, Any]] = []
        self.held: list[tuple[int, Lease]] = []
        self.left = self.made = 0
        self.costs: tuple[int, ...] = (1,)
        self.cost_of: list[int] = []
        self.went: list[tuple[int, int, int, int]] = []
        """Leases: true time, epoch of the definition, messages, cost."""
        self.known: dict[int, GroupLimit] = {}
        self.is_exact = True
        """False once a group has left the limit, so that units were returned with an unknown debt."""
        self.peak, self.epoch = 0, 0
        self.quiet = 0
        """Number of lease commands of members that have confirmed a pause."""
        self.limit(limit)
        for at, part in enumerate(self.parts):
            part.apply(0, c.OpenGroup("g", "earliest"))
            self.use(at)

    # -- events ---------------------------------------------------------------------------------------------------

    def limit(self, given: dict[str, Any]) -> None:
        self.definition = with_limit(self.definition, NAME, 0, parse_limit(given))
        limit = limits_of(self.definition)[NAME]
        self.known[limit.epoch] = limit
        self.home_part.apply(self.at, c.Configure(self.definition))
        self.peak = self.in_flight()

    def use(self, at: int) -> None:
        used = parse_limit({"limit": NAME})
        self.settings[at] = with_limit(self.settings[at], "g", 2, used)
        self.parts[at].apply(self.at, c.Configure(self.settings[at]))

    def leave(self, at: int) -> None:
        """Let the group of a partition cease to use the limit, and use it again at once."""
        self.settings[at] = with_limit(self.settings[at], "g", 2, None)
        if self.draw.random() < 0.5:
            self.parts[at].apply(self.at, c.Configure(self.settings[at]))
        self.use(at)
        self.peak = max(self.peak, self.in_flight())

    def in_flight(self) -> int:
        return sum(part.leased for part in self.parts)

    def produce(self) -> None:
        values = [b"%d" % (self.made + number) for number in range(self.draw.randint(1, 4))]
        costs = [self.draw.choice(self.costs) for _ in values]
        columns: dict[int, Any] = {Column.VALUE: values}
        if max(costs) > 1:
            columns[Column.COST] = [None if cost == 1 else cost for cost in costs]
        self.cost_of += costs
        self.draw.choice(self.parts).apply(self.at, c.Append(encode(columns), split=Column.COST in columns))
        self.made += len(values)
        self.left += len(values)

    def lease(self, at: int, most: int) -> None:
        part = self.parts[at]
        limits = part.machine.limits.status()
        assert limits is not None
        before = limits.allowances["g"]
        command = c.Lease("g", T + self.at + part.skew_ms + 5, [c.Grant("c", most, LEASE_MS)])
        leases = part.apply(self.at, command)[0]
        after = part.machine.limits.status()
        assert after is not None
        for lease in leases:
            self.held.append((at, lease))
        if self.is_paused(at):
            assert not leases, "a member that has confirmed a pause leases nothing"
            self.quiet += 1
        if leases:
            assert before.epoch > 0, "a partition that does not know the limit leases nothing"
            messages = sum(lease.total for lease in leases)
            cost = after.allowances["g"].used - before.used
            self.went.append((self.at, before.epoch, messages, cost))
        self.check_in_flight()

    def is_paused(self, at: int) -> bool:
        """Return whether a partition has confirmed the current pause of the limit, as far as the home knows."""
        ledger, part = self.ledger(), self.parts[at]
        used = limit_used(self.settings[at], "g")
        number = None if used is None else ledger.numbers.get(Member(at, used[0], "g"))
        if number is None or number in self.home.unpaused(ledger):
            return False
        return T + self.at + part.skew_ms < ledger.pause.until_ms

    def pause(self, until_ms: int, *, is_longer: bool) -> None:
        before = self.ledger().pause
        ((version, end_ms, _),) = self.home_part.apply(self.at, c.PauseLimit(NAME, until_ms, "test", is_longer))
        assert end_ms >= before.until_ms or not is_longer, "a pause by a lease never shortens a pause"
        assert version >= before.version

    def settle(self) -> None:
        at, lease = self.held.pop(self.draw.randrange(len(self.held)))
        part = self.parts[at]
        if self.draw.random() < 0.7:
            if part.apply(self.at, c.Ack([(lease.token, None)])) == [[None]]:
                self.left -= lease.total
        else:
            part.apply(self.at, c.Nack([(lease.token, None, 0, None)]))

    def expire(self) -> None:
        self.at += LEASE_MS
        for part in self.parts:
            part.apply(self.at, c.Expire())
        self.held = [(at, lease) for at, lease in self.held if lease.token in self.parts[at].machine.leases.by_token]

    # -- the home -------------------------------------------------------------------------------------------------

    def ledger(self) -> LedgerStatus:
        found = self.home_part.machine.limits.ledger(NAME)
        assert found is not None
        return found

    def check(self) -> None:
        """Let the leader of the home check the limit, as `LimitShares` does."""
        home, ledger = self.home_part, self.ledger()
        own = report_of(home.machine.status(home.view), NAME, False, T + self.at + home.skew_ms)
        assert own is not None
        for member in list(self.joining):
            if member in ledger.numbers:
                self.home.heard(ledger.numbers[member], self.joining.pop(member), self.at)
        joined = [
            (*member, report.leased if (report.version, report.epoch) in ((0, 0), (0, ledger.limit.epoch)) else None)
            for member, report in self.joining.items()
        ]
        command = self.home.decide(NAME, ledger, own, self.at)
        gone = self.home.gone(ledger)
        if gone:
            self.is_exact = False
        if command is not None or joined or gone:
            decided = command or c.ShareLimit(NAME, ledger.limit.epoch, [], [])
            assert home.apply(
                self.at, c.ShareLimit(NAME, decided.epoch, decided.reports, decided.targets, joined, gone)
            ) == [None]
            ledger = self.ledger()
        leaving = {
            number
            for number, member in ledger.members.items()
            if limit_used(self.settings[member.raft_group], "g") != (member.assigned, NAME)
        }
        for number, offer in self.home.asks(ledger, own, self.at, leaving):
            self.wires.append((ledger.members[number].raft_group, "asked", offer))
        self.check_in_flight()

    def send_report(self, at: int) -> None:
        report = self.parts[at].report(self.at)
        if report is not None:
            self.wires.append((at, "report", report))

    def deliver(self, *, may_lose: bool) -> None:
        wire = self.draw.randrange(len(self.wires))
        to, kind, what = self.wires[wire]
        if not may_lose or self.draw.random() < 0.8:
            del self.wires[wire]
        if kind == "asked":
            part = self.parts[to]
            status = part.machine.status(part.view)
            gone = left(status, what)
            if gone is not None:
                self.wires.append((to, "report", gone))
                return
            if news := newer(status, [what]):
                part.apply(self.at, c.AllowLimit([one[:-1] for one in news]))
            self.send_report(to)
            return
        number = self.ledger().numbers.get(Member(to, what.assigned, "g"))
        if number is not None:
            self.home.heard(number, what, self.at)
        elif what.epoch != LEFT:
            self.joining[Member(to, what.assigned, "g")] = what

    # -- invariants -----------------------------------------------------------------------------------------------

    def check_in_flight(self) -> None:
        ledger, now = self.ledger(), self.in_flight()
        most = ledger.limit.max_in_flight
        if most is None:
            return
        members = {Member(at, limit_used(record, "g")[0], "g") for at, record in enumerate(self.settings)}  # type: ignore[index]
        if ledger.unheard or members - ledger.numbers.keys():
            # Members have not confirmed a change yet, or the home does not know what a new member has in flight.
            self.peak = max(self.peak, now)
            return
        # More messages may have been in flight when the limit was set. The number may only fall.
        assert now <= max(most, self.peak), f"{now} in flight of {most}"
        self.peak = min(self.peak, max(now, most))
        if ledger.limit.burst is not None:
            assert ledger.own_units + ledger.given[1] == ledger.limit.burst

    def check_rate(self) -> None:
        by_epoch: dict[int, list[tuple[int, int, int]]] = {}
        for stamp, epoch, messages, cost in self.went:
            by_epoch.setdefault(epoch, []).append((stamp, messages, cost))
        for epoch, went in by_epoch.items():
            limit = self.known[epoch]
            if limit.interval_us is None or limit.burst is None:
                continue
            largest = max(self.cost_of) if limit.unit else 0
            if largest > limit.burst and not self.is_exact:
                continue  # a member that left takes the debt of a message above the burst along
            ahead_us, last_ms = 0, 0
            for stamp, messages, cost in went:
                units = messages if limit.unit is None else cost
                ahead_us = max(ahead_us - (stamp - last_ms) * 1000, 0) + units * limit.interval_us
                last_ms = stamp
                assert ahead_us <= max(limit.burst, largest) * limit.interval_us, f"{units} at {stamp} are too many"


LIMITS = st.fixed_dictionaries(
    {}, optional={"max_in_flight": st.integers(1, 12), "rate": st.sampled_from([2, 10, 50, 1000])}
).filter(bool)


@hypothesis_settings(max_examples=examples(120), deadline=None)
@given(
    seed=st.integers(0, 1 << 32),
    members=st.integers(1, 5),
    limits=st.lists(LIMITS, min_size=1, max_size=4),
    burst=st.sampled_from([None, 1, 3, 20]),
    costs=st.sampled_from([None, (1, 2, 3), (1, 7), (3, 20, 50)]),
)
def test_named_limit_holds_and_everything_is_delivered(
    seed: int, members: int, limits: list[dict[str, Any]], burst: int | None, costs: tuple[int, ...] | None
) -> None:
    if costs is not None:
        limits = [
            given | ({"rate": 20 * given["rate"], "unit": "tokens"} if "rate" in given else {}) for given in limits
        ]
    limits = [given | ({"burst": burst} if "rate" in given else {}) for given in limits]
    world = World(random.Random(seed), members, limits[0])
    world.costs = costs or (1, 5)
    walk(world, limits[1:])
    finish(world)
    world.check_rate()


def walk(world: World, limits: list[dict[str, Any]]) -> None:
    draw = world.draw
    changes = {draw.randrange(STEPS): limit for limit in limits}
    for step in range(STEPS):
        if step in changes:
            world.limit(changes[step])
        at = draw.randrange(len(world.parts))
        match draw.choices(list(CHANCES), list(CHANCES.values()))[0]:
            case "produce":
                world.produce()
            case "lease":
                world.lease(at, draw.randint(1, 8))
            case "settle" if world.held:
                world.settle()
            case "wait":
                world.at += draw.choice([1, 5, 50, 250, 1000])
            case "check":
                world.check()
            case "report":
                world.send_report(at)
            case "deliver" if world.wires:
                world.deliver(may_lose=True)
            case "lose" if world.wires:
                del world.wires[draw.randrange(len(world.wires))]
            case "restart":
                draw.choice([world.home_part, *world.parts]).restart()
            case "forget":
                world.home, world.joining = LimitHome(), {}
            case "expire":
                world.expire()
            case "leave":
                world.leave(at)
            case "pause":
                until_ms = draw.choice([FOREVER, T + world.at + draw.randint(1, 20_000)])
                world.pause(until_ms, is_longer=until_ms != FOREVER and draw.random() < 0.5)
            case "resume":
                world.pause(0, is_longer=False)


def finish(world: World) -> None:
    """Let all messages be delivered, without faults."""
    world.draw = random.Random(1)
    if world.ledger().pause.until_ms == FOREVER:
        world.pause(0, is_longer=False)
    for part in world.parts:
        part.apply(world.at, c.Expire())
    for _ in range(ENOUGH):
        if not world.left:
            return
        world.at += 20
        for at in range(len(world.parts)):
            world.lease(at, 8)
            world.send_report(at)
        while world.held:
            at, lease = world.held.pop()
            if world.parts[at].apply(world.at, c.Ack([(lease.token, None)])) == [[None]]:
                world.left -= lease.total
        while world.wires:
            world.deliver(may_lose=False)
        world.check()
        for part in world.parts:
            part.apply(world.at, c.Expire())
    raise AssertionError(f"{world.left} of {world.made} messages were not delivered")


def test_random_walks_meet_confirmed_pauses() -> None:
    quiet = 0
    for seed in range(10):
        world = World(random.Random(seed), 3, {"max_in_flight": 5})
        walk(world, [])
        finish(world)
        quiet += world.quiet
    assert quiet > 20
