"""Tests of the copy budget of an entry: it rewrites a limited number of bytes.

The rest is unchanged and follows later.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from sandq.model import offsets
from sandq.model.batch import Column, encode
from sandq.model.errors import TooLarge
from sandq.model.limits import FIXED
from sandq.model.nack_ends import DEAD, RETRY, SNOOZE
from sandq.partition import commands as c
from sandq.partition.base import rows
from sandq.partition.shared_state import NOT_YET
from tests.support.partition.bench import Bench, T, by_id
from tests.support.partition.ranked_bench import RankedBench

LARGE = "x" * (6 << 20)
FIT = 3
"""Number of large messages that fill the budget of an entry."""
HEADERS = b"\x81\xa1a\x01"
CHANGE = {Column.HEADERS.value: HEADERS}


def opened(bench: Bench) -> Bench:
    bench.open()
    return bench


def update(*ids: bytes) -> c.Move:
    return c.Move([(by_id(one), None, False, None, CHANGE) for one in ids])


def verdicts(outcomes: Sequence[Any]) -> list[str]:
    return [verdict for verdict, *_ in outcomes]


def with_headers(bench: Bench, at: int = 0) -> list[bool]:
    return [Column.HEADERS in one.fields for lease in bench.lease(at=at) for one in bench.messages(lease)]


def large(bench: Bench, kind: str, count: int = 5) -> list[bytes]:
    """Store large messages in separate rows or in batches of one message."""
    if kind == "alone":
        return [bench.put(LARGE, unique=f"u{at}") for at in range(count)]
    return [bytes(bench.append(LARGE)[0]) for _ in range(count)]


@pytest.mark.parametrize("kind", ["alone", "batch"])
def test_updates_of_an_entry_end_with_the_budget(kind: str) -> None:
    bench = opened(Bench())
    ids = large(bench, kind)
    (outcomes,) = bench.apply(0, update(*ids))
    assert verdicts(outcomes) == ["updated"] * FIT + [NOT_YET] * 2
    assert bench.written < FIXED.entry_copied_bytes + len(LARGE) + 10_000
    bench.restart()
    (outcomes,) = bench.apply(0, update(*ids[FIT:]))
    assert verdicts(outcomes) == ["updated"] * 2
    assert [has for _ in ids for has in with_headers(bench)] == [True] * 5


def test_copy_budget_applies_to_the_whole_entry() -> None:
    bench = opened(Bench())
    ids = large(bench, "batch")
    first, second, cancelled, third = bench.apply(
        0, update(*ids[:2]), update(*ids[2:4]), c.Cancel([by_id(ids[4])]), update(ids[3], b"\0" * 16)
    )
    assert (verdicts(first), verdicts(second)) == (["updated"] * 2, ["updated", NOT_YET])
    assert verdicts(cancelled) == ["cancelled"], "a command that copies nothing is applied"
    assert verdicts(third) == [NOT_YET] * 2, "a message that is not processed yet is not checked"
    assert with_headers(bench) + with_headers(bench) == [True, True, True, False]


def test_each_group_that_keeps_a_message_counts() -> None:
    bench = opened(Bench(backoff={"kind": "none"}))
    bench.open("other")
    ids = large(bench, "batch", 3)
    for group in ("g", "other"):
        while leases := bench.lease(group=group):
            for lease in leases:
                bench.apply(0, c.Nack([(lease.token, None, 5, None, True, CHANGE)]))
    (outcomes,) = bench.apply(0, update(*ids))
    assert verdicts(outcomes) == ["updated", NOT_YET, NOT_YET], "the row of the message and the rows of two groups"


def test_a_move_that_copies_counts_and_one_that_does_not_is_free() -> None:
    bench = opened(Bench())
    ids = large(bench, "batch")
    moves = c.Move([(by_id(one), T + 5000, False) for one in ids])
    assert verdicts(bench.apply(0, moves)[0]) == ["moved"] * FIT + [NOT_YET] * 2
    assert verdicts(bench.apply(0, moves)[0]) == ["moved"] * 5, (
        "messages that were copied out of their batches are cheap"
    )
    assert verdicts(bench.apply(0, moves)[0]) == ["moved"] * 5
    assert bench.written < 10_000


def test_thinning_waits_for_an_entry_with_budget() -> None:
    """The rest of a batch is copied once half of the batch is cancelled."""
    bench = opened(Bench())
    quarter = "x" * (1 << 20)
    batches = [bytes(bench.append(*[quarter] * 12, due=[9000] * 12)[0]) for _ in range(4)]
    halves = [offsets.shift(base, place) for base in batches for place in range(6)]
    bench.apply(0, c.Cancel([by_id(one) for one in halves]))
    assert bench.written < FIXED.entry_copied_bytes + 12 * len(quarter)
    whole = [key for key, row in bench.rows(rows.LOG) if row[0] == rows.KIND_BATCH]
    assert whole, "some batches are unchanged"
    for at in range(4):
        bench.cancel(offsets.shift(batches[at], 6))
    left = [bench.values(bench.lease(limit=5, at=9000)) for _ in range(4)]
    assert sum(map(len, left)) == 20


def test_rest_of_compressed_batch_counts_as_stored() -> None:
    bench = opened(Bench())
    columns = {Column.VALUE: [b"0" * (1 << 20)] * 12, Column.DELIVER_MS: [T + 9000] * 12}
    bases = [bench.apply(0, c.Append(encode(columns, compress=True)))[0][0] for _ in range(6)]
    bench.apply(0, c.Cancel([by_id(offsets.shift(base, place)) for base in bases for place in range(7)]))
    assert bench.written < FIXED.entry_copied_bytes + (6 << 20)


# -- nacks ------------------------------------------------------------------------------------------------------------


def held(bench: Bench, count: int = 5) -> list[int]:
    """Return the tokens of leases of one large message each."""
    return [lease.token for _ in range(count) for lease in bench.lease(limit=1)]


def nack(token: int, changes: dict[int, int | bytes] | None = None, end: int = RETRY) -> tuple[Any, ...]:
    return token, None, 5, "no", True, changes, end


@pytest.mark.parametrize("change", [{Column.PRIORITY.value: 3}, CHANGE])
def test_nacks_that_change_messages_end_with_the_budget(change: dict[int, int | bytes]) -> None:
    bench = RankedBench()
    bench.open()
    for _ in range(5):
        bench.add(LARGE)
    tokens = held(bench)
    (results,) = bench.apply(0, c.Nack([nack(token, change) for token in tokens]))
    assert results == [None] * FIT + [NOT_YET] * 2
    assert bench.written < FIXED.entry_copied_bytes + len(LARGE) + 10_000
    assert [lease.token for lease in bench.held()] == tokens[FIT:], "the messages are held as before"
    bench.restart()
    (results,) = bench.apply(0, c.Nack([nack(token, change) for token in tokens[FIT:]]))
    assert (results, bench.held()) == ([None] * 2, [])


def test_nacks_that_bury_messages_end_with_it_too() -> None:
    bench = opened(Bench(max_attempts=1))
    for _ in range(5):
        bench.append(LARGE)
    tokens = held(bench)
    items = [nack(tokens[0], end=DEAD), *[nack(token) for token in tokens[1:4]], nack(tokens[4], end=SNOOZE)]
    assert bench.apply(0, c.Nack(items))[0] == [None, None, None, NOT_YET, None], "a snooze copies nothing"
    assert (len(bench.dead()), len(bench.held())) == (FIT, 1)
    assert bench.apply(0, c.Nack(items[3:4]))[0] == [None]
    assert len(bench.dead()) == 4


def test_nacks_of_a_lease_keep_their_order() -> None:
    """A dead message does not return with the rest of its lease."""
    bench = opened(Bench())
    for _ in range(FIT):
        bench.append(LARGE)
    copying = [nack(token, end=DEAD) for token in held(bench, FIT)]
    bench.append("a", "b")
    lease = bench.one()
    one = lease.token, [[lease.ranges[0].base, 1]], None, "no", True, None, DEAD
    rest = lease.token, None, 5, "no"
    assert bench.apply(0, c.Nack([*copying, one, rest]))[0] == [None] * FIT + [NOT_YET] * 2
    done, lost = bench.apply(0, c.Nack([one, rest]))[0]
    assert (done, lost) == (None, [[lease.ranges[0].base, 1]]), "the same result as in one entry"
    assert len(bench.dead()) == FIT + 1
    assert [bench.values([one]) for one in bench.lease(at=5)] == [["b"]]


def test_headers_of_a_whole_lease_fit_an_entry() -> None:
    bench = opened(Bench())
    bench.append(*"m" * 1000)
    lease = bench.one(limit=1000)
    change: dict[int, int | bytes] = {Column.HEADERS.value: b"\x81\xa1a" + b"\xc5\xff\x00" + b"x" * 0xFF00}
    first = lease.token, [[lease.ranges[0].base, 200]], 5, "no", True, change
    (refused,) = bench.apply(0, c.Nack([first, nack(lease.token, change)]))
    assert isinstance(refused, TooLarge) and "65286 bytes for 1000 messages" in refused.message
    assert bench.written < 10_000 and bench.held()[0].live.bit_count() == 1000, "nothing is done"
    assert bench.apply(0, c.Nack([first])) == [[None]]
    assert bench.written < FIXED.entry_copied_bytes


def test_nacks_that_copy_nothing_are_done_behind_those_that_do() -> None:
    bench = opened(Bench())
    for _ in range(5):
        bench.append(LARGE)
    tokens = held(bench)
    copying = [nack(token, CHANGE) for token in tokens[:FIT]]
    not_begun = (tokens[4], None, None, None, False)
    assert bench.apply(0, c.Nack([*copying, nack(tokens[3]), not_begun]))[0] == [None] * 5


def test_repeated_priority_change_of_waiting_messages_ends() -> None:
    """A command that is repeated after a lost answer must end."""
    bench = RankedBench()
    bench.open()
    ids = [bench.add(LARGE)[0] for _ in range(5)]
    for token in held(bench):
        bench.nack(token, delay=60_000)
    ranked = c.Move([(by_id(one), None, False, 7) for one in ids])
    assert verdicts(bench.apply(0, ranked)[0]) == ["moved"] * FIT + [NOT_YET] * 2
    assert verdicts(bench.apply(0, ranked)[0]) == ["moved"] * 5
    assert bench.apply(0, ranked) and bench.written < 10_000
    taken = [message for _ in ids for lease in bench.lease(at=60_000) for message in bench.messages(lease)]
    assert [message.fields[Column.PRIORITY] for message in taken] == [7] * 5


# -- lower limits -----------------------------------------------------------------------------------------------------
