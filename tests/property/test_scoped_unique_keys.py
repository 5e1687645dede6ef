"""In a fair topic a unique key is its tenant's: a partition does what one below that level does with keys that begin
with the tenant, which is what a careful producer would have made of them.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from sandq.model.batch import Column, encode
from sandq.partition import commands as c
from sandq.partition import rows
from sandq.partition.levels import IN_PLACE, SCOPED_KEYS
from sandq.partition.log.message_log import Stored
from tests.support.examples import seeds
from tests.support.partition.bench import T
from tests.support.partition.ranked_bench import RankedBench
from tests.support.simulation.seeds import run_each

STEPS = 250
TENANTS = (None, "acme", "acme.video", "beta")
KEYS = (b"k", b"l", b"video.k")
GROUPS = ("g", "h")
SETTINGS = {"dedup_window": "20s", "max_attempts": 2, "backoff": {"kind": "none"}}


class Twins:
    """The same commands for both, but for the keys; of the answers what does not hang on keys."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.scoped = RankedBench(kind="fair", level=SCOPED_KEYS, **SETTINGS)
        self.plain = RankedBench(kind="fair", level=IN_PLACE, **SETTINGS)
        self.at = 0
        self.offsets: list[bytes] = []
        self.tokens: list[int] = []
        self.happened: Counter[str] = Counter()
        for group in GROUPS:
            self.both(c.OpenGroup(group, "earliest"))

    def both(self, command: c.Command, plain: c.Command | None = None) -> Any:
        (one,) = self.scoped.apply(self.at, command)
        (other,) = self.plain.apply(self.at, command if plain is None else plain)
        return self.equal(one, other)

    def equal(self, one: Any, other: Any) -> Any:
        shown = [repr(answer) for answer in (one, other)]
        assert shown[0] == shown[1]
        return one

    def target(self) -> tuple[c.Target, c.Target]:
        """A message, as each of the two names it."""
        rng = self.rng
        if self.offsets and rng.random() < 0.2:
            named = [c.TARGET_ID, rng.choice(self.offsets)]
            return named, named
        tenant, key = rng.choice(TENANTS), rng.choice(KEYS)
        scoped: list[Any] = [c.TARGET_KEY, key] if tenant is None else [c.TARGET_KEY, key, tenant]
        return scoped, [c.TARGET_KEY, with_tenant(tenant, key)]

    # -- steps ----------------------------------------------------------------------------------------------------

    def add(self) -> None:
        rng = self.rng
        count = rng.choice((1, 1, 3))
        tenants = [rng.choice(TENANTS) for _ in range(count)]
        keys = [rng.choice(KEYS) if rng.random() < 0.9 else None for _ in range(count)]
        cells: dict[int, Any] = {
            Column.VALUE: [rng.choice((b"v", bytes(5000))) for _ in range(count)],
            Column.TENANT: [None if tenant is None else tenant.encode() for tenant in tenants],
            Column.PRIORITY: [rng.randrange(3) for _ in range(count)],
            Column.DELIVER_MS: [T + self.at + rng.choice((0, 0, 3000)) for _ in range(count)],
        }
        on_conflict, sequence = rng.choice((c.REJECT, c.REPLACE, c.IGNORE)), rng.randrange(1, 4) << 20
        numbers = (7, 1, sequence) if rng.random() < 0.3 else (0, 0, 0)
        named = [None if k is None else with_tenant(t, k) for t, k in zip(tenants, keys, strict=True)]
        commands = [
            c.Append(encode(cells | {Column.UNIQUE_KEY: found}), *numbers, on_conflict, split=True)
            for found in ([*keys], named)
        ]
        stored = self.both(*commands)
        if isinstance(stored, Stored):
            self.happened["refused" if stored.refused else "stored"] += 1
            self.offsets += [stored.offsets[at : at + 16] for at in range(0, len(stored.offsets), 16)]

    def lease(self) -> None:
        group = self.rng.choice(GROUPS)
        grant = c.Grant("c", self.rng.randrange(1, 4), self.rng.choice((500, 30_000)))
        leases = [bench.apply(self.at, c.Lease(group, T + self.at, (grant,)))[0] for bench in (self.scoped, self.plain)]
        self.equal(*[[(lease.token, lease.ranges) for lease in found] for found in leases])
        self.tokens += [lease.token for lease in leases[0]]
        self.happened["leased"] += len(leases[0])

    def settle(self) -> None:
        if not self.tokens:
            return
        token = self.tokens.pop(self.rng.randrange(len(self.tokens)))
        if self.rng.random() < 0.5:
            self.both(c.Ack([(token, None)]))
        else:
            self.both(c.Nack([(token, None, self.rng.choice((0, 5000)), None)]))

    def cancel(self) -> None:
        scoped, plain = self.target()
        (outcome,) = self.both(c.Cancel([scoped]), c.Cancel([plain]))
        self.happened[outcome[0]] += 1

    def move(self) -> None:
        scoped, plain = self.target()
        to = [T + self.at + self.rng.choice((0, 4000)), False]
        (outcome,) = self.both(c.Move([[scoped, *to]]), c.Move([[plain, *to]]))
        self.happened[outcome[0]] += 1

    def rank(self) -> None:
        scoped, plain = self.target()
        changed = [None, False, self.rng.randrange(3)]
        self.both(c.Move([[scoped, *changed]]), c.Move([[plain, *changed]]))

    def look(self) -> None:
        scoped, plain = self.target()
        ids = [
            bench.machine.pending.id_of(target, bench.machine.now_ms, bench.view)
            for bench, target in ((self.scoped, scoped), (self.plain, plain))
        ]
        self.equal(*ids)

    def seek(self) -> None:
        if self.rng.random() < 0.1:
            self.both(c.Seek(self.rng.choice(GROUPS), self.rng.choice(("earliest", "latest"))))

    def wait(self) -> None:
        self.at += self.rng.choice((1, 700, 8000))
        self.both(c.Expire())
        self.both(c.Upkeep())

    def restart(self) -> None:
        self.scoped.restart()

    def walk(self) -> Twins:
        steps = (self.add, self.add, self.lease, self.settle, self.cancel, self.move, self.rank, self.look, self.seek)
        for _ in range(STEPS):
            self.rng.choice((*steps, self.wait, self.restart))()
            assert not self.scoped.rows(rows.UNIQUE)
        names = {rows.UNIQUE + key[1:] for key, _ in self.scoped.rows(rows.SCOPED_UNIQUE)}
        assert names == {key for key, _ in self.plain.rows(rows.UNIQUE)}
        return self


def with_tenant(tenant: str | None, key: bytes) -> bytes:
    return (tenant or "default").encode() + b"\0" + key


FEW = 12


@pytest.mark.parametrize("seed", seeds(0, 400))
def test_more_of_it(seed: int) -> None:
    Twins(FEW + seed).walk()


def test_it_is_as_if_keys_began_with_their_tenant() -> None:
    happened: Counter[str] = Counter()
    for twins in run_each(lambda seed: Twins(seed).walk(), range(FEW)):
        happened += twins.happened
    expected = ("stored", "refused", "leased", "cancelled", "moved", "too_late", "not_found")
    assert all(happened[what] > 10 for what in expected), happened
