"""Tests of the write-ahead log: commit batches, segments, their release, and disk failures."""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgpack
import pytest
from google_crc32c import value

from sandq.model.errors import Corruption, StorageFailed
from sandq.storage.files import Files
from sandq.storage.memory_files import Crashed, MemoryFiles
from sandq.storage.wal import Kind, Record, RecoveredGroup, Wal, WalFull
from sandq.storage.wal_format import (
    PART_BYTES,
    Reader,
    SegmentHeader,
    decode_segment_header,
    encode_batch,
    encode_parts,
    segment_number,
)
from tests.support.storage.faulty_files import FaultyFiles, Plan

SEGMENT = 4096
MEMBERS: bytes = msgpack.packb([["n1#1"], []])


def entry(index: int, *, group: int = 7, term: int = 1, size: int = 100) -> Record:
    return (Kind.ENTRY, group, index, term, bytes([index % 256]) * size)


def entries(first: int, last: int, **options: int) -> list[Record]:
    return [entry(index, **options) for index in range(first, last + 1)]


def base(index: int, *, group: int = 7, term: int = 1) -> Record:
    return (Kind.BASE, group, index, term, MEMBERS)


def opened(files: Files, *known: int) -> tuple[Wal, dict[int, RecoveredGroup]]:
    return Wal.open(files, segment_bytes=SEGMENT, known_groups=lambda group: not known or group in known)


def log(files: Files, *batches: Sequence[Record]) -> Wal:
    wal, _ = opened(files)
    for records in batches:
        wal.commit(records)
    return wal


def indices(group: RecoveredGroup) -> list[int]:
    return [index for _, index, _ in group.entries]


def batch_numbers(files: MemoryFiles) -> list[int]:
    """Return the batch numbers of all records in all segments, in order."""
    numbers = []
    for name in files.list("wal"):
        data = files.read(f"wal/{name}")
        header = decode_segment_header(data, segment_number(name) or 0)
        assert isinstance(header, SegmentHeader)
        reader = Reader(data, header)
        numbers += [reader.last_batch for _ in reader]
    return numbers


@pytest.mark.parametrize(
    "sizes", [[], [0], [PART_BYTES], [5, PART_BYTES + 3, 7], [PART_BYTES // 3] * 8, [PART_BYTES] * 3]
)
def test_commit_batch_is_written_in_parts_without_copies_of_large_entries(sizes: list[int]) -> None:
    records = [entry(index, size=size) for index, size in enumerate(sizes)]
    parts = [*encode_parts(1, 64, 9, records)]
    assert b"".join(parts) == encode_batch(1, 64, 9, records)
    large = [record[4] for record in records if len(record[4]) >= PART_BYTES]
    assert [part for part in parts if any(part is payload for payload in large)] == large
    assert all(len(part) < 2 * PART_BYTES for part in parts if not any(part is payload for payload in large))


def test_commit_batch_of_many_parts_is_recovered() -> None:
    files = MemoryFiles()
    wal, _ = Wal.open(files, segment_bytes=4 * PART_BYTES, known_groups=lambda group: True)
    records = [entry(index, size=size) for index, size in enumerate([10, PART_BYTES, PART_BYTES // 2, 20], 1)]
    wal.commit([base(1), *records])
    _, groups = Wal.open(files.kill(), segment_bytes=4 * PART_BYTES, known_groups=lambda group: True)
    assert [payload for payload, _, _ in groups[7].entries] == [record[4] for record in records]


# Recovery


def test_a_new_log_holds_nothing() -> None:
    files = MemoryFiles()
    wal, groups = opened(files)
    assert groups == {} and not wal.sealed and wal.bytes_on_disk == SEGMENT
    assert files.list("wal") == ["0000000001.wal"]


def test_a_group_is_found_as_it_was_written() -> None:
    files = MemoryFiles()
    vote: Record = (Kind.HARD_STATE, 7, 0, 3, msgpack.packb("n2#1"))
    log(
        files, [vote, (Kind.BASE, 7, 5, 2, msgpack.packb([["n1#1", "n2#1"], ["n3#2"]])), *entries(5, 6, term=3, size=2)]
    )
    _, groups = opened(files.kill())
    assert groups == {
        7: RecoveredGroup(
            term=3,
            voted_for="n2#1",
            base_index=5,
            base_term=2,
            voters=["n1#1", "n2#1"],
            learners=["n3#2"],
            entries=[(b"\5\5", 5, 3), (b"\6\6", 6, 3)],
        )
    }


def test_groups_that_are_not_known_are_dropped() -> None:
    files = MemoryFiles()
    log(files, entries(1, 3), entries(1, 2, group=8))
    wal, groups = opened(files.kill(), 8)
    assert list(groups) == [8]
    wal.commit([entry(3, group=8), entry(1, group=7)])  # the group number may be reused with a new log


@pytest.mark.parametrize(
    ("records", "found"),
    [
        ([entry(4, term=2)], [1, 2, 3, 4]),
        ([(Kind.TRUNCATE, 7, 5, 0, b"")], [1, 2, 3, 4]),
        ([(Kind.TRUNCATE, 7, 1, 0, b"")], []),
        ([(Kind.TRUNCATE, 7, 99, 0, b"")], [1, 2, 3, 4, 5, 6]),
        ([base(4)], [4, 5, 6]),
        ([base(7)], []),
        ([base(9), entry(9)], [9]),
        ([base(4), (Kind.TRUNCATE, 7, 2, 0, b""), entry(4)], [4]),
        ([base(4), base(2), entry(2)], [2]),
        ([base(4), (Kind.TRUNCATE, 7, 0, 0, b""), entry(1)], [1]),
        ([(Kind.COPY, 7, 2, 1, b"\2" * 100)], [1, 2, 3, 4, 5, 6]),
    ],
)
def test_record_kinds_have_their_effect(records: list[Record], found: list[int]) -> None:
    """The writer continues where the reader ends, in one process and after a restart."""
    files = MemoryFiles()
    wal = log(files, entries(1, 6), records)
    _, groups = opened(files.kill())
    assert indices(groups[7]) == found
    following = groups[7].base_index + len(found)
    wal.commit([entry(following)])
    _, groups = opened(files.kill())
    assert indices(groups[7]) == [*found, following]


def test_truncating_everything_keeps_the_vote() -> None:
    files = MemoryFiles()
    log(files, [(Kind.HARD_STATE, 7, 0, 4, msgpack.packb("n1#1")), entry(1)], [(Kind.TRUNCATE, 7, 0, 0, b"")])
    _, groups = opened(files.kill())
    assert (groups[7].term, groups[7].voted_for, groups[7].entries) == (4, "n1#1", [])


def test_an_entry_above_the_stored_term_raises_it_for_good() -> None:
    """The prefix of a torn batch may hold an entry without the later hard state."""
    files = MemoryFiles()
    log(files, [(Kind.HARD_STATE, 7, 0, 1, msgpack.packb("n1#1")), entry(1, term=2)])
    files = files.kill()
    wal, groups = opened(files)
    assert (groups[7].term, groups[7].voted_for) == (2, None)
    wal.commit([(Kind.TRUNCATE, 7, 1, 0, b"")])
    _, groups = opened(files.kill())
    assert (groups[7].term, groups[7].voted_for) == (2, None)


@pytest.mark.parametrize(
    "record",
    [
        entry(8),
        entry(0),
        (Kind.COPY, 7, 7, 1, b""),
        (Kind.SEAL, 0, 0, 0, b""),
        (9, 7, 1, 1, b""),
    ],
)
def test_a_record_that_does_not_fit_is_a_bug_and_stops_the_log(record: Record) -> None:
    wal = log(MemoryFiles(), entries(1, 6))
    with pytest.raises(ValueError):
        wal.commit([record])
    with pytest.raises(StorageFailed):
        wal.commit([entry(7)])


def test_a_commit_is_one_sync() -> None:
    syncs: list[str] = []
    files = FaultyFiles(MemoryFiles(), Plan(on_sync=syncs.append))
    wal, _ = opened(files)
    syncs.clear()
    wal.commit(entries(1, 10))
    assert len(syncs) == 1
    wal.commit([])
    assert len(syncs) == 1


def test_bytes_written_are_counted() -> None:
    wal = log(MemoryFiles(), [entry(1)])
    mark = wal.mark
    wal.commit(entries(2, 4))
    assert wal.bytes_since(mark) == 3 * (48 + 100 + 4)


# Segments


def test_commit_batch_that_does_not_fit_starts_the_next_segment() -> None:
    files = MemoryFiles()
    log(files, entries(1, 20), entries(21, 28))
    assert files.list("wal") == ["0000000001.wal", "0000000002.wal"]
    first, second = (files.read(f"wal/{name}") for name in files.list("wal"))
    assert b"\x14" * 100 in first and b"\x15" * 100 not in first
    assert b"\x15" * 100 in second


def test_commit_batch_larger_than_a_segment_gets_its_own() -> None:
    files = MemoryFiles()
    wal = log(files, [entry(1)], [entry(2, size=3 * SEGMENT)], [entry(3)])
    sizes = [files.open(f"wal/{name}").size() for name in files.list("wal")]
    assert sizes[0] == SEGMENT and sizes[1] > 3 * SEGMENT and sizes[2:] == [SEGMENT]
    assert wal.bytes_on_disk == sum(sizes)
    _, groups = opened(files.kill())
    assert indices(groups[7]) == [1, 2, 3]


def test_unneeded_segments_are_removed() -> None:
    files = MemoryFiles()
    wal = log(files, [(Kind.HARD_STATE, 8, 0, 5, msgpack.packb("n3#1"))], *([entry(index)] for index in range(1, 81)))
    before = files.list("wal")
    assert len(before) == 4 and wal.pinned_by() == {7: 3}
    assert wal.release({7: 1, 8: 1}) == 0
    wal.commit([base(40)])
    assert wal.release({7: 40}) == SEGMENT
    assert files.list("wal") == before[1:] and wal.bytes_on_disk == 3 * SEGMENT
    _, groups = opened(files.kill())
    assert indices(groups[7]) == list(range(40, 81))
    assert (groups[8].term, groups[8].voted_for) == (5, "n3#1"), "of the opening of the next segment"


def test_segments_above_the_base_are_not_released() -> None:
    """A caller may know a higher index already than the base that has been written."""
    wal = log(MemoryFiles(), *([entry(index)] for index in range(1, 81)))
    assert wal.release({7: 80}) == 0


def test_a_group_that_is_not_named_needs_nothing() -> None:
    files = MemoryFiles()
    wal = log(files, *([entry(index)] for index in range(1, 81)), [entry(1, group=8)])
    wal.release({8: 1})
    assert len(files.list("wal")) == 1
    _, groups = opened(files.kill(), 8)
    assert indices(groups[8]) == [1]
    with pytest.raises(Corruption, match=r"lacks entries 1\.\.\d+ of group 7"):
        opened(files.kill(), 7, 8)


def test_recovered_group_keeps_its_records_until_it_is_opened() -> None:
    """At a start groups are opened one by one. A checkpoint may come in between."""
    files = MemoryFiles()
    log(files, *([entry(index)] for index in range(1, 81)), [entry(1, group=8)], [entry(1, group=9)])
    wal, _ = opened(files.kill())
    assert wal.release({8: 1}) == 0
    assert wal.release({7: 1, 8: 1}) == 0
    assert wal.release({8: 1}) > 0, "group 9 is in the last segment, and group 7 is released"
    wal, _ = opened(files.kill())
    wal.forget(7)
    assert wal.release({}) > 0


def test_a_copied_tail_lets_old_segments_go() -> None:
    files = MemoryFiles()
    wal = log(files, entries(1, 3), *([entry(index, group=8)] for index in range(1, 81)))
    assert wal.pinned_by() == {7: 3, 8: 3}
    wal.commit([base(80, group=8)])
    wal.commit([(Kind.COPY, 7, index, 1, command) for _, _, index, _, command in entries(1, 3)])
    assert wal.pinned_by() == {}
    assert wal.release({7: 1, 8: 80}) == 3 * SEGMENT
    wal.commit([entry(4)])
    _, groups = opened(files.kill())
    assert indices(groups[7]) == [1, 2, 3, 4] and indices(groups[8]) == [80]


def test_a_tail_copied_in_parts_between_new_entries() -> None:
    """COPY follows later entries and never truncates them."""
    files = MemoryFiles()
    wal = log(files, *([entry(index)] for index in range(1, 61)))
    copies: list[Record] = [(Kind.COPY, *record[1:]) for record in entries(1, 60)]
    for at in range(0, 60, 10):
        wal.commit([entry(61 + at // 10), *copies[at : at + 10]])
    before = len(files.list("wal"))
    wal.release({7: 1})
    assert len(files.list("wal")) < before
    _, groups = opened(files.kill())
    assert groups[7].entries == [(command, index, 1) for _, _, index, _, command in entries(1, 66)]


def test_a_forgotten_group_is_void_at_once() -> None:
    files = MemoryFiles()
    wal = log(files, [(Kind.HARD_STATE, 7, 0, 9, msgpack.packb("n1#1")), *entries(1, 5)])
    wal.forget(7)
    wal.forget(7)
    _, groups = opened(files.crash(random.Random(0)))
    assert groups == {7: RecoveredGroup()}
    wal.commit([base(50), entry(50)])
    _, groups = opened(files.crash(random.Random(0)))
    assert (groups[7].term, indices(groups[7])) == (1, [50])


def test_a_number_that_comes_back_does_not_see_its_earlier_life() -> None:
    files = MemoryFiles()
    log(files, [(Kind.HARD_STATE, 7, 0, 9, msgpack.packb("n1#1")), *entries(1, 50, size=1)])
    files = files.kill()
    wal, _ = opened(files, 8)  # the group was deleted
    wal.commit([base(20), entry(20)])
    _, groups = opened(files.kill())
    assert (groups[7].term, groups[7].voted_for, indices(groups[7])) == (1, None, [20])


def test_a_group_that_ended_in_a_crash_does_not_come_back_with_its_number() -> None:
    """The pointer of the group was deleted, but the log did not record this yet. A new replica that crashes before its
    first batch must be empty."""
    files = MemoryFiles()
    log(files, [(Kind.HARD_STATE, 7, 0, 9, msgpack.packb("n1#1")), *entries(1, 50, size=1)])
    files = files.kill()
    opened(files, 8)  # started once without the group
    files = files.crash(random.Random(0))
    _, groups = opened(files)
    assert groups == {7: RecoveredGroup()}
    before = batch_numbers(files)
    opened(files, 8)
    assert batch_numbers(files) == before, "the end of the group is written once, not at every start"


# Preparing the next segment


def test_a_prepared_segment_is_used() -> None:
    syncs: list[str] = []
    files = FaultyFiles(MemoryFiles(), Plan(on_sync=syncs.append))
    wal = log(files, entries(1, 20))
    assert wal.prepare() and not wal.prepare()
    syncs.clear()
    wal.commit(entries(21, 30))
    assert len(syncs) == 2, "one sync for the opening and one for the batch, and no file is created"
    assert wal.prepare()
    assert files.list("wal") == ["0000000001.wal", "0000000002.wal", "0000000003.wal"]


@pytest.mark.parametrize("size", [0, 10, 4096])
def test_a_segment_that_was_only_prepared_is_no_obstacle(size: int) -> None:
    files = MemoryFiles()
    log(files, entries(1, 3))
    files.open("wal/0000000002.wal", create_bytes=size)
    wal, groups = opened(files.kill())
    assert indices(groups[7]) == [1, 2, 3]
    wal.commit(entries(4, 40))


def test_a_prepared_segment_that_is_too_small_is_made_again() -> None:
    files = MemoryFiles()
    wal = log(files, [entry(1)])
    wal.prepare()
    wal.commit([entry(2, size=3 * SEGMENT)])
    _, groups = opened(files.kill())
    assert indices(groups[7]) == [1, 2]


def test_a_failed_preparation_is_met_by_the_commit_that_needs_it() -> None:
    plan = Plan()
    wal = log(FaultyFiles(MemoryFiles(), plan), entries(1, 20))
    plan.full = True
    with pytest.raises(StorageFailed, match="ENOSPC"):
        wal.prepare()
    wal.commit([entry(21)])
    plan.full = False
    wal.commit(entries(22, 40))


# When the disk fails


def test_a_full_disk_is_named_and_the_same_may_be_tried_again() -> None:
    plan = Plan()
    inner = MemoryFiles()
    wal = log(FaultyFiles(inner, plan), entries(1, 20))
    before = inner.kill()
    plan.full = True
    for _ in range(3):
        with pytest.raises(WalFull, match=r"wal/0000000002\.wal.*ENOSPC"):
            wal.commit([(Kind.HARD_STATE, 9, 0, 1, b"born here"), *entries(21, 30)])
    assert wal.segments == 1 and wal.release({7: 1}) == 0
    _, groups = opened(before)
    assert indices(groups[7]) == list(range(1, 21)), "no byte of the batch was written"
    plan.full = False
    wal.commit(entries(21, 30))
    wal.commit(entries(31, 60))
    wal.seal()
    _, groups = opened(inner.kill())
    assert indices(groups[7]) == list(range(1, 61)) and 9 not in groups


def test_a_full_disk_while_a_prepared_segment_is_too_small() -> None:
    plan = Plan()
    inner = MemoryFiles()
    wal = log(FaultyFiles(inner, plan), [entry(1)])
    wal.prepare()
    plan.full = True
    with pytest.raises(WalFull):
        wal.commit([entry(2, size=3 * SEGMENT)])
    plan.full = False
    assert wal.prepare(), "the next segment is created again"
    wal.commit([entry(2, size=3 * SEGMENT)])
    _, groups = opened(inner.kill())
    assert indices(groups[7]) == [1, 2]


def test_a_failed_sync_is_never_tried_again() -> None:
    plan = Plan()
    wal = log(FaultyFiles(MemoryFiles(), plan), [entry(1)])
    plan.fail_sync_at = plan.syncs + 1
    with pytest.raises(StorageFailed, match=r"cannot sync wal/0000000001\.wal.*EIO"):
        wal.commit([entry(2)])
    plan.fail_sync_at = None
    syncs = plan.syncs
    with pytest.raises(StorageFailed, match="EIO"):
        wal.commit([entry(2)])
    assert plan.syncs == syncs


def test_a_failed_write_ends_the_log() -> None:
    plan = Plan()
    wal = log(FaultyFiles(MemoryFiles(), plan), [entry(1)])
    plan.fail_writes = True
    with pytest.raises(StorageFailed, match="cannot write"):
        wal.commit([entry(2)])
    plan.fail_writes = False
    with pytest.raises(StorageFailed):
        wal.commit([entry(2)])


# Stopping, and damage


def test_a_clean_stop_is_remembered_until_the_next_write() -> None:
    files = MemoryFiles()
    log(files, entries(1, 3)).seal()
    wal, groups = opened(files)
    assert wal.sealed and indices(groups[7]) == [1, 2, 3]
    wal.commit([entry(4)])
    wal, groups = opened(files.kill())
    assert not wal.sealed and indices(groups[7]) == [1, 2, 3, 4]


def test_a_sealed_log_takes_nothing_more() -> None:
    wal = log(MemoryFiles(), [entry(1)])
    wal.seal()
    with pytest.raises(StorageFailed, match="sealed"):
        wal.commit([entry(2)])


def damaged(files: MemoryFiles, needle: bytes, name: str = "wal/0000000001.wal") -> int:
    """Flip a bit at the position of `needle`. Return the offset."""
    at = files.read(name).index(needle)
    files.open(name).write_at(at, bytes([needle[0] ^ 1]))
    return at


def test_a_torn_end_is_cut_and_filled_with_zeros() -> None:
    files = MemoryFiles()
    log(files, entries(1, 3), entries(4, 9))
    files = files.kill()
    damaged(files, b"\6" * 100)
    wal, groups = opened(files)
    assert indices(groups[7]) == [1, 2, 3, 4, 5]
    assert wal.cut_bytes == 4 * (48 + 100 + 4) and not wal.sealed
    assert b"\7" * 100 not in files.read("wal/0000000001.wal")


@pytest.mark.parametrize("behind", ["a batch", "a seal", "a segment"])
def test_damage_before_other_records_is_refused(behind: str) -> None:
    files = MemoryFiles()
    wal = log(files, entries(1, 3), entries(4, 9))
    if behind == "a batch":
        wal.commit([entry(10)])
    elif behind == "a seal":
        wal.seal()
    else:
        wal.commit([entry(10, size=SEGMENT)])
    files = files.kill()
    at = damaged(files, b"\6" * 100) - 48
    with pytest.raises(Corruption, match=rf"wal/0000000001\.wal is damaged at byte {at}") as caught:
        opened(files)
    assert caught.value.details == {"file": "wal/0000000001.wal", "offset": at}


def test_last_record_of_the_previous_batch_is_not_torn() -> None:
    """The header of the damaged record is lost. Only the start of the next batch shows the damage."""
    files = MemoryFiles()
    log(files, entries(1, 3), entries(4, 6))
    files = files.kill()
    at = files.read("wal/0000000001.wal").index(b"\3" * 100) - 48
    files.open("wal/0000000001.wal").write_at(at, bytes(48))
    with pytest.raises(Corruption, match=f"byte {at}"):
        opened(files)


def test_first_record_of_the_last_batch_may_be_torn() -> None:
    files = MemoryFiles()
    log(files, entries(1, 3), entries(4, 6))
    files = files.kill()
    at = files.read("wal/0000000001.wal").index(b"\4" * 100) - 48
    files.open("wal/0000000001.wal").write_at(at, bytes(48))
    _, groups = opened(files)
    assert indices(groups[7]) == [1, 2, 3]


def test_a_log_inside_a_payload_is_not_taken_for_records() -> None:
    """The payload of a torn batch contains copies of a batch that is valid at a later offset of the same segment."""
    files = MemoryFiles()
    log(files, [entry(1)])
    files = files.kill()
    later = encode_batch(1, 2048, 99, [entry(2)])
    wal, _ = opened(files)
    wal.commit([(Kind.ENTRY, 7, 2, 1, later * 3)])
    files = files.kill()
    at = files.read("wal/0000000001.wal").index(later)
    files.open("wal/0000000001.wal").write_at(at - 4, b"torn")
    _, groups = opened(files)
    assert indices(groups[7]) == [1]


@pytest.mark.parametrize("seed", range(20))
def test_batch_number_is_never_reused(seed: int) -> None:
    """The number of a batch that was lost completely is not reused either."""
    rng = random.Random(seed)
    files = MemoryFiles()
    used = 0
    for _ in range(10):
        wal, groups = opened(files)
        last = indices(groups[7])[-1] if groups and groups[7].entries else 0
        wal.commit([entry(last + 1)])
        assert batch_numbers(files)[-1] > used, f"seed {seed}"
        files.crash_after(rng.randint(1, 6), inside=bool(rng.randrange(2)))
        with pytest.raises(Crashed):
            while True:
                last += 1
                wal.commit([entry(last + 1)])
        used = wal._pass
        files = files.crash(rng)


@pytest.mark.parametrize("name", ["0000000001.wal", "0000000002.wal"])
def test_a_missing_segment_is_named(name: str) -> None:
    files = MemoryFiles()
    log(files, *([entry(index)] for index in range(1, 81)))
    files.remove(f"wal/{name}")
    with pytest.raises(Corruption, match=name if name != "0000000001.wal" else "lacks entries 1"):
        opened(files.kill())


def test_other_files_in_the_directory_are_ignored() -> None:
    files = MemoryFiles()
    log(files, entries(1, 3))
    files.replace("wal/notes.txt", b"WREC")
    files.replace("wal/1.wal", b"SANDQWAL")
    _, groups = opened(files.kill())
    assert indices(groups[7]) == [1, 2, 3]


def test_a_log_of_a_later_version_is_refused() -> None:
    files = MemoryFiles()
    log(files, entries(1, 3), entries(4, 5))
    data = bytearray(files.read("wal/0000000001.wal"))
    data[8] = 2
    data[12:16] = int(value(bytes(data[:12] + data[16:64]))).to_bytes(4, "little")
    files.open("wal/0000000001.wal").write_at(0, data)
    with pytest.raises(Corruption, match="version 2 is not known"):
        opened(files.kill())


def test_a_segment_cut_short_is_refused() -> None:
    files = MemoryFiles()
    log(files, entries(1, 3))
    short = MemoryFiles()
    short.make_dir("wal")
    short.open("wal/0000000001.wal", create_bytes=2048).write_at(0, files.read("wal/0000000001.wal")[:2048])
    with pytest.raises(Corruption, match=r"at byte 2048: the file had 4096 bytes"):
        opened(short)


@pytest.mark.parametrize("offset", [0, 8, 17, 40])
def test_damaged_header_is_refused_even_over_a_single_batch(offset: int) -> None:
    files = MemoryFiles()
    log(files, entries(1, 3))
    files.open("wal/0000000001.wal").write_at(offset, b"\xff")
    with pytest.raises(Corruption, match=r"0000000001\.wal is damaged at byte 0"):
        opened(files.kill())


def test_only_segment_with_empty_content_is_refused() -> None:
    files = MemoryFiles()
    wal = log(files, *([entry(index)] for index in range(1, 81)), [base(80)])
    wal.release({7: 80})
    (name,) = files.list("wal")
    files.open(f"wal/{name}").write_at(0, bytes(SEGMENT))
    with pytest.raises(Corruption, match=name):
        opened(files.kill())


def test_a_directory_in_use_does_not_lose_its_log() -> None:
    def use(files: MemoryFiles) -> None:
        Wal.open(files, segment_bytes=SEGMENT, known_groups=lambda group: True, create=False)

    files = MemoryFiles()
    with pytest.raises(Corruption, match="wal is missing"):
        use(files)
    files.make_dir("wal")
    with pytest.raises(Corruption, match="holds no whole segment"):
        use(files)
    files.open("wal/0000000001.wal", create_bytes=SEGMENT)
    with pytest.raises(Corruption, match="holds no whole segment"):
        use(files)
    log(files, [entry(1)])
    use(files)


def end_of_records(files: MemoryFiles, number: int = 1) -> int:
    data = files.read(f"wal/{number:010}.wal")
    header = decode_segment_header(data, number)
    assert isinstance(header, SegmentHeader)
    reader = Reader(data, header)
    list(reader)
    return reader.end


@pytest.mark.parametrize(("batch_number", "moved"), [(1, 0), (3, 0), (99, 64)])
def test_records_left_over_from_an_earlier_batch_are_ignored(batch_number: int, moved: int) -> None:
    """A torn commit batch left a record exactly where the next record is written.

    The other record claims that its batch began elsewhere.
    """
    files = MemoryFiles()
    log(files, [entry(1)], [entry(2)])
    files = files.kill()
    end = end_of_records(files)
    stale = encode_batch(1, end - moved, batch_number, [entry(9, size=8), entry(3)])[moved:]
    files.open("wal/0000000001.wal").write_at(end, stale)
    wal, groups = opened(files)
    assert indices(groups[7]) == [1, 2] and wal.cut_bytes == len(stale)
    wal.commit([entry(3)])
    assert batch_numbers(files)[-1] > batch_number
    _, groups = opened(files.kill())
    assert indices(groups[7]) == [1, 2, 3]


def test_truncated_opening_has_the_end_of_the_previous_segment() -> None:
    files = MemoryFiles()
    log(files, entries(1, 3), entries(4, 9), [entry(10, size=SEGMENT)])
    files = files.kill()
    second = files.open("wal/0000000002.wal")
    second.write_at(100, bytes(second.size() - 100))
    torn = files.kill()
    _, groups = opened(torn)
    assert indices(groups[7]) == list(range(1, 10)), "the second segment was being created"
    assert torn.list("wal") == ["0000000001.wal"]
    at = damaged(files, b"\6" * 100) - 48
    with pytest.raises(Corruption, match=rf"0000000001\.wal is damaged at byte {at}"):
        opened(files)


def test_segment_opened_by_an_old_batch_is_refused() -> None:
    files = MemoryFiles()
    log(files, entries(1, 3))
    end = end_of_records(files)
    opening = encode_batch(2, 64, 1, [base(4)])
    header = SegmentHeader(2, end, 64 + len(opening), 1, SEGMENT)
    files.open("wal/0000000002.wal", create_bytes=SEGMENT).write_at(0, header.encode() + opening)
    with pytest.raises(Corruption, match=r"0000000002\.wal.* opened by batch 1 behind batch"):
        opened(files.kill())


def test_a_kind_of_a_later_version_is_refused() -> None:
    files = MemoryFiles()
    log(files, entries(1, 3))
    files = files.kill()
    end = end_of_records(files)
    files.open("wal/0000000001.wal").write_at(end, encode_batch(1, end, 50, [(77, 7, 4, 1, b"?")]))
    with pytest.raises(Corruption, match="kind 77"):
        opened(files)
