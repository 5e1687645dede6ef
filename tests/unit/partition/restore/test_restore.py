"""Tests of a partition from the rows of a backup: the same messages and offsets, nothing early, nothing twice."""

from __future__ import annotations

from typing import Any

import pytest

from sandq.model.errors import Conflict, InvalidRequest, Unavailable
from sandq.model.names import RESTORING
from sandq.model.outbox import RESERVED_PRODUCERS
from sandq.model.sequence import sequence_of
from sandq.model.stored_rows import CHUNK_BYTES, decode_chunk
from sandq.partition import commands as c
from sandq.partition.base import rows
from sandq.partition.restore.restoring import STATE_OF_BACKUP, encode_chunk
from tests.support.partition.bench import Bench, T, batch_of, by_id
from tests.support.partition.key_bench import KeyBench
from tests.support.partition.ranked_bench import RankedBench
from tests.support.partition.restore_bench import (
    begin,
    chunks_of,
    empty_like,
    end,
    open_up,
    put,
    restored,
    rows_of,
)

LATE = 10_000_000
"""Time of the restore in ms after T, hours later."""


def old(**settings: Any) -> Bench:
    return Bench(**settings)


def resumed(bench: Bench, at: int) -> Bench:
    bench.apply(at, c.PauseGroup("g", False))
    return bench


def stored(bench: Bench, value: str, due: int, at: int = 0) -> bytes:
    """Return the offset of the message."""
    made = bench.append(value, at=at, due=[due])
    return made if isinstance(made, bytes) else bytes(made[0])


def values(bench: Bench, at: int) -> list[tuple[bytes, int]]:
    """Return offsets and attempts of the messages that are leased at this time."""
    return [(base, lease.attempt) for lease in bench.lease(at=at, consumer="new") for base, _ in lease.ranges]


def test_messages_keep_their_offsets_and_come_at_their_times() -> None:
    bench = old()
    bench.open()
    early, late = stored(bench, "a", 1000), stored(bench, "b", LATE + 5000)
    made = resumed(restored(bench, LATE), LATE)
    assert values(made, LATE) == [(early, 1)]
    assert values(made, LATE + 4999) == []
    assert values(made, LATE + 5000) == [(late, 1)]


def test_a_restart_goes_on_where_it_was_at_every_step() -> None:
    bench = old()
    bench.open()
    bench.append("a", "b", due=[1000, LATE + 5000])
    made, chunks = empty_like(bench), chunks_of(rows_of(bench), 1)
    made.restart()
    begin(made, LATE)
    for number, chunk in enumerate(chunks):
        made.restart()
        assert put(made, number, chunk, LATE)["next_chunk"] == number + 1
    made.restart()
    end(made, len(chunks), LATE)
    made.restart()
    assert made.machine.is_closed
    open_up(made, LATE)
    made.restart()
    assert len(values(resumed(made, LATE), LATE + 5000)) == 2


def test_restored_partition_keeps_acks_and_attempts() -> None:
    bench = old()
    bench.open()
    done, held = (stored(bench, text, 0) for text in "ab")
    bench.ack(bench.one(limit=1).token)
    first = bench.one(limit=1)
    bench.nack(first.token, delay=0, at=10)
    second = bench.one(limit=1, at=20)
    assert second.attempt == 2
    made = restored(bench, LATE)
    assert made.ack(second.token, at=LATE) is not None, "the lease no longer exists"
    assert values(resumed(made, LATE), LATE) == [(held, 2)] and done != held


def test_groups_are_paused_and_not_dropped_as_unused() -> None:
    bench = old(group_ttl="1m")
    bench.open()
    bench.append("a", due=[0])
    made = restored(bench, LATE)
    made.apply(LATE + 1, c.Upkeep())
    (group,) = made.machine.status(made.view).groups
    assert group.is_paused and group.ready == 1
    assert made.lease(at=LATE + 2) == []


def test_dead_letters_waiting_messages_and_unique_keys_are_there() -> None:
    bench = old(max_attempts=1)
    bench.open()
    bench.append("dead", due=[0])
    bench.nack(bench.one().token, error="no")
    taken = bench.put("k", due=LATE + 9000, unique="one")
    made = restored(bench, LATE)
    (group,) = made.machine.status(made.view).groups
    assert group.dead == 1
    again = made.send("k2", at=LATE, unique=["one"])
    assert again.refused and taken


def test_pairs_of_key_and_unique_key_are_there() -> None:
    bench = Bench()
    bench.open()
    taken = bench.put("v" * 5000, due=LATE + 9000, key="k", unique="k")
    keys = ("a", "b")
    others = [bench.put("w", due=LATE + 9000, key=key, unique="k") for key in keys]
    made = restored(bench, LATE)
    assert made.put("again", at=LATE, key="k", unique="k") == taken
    assert [made.put("again", at=LATE, key=key, unique="k") for key in keys] == others
    assert made.put("new", at=LATE, key="c", unique="k") not in (taken, *others)
    assert made.cancel([c.TARGET_KEY, b"k", None, b"k"], at=LATE) == ("cancelled", taken)


def test_new_messages_never_share_an_offset_with_restored_ones() -> None:
    bench = old()
    known = {stored(bench, "x", LATE + 1000) for _ in range(30)}
    made = restored(bench, LATE)
    fresh = {stored(made, "y", LATE + 1000, LATE) for _ in range(60)}
    assert len(fresh) == 60 and not known & fresh
    assert min(fresh) > max(known), "messages of one instant come in the order in which they were stored"
    twice = restored(made, 2 * LATE)
    assert stored(twice, "z", 2 * LATE, 2 * LATE) not in known | fresh


def test_tokens_of_leases_rise_above_the_old_ones() -> None:
    bench = old()
    bench.open()
    bench.append(*"abc")
    tokens = [lease.token for lease in bench.lease(limit=1)]
    made = resumed(restored(bench, LATE), LATE)
    assert min(lease.token for lease in made.lease(at=LATE)) > max(tokens)


def test_messages_can_be_cancelled_by_their_old_ids() -> None:
    bench = old()
    offset = stored(bench, "a", LATE + 1000)
    made = restored(bench, LATE)
    (outcome,) = made.apply(LATE, c.Cancel([by_id(offset)]))[0]
    assert outcome[0] == "cancelled"


def test_a_producer_is_known_and_its_batch_not_stored_again() -> None:
    bench = old()
    command = c.Append(batch_of(["a"]), 7, 1, sequence_of(1))
    first = bench.apply(0, command)[0]
    made = restored(bench, LATE)
    assert made.apply(LATE, command)[0] == first


def test_keys_have_their_values_and_versions() -> None:
    bench = KeyBench()
    version = bench.set("a", "1")
    bench.set("b", "2")
    bench.set("b", None)
    made = restored(bench, LATE)
    assert isinstance(made, KeyBench)
    assert made.all(LATE) == {"a": "1"}
    is_set, found = made.set_if("a", "3", version, at=LATE)
    assert is_set and found > version
    made.restart()
    assert made.all(LATE) == {"a": "3"}


def test_unopened_restored_partition_is_unavailable() -> None:
    bench = old()
    bench.open()
    bench.append("a")
    made = restored(bench, LATE, is_open=False)
    status = made.machine.status(made.view)
    assert status.messages == 1 and len(status.groups) == 0 and status.restore is not None
    assert status.upkeep_ms is status.next_expiry_ms is status.schedule_ms is None
    for command in (c.Append(batch_of(["x"])), c.OpenGroup("g", "earliest"), c.Upkeep(), c.PauseGroup("g", False)):
        assert isinstance(made.apply(LATE, command)[0], Unavailable), command
    with pytest.raises(Unavailable, match="is being restored"):
        made.machine.check_available()
    assert made.apply(LATE, c.Clock(), c.Touch(["g"])) == [None, None]


def test_settings_alone_do_not_open_a_partition_that_is_half_restored() -> None:
    bench = old()
    bench.append("a")
    made = empty_like(bench)
    begin(made)
    put(made, 0, chunks_of(rows_of(bench), 1)[0])
    open_up(made)
    made.restart()
    assert made.machine.is_closed
    assert isinstance(made.apply(0, c.Append(batch_of(["x"])))[0], Unavailable)


def test_each_chunk_is_put_there_once_and_in_order() -> None:
    bench = old()
    bench.append(*"abcdef")
    made, chunks = empty_like(bench), chunks_of(rows_of(bench), 1)
    assert begin(made) == begin(made)
    assert isinstance(put(made, 1, chunks[1]), Conflict)
    first = put(made, 0, chunks[0])
    assert put(made, 0, chunks[1]) == first
    assert isinstance(end(made, len(chunks)), Conflict), "some chunks are missing"
    for number, chunk in enumerate(chunks[1:], 1):
        put(made, number, chunk)
    assert end(made, len(chunks)) == end(made, len(chunks))
    assert put(made, 0, chunks[0])["whole"]


def test_a_restore_of_another_name_is_refused() -> None:
    made = empty_like(old())
    assert isinstance(put(made, 0, encode_chunk([])), Conflict)
    assert isinstance(begin(made, restore_id="r-2"), Conflict)
    begin(made)
    assert isinstance(put(made, 0, encode_chunk([]), restore_id="r-2"), Conflict)
    assert isinstance(end(made, 0, restore_id="r-2"), Conflict)


def test_a_partition_of_a_topic_that_is_there_is_not_restored() -> None:
    bench = old()
    assert isinstance(begin(bench), Conflict)
    assert isinstance(put(bench, 0, encode_chunk([b"mx", b""])), Conflict)
    assert isinstance(end(bench, 0), Conflict)


@pytest.mark.parametrize(
    "found",
    [
        [],
        [(rows.STATE_KEY, b"\x00")],
        [(rows.STATE_KEY, rows.pack(1, 2, 3))],
        [(b"g\x00", b"\xc1")],
    ],
)
def test_rows_that_make_no_partition_leave_it_shut(found: list[tuple[bytes, bytes]]) -> None:
    made = empty_like(old())
    begin(made)
    put(made, 0, encode_chunk([part for row in found for part in row]))
    assert isinstance(end(made, 1), Conflict)
    open_up(made)
    made.restart()
    assert made.machine.is_closed


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"d\x00a", b"\x9a"),
        (b"d\x00a", rows.pack(1, 0, None, 5, b"i", 5, {}, (), (), ())),
        (b"d\x00a", rows.pack(1, 0, None, 5, b"i", 5, {}, (), (), (b"3", 1, 9))),
        (b"d\x00a", rows.pack(1, 0, None, 5, b"i", 5, {}, (), (), (-(2**63), 1, 9))),
        (b"d\x00a", b"\x9a" + b"\x91" * 5000),
    ],
)
def test_a_row_that_cannot_be_read_is_refused_and_ends_no_node(key: bytes, value: bytes) -> None:
    made = empty_like(old())
    begin(made)
    refusal = put(made, 0, encode_chunk([b"dx", b"", key, value]))
    assert isinstance(refusal, InvalidRequest), refusal
    assert b"dx" not in dict(rows_of(made)), "no row of the chunk is stored"
    assert put(made, 0, encode_chunk([b"dx", b""]))["next_chunk"] == 1


@pytest.mark.parametrize("at", [1, 2, 3, 4])
@pytest.mark.parametrize("number", [-1, 2**48, None])
def test_state_with_exhausted_counters_is_refused(at: int, number: int | None) -> None:
    bench = old()
    bench.append("a")
    found = dict(rows_of(bench))
    state = rows.unpack(found[rows.STATE_KEY])
    state[at] = number
    found[rows.STATE_KEY] = rows.pack(*state)
    made = empty_like(bench)
    begin(made)
    put(made, 0, encode_chunk([part for row in found.items() for part in row]))
    assert isinstance(end(made, 1), Conflict)
    assert made.machine.is_closed


def test_rows_of_another_kind_or_partition_are_refused() -> None:
    source = old()
    source.open()
    made = empty_like(source, ordering="key")
    chunks = chunks_of(rows_of(source))
    begin(made)
    for number, chunk in enumerate(chunks):
        put(made, number, chunk)
    refusal = end(made, len(chunks))
    assert isinstance(refusal, Conflict) and "ordering" in refusal.message


def test_settings_of_now_count_rather_than_those_of_the_backup() -> None:
    bench = old(max_attempts=1)
    bench.open()
    bench.append("a")
    made = empty_like(bench, max_attempts=5)
    begin(made)
    chunks = chunks_of(rows_of(bench))
    for number, chunk in enumerate(chunks):
        put(made, number, chunk)
    end(made, len(chunks))
    open_up(made)
    assert made.machine.settings["max_attempts"] == 5 and RESTORING not in made.machine.settings


def test_restored_outbox_uses_the_new_topic_numbers() -> None:
    letter = rows.OUTBOX + (3).to_bytes(4, "big") + (1).to_bytes(2, "big") + (9).to_bytes(8, "big")
    gone = rows.OUTBOX_BATCH + (4).to_bytes(4, "big") + (1).to_bytes(2, "big")
    dead = rows.pack(1, 0, None, 5, b"i", 5, {}, (), (), (3, 1, 9))
    plain = rows.pack(1, 0, None, 5, b"i", 5, {}, (), (), "refused")
    of_partition = rows.PRODUCER + (RESERVED_PRODUCERS + 5).to_bytes(8, "big")
    made = empty_like(old())
    begin(made, targets=[(3, 8)])
    data = [letter, b"1", gone, b"2", b"d\x00a", dead, b"d\x00b", plain, of_partition, b"3", STATE_OF_BACKUP, b"4"]
    assert put(made, 0, encode_chunk(data))["rows"] == 4
    found = dict(rows_of(made))
    assert rows.OUTBOX + (8).to_bytes(4, "big") + letter[5:] in found and letter not in found
    assert rows.OUTBOX_BATCH + (0xFFFF_FFFF - 4).to_bytes(4, "big") + gone[5:] in found
    assert rows.unpack(found[b"d\x00a"])[9] == [8, 1, 9] and found[b"d\x00b"] == plain
    assert of_partition not in found and STATE_OF_BACKUP not in found


def test_restored_schedules_keep_their_next_time() -> None:
    bench = old()
    item = ["tick", {"every_ms": 60_000}, {0: b"v"}, 0, None, T + 60_000, T + 60_000, False]
    (result,) = bench.apply(0, c.PutSchedules([item]))[0]
    assert not isinstance(result, Exception), result
    made = restored(bench, LATE)
    status = made.machine.status(made.view)
    assert (status.schedules, status.schedule_ms) == (1, T + 60_000), "the leader applies the misfire policy"


@pytest.mark.parametrize("data", [b"", b"\x91\xc4\x01a", b"\x92\xa1a\xa1b", b"\x92\xc4\x00\xc4\x01b", b"\x80", b"\xc1"])
def test_invalid_chunk_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidRequest):
        decode_chunk(data)


def test_a_chunk_has_a_limit() -> None:
    with pytest.raises(InvalidRequest, match="limit"):
        decode_chunk(bytes(CHUNK_BYTES + 1))


def restored_and_restarted(bench: Bench, at: int) -> tuple[Bench, Bench]:
    """A restored partition has the same state before and after a restart."""
    one, other = restored(bench, at), restored(bench, at)
    other.restart()
    return resumed(one, at), resumed(other, at)


def test_messages_of_a_key_keep_their_order() -> None:
    bench = old(ordering="key")
    bench.open()
    first, second = (bench.put(text, key="a", due=0) for text in "12")
    other = bench.put("3", key="b", due=0)
    assert [base for lease in bench.lease() for base, _ in lease.ranges] == [first, other]
    for made in restored_and_restarted(bench, LATE):
        leases = made.lease(at=LATE, consumer="new")
        assert sorted(base for lease in leases for base, _ in lease.ranges) == sorted([first, other])
        assert made.lease(at=LATE) == []
        for lease in leases:
            made.ack(lease.token, at=LATE)
        assert [base for lease in made.lease(at=LATE) for base, _ in lease.ranges] == [second]


@pytest.mark.parametrize("kind", ["priority", "fair"])
def test_restored_priorities_and_tenants_keep_their_turns(kind: str) -> None:
    bench = RankedBench(kind)
    bench.open()
    for number in range(6):
        bench.add(f"{number}", due=[0], priority=number % 3, tenant=f"t{number % 2}" if kind == "fair" else None)
    held = bench.lease(2)
    bench.nack(held[0].token, delay=1000, at=1)
    one, other = restored_and_restarted(bench, LATE)
    assert isinstance(one, RankedBench)
    found = [[base for lease in made.lease(at=LATE) for base, _ in lease.ranges] for made in (one, other)]
    assert found[0] == found[1] and len(found[0]) == 6


def test_an_updated_and_a_moved_message_are_as_they_were_changed_last() -> None:
    bench = old()
    offset = stored(bench, "a", LATE + 1000)
    (moved,) = bench.apply(10, c.Move([(by_id(offset), T + LATE + 5000, False)]))[0]
    for made in restored_and_restarted(bench, LATE):
        made.open(at=LATE)
        assert values(made, LATE + 1000) == []
        assert len(values(made, LATE + 5000)) == 1, moved
