"""Debounced messages equal a model: of each series, one message is delivered, with the newest value, at its time."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest

from sandq.model import offsets
from sandq.partition import commands as c
from sandq.partition.records.leases import Lease
from tests.support.examples import seeds
from tests.support.partition.bench import Bench, T
from tests.support.simulation.seeds import run_each

STEPS = 200
FEW = 12
KEYS = ("k", "l")
DELAYS = (0, 1, 100, 700)
MAX_WAITS = (None, 1, 100, 1000)


@dataclass
class Series:
    """The pending message of a unique key. `first`: time of the first call; None after a failed attempt, because the
    next call begins a series. `due`: time of its next attempt. `named_until`: time from which the key is free; None if
    no group has leased the message. Times are in ms after T."""

    value: str
    first: int | None
    due: int
    named_until: int | None = None


class Walk:
    """A partition with one group, and the model of it."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.window = self.rng.choice((0, 1000))
        self.bench = Bench(dedup_window=f"{self.window}ms", max_attempts="none", backoff={"kind": "none"})
        self.bench.open()
        self.at = 0
        self.pending: dict[str, Series] = {}
        """By unique key: the message that it names."""
        self.others: list[Series] = []
        """Messages that wait for another attempt, and that no key names any more."""
        self.leased: list[tuple[Lease, list[str]]] = []
        """Leases, each with its values."""
        self.key_of: dict[str, str] = {}
        self.newest: dict[str, str] = {}
        """By key: the value of its newest message."""
        self.free_from: dict[str, int] = {}
        """By value: end of the window after its first lease. From then on its key is free."""
        self.happened: Counter[str] = Counter()

    def named(self, key: str) -> Series | None:
        """Return the pending message that a key names."""
        series = self.pending.get(key)
        if series is not None and series.named_until is not None and series.named_until <= self.at:
            self.others.append(self.pending.pop(key))
            return None
        return series

    def call(self) -> None:
        key, delay, max_wait = self.rng.choice(KEYS), self.rng.choice(DELAYS), self.rng.choice(MAX_WAITS)
        value = f"{key}{len(self.key_of)}"
        self.key_of[value], self.newest[key] = key, value
        before = self.named(key)
        first = self.at if before is None or before.first is None else before.first
        due = self.at + delay if max_wait is None else min(self.at + delay, first + max_wait)
        stored = self.bench.send(
            value,
            unique=[key],
            due=[delay],
            relative=True,
            at=self.at,
            on_conflict=c.DEBOUNCE,
            span=max_wait,
        )
        assert stored.refused == [] and stored.outcomes is not None
        assert (before is not None) == any(outcome == "replaced" for _, outcome, _ in stored.outcomes)
        assert offsets.deliver_ms(stored.offsets) - T <= max(due, self.at)
        self.pending[key] = Series(value, first, max(due, self.at))
        self.happened["replaced" if before is not None else "stored"] += 1
        self.happened["capped"] += due < self.at + delay

    def lease(self) -> None:
        leases = self.bench.lease(at=self.at, ms=100_000)
        due = [series.value for series in (*self.pending.values(), *self.others) if series.due <= self.at]
        assert sorted(self.bench.values(leases)) == sorted(due)
        self.leased += [(lease, self.bench.values([lease])) for lease in leases]
        for value in due:
            self.free_from.setdefault(value, self.at + self.window)
        self.pending = {key: series for key, series in self.pending.items() if series.due > self.at}
        self.others = [series for series in self.others if series.due > self.at]

    def settle(self) -> None:
        if not self.leased:
            return
        lease, values = self.leased.pop(self.rng.randrange(len(self.leased)))
        if self.rng.random() < 0.5:
            self.bench.ack(lease.token, at=self.at)
            return
        self.bench.nack(lease.token, at=self.at, delay=500)
        for value in values:
            key, series = self.key_of[value], Series(value, None, self.at + 500, self.free_from[value])
            if self.newest[key] == value and self.free_from[value] > self.at:
                self.pending[key] = series
            else:
                self.others.append(series)
        self.happened["nacked"] += 1

    def cancel(self) -> None:
        key = self.rng.choice(KEYS)
        outcome = self.bench.cancel((c.TARGET_KEY, key.encode()), at=self.at)
        if self.named(key) is not None:
            assert outcome[0] == "cancelled"
            del self.pending[key]

    def run(self) -> None:
        actions: list[Any] = [self.call, self.call, self.call, self.lease, self.settle, self.cancel]
        for _ in range(STEPS):
            self.at += self.rng.choice((0, 1, 50, 400))
            if self.rng.random() < 0.2:
                self.bench.restart()
            self.rng.choices(actions, weights=(3, 3, 3, 2, 2, 1))[0]()
        self.at += 10_000
        self.lease()


def happened_in(seed: int) -> Counter[str]:
    one = Walk(seed)
    one.run()
    return one.happened


@pytest.mark.parametrize("seed", seeds(0, 400))
def test_debounced_messages_equal_the_model_with_more_seeds(seed: int) -> None:
    happened_in(FEW + seed)


def test_debounced_messages_equal_the_model() -> None:
    happened: Counter[str] = Counter()
    for found in run_each(happened_in, range(FEW)):
        happened += found
    assert all(happened[name] > 20 for name in ("replaced", "stored", "capped", "nacked")), happened
