"""Tests of batches with a time per message: their rows, look-aheads of all readers, and all sizes."""

from __future__ import annotations

import random

import pytest

from sandq.model import offsets
from sandq.partition import commands as c
from sandq.partition.base import rows
from sandq.partition.base.expiring_rows import CANCEL_MEMORY_MS
from sandq.partition.log import appends
from sandq.partition.reader import reader
from sandq.partition.shared_state import SLICE_ITEMS
from tests.support.partition.bench import Bench, T, batch_of

HOUR_MS = 3_600_000


def column_of(joined: bytes) -> list[bytes]:
    return [joined[at : at + offsets.OFFSET_BYTES] for at in range(0, len(joined), offsets.OFFSET_BYTES)]


@pytest.mark.parametrize("restart", [True, False])
@pytest.mark.parametrize("seed", range(10))
def test_look_aheads_see_messages_inserted_into_a_batch(
    monkeypatch: pytest.MonkeyPatch, seed: int, restart: bool
) -> None:
    """One of several groups has leased a part and one has leased nothing.

    The look-ahead is short: many messages are beyond it.
    """
    rng = random.Random(seed)
    bench = Bench()
    monkeypatch.setattr(reader, "FEW", 3)
    bench.open("g")
    bench.open("h")
    due: dict[str, int] = {}
    taken: list[str] = []
    now = 0
    for turn in range(12):
        names = [f"{turn}.{at}" for at in range(rng.randrange(1, 9))]
        times = [now + rng.randrange(1, 2 * HOUR_MS) for _ in names]
        bench.append(*names, at=now, due=times)
        due.update(zip(names, times, strict=True))
        now += rng.randrange(HOUR_MS)
        taken += bench.values(bench.lease(rng.randrange(20), at=now))
        if restart:
            bench.restart()
    everything = sorted(due, key=lambda name: due[name])
    end = now + 3 * HOUR_MS
    assert taken + bench.values(bench.lease(1000, at=end)) == everything, seed
    assert bench.values(bench.lease(1000, at=end, group="h")) == everything, seed
    assert bench.status().messages == len(everything)


def test_messages_are_counted_per_second(bench: Bench) -> None:
    bench.open()
    bench.append(*"abcde", at=500, due=[400, 900, 1_000, HOUR_MS, HOUR_MS + 1])
    status = bench.status()
    assert (status.messages, status.later) == (5, 3)
    bench.append(*"xy", at=2_000, due=[2_500, 3_000])
    assert (bench.status().messages, bench.status().later) == (7, 3)
    assert len(bench.values(bench.lease(100, at=2 * HOUR_MS))) == 7
    assert bench.status().later == 0


@pytest.mark.parametrize("large", [0, 1, 2])
def test_large_message_of_a_batch_has_a_separate_payload(bench: Bench, large: int) -> None:
    """The large message has a separate payload. The other messages are stored as without it."""
    values = ["a", "b", "c"]
    values[large] = "L" * (rows.INLINE_BYTES + 1)
    bench.open()
    column = column_of(bench.append(*values, due=[3_000, 2_000, 1_000]))
    assert len(bench.rows(rows.PAYLOAD)) == 1
    assert [key[1:] for key, _ in bench.rows(rows.LOG)] == sorted(column)
    assert bench.status().bytes > rows.INLINE_BYTES
    assert bench.values(bench.lease(10, at=5_000)) == values[::-1]


def test_rows_and_sizes_are_those_of_messages_that_came_alone() -> None:
    """The same messages as one entry with three batches, and as three entries."""
    together, alone = Bench(), Bench()
    together.append("a", "bb", "ccc", due=[3_000, 2_000, 1_000])
    for value, due in zip(("a", "bb", "ccc"), (3_000, 2_000, 1_000), strict=True):
        alone.append(value, due=[due])
    assert [value for _, value in together.rows(rows.LOG)] == [value for _, value in alone.rows(rows.LOG)]
    assert together.status().bytes == alone.status().bytes


# -- one moment -------------------------------------------------------------------------------------------------------

NAMES = [f"m{at}" for at in range(appends.WHOLE_MESSAGES)]
"""The smallest number of messages that are stored as one row."""


def kinds(bench: Bench) -> list[int]:
    return [value[0] for _, value in bench.rows(rows.LOG)]


@pytest.fixture
def moments() -> Bench:
    return Bench()


@pytest.mark.parametrize("relative", [False, True])
def test_a_batch_for_one_moment_is_one_row(moments: Bench, relative: bool) -> None:
    moments.open()
    base, count = moments.append(*NAMES, due=[5_000] * len(NAMES), relative=relative)
    assert (count, offsets.deliver_ms(base) - T, kinds(moments)) == (len(NAMES), 5_000, [rows.KIND_BATCH])
    status = moments.status()
    assert (status.messages, status.later) == (len(NAMES), len(NAMES))
    assert not moments.lease(at=4_999)
    moments.restart()
    assert moments.values(moments.lease(at=5_000)) == NAMES


@pytest.mark.parametrize(
    "values, due",
    [
        (NAMES[1:], [5_000] * (len(NAMES) - 1)),
        (NAMES, [5_000] * (len(NAMES) - 1) + [5_001]),
    ],
    ids=["one message less", "another moment"],
)
def test_unsuitable_batches_have_a_row_for_each_message(values: list[str], due: list[int]) -> None:
    bench = Bench()
    bench.append(*values, due=due)
    assert kinds(bench) == [rows.KIND_MESSAGE] * len(values)


def test_a_batch_for_one_moment_is_answered_again_as_before(moments: Bench) -> None:
    batch = batch_of(NAMES, due=[5_000] * len(NAMES))
    first = moments.apply(0, c.Append(batch, 7, 1, 1))
    assert moments.apply(6_000, c.Append(batch, 7, 1, 1)) == first, "the message is due meanwhile"
    assert moments.status().messages == len(NAMES)


@pytest.mark.parametrize("kept", range(len(NAMES)))
def test_half_cancelled_batch_is_split_into_message_rows(moments: Bench, kept: int) -> None:
    moments.open()
    base, count = moments.append(*NAMES, due=[5_000] * len(NAMES))
    ids = offsets.run(base, count)
    for at, one in enumerate(ids):
        if at != kept:
            assert moments.cancel(one) == ("cancelled", one)
    assert (kinds(moments), moments.status().messages) == ([rows.KIND_MESSAGE], 1)
    assert moments.status().bytes == len(moments.rows(rows.LOG)[0][1])
    moments.restart()
    assert moments.cancel(ids[kept - 1], at=1_000) == ("cancelled", ids[kept - 1]), "it is remembered"
    assert moments.values(moments.lease(at=5_000)) == [NAMES[kept]]


def test_rest_of_cancelled_batch_is_seen_after_look_ahead(moments: Bench) -> None:
    moments.open()
    base, count = moments.append(*NAMES, due=[5_000] * len(NAMES))
    assert not moments.lease(at=100)
    for one in offsets.run(base, count)[: count // 2]:
        moments.cancel(one, at=200)
    assert moments.status().groups[0].next_ms == T + 5_000
    assert moments.values(moments.lease(at=5_000)) == NAMES[count // 2 :]


def test_message_moved_out_of_a_batch_is_delivered_at_its_time(moments: Bench) -> None:
    moments.open()
    base, count = moments.append(*NAMES, due=[5_000] * len(NAMES))
    ids = offsets.run(base, count)
    assert moments.move(ids[2], 3_000)[0] == "moved"
    assert moments.move(ids[0], 9_000)[0] == "moved"
    assert moments.values(moments.lease(at=3_000)) == ["m2"]
    assert moments.values(moments.lease(at=5_000)) == [name for name in NAMES if name not in ("m0", "m2")]
    (late,) = moments.lease(at=9_000)
    assert [message.id for message in moments.messages(late)] == [ids[0]]
    for lease in list(moments.machine.leases.by_token.values()):
        moments.ack(lease.token, at=9_000)
    moments.trim(at=9_000)
    moments.trim(at=9_000 + CANCEL_MEMORY_MS)
    assert not moments.rows(rows.LOG) and not moments.rows(rows.TOMBSTONE) and not moments.rows(rows.MOVED)


def test_remaining_messages_get_their_rows_in_time_slices(moments: Bench) -> None:
    messages = 4 * SLICE_ITEMS
    base, count = moments.append(*[f"m{at}" for at in range(messages)], due=[5_000] * messages)
    yields: list[int] = []
    moments.machine.shared.yield_now = lambda: yields.append(len(moments.rows(rows.LOG)))
    cancelled = 0
    for one in offsets.run(base, count):
        moments.cancel(one)
        cancelled += 1
        if yields:
            break
    assert messages // 2 <= cancelled < messages * 3 // 4, "the row is checked only sometimes during the cancels"
    assert len(yields) >= (messages - cancelled) // SLICE_ITEMS
