"""Tests of digests: replicas agree to the byte despite restarts, and differences are found."""

from __future__ import annotations

import random

from sandq.partition import commands as c
from sandq.partition.base import rows
from sandq.partition.base.digest import DIGEST_BYTES, StateDigest
from sandq.partition.base.view import Row
from tests.support.partition.bench import Bench


def digest(found: list[Row], pieces: int = 1) -> bytes:
    made = StateDigest()
    for at in range(pieces):
        made.add(found[at * len(found) // pieces : (at + 1) * len(found) // pieces])
    return made.value()


def worked(*, restarts: bool) -> Bench:
    """Return a bench after many commands. `restarts`: load it from its rows now and then."""
    bench = Bench()
    for at in range(40):
        bench.send("a", "b", at=1000 * at, due=[3_600_000 * at] * 2)
        bench.put(f"value {at}", at=1000 * at)
        if restarts and at % 7 == 0:
            bench.restart()
    return bench


def test_replicas_that_restarted_have_the_same_digest() -> None:
    one, other = worked(restarts=False), worked(restarts=True)
    assert digest(one.everything()) == digest(other.everything())


def test_digest_does_not_depend_on_the_pieces() -> None:
    found = worked(restarts=False).everything()
    assert {digest(found, pieces) for pieces in (1, 2, 7, len(found))} == {digest(found)}
    assert len(digest(found)) == DIGEST_BYTES


def test_every_bit_counts() -> None:
    rng = random.Random(7)
    found = worked(restarts=False).everything()
    before = digest(found)
    for _ in range(50):
        at = rng.choice([at for at, (key, _) in enumerate(found) if key[:1] not in (rows.COUNTS, rows.STATE_KEY)])
        key, value = found[at]
        place, bit = rng.randrange(len(value)), 1 << rng.randrange(8)
        changed = value[:place] + bytes([value[place] ^ bit]) + value[place + 1 :]
        assert digest([*found[:at], (key, changed), *found[at + 1 :]]) != before, (key, place, bit)
        assert digest([*found[:at], *found[at + 1 :]]) != before, "a row is missing"


def test_digest_separates_keys_from_values() -> None:
    assert digest([(b"ma", b"b")]) != digest([(b"m", b"ab")])
    assert digest([(b"m", b"a"), (b"n", b"")]) == digest([(b"m", b"a")]), "counts are in no digest"


def test_take_digest_changes_no_rows() -> None:
    bench, other = Bench(), Bench()
    for one in (bench, other):
        one.put("a")
    assert bench.apply(10, c.TakeDigest(7), c.TakeDigest(8)) == [None, None]
    other.apply(10, c.Clock())
    assert bench.everything() == other.everything()
    assert bench.machine.digests_asked == [7, 8]
