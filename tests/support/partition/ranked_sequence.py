"""Run random commands on a partition of a priority or fair topic, and compare it with a model of its promises.

Two partitions apply the same entries. The first stays in memory; the second is loaded from its rows before each entry.
Both must have the same rows. Times are ms after T."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice, pairwise
from random import Random
from typing import Any

from sandq.model import nack_ends, offsets
from sandq.model.batch import Column, encode
from sandq.model.retries import pack_backoff
from sandq.model.settings import parse_settings
from sandq.partition import commands as c
from sandq.partition.base import rows
from sandq.partition.base.digest import comparable
from sandq.partition.base.step import latest_offset
from sandq.partition.leasing import lease_reclaim
from sandq.partition.log.appends import Stored
from sandq.partition.reader.reader import cursor_before
from sandq.partition.ready.ready_queue import bytes_of
from sandq.partition.records.leases import Alike, Lease, Waiting
from tests.support.partition import in_parts
from tests.support.partition.bench import DEFAULTS, FOREVER_MS, T
from tests.support.partition.fair_model import FairModel
from tests.support.partition.ranked_bench import RankedBench

GROUPS = ("g", "h")
TENANTS = ("a", "b", "a.x", "a.y", "a.x.p", None)
DEFAULT = "default"
MAX_ATTEMPTS = 3
BACK_OFF = 1000
OWN_BACK_OFF = 300
_FIXED = {"kind": "fixed", "first_ms": OWN_BACK_OFF, "factor_permille": 1000, "cap_ms": 300, "jitter_percent": 0}
RULES = ((None, None), (1, None), (5, None), (None, pack_backoff(_FIXED)), (0, pack_backoff(_FIXED)))
"""Own rules of messages: number of attempts (0: no limit), and back-off."""
PENDING, LEASED, WAITING, DEAD, ACKED = "pending", "leased", "waiting", "dead", "acked"
REFUSALS = (LEASED, DEAD, ACKED)
LARGE = 5000
"""Size of a payload that is stored in a row of its own, in bytes."""


@dataclass
class Message:
    name: str
    id: bytes
    offset: bytes
    priority: int
    tenant: str
    ttl: int | None
    unique: str | None
    rules: tuple[int | None, bytes | None] = (None, None)
    """Its own number of attempts (0: no limit), and its own back-off."""
    gone: bool = False
    was_passed: bool = False
    """Whether, at some time, all groups had made an attempt at the message."""

    @property
    def at(self) -> int:
        return offsets.deliver_ms(self.offset) - T


@dataclass
class Held:
    """State of a message in a group."""

    state: str = PENDING
    attempt: int = 0
    due: int = 0
    token: int = 0
    immortal: bool = False
    priority: int | None = None
    """Priority set by a nack, or by a move while the message waited; None for the priority in the log."""
    headers: bytes | None = None
    """Headers set by a nack; None for the headers in the log."""


@dataclass
class ModelLease:
    group: str
    consumer: str
    attempt: int
    deadline: int
    names: list[str]
    reclaims: int = 0


@dataclass
class Group:
    name: str
    held: dict[str, Held] = field(default_factory=dict)
    paused: bool = False
    dropped: int = 0
    paused_until: int | None = None
    """End of the pause. None: until it is resumed."""
    schedule: FairModel = field(default_factory=FairModel)

    def of(self, name: str) -> Held:
        return self.held.setdefault(name, Held())


class RankedSequence:
    def __init__(
        self,
        kind: str,
        *,
        ttls: bool = False,
        cut_short: bool = False,
        few_queues: bool = False,
        few_gaps: bool = False,
        budget: int | None = None,
        **settings: Any,
    ) -> None:
        """Start with an empty topic.

        `ttls`: messages may expire. `cut_short`: leases have few bytes. `few_queues`, `few_gaps`: a low limit
        delays the promotion of due messages or changes their order. `budget`: number of messages that an entry which
        settles leases may copy; None for no limit."""
        self.budget = budget
        self.kind = kind
        self.named = settings
        self.is_scoped = kind == "fair"
        self.benches = [RankedBench(kind, **settings) for _ in range(2)]
        self.bench, self.reloaded = self.benches
        self.ttls, self.cut_short, self.is_limited = ttls, cut_short, few_queues or few_gaps
        self.evict_from: Random | None = None
        """Decides whether the look-aheads of the partition in memory are evicted before an entry."""
        self.now = self.made = 0
        self.messages: dict[str, Message] = {}
        self.leases: dict[int, ModelLease] = {}
        self.epoch = 0
        self.groups = {name: Group(name) for name in GROUPS}
        self.jobs = 0
        for name in GROUPS:
            self.apply(c.OpenGroup(name, "earliest"))

    @property
    def settings(self) -> dict[str, Any]:
        return self.bench.machine.settings

    # -- entries --------------------------------------------------------------------------------------------------

    def apply(self, *commands: c.Command) -> Any:
        """Apply an entry to both partitions and return its first result."""
        self.reloaded.restart()
        if self.evict_from is not None and self.evict_from.random() < 0.5:
            for look_ahead in self.bench.machine.groups.readers():
                look_ahead.evict()
        for group in self.groups.values():
            if group.paused_until is not None and group.paused_until <= self.now:
                group.paused, group.paused_until = False, None
        results = [bench.apply(self.now, *commands) for bench in self.benches]
        assert str(results[0]) == str(results[1]), "a partition loaded from its rows gives another answer"
        one, another = (comparable(bench.everything()) for bench in self.benches)
        if one != another:
            keys = [key for key in {**one, **another} if one.get(key) != another.get(key)]
            raise AssertionError({key: (one.get(key), another.get(key)) for key in keys})
        return results[0][0]

    def do(self, deed: str, seed: int) -> None:
        """Run one action with random arguments from `seed`, and check everything."""
        deeds: dict[str, Callable[[Random], None]] = {name: getattr(self, name) for name in DEEDS}
        deeds[deed](Random(seed))
        self.check()

    # -- appends --------------------------------------------------------------------------------------------------

    def add(self, draw: Random) -> None:
        count = draw.choice([1, 1, 2, 3, 5])
        names = [f"m{self.made + at}" for at in range(count)]
        self.made += count
        mixed = draw.random() < 0.5
        priorities = [draw.choice([-1, 0, 1, 2, None]) for _ in names]
        tenants = [draw.choice(TENANTS) for _ in names]
        if not mixed:
            priorities, tenants = priorities[:1] * count, tenants[:1] * count
        large = draw.random() < 0.15
        cells: dict[int, Any] = {Column.VALUE: [name.encode().ljust(LARGE if large else 1) for name in names]}
        if draw.random() < 0.9:
            cells[Column.PRIORITY] = priorities
        else:
            priorities = [None] * count
        if self.kind == "fair":
            cells[Column.TENANT] = [None if tenant is None else tenant.encode() for tenant in tenants]
        else:
            tenants = [None] * count
        how = draw.choice(["now", "now", "now", "together", "each"])
        if how != "now":
            due = [self.now + draw.choice([1, 50, 700, 3000]) for _ in names]
            cells[Column.DELIVER_MS] = [T + (at if how == "each" else due[0]) for at in due]
        ttls: list[int | None] = [None] * count
        unique: list[str | None] = [None] * count
        split = False
        if self.ttls and draw.random() < 0.3:
            ttls = [draw.choice([None, 500, 4000]) for _ in names]
            cells[Column.TTL_MS], split = ttls, True
        if draw.random() < 0.3:
            unique = [draw.choice([None, *"uvw"]) for _ in names]
            cells[Column.UNIQUE_KEY] = [None if key is None else key.encode() for key in unique]
            split = True
        rules: list[tuple[int | None, bytes | None]] = [(None, None)] * count
        if draw.random() < 0.3:
            rules = [draw.choice(RULES) for _ in names]
            cells[Column.MAX_ATTEMPTS], cells[Column.BACKOFF] = zip(*rules, strict=True)
            split = True
        policy = draw.choice([c.REJECT, c.REPLACE])
        keys = [None if key is None else self._scoped(key, tenant) for key, tenant in zip(unique, tenants, strict=True)]
        before = {key: self._named_by(key) for key in keys if key is not None}
        made = self.apply(c.Append(encode(cells), split=split, on_conflict=policy))
        if isinstance(made, Stored):
            places = [made.offsets[at : at + 16] for at in range(0, len(made.offsets), 16)]
            refused = {place for place, _ in made.refused}
        else:
            places, refused = list(offsets.run(*made)), set()
        for at, name in enumerate(names):
            key = keys[at]
            old = before.get(key) if key is not None else None
            if at in refused:
                continue
            if key is not None:
                if old is not None:
                    self._replaced(old, policy)
                before[key] = name
            message = Message(name, places[at], places[at], priorities[at] or 0, "", ttls[at], key, rules[at])
            message.tenant = (tenants[at] or DEFAULT) if self.kind == "fair" else ""
            self.messages[name] = message

    def _scoped(self, key: str, tenant: str | None) -> str:
        """Return a unique key with its scope: in a fair topic, the tenant."""
        return f"{tenant or DEFAULT} {key}" if self.is_scoped else key

    def _named_by(self, key: str) -> str | None:
        """Return the last message that was stored under a key."""
        return next((m.name for m in reversed(self.messages.values()) if m.unique == key), None)

    def _replaced(self, name: str, policy: int) -> None:
        """Note that a newer message was stored under the unique key of message `name`."""
        message = self.messages[name]
        if message.gone:
            return
        refusal, waits, pending = self._claim(name)
        if self.bench.machine.log.find_owned(message.id, self.bench.view) is not None:
            assert message.was_passed, f"{name} is pending, and a newer message got its key"
            message.unique = None  # the deduplication window, which begins with the last group's first attempt, is over
        elif waits or pending:
            assert policy == c.REPLACE
            assert refusal in (None, ACKED), f"{name} is {refusal}, and was replaced"
            message.gone = True

    def _claim(self, name: str) -> tuple[str | None, bool, bool]:
        """Return three facts about a message.

        The state because of which its producer cannot change it, whether it waits in a group, and whether some group
        has not leased it yet."""
        states = {self._state(group, self.messages[name]) for group in self.groups.values()}
        return next((word for word in REFUSALS if word in states), None), WAITING in states, PENDING in states

    def _state(self, group: Group, message: Message) -> str:
        """Return the state of a message in a group. After a seek back, an acked message may be pending again."""
        state, found = group.of(message.name).state, self.bench.machine.groups.named(group.name)
        return PENDING if state == ACKED and not found.has_passed(message.offset, self.bench.view) else state

    # -- leasing --------------------------------------------------------------------------------------------------

    def lease(self, draw: Random) -> None:
        grants = [
            c.Grant(consumer, draw.choice([1, 1, 2, 3, 7]), 30_000) for consumer in "cd"[: draw.choice([1, 1, 2])]
        ]
        self.lease_to(draw.choice(GROUPS), grants)

    def lease_to(self, name: str, grants: Sequence[c.Grant]) -> list[Lease]:
        """Lease until all due messages are promoted, and check which messages are granted."""
        group = self.groups[name]
        ready = self._ready(group)
        for _ in range(200):
            leases: list[Lease] = self.apply(c.Lease(name, T + self.now + 40, grants))
            if leases or group.paused or not ready:
                break
            self.watch_dead()
            ready = self._ready(group)
        found = [list(self.bench.messages(lease)) for lease in leases]
        for one in [one for together in found for one in together]:
            held = group.of(self._name(one))
            assert (one.fields.get(Column.PRIORITY) or 0) == self._priority(group, self._name(one)), (one, held)
            assert one.fields.get(Column.HEADERS) == (held.headers or None), (one, held)
        came = [[self._name(one) for one in together] for together in found]
        names = [one for together in came for one in together]
        assert len(names) == len(set(names))
        for lease, together in zip(leases, came, strict=True):
            for one in together:
                self._check_leased(group, one, lease)
        if not group.paused:
            self._check_order(group, ready, names, sum(grant.limit for grant in grants))
            if self.kind == "fair" and not self.is_limited and not self.ttls:
                # Expired messages end a tenant's time slice at moments that the model does not know.
                self._check_division(group, ready, leases, came)
            self._check_cuts(leases)
        else:
            assert not leases
        for lease, together in zip(leases, came, strict=True):
            self.leases[lease.token] = ModelLease(name, lease.consumer, lease.attempt, self.now + 30_000, together)
            for one in together:
                held = group.of(one)
                held.state, held.attempt, held.token = LEASED, lease.attempt, lease.token
        self.watch_dead()
        return leases

    def _name(self, message: Any) -> str:
        name: str = message.fields[Column.VALUE].decode().strip()
        return name

    def _check_leased(self, group: Group, name: str, lease: Lease) -> None:
        message, held = self.messages[name], group.of(name)
        assert not message.gone, f"{name} was taken back"
        assert held.state in (PENDING, WAITING), f"{name} is {held.state} in {group.name}"
        assert (message.at if held.state == PENDING else held.due) <= self.now, f"{name} came early"
        assert lease.attempt == held.attempt + 1
        assert (lease.retry or (None, None)) == message.rules
        assert not self._expired(message, held), f"{name} should be dead"

    def _ready(self, group: Group) -> list[str]:
        """Return the messages that may be leased, in the order of each tenant."""
        ready = [name for name in self.messages if self._is_ready(group, name)]
        return sorted(ready, key=lambda name: self._rank(group, name))

    def _priority(self, group: Group, name: str) -> int:
        held = group.of(name)
        return self.messages[name].priority if held.priority is None else held.priority

    def _is_ready(self, group: Group, name: str) -> bool:
        message, held = self.messages[name], group.of(name)
        if message.gone or held.state not in (PENDING, WAITING) or self._expired(message, held):
            return False
        return (message.at if held.state == PENDING else held.due) <= self.now

    def _rank(self, group: Group, name: str) -> tuple[int, int, bytes]:
        """Return the rank of a message; the lowest rank of a tenant is first."""
        message, ageing, priority = self.messages[name], self.settings["ageing_ms"], self._priority(group, name)
        aged = priority if ageing is None else message.at + priority * ageing
        return aged, priority, message.offset

    def _expired(self, message: Message, held: Held) -> bool:
        ttl = self.settings["ttl_ms"] if message.ttl is None else message.ttl
        return ttl is not None and not held.immortal and message.at + ttl <= self.now

    def _check_order(self, group: Group, ready: list[str], names: list[str], limit: int) -> None:
        if self.is_limited:
            return
        if not self.cut_short:
            assert len(names) == min(limit, len(ready)), f"{len(names)} of {ready} came, {limit} were wanted"
        else:
            assert names or not ready
        if self.kind == "priority":
            assert names == ready[: len(names)]
            return
        for tenant, queue in self._by_tenant(ready).items():
            mine = [name for name in names if self.messages[name].tenant == tenant]
            assert mine == queue[: len(mine)], f"the order of {tenant}"

    def _by_tenant(self, names: Sequence[str]) -> dict[str, list[str]]:
        queues: dict[str, list[str]] = {}
        for name in names:
            queues.setdefault(self.messages[name].tenant, []).append(name)
        return queues

    def _check_division(self, group: Group, ready: list[str], leases: Sequence[Lease], came: list[list[str]]) -> None:
        """Check that each consumer got the messages of the next turns, and how they are divided into leases."""
        group.schedule.weights = {pattern: weight for pattern, weight, _ in self.settings["tenants"]}
        turns = iter(group.schedule.take(self._by_tenant(ready), sum(map(len, came))))
        alike = {name: lease.alike for lease, together in zip(leases, came, strict=True) for name in together}
        for _, together in groupby(zip(leases, came, strict=True), key=lambda one: one[0].consumer):
            mine = [names for _, names in together]
            kinds = [(name, alike[name]) for name in islice(turns, sum(map(len, mine)))]
            assert mine == self._divided(kinds)

    def _divided(self, messages: Sequence[tuple[str, Alike]]) -> list[list[str]]:
        """Divide messages into leases of one kind each. A message joins the last lease of its kind, unless a later
        lease has a message of its tenant."""
        leases: list[tuple[Alike, list[str]]] = []
        for name, alike in messages:
            tenant = self.messages[name].tenant
            later = [at for at, (_, names) in enumerate(leases) if tenant in {self.messages[n].tenant for n in names}]
            same = [at for at, (kind, _) in enumerate(leases) if kind == alike]
            if not same or same[-1] < max(later, default=0):
                leases.append((alike, [name]))
            else:
                leases[same[-1]][1].append(name)
        return [names for _, names in leases]

    def _check_cuts(self, leases: Sequence[Lease]) -> None:
        """Check that adjacent leases differ in attempts, snoozes, storage or rules, unless a limit split them."""
        for one, other in pairwise(leases):
            if one.consumer == other.consumer and not self.cut_short and not self.ttls:
                assert one.alike != other.alike

    # -- settling -------------------------------------------------------------------------------------------------

    def _some(self, draw: Random) -> tuple[int, ModelLease, list[str], c.What] | None:
        """Return a live lease, and some of its messages, or all of them."""
        live = [token for token in self.leases if self._live(token)]
        if not live:
            return None
        token = draw.choice(live)
        names = self._live(token)
        if draw.random() < 0.5:
            return token, self.leases[token], names, None
        chosen = draw.sample(names, draw.randrange(1, len(names) + 1))
        return token, self.leases[token], chosen, [[self.messages[name].offset, 1] for name in chosen]

    def _live(self, token: int) -> list[str]:
        lease = self.leases[token]
        group = self.groups[lease.group]
        return [name for name in lease.names if (group.of(name).state, group.of(name).token) == (LEASED, token)]

    def ack(self, draw: Random) -> None:
        if (some := self._some(draw)) is not None:
            token, lease, names, what = some
            self.apply(c.Ack([(token, what)]))
            for name in names:
                self.groups[lease.group].of(name).state = ACKED

    def nack(self, draw: Random) -> None:
        if (some := self._some(draw)) is not None:
            token, lease, names, what = some
            delay, begun = draw.choice([None, 0, 0, 300, 5000]), draw.random() < 0.8
            news: dict[int, Any] = {}
            if draw.random() < 0.3:
                news[Column.PRIORITY] = draw.choice([-3, 0, 2])
            if draw.random() < 0.2:
                news[Column.HEADERS] = draw.choice([b"\x81\xa1a\x01", b""])
            item: tuple[Any, ...] = (token, what, delay, "no", begun)
            ends = (nack_ends.RETRY, nack_ends.SNOOZE) if news else nack_ends.ENDS
            end = draw.choice([None, None, *ends]) if begun else None
            whole = (*item, news or None, end) if end is not None else (*item, news) if news else item
            with in_parts.small_budget(self.budget):
                in_parts.nack(self.apply, c.Nack([whole]))
            if end == nack_ends.DEAD:
                for name in names:
                    self.groups[lease.group].of(name).state = DEAD
            elif begun:
                for held in [self.groups[lease.group].of(name) for name in names]:
                    held.priority = news.get(Column.PRIORITY, held.priority)
                    held.headers = news.get(Column.HEADERS, held.headers)
                due = self.now + (self._back_off(lease) if delay is None else delay)
                if end == nack_ends.SNOOZE:
                    self._wait(lease, names, due, lease.attempt - 1)
                else:
                    self._give_back(lease, names, due)
            else:
                self._wait(lease, names, self.now + (delay or 0), lease.attempt - 1)

    def _give_back(self, lease: ModelLease, names: Sequence[str], due: int) -> None:
        own = self.messages[lease.names[0]].rules[0]
        if own == 0 or lease.attempt < (own or MAX_ATTEMPTS):
            self._wait(lease, names, due, lease.attempt)
            return
        for name in names:
            self.groups[lease.group].of(name).state = DEAD

    def _back_off(self, lease: ModelLease) -> int:
        """Return the back-off of the messages of a lease, which all have the same."""
        (rules,) = {self.messages[name].rules for name in lease.names}
        return BACK_OFF if rules[1] is None else OWN_BACK_OFF

    def _wait(self, lease: ModelLease, names: Sequence[str], due: int, attempt: int) -> None:
        for name in names:
            held = self.groups[lease.group].of(name)
            held.state, held.due, held.attempt = WAITING, max(due, self.messages[name].at), attempt

    def extend(self, draw: Random) -> None:
        if (some := self._some(draw)) is not None:
            ms = draw.choice([100, 60_000])
            self.apply(c.Extend([(some[0], ms)]))
            some[1].deadline = self.now + ms

    def expire(self, draw: Random) -> None:
        with in_parts.small_budget(self.budget):
            in_parts.expire(self.apply, self.bench.machine)
        for token, lease in self.leases.items():
            if lease.deadline <= self.now:
                self._give_back(lease, self._live(token), self.now + self._back_off(lease))
        self.watch_dead()

    def release(self, draw: Random) -> None:
        group, consumer = draw.choice(GROUPS), draw.choice("cd")
        self.apply(c.Release(group, consumer))
        for token, lease in self.leases.items():
            if (lease.group, lease.consumer) == (group, consumer):
                self._wait(lease, self._live(token), self.now, lease.attempt - 1)

    def reclaim(self, draw: Random) -> None:
        """Reclaim the leases of a consumer. The consumer gets the same messages in the same order under new tokens.

        Leases that were reclaimed too often are given back."""
        group, consumer, ms = draw.choice(GROUPS), draw.choice("cd"), draw.choice([1000, 60_000])
        holders = sorted({self._holder(token) for token in self.leases if self._live(token)})
        if holders and draw.random() < 0.8:
            group, consumer = draw.choice(holders)
        for _ in range(draw.choice([1, 1, 3])):
            self._come_back(group, consumer, ms)

    def _come_back(self, group: str, consumer: str, ms: int) -> None:
        self.epoch += 1
        held = {token: self._live(token) for token, lease in self.leases.items()}
        old = [token for token in held if held[token] and self._holder(token) == (group, consumer)]
        worn = [token for token in old if self.leases[token].reclaims >= lease_reclaim.RECLAIMS_MOST]
        old = [token for token in old if token not in worn]
        with in_parts.small_budget(self.budget):
            assert in_parts.reclaim(self.apply, c.Reclaim(group, consumer, self.epoch, ms)) == (len(old), 0)
        for token in worn:
            self._give_back(self.leases[token], held[token], self.now + self._back_off(self.leases[token]))
        self.watch_dead()
        for token, lease in zip(sorted(old), self.bench.machine.leases.live_of(group, consumer), strict=True):
            assert [self._name(one) for one in self.bench.messages(lease)] == held[token]
            assert (lease.attempt, lease.token > max(held)) == (self.leases[token].attempt, True)
            assert self.apply(c.Ack([(token, None)])) != [None]
            until = self.now + ms
            reclaims = self.leases[token].reclaims + 1
            self.leases[lease.token] = ModelLease(group, consumer, lease.attempt, until, held[token], reclaims)
            for name in held[token]:
                self.groups[group].of(name).token = lease.token

    def _holder(self, token: int) -> tuple[str, str]:
        return self.leases[token].group, self.leases[token].consumer

    # -- producers ------------------------------------------------------------------------------------------------

    def _pick(self, draw: Random) -> Message | None:
        found = [message for message in self.messages.values() if not message.gone]
        return draw.choice(found) if found else None

    def cancel(self, draw: Random) -> None:
        if (message := self._pick(draw)) is not None:
            refusal, _, _ = self._claim(message.name)
            outcome = self.apply(c.Cancel([(c.TARGET_ID, message.id)]))[0]
            assert (outcome[0] == "cancelled") == (refusal is None), (message, outcome)
            message.gone = refusal is None

    def move(self, draw: Random) -> None:
        if (message := self._pick(draw)) is None:
            return
        refusal, waits, pending = self._claim(message.name)
        to = self.now + draw.choice([-500, 0, 200, 2000])
        priority = draw.choice([None, None, -1, 3])
        item = ((c.TARGET_ID, message.id), T + to, False)
        outcome = self.apply(c.Move([item if priority is None else (*item, priority)]))[0]
        assert (outcome[0] == "moved") == (refusal is None and not (waits and pending)), (message, outcome)
        if outcome[0] != "moved":
            return
        if waits:
            assert outcome[1] == message.offset
            for group in self.groups.values():
                group.of(message.name).due = max(to, self.now, message.at)
            if priority is not None:
                self._ranked(message, priority, outcome[1], stays=True)
        else:
            message.offset = outcome[1]
            assert message.at >= max(to, self.now)
            message.priority = message.priority if priority is None else priority

    def rank(self, draw: Random) -> None:
        if (message := self._pick(draw)) is None:
            return
        refusal, waits, pending = self._claim(message.name)
        priority = draw.choice([-2, -1, 0, 1, 2])
        outcome = self.apply(c.Move([((c.TARGET_ID, message.id), None, False, priority)]))[0]
        assert (outcome[0] == "moved") == (refusal is None and not (waits and pending)), (message, outcome)
        if outcome[0] == "moved":
            self._ranked(message, priority, outcome[1], stays=waits)

    def _ranked(self, message: Message, priority: int, offset: bytes, *, stays: bool) -> None:
        """Set the priority and offset of a message. `stays`: the message waits in all groups and keeps its offset."""
        if stays:
            for group in self.groups.values():
                group.of(message.name).priority = priority
        message.priority = priority
        if stays or not self.is_limited:
            assert offset == message.offset
            return
        at, stood, message.offset = message.at, message.offset, offset
        assert message.at == max(at, self.now) or offset == stood

    # -- groups and jobs ------------------------------------------------------------------------------------------

    def pause(self, draw: Random) -> None:
        group = self.groups[draw.choice(GROUPS)]
        group.paused = not group.paused
        group.paused_until = self.now + draw.choice([60, 900, 5000]) if group.paused and draw.random() < 0.5 else None
        until_ms = None if group.paused_until is None else T + group.paused_until
        self.apply(c.PauseGroup(group.name, group.paused, until_ms))

    def seek(self, draw: Random) -> None:
        positions: list[c.Position] = ["earliest", "latest", T + self.now - draw.choice([100, 2000])]
        positions += [draw.choice([m.offset for m in self.messages.values()])] if self.messages else []
        self.seek_to(draw.choice(GROUPS), draw.choice(positions))

    def seek_to(self, name: str, to: c.Position) -> None:
        group, machine = self.groups[name], self.bench.machine
        latest = latest_offset(machine.floor_ms, self.bench.index + 1, 0)
        self.apply(c.Seek(name, to))
        self.run_upkeep()
        if isinstance(to, bytes):
            above = min(cursor_before(to), latest)
        elif isinstance(to, int):
            above = min(cursor_before(offsets.pack(to, 0, 0, 0)), latest)
        else:
            above = latest if to == "latest" else offsets.FIRST
        found = machine.groups.named(name)
        assert not found.seeking
        group.schedule.clear()
        for message in self.messages.values():
            held = group.of(message.name)
            if message.gone:
                continue
            if message.offset <= above:
                held.state = held.state if held.state == DEAD else ACKED
                continue
            in_log = machine.log.find(message.offset, self.bench.view) is not None
            if held.state == ACKED and not in_log:
                continue
            holder = found.holder_of(message.offset, self.bench.view)
            was_dead = held.state == DEAD
            if holder is None:
                assert in_log, f"{message.name} was {held.state} in {name}, and is lost"
                held.state, held.attempt, held.immortal = PENDING, 0, False
                held.priority = held.headers = None
            else:
                assert isinstance(holder, Waiting)
                assert holder.due_ms <= T + max(self.now, message.at)
                held.state, held.attempt, held.due = WAITING, 0, max(self.now, message.at) if was_dead else self.now
                held.immortal = held.immortal or was_dead

    def dead_letters(self, draw: Random) -> None:
        group, kind = self.groups[draw.choice(GROUPS)], draw.choice(["redrive", "redrive", "purge_dead"])
        dead = [name for name in self.messages if group.of(name).state == DEAD]
        if draw.random() < 0.5:
            make = c.RedriveDead if kind == "redrive" else c.PurgeDead
            word = "redriven" if kind == "redrive" else "purged"
            ids = [self.messages[name].id for name in dead]
            assert self.apply(make(group.name, ids)) == [(word, one) for one in ids]
        else:
            self._job(kind, group=group.name, reason=None, **({"rate": None} if kind == "redrive" else {}))
        for name in dead:
            held = group.of(name)
            if kind == "redrive":
                held.state, held.attempt, held.immortal = WAITING, 0, True
                held.due = max(self.now, self.messages[name].at)
            else:
                held.state = ACKED

    def bulk(self, draw: Random) -> None:
        kind = draw.choice(["cancel", "move", "rank"])
        window = draw.choice([(-300, 300), (0, 4000), (-4000, 0)])
        first, last = self.now + window[0], self.now + window[1]
        chosen, waiting = [], []
        for message in self.messages.values():
            if message.gone or not first <= message.at < last:
                continue
            if all(group.of(message.name).state == PENDING for group in self.groups.values()):
                chosen.append(message)
            elif kind == "rank" and self._claim(message.name) == (None, True, False):
                waiting.append(message)
        found = {"key_prefix": None, "from_ms": T + first, "until_ms": T + last}
        news = {"cancel": {}, "move": {"shift_ms": 600}, "rank": {"priority": draw.choice([-1, 0, 2])}}[kind]
        done = self._job("cancel" if kind == "cancel" else "move", **found, **news)
        assert done == len(chosen) + len(waiting)
        for message in waiting:
            self._ranked(message, news["priority"], message.offset, stays=True)
        for message in chosen:
            if kind == "cancel":
                message.gone = True
            elif kind == "rank":
                self._ranked(message, news["priority"], self._stands_at(message), stays=False)
            else:
                at = message.at
                message.offset = self._stands_at(message)
                assert message.at >= max(at + 600, self.now)

    def _job(self, kind: str, **arguments: Any) -> int:
        """Run a job to its end and return the number of changed messages."""
        self.jobs += 1
        job_id = self.jobs.to_bytes(16, "big")
        given = {"from_ms": 0, "until_ms": FOREVER_MS, "dry_run": False} | arguments
        self.apply(c.StartJob(job_id, kind, given))
        self.run_upkeep()
        shown = self.bench.machine.jobs.find(job_id).shown()
        assert shown["state"] == "done"
        done: int = shown["done"]
        return done

    def _stands_at(self, message: Message) -> bytes:
        found = self.bench.machine.log.find_owned(message.id, self.bench.view)
        assert found is not None, f"{message.name} is lost"
        return found.offset

    def configure(self, draw: Random) -> None:
        changed: dict[str, Any] = {"ageing": draw.choice([None, None, "1s", "5s"])}
        changed["on_expiry"] = draw.choice(["dead", "drop"])
        if self.kind == "fair":
            weights = draw.choice([{}, {"a": 3}, {"a.*": 2, "b": 2}, {"*": 2, "a.x": 5, "default": 1}])
            changed["tenants"] = {pattern: {"weight": weight} for pattern, weight in weights.items()}
        self.named = self.named | changed
        self.apply(c.Configure(parse_settings(DEFAULTS | self.named, self.kind).record()))

    # -- time -----------------------------------------------------------------------------------------------------

    def wait(self, draw: Random) -> None:
        self.now += draw.choice([1, 40, 300, 1000, 4000, 31_000])
        self.apply(c.Clock())

    def upkeep(self, draw: Random) -> None:
        self.apply(c.Upkeep())

    def tidy(self, draw: Random) -> None:
        self.run_upkeep()

    def run_upkeep(self) -> None:
        """Apply upkeeps until none is due."""
        for _ in range(3000):
            due_ms = self.bench.status().upkeep_ms
            if due_ms is None or due_ms > max(T + self.now, self.bench.machine.now_ms):
                return
            self.apply(c.Upkeep())
        raise AssertionError("upkeep stays due")

    # -- checks ---------------------------------------------------------------------------------------------------

    def watch_dead(self) -> None:
        """Note pending and waiting messages that died or were dropped, and check that their ttl has passed."""
        machine, drops = self.bench.machine, self.settings.get("on_expiry") == "drop"
        for group in self.groups.values():
            dead = {m.offset for m in self.bench.dead(group.name)}
            found = machine.groups.named(group.name)
            for message in self.messages.values():
                held = group.of(message.name)
                if message.gone or held.state not in (PENDING, WAITING):
                    continue
                if message.offset in dead:
                    assert self._expired(message, held), f"{message.name} died too soon in {group.name}"
                    assert not drops, f"{message.name} died, and the topic drops expired messages"
                    held.state = DEAD
                    continue
                state = machine.pending.state_in(found, message.offset, machine.now_ms, self.bench.view)
                if drops and state == ACKED and self._expired(message, held):
                    held.state = ACKED
                    group.dropped += 1
            assert found.dropped == group.dropped

    def check(self) -> None:
        """Compare everything with the model."""
        self.watch_dead()
        for group in self.groups.values():
            self._check_group(group)
        alive = [message for message in self.messages.values() if not message.gone]
        for message in alive:
            message.was_passed = message.was_passed or not self._claim(message.name)[2]
        assert len({message.offset for message in alive}) == len(alive)
        status = self.bench.status()
        assert status.messages == self._count_in_log()
        beside = {key[1:] for key, _ in self.bench.rows(rows.OVERLAY)}
        assert beside <= {message.offset for message in alive}, "a priority row without a message"

    def _count_in_log(self) -> int:
        machine, view = self.bench.machine, self.bench.view
        return sum(
            not message.gone and machine.log.find(message.id, view) is not None for message in self.messages.values()
        )

    def _check_group(self, group: Group) -> None:
        machine, view = self.bench.machine, self.bench.view
        found = machine.groups.named(group.name)
        assert found.ready is not None
        for queue in found.ready._queues.values():
            assert queue.held_bytes == sum(map(bytes_of, queue.entries)), "the held messages are not counted"
        counts = dict.fromkeys((PENDING, LEASED, WAITING, DEAD, ACKED), 0)
        back = due = 0
        for message in self.messages.values():
            held = group.of(message.name)
            if message.gone:
                continue
            counts[held.state] += 1
            holder = found.holder_of(message.offset, self.bench.view)
            in_log = machine.log.find(message.offset, view) is not None
            if held.state in (LEASED, WAITING):
                assert holder is not None, f"{message.name} is {held.state} in {group.name}, but no holder has it"
                assert isinstance(holder, Lease if held.state == LEASED else Waiting)
                kept = view.get(rows.of_group(rows.KEPT, found.group_id, message.offset)) is not None
                assert kept == holder.kept
                assert kept or in_log, f"{message.name} is needed"
            else:
                assert holder is None, f"{message.name} is {held.state} in {group.name}"
                assert in_log or held.state != PENDING, f"{message.name} is needed"
            if isinstance(holder, Waiting):
                assert (holder.due_ms - T, holder.attempt) == (held.due, held.attempt), message
                back += holder.due_ms <= machine.now_ms
            due += held.state == PENDING and (T + message.at) // 1000 <= machine.now_ms // 1000
            shown = machine.pending.state_in(found, message.offset, machine.now_ms, view)
            wanted = held.state
            if wanted == PENDING:
                wanted = "ready" if message.at <= self.now else "delayed"
            elif wanted == WAITING and held.due <= self.now:
                wanted = "ready"
            assert shown == wanted or (held.state == ACKED and not in_log), (message, held)
        told = self.bench.status().groups.get(group.name)
        assert told is not None
        assert (told.leased, told.waiting, told.dead) == (counts[LEASED], counts[WAITING] - back, counts[DEAD])
        second = offsets.deliver_ms(found.cursor) // 1000
        unsure = sum((T + message.at) // 1000 == second for message in self.messages.values())
        assert due <= told.ready - back <= due + unsure, (due, told.ready, back)
        assert len(self.bench.dead(group.name)) == counts[DEAD]
        self._check_queues(found)

    def _check_queues(self, found: Any) -> None:
        """Check that the counts in the rows of ready queues are right."""
        prefix, view = found.group_id.to_bytes(4, "big"), self.bench.view
        stored: dict[bytes, int] = {}
        for key, value in self.bench.rows(rows.READY):
            if key[1:5] == prefix:
                stored[key[5:-16]] = stored.get(key[5:-16], 0) + rows.unpack(value)[0]
        told = {key[5:]: rows.unpack(value)[0] for key, value in rows.all_of_group(view, rows.QUEUE, found.group_id)}
        assert stored == told
        assert found.ready.messages == sum(stored.values())

    # -- the end --------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Lease and ack everything when it is due: each message is delivered once, and none is left."""
        for group in self.groups.values():
            if group.paused:
                group.paused, group.paused_until = False, None
                self.apply(c.PauseGroup(group.name, False))
        for _ in range(200):
            self.expire(Random(0))
            for name, group in self.groups.items():
                while leases := self.lease_to(name, [c.Grant("z", 1000, 30_000)]):
                    for lease in leases:
                        self.apply(c.Ack([(lease.token, None)]))
                        for one in self._live(lease.token):
                            group.of(one).state = ACKED
            self.check()
            if not self._is_any_left():
                break
            self.now += 5000
            self.apply(c.Clock())
        else:
            raise AssertionError("some messages are left")
        self._check_end()

    def _is_any_left(self) -> bool:
        states = [g.of(m.name).state for g in self.groups.values() for m in self.messages.values() if not m.gone]
        return any(state not in (DEAD, ACKED) for state in states)

    def _check_end(self) -> None:
        """Check that, without dead messages, only rows about groups, lease ends and unique keys remain."""
        for name, group in self.groups.items():
            self._job("purge_dead", group=name, reason=None)
            for held in group.held.values():
                held.state = ACKED if held.state == DEAD else held.state
        for _ in range(4):
            self.now += 700_000
            self.run_upkeep()
        for name in self.groups:
            self.apply(c.Lease(name, T, [c.Grant("z", 1, 1000)]))
        left = {key[:1] for key, _ in self.bench.everything()}
        kinds = {rows.READY, rows.QUEUE, rows.TURNS, rows.WAITING, rows.KEPT, rows.DEAD, rows.UNIQUE, rows.PAYLOAD}
        assert not left & kinds, left & kinds
        if rows.LOG not in left:
            assert self.bench.machine.log.state.bytes == 0


DEEDS = (
    *["add"] * 5,
    *["lease"] * 5,
    *["ack"] * 3,
    *["nack"] * 3,
    *["wait"] * 3,
    *["upkeep"] * 2,
    *["tidy", "tidy", "expire", "release", "reclaim", "extend", "cancel", "cancel", "move", "pause", "seek"],
    *["rank"] * 3,
    *["dead_letters", "bulk", "configure"],
)
