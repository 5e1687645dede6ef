"""A unique key is unique within the key of its message.

A partition behaves like one without keys in which each unique key begins with the key of the message."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from sandq.model.batch import Column, encode
from sandq.partition import commands as c
from sandq.partition.base import rows
from sandq.partition.log.appends import Stored
from tests.support.examples import seeds
from tests.support.partition.bench import Bench, T
from tests.support.partition.ranked_bench import RankedBench
from tests.support.simulation.seeds import run_each

STEPS = 250
KEYS = (None, b"", b"k", b"ka")
UNIQUE_KEYS = (b"k", b"ak", b"video.k")
GROUPS = ("g", "h")
SETTINGS = {"dedup_window": "20s", "max_attempts": 2, "backoff": {"kind": "none"}}


class Pair:
    """Two partitions that apply the same commands with different names of messages. Their answers are compared."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.is_ranked = seed % 2 == 1
        self.keyed, self.plain = [
            RankedBench("priority", **SETTINGS) if self.is_ranked else Bench(**SETTINGS) for _ in range(2)
        ]
        self.at = 0
        self.offsets: list[bytes] = []
        self.tokens: list[int] = []
        self.happened: Counter[str] = Counter()
        for group in GROUPS:
            self.both(c.OpenGroup(group, "earliest"))

    def both(self, command: c.Command, plain: c.Command | None = None) -> Any:
        (one,) = self.keyed.apply(self.at, command)
        (other,) = self.plain.apply(self.at, command if plain is None else plain)
        return self.equal(one, other)

    def equal(self, one: Any, other: Any) -> Any:
        shown = [repr(answer) for answer in (one, other)]
        assert shown[0] == shown[1]
        return one

    def target(self) -> tuple[c.Target, c.Target]:
        """Choose a message. Return its target for each of the two partitions."""
        rng = self.rng
        if self.offsets and rng.random() < 0.2:
            named = [c.TARGET_ID, rng.choice(self.offsets)]
            return named, named
        key, unique_key = rng.choice(KEYS), rng.choice(UNIQUE_KEYS)
        keyed: list[Any] = [c.TARGET_KEY, unique_key] if key is None else [c.TARGET_KEY, unique_key, None, key]
        return keyed, [c.TARGET_KEY, with_key(key, unique_key)]

    # -- steps ----------------------------------------------------------------------------------------------------

    def add(self) -> None:
        rng = self.rng
        count = rng.choice((1, 1, 3))
        keys = [rng.choice(KEYS) for _ in range(count)]
        names = [rng.choice(UNIQUE_KEYS) if rng.random() < 0.9 else None for _ in range(count)]
        cells: dict[int, Any] = {
            Column.VALUE: [rng.choice((b"v", bytes(5000))) for _ in range(count)],
            Column.DELIVER_MS: [T + self.at + rng.choice((0, 0, 3000)) for _ in range(count)],
        }
        if self.is_ranked:
            cells[Column.PRIORITY] = [rng.randrange(3) for _ in range(count)]
        on_conflict = rng.randrange(c.THROTTLE_BOTH + 1)
        span_ms = rng.choice((1, 5000)) if on_conflict > c.DEBOUNCE else rng.choice((None, 1, 5000))
        joined = [None if name is None else with_key(key, name) for key, name in zip(keys, names, strict=True)]
        keyed = cells | {Column.KEY: keys, Column.UNIQUE_KEY: names}
        plain = cells | {Column.UNIQUE_KEY: joined}
        commands = [
            c.Append(encode(found), on_conflict=on_conflict, split=True, span_ms=span_ms) for found in (keyed, plain)
        ]
        stored = self.both(*commands)
        if isinstance(stored, Stored):
            self.happened["refused" if stored.refused else "stored"] += 1
            self.happened["told"] += len(stored.outcomes or ())
            self.offsets += [stored.offsets[at : at + 16] for at in range(0, len(stored.offsets), 16)]

    def lease(self) -> None:
        group = self.rng.choice(GROUPS)
        grant = c.Grant("c", self.rng.randrange(1, 4), self.rng.choice((500, 30_000)))
        leases = [bench.apply(self.at, c.Lease(group, T + self.at, (grant,)))[0] for bench in (self.keyed, self.plain)]
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
            self.both(c.Nack([(token, None, self.rng.choice((0, 5000, 90_000)), None)]))

    def cancel(self) -> None:
        keyed, plain = self.target()
        (outcome,) = self.both(c.Cancel([keyed]), c.Cancel([plain]))
        self.happened[outcome[0]] += 1

    def move(self) -> None:
        keyed, plain = self.target()
        to = [T + self.at + self.rng.choice((0, 4000)), False]
        (outcome,) = self.both(c.Move([[keyed, *to]]), c.Move([[plain, *to]]))
        self.happened[outcome[0]] += 1

    def update(self) -> None:
        keyed, plain = self.target()
        change = [None, False, None, {Column.VALUE.value: self.rng.choice((b"w", bytes(6000)))}]
        (outcome,) = self.both(c.Move([[keyed, *change]]), c.Move([[plain, *change]]))
        self.happened[outcome[0]] += 1

    def compare_ids(self) -> None:
        keyed, plain = self.target()
        ids = [
            bench.machine.pending.id_of(target, bench.machine.now_ms, bench.view)
            for bench, target in ((self.keyed, keyed), (self.plain, plain))
        ]
        self.equal(*ids)

    def seek(self) -> None:
        if self.rng.random() < 0.1:
            self.both(c.Seek(self.rng.choice(GROUPS), self.rng.choice(("earliest", "latest"))))

    def wait(self) -> None:
        self.at += self.rng.choice((1, 700, 8000, 70_000))
        self.both(c.Expire())
        self.both(c.Upkeep())

    def restart(self) -> None:
        self.keyed.restart()

    def walk(self) -> Pair:
        steps = (
            self.add,
            self.add,
            self.lease,
            self.settle,
            self.cancel,
            self.move,
            self.update,
            self.compare_ids,
            self.seek,
        )
        for _ in range(STEPS):
            self.rng.choice((*steps, self.wait, self.restart))()
            found = {key: row for key, row in self.keyed.rows(rows.UNIQUE)}
            for key, row in self.keyed.rows(rows.KEYED_UNIQUE):
                digest, unique_key = key[1 : 1 + rows.DIGEST_BYTES], key[1 + rows.DIGEST_BYTES :]
                found[rows.UNIQUE + with_key(BY_DIGEST[digest], unique_key)] = row
            assert found == dict(self.plain.rows(rows.UNIQUE))
        return self


BY_DIGEST = {rows.key_digest(key): key for key in KEYS if key is not None}


def with_key(key: bytes | None, unique_key: bytes) -> bytes:
    return unique_key if key is None else b"%d:%b:%b" % (len(key), key, unique_key)


FEW = 12


@pytest.mark.parametrize("seed", seeds(0, 400))
def test_more_of_it(seed: int) -> None:
    Pair(FEW + seed).walk()


def test_keyed_unique_keys_equal_unique_keys_with_key_prefix() -> None:
    happened: Counter[str] = Counter()
    for pair in run_each(lambda seed: Pair(seed).walk(), range(FEW)):
        happened += pair.happened
    expected = ("stored", "refused", "told", "leased", "cancelled", "moved", "updated", "too_late", "not_found")
    assert all(happened[what] > 10 for what in expected), happened
