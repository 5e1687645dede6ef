"""Entries of several partitions that yield to each other have the same result as when they run one after the other."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from sandq.broker.replication import applier as applying
from sandq.broker.replication.applier import Applier, Apply, Published
from sandq.broker.replication.lanes import Lanes
from sandq.broker.replication.replica import PartitionReplica
from sandq.model import offsets
from sandq.model.names import COMPACTED, TIMER
from sandq.model.settings import parse_settings
from sandq.partition import commands as c
from sandq.partition import shared_state
from sandq.partition.base.digest import comparable
from sandq.partition.log import appends
from sandq.storage.keys import store_prefix
from sandq.storage.stores import MemoryStores
from tests.support.examples import seeds
from tests.support.partition.bench import T, batch_of

GROUPS = 4
ENTRIES = 12
"""Number of entries of each group."""


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(applying, "SLICE_S", 0.0)
    monkeypatch.setattr(applying, "WRITE_ENTRIES", 3)
    monkeypatch.setattr(shared_state, "SLICE_ITEMS", 3)
    monkeypatch.setattr(appends, "PART_MESSAGES", 3)


class Node:
    """Partitions that are applied together. The last one is of a compacted topic."""

    def __init__(self) -> None:
        self.stores = MemoryStores()
        self.results: dict[tuple[int, int], str] = {}
        self.statuses: dict[int, Any] = {}
        self.applier = Applier(self.stores, self._published)
        kinds = [TIMER] * (GROUPS - 1) + [COMPACTED]
        self.replicas = [
            PartitionReplica(
                self.stores,
                number,
                number,
                0,
                parse_settings({}, kind=kind).record(),
                kind,
                yield_now=self.applier.yield_now,
            )
            for number, kind in enumerate(kinds)
        ]

    def _published(self, published: Published) -> None:
        self.statuses |= published.statuses
        for group, index, results in published.results:
            assert self.statuses[group].applied_index >= index
            self.results[group, index] = str(results)

    def task(self, group: int, index: int, entry: bytes) -> Apply:
        return Apply(group, self.replicas[group], index, entry, True)

    def rows(self, number: int) -> Mapping[bytes, Any]:
        """Return the rows of a partition, without rows that depend on the time of their writes."""
        self.applier.write()
        start, stop, cut = store_prefix(number), store_prefix(number + 1), len(store_prefix(number))
        found = self.stores.scan(start, stop, limit=1 << 40, max_bytes=1 << 40)
        return comparable([(key[cut:], value) for key, value in found])


def entries(rng: random.Random, group: int) -> list[bytes]:
    """Return entries that store, cancel, move, lease and ack messages, each many messages at once."""
    made: list[list[c.Command]] = [[c.OpenGroup("g", "earliest")]]
    ids: list[bytes] = []
    for index in range(2, ENTRIES + 1):
        count = rng.randrange(1, 12)
        names = [f"{index}/{at}" for at in range(count)]
        if group == GROUPS - 1:
            keys = [rng.choice("abcde") for _ in names]
            made.append([c.Append(batch_of(names, keys=keys), split=False)])
            continue
        due = [rng.choice([0, 5, 4000]) for _ in names]
        unique = [rng.choice([None, "u", f"u{name}"]) for name in names]
        split = rng.random() < 0.5
        columns: dict[str, Any] = {"unique": unique} if split else {}
        deeds: list[Callable[[], c.Command]] = [
            lambda: c.Append(batch_of(names, due=due, relative=True, **columns), split=split),  # noqa: B023
            lambda: c.Cancel([(c.TARGET_ID, rng.choice(ids)) for _ in range(count)]),  # noqa: B023
            lambda: c.Move([((c.TARGET_ID, rng.choice(ids)), 10 * at, True) for at in range(count)]),  # noqa: B023
            lambda: c.Lease("g", T + 10 * index, [c.Grant("w", count, 1000)]),  # noqa: B023
            lambda: c.Ack([(offsets.token(rng.randrange(1, index), 0), None) for _ in range(count)]),  # noqa: B023
        ]
        weights = [6, 2, 2, 3, 2] if ids else [1, 0, 0, 0, 0]
        made.append([deed() for deed in rng.choices(deeds, weights, k=3)])
        ids += [offsets.pack(T + 10 * index + rng.choice([0, 5]), index, at, 0) for at in range(count)]
    return [c.Entry(T + 10 * (at + 1), commands).encode() for at, commands in enumerate(made)]


@pytest.mark.parametrize("seed", seeds(5, 300))
def test_entries_that_yield_have_same_result(seed: int) -> None:
    rng = random.Random(seed)
    alone, together = Node(), Node()
    todo = {group: entries(rng, group) for group in range(GROUPS)}
    for group, found in todo.items():
        alone.applier.run([alone.task(group, at + 1, entry) for at, entry in enumerate(found)])
    lanes: Lanes[Apply] = Lanes()
    waiting = [(group, at) for at in range(ENTRIES) for group in range(GROUPS)]
    nested = [0]

    def add_tasks(count: int) -> None:
        for group, at in waiting[:count]:
            lanes.add(together.task(group, at + 1, todo[group][at]), group)
        del waiting[:count]

    def other_tasks() -> Any:
        nested[0] += 1
        add_tasks(rng.randrange(3))
        return lanes.others(lambda: rng.random() < 0.5)

    together.applier.other_tasks = other_tasks
    while waiting or lanes:
        add_tasks(rng.randrange(1, 6))
        together.applier.run(lanes.slice(lambda: rng.random() < 0.8))
    assert nested[0] > ENTRIES
    assert together.results == alone.results
    assert together.statuses == alone.statuses
    for group in todo:
        assert together.rows(group) == alone.rows(group)
