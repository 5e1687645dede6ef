"""Random pauses of a group, of its tenants and of its keys, while messages are leased, acked and given back.

No paused message is leased before the end of its pause, messages of a key keep their order, and each message is leased
once its pauses have ended. A partition that is loaded from its rows before each entry gives the same results."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from sandq.model.batch import Column, encode
from sandq.model.pauses import FOREVER
from sandq.partition import commands as c
from sandq.partition.base.digest import comparable
from sandq.partition.groups import group_table
from sandq.partition.queries.queries import PartitionQueries
from sandq.partition.records.leases import Lease
from tests.support.examples import seeds
from tests.support.partition.bench import Bench, T
from tests.support.partition.ranked_bench import RankedBench
from tests.support.partition.spilling import spilling_by

KEYS = (b"a", b"b", b"c", None)
TENANTS = (b"acme", b"acme.eu", b"acme.eu.x", b"acmes", b"beta")
KINDS: dict[str, dict[str, Any]] = {
    "ordered": {"ordering": "key"},
    "per_key": {"max_in_flight_per_key": 2},
    "fair": {"tenants": {"beta": {"max_in_flight": 2}}},
}
STEPS = 60


class Pauses:
    def __init__(self, kind: str, seed: int) -> None:
        self.draw = Random(seed)
        self.is_fair, self.is_ordered = kind == "fair", kind == "ordered"
        settings = KINDS[kind] | {"max_attempts": 1000}
        self.benches = [RankedBench("fair", **settings) if self.is_fair else Bench(**settings) for _ in range(2)]
        self.now = 0
        self.ends: dict[bytes, int] = {}
        """End of each pause, by tenant or key; of the group, by b""."""
        self.parts: dict[str, bytes | None] = {}
        """Tenant or key of each message that is not acked."""
        self.due: dict[str, int] = {}
        self.leases: dict[int, list[str]] = {}
        self.numbers = 0
        self.apply(c.OpenGroup("g", "earliest"))

    def apply(self, *commands: c.Command) -> Any:
        self.benches[1].restart()
        results = [bench.apply(self.now, *commands) for bench in self.benches]
        assert str(results[0]) == str(results[1]), "a partition loaded from its rows gives another answer"
        one, other = [comparable(bench.everything()) for bench in self.benches]
        assert one == other
        paused = {part: T + until for part, until in self.ends.items() if part and until > self.now}
        for bench in self.benches:
            listed, _ = PartitionQueries(bench.machine, bench.view).paused_parts("g", 10)
            assert {row.key or str(row.part).encode(): row.until_ms for row in listed} == paused
        return results[0][0]

    def is_paused(self, part: bytes | None) -> bool:
        names = [b""] if part is None else [b"", part]
        while self.is_fair and part and b"." in part:
            part = part.rpartition(b".")[0]
            names.append(part)
        return any(self.ends.get(name, 0) > self.now for name in names)

    def send(self) -> None:
        count = self.draw.choice([1, 1, 3, 8])
        parts = [self.draw.choice(TENANTS if self.is_fair else KEYS) for _ in range(count)]
        names = [f"{self.numbers + number:05}" for number in range(count)]
        self.numbers += count
        due = sorted([self.now + self.draw.choice([0, 0, 0, 300]) for _ in names])
        column = Column.TENANT if self.is_fair else Column.KEY
        cells = {
            Column.VALUE: [name.encode() for name in names],
            Column.DELIVER_MS: [T + ms for ms in due],
            column: parts,
        }
        self.parts.update(zip(names, parts, strict=True))
        self.due.update(zip(names, due, strict=True))
        self.apply(c.Append(encode(cells), split=not self.is_fair))

    def pause(self) -> None:
        part = self.draw.choice([b"", *(TENANTS if self.is_fair else KEYS[:3])])
        until = self.draw.choice([0, self.now, self.now + 20, self.now + 500, self.now + 5000, FOREVER - T])
        self.ends[part] = until
        until_ms = None if until <= self.now else T + until
        if not part:
            self.apply(c.PauseGroup("g", until_ms is not None, None if until_ms == FOREVER else until_ms))
        else:
            self.apply(c.PausePart("g", part.decode() if self.is_fair else part, until_ms))

    def pause_by_lease(self) -> None:
        """Pause by the holder of a message. This never shortens a pause."""
        if not self.leases:
            return
        token = self.draw.choice([*self.leases])
        lease = self.benches[0].machine.groups.named("g").leases[token]
        offset, part = lease.ranges[0].base, self.parts[self.leases[token][0]]
        until = self.now + self.draw.choice([20, 500, 5000])
        which = self.draw.choice(["group", "tenant" if self.is_fair else "key"])
        if which == "group" or part is not None:
            named = b"" if which == "group" or part is None else part
            self.ends[named] = max(self.ends.get(named, 0), until)
            (paused,) = self.apply(c.PauseByLease([(token, offset, which, T + until, "g")]))
            assert paused.until_ms == T + self.ends[named]

    def lease(self) -> list[Lease]:
        limits = self.draw.choice([(1,), (3,), (2, 2), (100,)])
        grants = [c.Grant(f"c{at}", limit, 10_000) for at, limit in enumerate(limits)]
        leases: list[Lease] = self.apply(c.Lease("g", T + self.now, grants))
        for lease in leases:
            names = self.benches[0].values([lease])
            self.leases[lease.token] = names
            for name in names:
                part = self.parts[name]
                assert not self.is_paused(part), f"{name} is paused"
                if self.is_ordered and part is not None:
                    of_key = [other for other, of in self.parts.items() if of == part]
                    assert name == min(of_key, key=lambda one: (self.due[one], one)), f"{name} has overtaken others"
        return leases

    def settle(self) -> None:
        if not self.leases:
            return
        token = self.draw.choice([*self.leases])
        names = self.leases.pop(token)
        if self.draw.random() < 0.4:
            self.apply(c.Nack([(token, None, self.draw.choice([0, 0, 700]), "again")]))
            return
        self.apply(c.Ack([(token, None)]))
        for name in names:
            del self.parts[name]

    def wait(self) -> None:
        self.now += self.draw.choice([1, 19, 300, 1000, 6000])
        self.apply(self.draw.choice([c.Clock(), c.Upkeep()]))
        self.expire()

    def expire(self) -> None:
        self.apply(c.Expire())
        living = self.benches[0].machine.groups.named("g").leases
        self.leases = {token: names for token, names in self.leases.items() if token in living}

    def drain(self) -> None:
        """Let all pauses end. Each message is leased and acked then."""
        for part in [part for part, until in self.ends.items() if until == FOREVER - T]:
            self.ends[part] = 0
            if part:
                self.apply(c.PausePart("g", part.decode() if self.is_fair else part, None))
            else:
                self.apply(c.PauseGroup("g", False))
        self.now += 20_000
        self.expire()
        for _ in range(400):
            self.now += 100
            self.lease()
            for token, names in self.leases.items():
                self.apply(c.Ack([(token, None)]))
                for name in names:
                    self.parts.pop(name, None)
            self.leases.clear()
            if not self.parts:
                break
        assert not self.parts, "some messages are left"
        assert not self.benches[0].rows(b"Z")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", seeds(12, 300))
def test_paused_messages_are_leased_after_their_pause_only(
    seed: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_table, "PAUSES_ENDED", 1 + seed % 3)
    world = Pauses(kind, seed)
    actions = [
        world.send,
        world.pause,
        world.pause_by_lease,
        world.lease,
        world.lease,
        world.settle,
        world.settle,
        world.wait,
    ]
    with spilling_by(seed):
        for _ in range(STEPS):
            world.draw.choice(actions)()
        world.drain()
