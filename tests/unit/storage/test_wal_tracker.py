"""Tests that `Tracker` knows the segment of each entry, against a model with one number per entry."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from sandq.storage.wal_format import Kind
from sandq.storage.wal_groups import NO_MEMBERS, Replay, Tracker


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32))
def test_runs_against_a_number_per_entry(seed: int) -> None:
    rng = random.Random(seed)
    tracker, replay = Tracker(), Replay()
    where: dict[int, int] = {}
    base, last, segment = 1, 0, 1
    for _ in range(60):
        segment += rng.randrange(3) == 0
        what = rng.randrange(12)
        index, kind = last + 1, Kind.ENTRY
        if what == 8:
            kind, index = Kind.BASE, rng.randint(max(1, base - 2), last + 3)
        elif what == 9:
            kind, index = Kind.TRUNCATE, rng.randint(0, last + 2)
        elif what == 10 and where:
            index = rng.choice(sorted(where))
        elif what == 11 and where:
            kind, index = Kind.COPY, rng.choice(sorted(where))
        tracker.note(segment, kind, index, 1, NO_MEMBERS)
        replay.note(segment, kind, index, 1, NO_MEMBERS)
        if kind == Kind.ENTRY:
            where = {i: s for i, s in where.items() if i < index} | {index: segment}
        elif kind == Kind.COPY:
            where[index] = segment
        elif kind == Kind.BASE:
            where = {i: s for i, s in where.items() if i >= index} if index >= base else {}
            base = index
        else:
            where = {i: s for i, s in where.items() if i < index}
            base = base if index else 1
        last = max(where, default=base - 1)
        assert (tracker.base, tracker.last) == (base, last), seed
        assert {i: s for first, end, s in tracker.runs for i in range(first, end + 1)} == where, seed
        assert tracker.runs == sorted(tracker.runs)
        for needed in (base, last, last + 1):
            expected = min((s for i, s in where.items() if i >= needed), default=None)
            assert tracker.oldest_segment(needed) == expected
    found = replay.finish(1)
    assert [index for _, index, _ in found.entries] == sorted(where)
    assert replay.tracker.last == last and replay.tracker.base == base
    assert {i: s for first, end, s in replay.tracker.runs for i in range(first, end + 1)} == where
