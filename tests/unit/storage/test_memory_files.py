"""Tests of the in-memory files: lost and kept files after a crash."""

from __future__ import annotations

import random

import pytest

from sandq.storage.memory_files import SECTOR_BYTES, Crashed, MemoryFiles

SIZE = 8 * SECTOR_BYTES


def written() -> MemoryFiles:
    files = MemoryFiles()
    file = files.open("a", create_bytes=SIZE)
    file.write_at(0, b"1" * SIZE)
    file.sync()
    file.write_at(100, b"2" * (SIZE - 200))
    return files


def test_synced_data_survives_and_other_sectors_in_any_combination() -> None:
    seen = set()
    for seed in range(300):
        content = written().crash(random.Random(seed)).read("a")
        assert len(content) == SIZE and set(content) <= set(b"12")
        assert content[:100] + content[-100:] == b"1" * 200
        seen.add(bytes(content[SECTOR_BYTES - 1 :: SECTOR_BYTES]))
        for sector in range(1, 7):
            assert len(set(content[sector * SECTOR_BYTES : (sector + 1) * SECTOR_BYTES])) == 1, "torn in a sector"
    assert b"1" * 8 in seen, "lost"
    assert b"2" * 7 + b"1" in seen, "survived"
    assert len(seen) > 60, "torn"


def test_a_later_write_may_survive_an_earlier_one() -> None:
    def once(seed: int) -> bytes:
        files = MemoryFiles()
        file = files.open("a", create_bytes=2)
        file.write_at(0, b"1")
        file.write_at(1, b"2")
        return files.crash(random.Random(seed)).read("a")

    assert {once(seed) for seed in range(100)} == {b"\0\0", b"1\0", b"\x002", b"12"}


def test_a_dead_process_loses_nothing_but_its_writes_are_still_unsynced() -> None:
    files = written().kill()
    assert files.read("a")[100:-100] == b"2" * (SIZE - 200)
    assert {len(set(files.crash(random.Random(seed)).read("a"))) for seed in range(50)} == {1, 2}


def test_data_of_a_failed_sync_is_visible_but_not_durable() -> None:
    files = written()
    file = files.open("a")
    file.forget_unsynced()
    file.sync()
    assert b"2" in files.read("a")
    assert all(files.crash(random.Random(seed)).read("a") == b"1" * SIZE for seed in range(20))
    file.write_at(100, b"2")
    file.sync()
    assert files.crash(random.Random(0)).read("a")[100:102] == b"21"


def test_replace_is_all_or_nothing_at_every_operation() -> None:
    seen = set()
    for operation in range(1, 7):
        for inside in (False, True):
            for seed in range(20):
                files = MemoryFiles()
                files.replace("a", b"old")
                files.crash_after(operation, inside=inside)
                try:
                    files.replace("a", b"new")
                except Crashed:
                    seen.add(files.crash(random.Random(seed)).read("a"))
                else:
                    assert operation == 6
                    assert files.crash(random.Random(seed)).read("a") == b"new"
    assert seen == {b"old", b"new"}


def test_a_name_may_be_lost_before_its_directory_is_synced() -> None:
    found = set()
    for operation in range(1, 5):
        for seed in range(20):
            files = MemoryFiles()
            files.crash_after(operation, inside=True)
            with pytest.raises(Crashed):
                files.open("a", create_bytes=4)
            found.add(tuple(files.crash(random.Random(seed)).list("")))
    assert found == {(), ("a",)}


def test_a_removed_file_may_come_back_until_the_directory_is_synced() -> None:
    found = set()
    for seed in range(20):
        files = MemoryFiles()
        files.replace("a", b"1")
        files.crash_after(1, inside=True)
        with pytest.raises(Crashed):
            files.remove("a")
        found.add(files.crash(random.Random(seed)).exists("a"))
    assert found == {False, True}


def test_after_a_crash_nothing_works_any_more() -> None:
    files = MemoryFiles()
    file = files.open("a", create_bytes=4)
    files.crash_after(2)
    file.write_at(0, b"1")
    with pytest.raises(Crashed):
        file.write_at(1, b"2")
    for use in (file.sync, file.size, lambda: file.read_at(0, 1), lambda: files.read("a"), lambda: files.list("")):
        with pytest.raises(Crashed):
            use()
    assert not isinstance(Crashed(), Exception)


def test_a_crash_is_replayed_from_its_seed() -> None:
    assert written().crash(random.Random(7)).read("a") == written().crash(random.Random(7)).read("a")
