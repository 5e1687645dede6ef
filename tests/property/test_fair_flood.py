"""A quiet tenant is served in time while other tenants send a thousand messages for each message of its own.

The number of messages before its own depends on the number of other tenants, not on the number of their messages."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from sandq.model.batch import Column
from sandq.model.limits import FIXED
from sandq.partition import commands as c
from sandq.partition.groups import group
from sandq.partition.ready import queue_entries
from tests.support.examples import seeds
from tests.support.partition.bench import T
from tests.support.partition.ranked_bench import RankedBench
from tests.support.simulation.seeds import run_each

FLOOD = 1000
"""Number of messages of other tenants for each message of the quiet tenant."""
ROUNDS = 6
SEEDS = 8
MAY_WAIT = 300
"""Maximum number of ranges of waiting messages in a group."""
TENANTS = (
    ("quiet", ("loud",)),
    ("quiet", ("loud", "louder", "loud.er")),
    ("acme.quiet", ("acme.loud", "loud")),
    ("acme.quiet", ("acme", "acme.loud.one", "acme.loud.two", "beta.loud")),
    ("acme", ("acme.loud", "acme.louder", "beta")),
)
"""Quiet tenant, and the other tenants."""


def most_of_one(quiet: str, given: list[str]) -> int:
    """Return the maximum number of messages that one node of the tree received while a sibling on the quiet path
    received none."""
    own, most = (*quiet.split("."), ""), 0
    since: Counter[tuple[str, ...]] = Counter()
    for tenant in given:
        path = (*tenant.split("."), "")
        beside = next(depth for depth in range(len(own)) if path[depth] != own[depth])
        since[path[: beside + 1]] += 1
        most = max(most, since[path[: beside + 1]])
        for node in [node for node in since if len(node) <= beside]:
            del since[node]
    return most


class Flood:
    def __init__(self, seed: int, *, fails: bool = False) -> None:
        """`fails`: half of the messages of other tenants are nacked, up to the limit of waiting messages."""
        self.fails = fails
        self.rng = rng = Random(seed)
        self.quiet, self.others = TENANTS[seed % len(TENANTS)]
        self.bench = RankedBench("fair", dedup_window="0s", max_attempts="none")
        self.bench.open()
        self.limit = 20 if fails else rng.choice((1, 7, 100))
        self.at = 0
        self.held: list[tuple[int, dict[bytes, str]]] = []
        """Token of each lease, and the tenants of its messages by offset."""
        self.longest = 0

    def add(self, tenant: str, count: int) -> None:
        priorities = [self.rng.randrange(3)] * count
        self.bench.add(*[tenant] * count, tenant=tenant, priority=priorities, at=self.at)

    def take(self) -> list[str]:
        """Lease until messages are granted, or all due messages are promoted. Return their tenants, in order."""
        for _ in range(100):
            leases = self.bench.apply(self.at, c.Lease("g", T + self.at, (c.Grant("c", self.limit, 30_000),)))[0]
            if leases or not self.bench.machine.groups.named("g").ready.is_promoting:
                break
        given = [
            (lease.token, {one.offset: one.fields[Column.TENANT].decode() for one in self.bench.messages(lease)})
            for lease in leases
        ]
        self.held += given
        while len(self.held) > self.rng.randrange(4):
            self.settle(*self.held.pop(0))
        assert given or self.fails, "messages are ready, but the lease granted none"
        return [tenant for _, tenants in given for tenant in tenants.values()]

    def settle(self, token: int, tenants: dict[bytes, str]) -> None:
        loud = [offset for offset, tenant in tenants.items() if tenant != self.quiet]
        # Nack every second message, so that each of them is a separate range.
        failed = [[offset, 1] for offset in loud[::2]]
        if failed and self.fails:
            self.bench.nack(token, failed, at=self.at, delay=3_600_000)
        self.bench.ack(token, at=self.at)

    def run(self) -> Flood:
        for _ in range(ROUNDS):
            for _ in range(4):
                self.add(self.rng.choice(self.others), FLOOD // 4)
            for _ in range(40 if self.fails else self.rng.randrange(5)):
                self.take()
            if self.rng.random() < 0.3:
                self.bench.restart()
            self.at += self.rng.choice((0, 1, 500))
            self.add(self.quiet, 1)
            self.wait_for_it()
        return self

    def wait_for_it(self) -> None:
        given: list[str] = []
        for _ in range(FLOOD):
            given += self.take()
            if self.quiet in given:
                break
        assert self.quiet in given, f"{self.quiet} waits for {Counter(given)}"
        before = given[: given.index(self.quiet)]
        assert most_of_one(self.quiet, before) <= 2, f"{self.quiet} waited for {before}"
        self.longest = max(self.longest, len(before))


@pytest.mark.parametrize("head", [2, 64])
def test_a_quiet_tenant_waits_for_two_of_each_other_at_most(head: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_entries, "HEAD_ENTRIES", head)
    floods = run_each(lambda seed: Flood(seed).run(), range(SEEDS))
    assert max(flood.longest for flood in floods) > 2, "too few messages precede the quiet tenant"


def test_quiet_tenant_is_served_if_half_of_the_flood_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group, "FIXED", replace(FIXED, max_gaps=MAY_WAIT))
    for flood in run_each(lambda seed: Flood(seed, fails=True).run(), range(len(TENANTS))):
        found = flood.bench.machine.groups.named("g")
        assert MAY_WAIT / 2 <= found.waiting_ranges <= MAY_WAIT, "too few messages fail, or too many"
        assert found.ready.limits.crowding.stopped


@pytest.mark.parametrize("seed", seeds(0, 200))
def test_more_floods(seed: int) -> None:
    Flood(SEEDS + seed).run()
