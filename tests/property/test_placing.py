"""With the placing rule, no message is skipped, early, or leased twice at once, in any order of commands.

A small model in plain Python knows the state of every message. After each step, the partition must agree with the
model. In the end, all messages must be delivered. The model has no offsets and no rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule

from sandq.model.batch import Column
from sandq.partition import commands as c
from sandq.partition.leasing.lease_grants import MAX_LEASE_AHEAD_MS
from sandq.partition.log import trim
from sandq.partition.records.leases import Lease
from tests.support.examples import examples
from tests.support.partition.bench import Bench, T

GROUPS = ("g", "h")
LEASE_MS = 40


@dataclass
class Model:
    """Expected state of messages. Times are ms after T."""

    due: dict[str, int] = field(default_factory=dict)
    """Delivery time of each message."""
    placed: dict[str, int] = field(default_factory=dict)
    """Time at which each message is placed: its delivery time, or the latest time leased before it was stored."""
    leased_ahead: int = 0
    """Latest delivery time that a lease has covered, ahead of the clock."""
    holder: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    """(group, message) -> (token, deadline) of its lease."""
    not_before: dict[tuple[str, str], int] = field(default_factory=dict)
    """(group, message) -> end of its back-off."""
    acked: set[tuple[str, str]] = field(default_factory=set)
    last_token: int = -1


@dataclass(frozen=True)
class Held:
    group: str
    token: int
    messages: list[tuple[str, bytes]]


class Placing(RuleBasedStateMachine):
    leases = Bundle("leases")

    @initialize()
    def start(self) -> None:
        self.bench = Bench(max_attempts=None, backoff={"kind": "fixed", "first": "10ms", "jitter_percent": 0})
        self.model = Model()
        self.at = 0
        self.made = 0
        for group in GROUPS:
            self.bench.open(group)

    @rule(step=st.sampled_from([1, 1, 2, 5, 30, 100]))
    def wait(self, step: int) -> None:
        self.at += step

    @rule(delays=st.lists(st.sampled_from([0, 0, 1, 2, 4, 6, 20, 60]), min_size=1, max_size=6), relative=st.booleans())
    def insert(self, delays: list[int], relative: bool) -> None:
        names = [f"m{self.made + n}" for n in range(len(delays))]
        self.made += len(delays)
        due = delays if relative else [self.at + delay for delay in delays]
        self.bench.append(*names, at=self.at, due=due, relative=relative)
        self._inserted({name: self.at + delay for name, delay in zip(names, delays, strict=True)})

    @rule(count=st.integers(1, 4))
    def insert_at_once(self, count: int) -> None:
        names = [f"m{self.made + n}" for n in range(count)]
        self.made += count
        self.bench.append(*names, at=self.at)
        self._inserted(dict.fromkeys(names, self.at))

    def _inserted(self, due: dict[str, int]) -> None:
        self.model.due.update(due)
        self.model.placed.update({name: max(at, self.model.leased_ahead) for name, at in due.items()})

    @rule(
        target=leases,
        group=st.sampled_from(GROUPS),
        limits=st.lists(st.integers(1, 5), min_size=1, max_size=3),
        ahead=st.sampled_from([0, 1, 5, MAX_LEASE_AHEAD_MS]),
    )
    def lease(self, group: str, limits: list[int], ahead: int) -> Any:
        grants = tuple(c.Grant(f"c{n}", limit, LEASE_MS) for n, limit in enumerate(limits))
        named: dict[int, list[tuple[str, bytes]]] = {}
        granted: list[Lease] = self.bench.apply(self.at, c.Lease(group, T + self.at + ahead, grants))[0]
        for lease in granted:
            assert lease.token > self.model.last_token
            self.model.last_token = lease.token
            named[lease.token] = [(m.fields[Column.VALUE].decode(), m.offset) for m in self.bench.read(lease.ranges)]
            for name, _ in named[lease.token]:
                key = (group, name)
                assert key not in self.model.acked, "acked, and leased again"
                assert key not in self.model.holder, "leased twice at once"
                push_at = max(self.at, lease.due_ms - T)
                assert push_at >= self.model.due[name], "early"
                assert push_at >= self.model.not_before.get(key, 0), "its back-off has not ended"
                self.model.holder[key] = (lease.token, self.at + LEASE_MS)
            if lease.attempt == 1:
                self.model.leased_ahead = max(self.model.leased_ahead, lease.due_ms - T)
        taken = sum(lease.total for lease in granted)
        assert taken <= sum(limits)
        if taken < sum(limits):
            left = [name for name in self.model.due if self._is_offered(group, name)]
            assert left == [], "skipped: the lease was not full, and these messages are due"
        return multiple(*[Held(group, lease.token, named[lease.token]) for lease in granted])

    def _is_offered(self, group: str, name: str) -> bool:
        key = (group, name)
        if key in self.model.acked or key in self.model.holder:
            return False
        return self.at >= max(self.model.placed[name], self.model.not_before.get(key, 0))

    @rule(held=leases, part=st.floats(0, 1))
    def ack(self, held: Held, part: float) -> None:
        names, what = self._some(held, part)
        lost = self.bench.ack(held.token, what, at=self.at)
        for name in names:
            if self._holds(held, name):
                assert lost is None or self._count(lost) < len(names)
                del self.model.holder[held.group, name]
                self.model.acked.add((held.group, name))

    @rule(held=leases, part=st.floats(0, 1), delay=st.sampled_from([None, 0, 3, 50]))
    def nack(self, held: Held, part: float, delay: int | None) -> None:
        names, what = self._some(held, part)
        self.bench.nack(held.token, what, at=self.at, delay=delay)
        for name in names:
            if self._holds(held, name):
                del self.model.holder[held.group, name]
                self.model.not_before[held.group, name] = self.at + (10 if delay is None else delay)

    @rule(held=leases)
    def extend(self, held: Held) -> None:
        extended = self.bench.extend(held.token, ms=LEASE_MS, at=self.at) is not None
        mine = [key for key, (token, _) in self.model.holder.items() if token == held.token]
        assert extended == bool(mine)
        self.model.holder.update(dict.fromkeys(mine, (held.token, self.at + LEASE_MS)))

    @rule()
    def expire(self) -> None:
        self.bench.expire(at=self.at)
        for key, (_, deadline) in list(self.model.holder.items()):
            if deadline <= self.at:
                del self.model.holder[key]
                self.model.not_before[key] = self.at + 10

    @rule(group=st.sampled_from(GROUPS), consumer=st.sampled_from(["c0", "c1"]))
    def release(self, group: str, consumer: str) -> None:
        tokens = {lease.token for lease in self.bench.machine.leases.live_of(group, consumer)}
        self.bench.release(consumer, at=self.at, group=group)
        for key, (token, _) in list(self.model.holder.items()):
            if token in tokens:
                del self.model.holder[key]
                self.model.not_before[key] = self.at

    @rule()
    def restart(self) -> None:
        self.bench.restart()

    @rule(limit=st.integers(1, 5))
    def trim(self, limit: int) -> None:
        with patch.object(trim, "TRIM_ROWS", limit):
            self.bench.upkeep(at=self.at)

    @invariant()
    def leased_messages_are_held(self) -> None:
        for group in GROUPS:
            held = {name for (of, name) in self.model.holder if of == group}
            leases = self.bench.machine.groups.named(group).leases.values()
            assert sum(lease.live.bit_count() for lease in leases) == len(held)

    def teardown(self) -> None:
        if not hasattr(self, "bench"):
            return
        self.at += 1000
        self.expire()
        self.at += 1000
        for group in GROUPS:
            while granted := self.bench.lease(at=self.at, group=group):
                for lease in granted:
                    for name in self.bench.values([lease]):
                        assert (group, name) not in self.model.acked
                        self.model.acked.add((group, name))
                    assert self.bench.ack(lease.token, at=self.at) is None
        assert self.model.acked == {(group, name) for group in GROUPS for name in self.model.due}, "skipped"
        self.bench.trim(at=self.at)
        status = self.bench.status()
        assert (status.messages, status.bytes, self.bench.rows(b"m")) == (0, 0, [])

    def _some(self, held: Held, part: float) -> tuple[list[str], Any]:
        chosen = held.messages[: max(1, round(len(held.messages) * part))]
        return [name for name, _ in chosen], [[offset, 1] for _, offset in chosen]

    def _holds(self, held: Held, name: str) -> bool:
        return self.model.holder.get((held.group, name), (None, 0))[0] == held.token

    @staticmethod
    def _count(lost: Any) -> int:
        return sum(length for _, length in lost)


TestPlacing = Placing.TestCase
TestPlacing.settings = settings(max_examples=examples(300), stateful_step_count=40, deadline=None)
