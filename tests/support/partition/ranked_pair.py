"""Run random commands on two partitions of a fair topic that apply the same entries.

The first partition stays in memory; the second one is loaded from its rows before each entry. After each entry, both
must have the same rows and must have given the same answer. Limits and rates of tenants must hold. If a lease grants no
message, the status must not report a due message; otherwise a leader would spin. Times are ms after T."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from random import Random
from typing import Any, NamedTuple
from unittest.mock import patch

from sandq.model.batch import Column, encode
from sandq.model.group_limits import GroupLimit, limits_of, parse_limit, with_limit
from sandq.model.limits import FIXED
from sandq.model.nack_ends import DEAD, SNOOZE
from sandq.model.rates import interval_us
from sandq.model.settings import parse_settings
from sandq.partition import clock_reset
from sandq.partition import commands as c
from sandq.partition.base import rows
from sandq.partition.base.digest import comparable
from sandq.partition.group_status import GroupStatus
from sandq.partition.groups import group as group_module
from sandq.partition.jobs import jobs
from sandq.partition.leasing import ranked_grants
from sandq.partition.log import sweep, trim
from sandq.partition.ready import queue_entries, queue_keys, ready_queues
from sandq.partition.records.leases import Lease
from tests.support.partition.bench import DEFAULTS, FOREVER_MS, T
from tests.support.partition.ranked_bench import RankedBench
from tests.support.partition.spilling import spilling_by

STEPS = 150
GROUPS = ("g", "h")
TENANTS = ("a", "b", "a.x", "a.y", "a.x.p", None)
DEFAULT_TENANT = "default"
Rules = Mapping[str, Mapping[str, Any]]
RULES: tuple[Rules, ...] = (
    {},
    {"a": {"max_in_flight": 2}, "*": {"max_in_flight": 3}},
    {"*": {"rate": "2/s", "burst": 2}},
    {"a.*": {"weight": 3, "rate": "1/s"}, "b": {"max_in_flight": 1, "rate": "5/s", "burst": 3}},
    {"*": {"max_in_flight": 1}},
    {"*": {"rate": "30/m"}},
    {"a": {"rate": "10/m", "burst": 2}},
    {"a.x": {"weight": 5}, "a": {"weight": 2, "max_in_flight": 1}},
)
LIMITS: tuple[Mapping[str, Any], ...] = (
    {},
    {"max_in_flight": 1},
    {"max_in_flight": 4},
    {"rate": "2/s", "burst": 3},
    {"rate": "5/s", "max_in_flight": 2},
    {"rate": "5/s", "burst": 3, "unit": "tokens"},
)
"""Limits of a group."""
COSTS: tuple[int | None, ...] = (None, 2, 3, 8)
"""Costs of messages."""
OF_GROUP = ""
"""Name that is used instead of a tenant's name for the limit of the group itself."""
DAY_MS = 86_400_000
DEEDS = {
    "add": 22,
    "lease": 33,
    "ack": 10,
    "nack": 10,
    "expire": 4,
    "release": 3,
    "configure": 5,
    "limit": 3,
    "pause": 3,
    "seek": 2,
    "change": 4,
    "upkeep": 3,
    "start_job": 1,
    "dead_by_id": 2,
}
"""Weight of each action in the random choice."""
SMALL_STEPS = (
    (trim, "TRIM_ROWS", 3),
    (sweep, "LEAST_SETTLED", 2),
    (sweep, "SWEEP_ROWS", 3),
    (jobs, "STEP_MESSAGES", 2),
    (clock_reset, "STEP_ROWS", 20),
    (queue_entries, "HEAD_ENTRIES", 2),
    (queue_entries, "MOST_ENTRIES", 4),
    (ranked_grants, "PROMOTED", 5),
    (ranked_grants, "PART_ENTRIES", 2),
    (ranked_grants, "BURIED", 2),
)


class Pace(NamedTuple):
    """A rate limit of a tenant."""

    interval_us: int
    burst: int


class Given(NamedTuple):
    """Messages of a tenant that one lease command granted to a group."""

    at_us: int
    messages: int


def run_plain(seed: int) -> RankedPair:
    """Run with limits, rates, ageing, seeks, pauses and changes of settings."""
    return _run(RankedPair(seed))


def run_with_wrong_clock(seed: int) -> RankedPair:
    """Run with a clock that jumps ahead and is set back, and with leases whose horizon is in the past."""
    return _run(RankedPair(seed, goes_wrong=True))


def run_with_few_gaps(seed: int) -> RankedPair:
    """Run with a low limit of waiting messages, above which the group receives no new messages."""
    return _run(RankedPair(seed), (group_module, "FIXED", replace(FIXED, max_gaps=2)))


def run_with_few_queues(seed: int) -> RankedPair:
    """Run with a low limit of ready queues, above which the group promotes no more messages."""
    few = replace(FIXED, ready_queue_bytes=6000) if seed % 4 == 1 else replace(FIXED, ready_queues=3)
    return _run(RankedPair(seed), (ready_queues, "FIXED", few))


def run_with_spills(seed: int) -> RankedPair:
    """Run with waiting messages that are in rows until they are due."""
    with spilling_by(seed):
        return _run(RankedPair(seed))


def _run(pair: RankedPair, *limits: tuple[Any, str, Any]) -> RankedPair:
    with ExitStack() as patches:
        for module, name, value in (*SMALL_STEPS, *limits):
            patches.enter_context(patch.object(module, name, value))
        for _ in range(STEPS):
            pair.step()
    return pair


class RankedPair:
    """Two partitions that apply the same random commands, with checks of both."""

    def __init__(self, seed: int, *, goes_wrong: bool = False) -> None:
        """`goes_wrong`: the clock jumps ahead at times, and is set back."""
        self.draw = Random(seed)
        self.goes_wrong = goes_wrong
        self.weights = DEEDS | ({"go_wrong": 3} if goes_wrong else {})
        self.rules = self.draw.choice(RULES)
        ageing = {"ageing": "2s"} if self.draw.random() < 0.3 else {}
        self.benches = [RankedBench("fair", tenants=self.rules, **ageing) for _ in range(2)]
        self.bench, self.reloaded = self.benches
        self.now = self.made = self.jobs = 0
        self.tokens: list[int] = []
        self.given: dict[tuple[str, str], list[Given]] = {}
        """Grants by group and tenant, since the current rate limit was set."""
        self.costs: dict[bytes, int] = {}
        """Costs of messages, by value. A message that is not here costs 1."""
        self.happened: Counter[str] = Counter()
        """Number of times that each interesting case occurred."""
        for group in GROUPS:
            self.apply(c.OpenGroup(group, "earliest"))

    def step(self) -> None:
        """Let some time pass, and run one random action."""
        self.now += self.draw.choice([0, 0, 10, 100, 400, 900, 3000])
        deed: Callable[[], None] = getattr(self, self.draw.choices(list(self.weights), list(self.weights.values()))[0])
        deed()

    def apply(self, command: c.Command, at: int | None = None) -> Any:
        """Apply an entry to both partitions, at the time `at` (by default now), and return its result."""
        self.reloaded.restart()
        if self.draw.random() < 0.3:
            for look_ahead in self.bench.machine.groups.readers():
                look_ahead.evict()
        one, another = [bench.apply(self.now if at is None else at, command) for bench in self.benches]
        assert str(one) == str(another), f"a partition loaded from its rows gives another answer to {command}"
        living, loaded = (comparable(bench.everything()) for bench in self.benches)
        if living != loaded:
            keys = [key for key in {**living, **loaded} if living.get(key) != loaded.get(key)]
            raise AssertionError({key: (living.get(key), loaded.get(key)) for key in keys})
        return one[0]

    # -- changes --------------------------------------------------------------------------------------------------

    def add(self) -> None:
        """Store a random batch: of one or more queues, due or not, with messages that may expire or replace others."""
        draw, count = self.draw, self.draw.choice([1, 2, 3, 5])
        values = [f"m{self.made + place}".encode() for place in range(count)]
        self.made += count
        tenants, priorities = draw.choices(TENANTS, k=count), draw.choices([-1, 0, 1, None], k=count)
        if draw.random() < 0.4:
            tenants, priorities = tenants[:1] * count, priorities[:1] * count
        cells: dict[int, Sequence[Any]] = {
            Column.VALUE: values,
            Column.PRIORITY: priorities,
            Column.TENANT: [None if tenant is None else tenant.encode() for tenant in tenants],
        }
        if draw.random() < 0.3:
            cells[Column.DELIVER_MS] = [T + self.now + draw.choice([5, 500, 3000]) for _ in values]
        has_ttls, has_keys = draw.random() < 0.3, draw.random() < 0.2
        if has_ttls:
            cells[Column.TTL_MS] = draw.choices([None, 500, 4000], k=count)
        if has_keys:
            cells[Column.UNIQUE_KEY] = draw.choices([None, b"u", b"v"], k=count)
        has_costs = draw.random() < 0.4
        if has_costs:
            cells[Column.COST] = draw.choices(COSTS, k=count)
            self.costs |= {value: cost or 1 for value, cost in zip(values, cells[Column.COST], strict=True)}
        self.apply(c.Append(encode(cells), split=has_ttls or has_keys or has_costs, on_conflict=c.REPLACE))

    def change(self) -> None:
        """Change a message of the log: cancel it, change its priority, its time, or both."""
        found = [key[1:] for key, _ in self.bench.rows(rows.LOG)]
        if not found:
            return
        target = (c.TARGET_ID, self.draw.choice(found))
        how = self.draw.choice(["cancel", "priority", "time", "both"])
        if how == "cancel":
            self.apply(c.Cancel([target]))
        elif how == "priority":
            self.apply(c.Move([(target, None, False, self.draw.choice([-2, 5]))]))
        else:
            item = (target, T + self.now + self.draw.choice([0, 700]), False)
            self.apply(c.Move([(*item, self.draw.choice([-2, 5])) if how == "both" else item]))

    # -- out ------------------------------------------------------------------------------------------------------

    def lease(self) -> None:
        """Lease repeatedly, as a leader does, until messages are granted or the status reports no due message.

        A lease that grants nothing must make progress with the due messages, or the leader would spin."""
        group, limit = self.draw.choice(GROUPS), self.draw.choice([1, 2, 3, 7, 20])
        lease_ms, horizon = self.draw.choice([3000, 30_000]), self.now + 40
        if self.goes_wrong and self.draw.random() < 0.15:
            horizon = max(self.now - self.draw.choice([100, 1000, 5000]), 0)
        if (self.now + limit) % 3 == 0:
            self.grant(group, limit, lease_ms, self.now, horizon, recalls=False)
        before = None
        while not self.grant(group, limit, lease_ms, self.now, horizon):
            living, loaded = self.statuses(group)
            assert living.is_promoting == loaded.is_promoting
            is_due = any(status.due_ms is not None and status.due_ms <= T + self.now for status in (living, loaded))
            # If the horizon is in the past, messages that became due after it remain.
            if not living.is_promoting and (not is_due or horizon < self.now):
                self.happened["rested"] += 1
                self.happened["held_up"] += living.next_ms is not None and not is_due
                self._check_rest(group, is_due=is_due)
                return
            found = self.bench.machine.groups.named(group)
            progress = found.cursor, found.dead.total()
            assert progress != before, f"nothing was granted, promoted or died, and {living} says that something is due"
            before = progress

    def _check_rest(self, group: str, *, is_due: bool) -> None:
        """Check that a group which reports no due messages grants none.

        A group that was loaded just now may report due messages without having any."""
        found = self.bench.machine.groups.named(group)
        if is_due or found.halts or found.paused or self.draw.random() < 0.5:
            return
        given = self.grant(group, 1, 30_000, self.now, self.now + 40)
        assert not given, "a lease would grant messages, but the status reports none"
        self.happened["rests"] += 1

    def statuses(self, group: str) -> list[GroupStatus]:
        """Return the status of the group in both partitions."""
        found = [bench.status().groups.get(group) for bench in self.benches]
        return [status for status in found if status is not None]

    def grant(
        self, group: str, limit: int, lease_ms: int, at: int, horizon: int, *, recalls: bool = True
    ) -> list[Lease]:
        """Lease once, check limits and rates, and return the leases. A lease fails during a clock reset."""
        granted = self.apply(c.Lease(group, T + horizon, [c.Grant("c", limit, lease_ms)], recalls), at)
        if not isinstance(granted, list):
            assert granted.code == "UNAVAILABLE"
            return []
        self.tokens += [lease.token for lease in granted]
        counts: Counter[str] = Counter()
        costs = [
            self.costs.get(message.fields[Column.VALUE], 1)
            for lease in granted
            for message in self.bench.messages(lease)
        ]
        for lease in granted:
            named = [message.fields.get(Column.TENANT) for message in self.bench.messages(lease)]
            tenants = Counter(DEFAULT_TENANT if name is None else name.decode() for name in named)
            assert tenants == _tenants_of(lease)
            counts += tenants
            self.happened["given"] += lease.total
            self.happened["repeated"] += lease.total if lease.attempt > 1 else 0
        self._check_in_flight(group, counts)
        for tenant, count in counts.items():
            self._check_rate(group, tenant, self._pace_of(tenant), count)
        limit = self._limit_of(group)
        if granted and limit is not None:
            in_flight = self.bench.machine.groups.named(group).in_flight
            assert limit.max_in_flight is None or in_flight <= limit.max_in_flight
            self.happened["group_full"] += in_flight == limit.max_in_flight
            if limit.interval_us is not None and limit.burst is not None:
                by_cost = limit.unit is not None
                burst = max(limit.burst, *costs) if by_cost else limit.burst
                self._check_rate(group, OF_GROUP, Pace(limit.interval_us, burst), sum(costs) if by_cost else len(costs))
                self.happened["costly"] += by_cost and max(costs) > limit.burst
        return granted

    def _limit_of(self, group: str) -> GroupLimit | None:
        return limits_of(self.bench.machine.settings).get(group)

    def _check_in_flight(self, group: str, given: Counter[str]) -> None:
        """Check the counts of leased messages, and that no grant exceeded a limit."""
        found = self.bench.machine.groups.named(group)
        assert found.ready is not None
        self.happened["crowded"] += bool(found.ready.limits.crowding.stopped)
        self.happened["stalled"] += not found.paused and not found.halts and found.stall_reason() is not None
        in_flight: Counter[str] = Counter()
        for lease in found.leases.values():
            in_flight += _tenants_of(lease)
        assert in_flight == +found.ready.limits.in_flight
        waits: Counter[str] = Counter()
        for entry in found.waiting.values():
            assert entry.queue is not None
            waits[queue_keys.tenant_of(entry.queue)] += len(entry.ranges)
        assert waits == found.ready.limits.crowding.waits
        for tenant in given:
            most = self._rule_of(tenant).get("max_in_flight")
            assert most is None or in_flight[tenant] <= most, f"{tenant} has {in_flight[tenant]} in flight of {most}"
            self.happened["full"] += in_flight[tenant] == most

    def _check_rate(self, group: str, tenant: str, pace: Pace | None, count: int) -> None:
        """Check that no time window until now contains more messages than the rate of the tenant or group allows."""
        if pace is None:
            return
        given, now_us = self.given.setdefault((group, tenant), []), self.bench.machine.now_ms * 1000
        given.append(Given(now_us, count))
        total = 0
        for earlier in reversed(given):
            total += earlier.messages
            allowed = pace.burst + (now_us - earlier.at_us) // pace.interval_us
            assert total <= allowed, f"{tenant}: {total} in {now_us - earlier.at_us} us, {allowed} are allowed"
            self.happened["at_rate"] += total == allowed

    def _rule_of(self, tenant: str) -> Mapping[str, Any]:
        """Return the rules of a tenant: those of the most specific pattern."""
        names = tenant.split(".")
        patterns = [tenant, *(".".join((*names[:end], "*")) for end in range(len(names) - 1, -1, -1))]
        return next((self.rules[pattern] for pattern in patterns if pattern in self.rules), {})

    def _pace_of(self, tenant: str) -> Pace | None:
        rule = self._rule_of(tenant)
        return Pace(interval_us(rule["rate"]), rule.get("burst", 1)) if "rate" in rule else None

    # -- settling -------------------------------------------------------------------------------------------------

    def ack(self) -> None:
        if self.tokens:
            self.apply(c.Ack([(self.draw.choice(self.tokens), None)]))

    def nack(self) -> None:
        """Give a lease back, perhaps with another priority or other headers."""
        if not self.tokens:
            return
        draw = self.draw
        changes: dict[int, Any] = {}
        if draw.random() < 0.3:
            changes[Column.PRIORITY] = draw.choice([-1, 3])
        if draw.random() < 0.2:
            changes[Column.HEADERS] = b"\x81\xa1a\x01"
        delay, is_begun = draw.choice([None, 0, 0, 300, 5000]), draw.random() < 0.8
        item: tuple[Any, ...] = (draw.choice(self.tokens), None, delay, "no", is_begun)
        if changes and is_begun:
            item = (*item, changes)
        if is_begun and draw.random() < 0.5:
            item = (*item[:5], changes or None, SNOOZE if changes else draw.choice([SNOOZE, DEAD]))
        self.apply(c.Nack([item]))

    def expire(self) -> None:
        self.apply(c.Expire())

    def release(self) -> None:
        self.apply(c.Release(self.draw.choice(GROUPS), "c"))

    # -- administration -------------------------------------------------------------------------------------------

    def configure(self) -> None:
        """Change the rules and the ageing of the topic."""
        before = {key: self._pace_of(key[1]) for key in self.given if key[1] != OF_GROUP}
        self.rules = self.draw.choice(RULES)
        ageing = {"ageing": "1s"} if self.draw.random() < 0.3 else {}
        self.apply(c.Configure(parse_settings(DEFAULTS | {"tenants": self.rules} | ageing, "fair").record()))
        for key, pace in before.items():
            if pace != self._pace_of(key[1]):
                del self.given[key]

    def limit(self) -> None:
        """Change or remove the limits of a group."""
        group = self.draw.choice(GROUPS)
        limit = parse_limit(self.draw.choice(LIMITS))
        self.apply(c.Configure(with_limit(self.bench.machine.settings, group, 1, limit)))
        self.given.pop((group, OF_GROUP), None)

    def pause(self) -> None:
        self.apply(c.PauseGroup(self.draw.choice(GROUPS), self.draw.random() < 0.25))

    def seek(self) -> None:
        positions: list[c.Position] = ["earliest", T + max(self.now - 2000, 0)]
        self.apply(c.Seek(self.draw.choice(GROUPS), self.draw.choice(positions)))
        for _ in range(self.draw.choice([0, 3, 20])):
            self.upkeep()

    def upkeep(self) -> None:
        self.apply(c.Upkeep())

    def start_job(self) -> None:
        """Start a job of a random kind, and run its first step."""
        kind = self.draw.choice(["cancel", "move", "redrive", "purge_dead"])
        arguments: dict[str, Any] = {"from_ms": 0, "until_ms": FOREVER_MS, "dry_run": False}
        if kind in ("cancel", "move"):
            arguments["key_prefix"] = None
        else:
            arguments |= {"group": self.draw.choice(GROUPS), "reason": None}
        if kind == "redrive":
            arguments["rate"] = None
        if kind == "move":
            arguments["priority"] = self.draw.choice([-3, 4])
        self.jobs += 1
        self.apply(c.StartJob(self.jobs.to_bytes(16, "big"), kind, arguments))
        self.upkeep()

    def dead_by_id(self) -> None:
        """Redrive or purge up to three dead letters of a group by their ids."""
        group = self.draw.choice(GROUPS)
        ids = [message.id for message in self.bench.dead(group)]
        if ids:
            some = self.draw.sample(ids, min(len(ids), 3))
            self.apply(self.draw.choice([c.RedriveDead, c.RedriveDead, c.PurgeDead])(group, some))

    def go_wrong(self) -> None:
        """Apply an entry with a time far ahead, and set the clock back, at least in part."""
        ahead = self.now + self.draw.choice([20_000, 10 * DAY_MS])
        if self.draw.random() < 0.7:
            self.grant(self.draw.choice(GROUPS), 5, 3000, ahead, ahead)
        else:
            self.apply(c.Clock(), ahead)
        begun = self.apply(c.ClockReset(T + self.now))
        if begun["outcome"] == "begun":
            self.given.clear()
            self.happened["resets"] += 1
        steps = self.draw.choice([0, 3, 200])
        while steps and self.bench.machine.resets.state is not None:
            self.upkeep()
            steps -= 1


def _tenants_of(lease: Lease) -> Counter[str]:
    """Return the number of live messages of a lease, by tenant."""
    counts: Counter[str] = Counter()
    for queue, ranges in lease.by_queue(lease.live):
        assert queue is not None
        counts[queue_keys.tenant_of(queue)] += sum(part.length for part in ranges)
    return counts
