"""Tests of the faults of a plan."""

from __future__ import annotations

import errno

import pytest

from sandq.model.errors import StorageFailed
from sandq.storage.files import may_have_happened
from sandq.storage.memory_files import MemoryFiles
from tests.support.storage.faulty_files import FaultyFiles, Plan


def test_full_disk_accepts_only_the_bytes_that_fit() -> None:
    plan = Plan(budget_bytes=10)
    files = FaultyFiles(MemoryFiles(), plan)
    file = files.open("a", create_bytes=4)
    assert files.free_bytes() == 6
    with pytest.raises(StorageFailed, match="ENOSPC") as caught:
        file.write_at(2, b"123456789")
    assert caught.value.details == {"operation": "write", "file": "a", "errno": "ENOSPC"}
    assert files.read("a") == b"\0\x0012345678"
    file.write_at(0, b"ab")  # existing blocks of the file need no space
    with pytest.raises(StorageFailed, match="ENOSPC"):
        files.replace("b", b"1")
    with pytest.raises(StorageFailed, match="ENOSPC"):
        files.open("c", create_bytes=1)
    assert files.list("") == ["a"]


def test_full_flag_makes_writes_fail_until_cleared() -> None:
    plan = Plan()
    files = FaultyFiles(MemoryFiles(), plan)
    plan.full = True
    assert files.free_bytes() == 0
    with pytest.raises(StorageFailed, match="ENOSPC"):
        files.replace("a", b"1")
    plan.full = False
    files.replace("a", b"1")


def test_syncs_fail_from_the_nth_on() -> None:
    plan = Plan(fail_sync_at=3)
    files = FaultyFiles(MemoryFiles(), plan)
    file = files.open("a", create_bytes=4)
    file.sync()
    for use in (file.sync, file.sync, lambda: files.replace("b", b""), lambda: files.sync_dir("")):
        with pytest.raises(StorageFailed, match="EIO"):
            use()


@pytest.mark.parametrize(("nth", "content", "unsure"), [(2, b"old", False), (3, b"new", True)])
def test_a_replacement_may_have_happened(nth: int, content: bytes, unsure: bool) -> None:
    """As on a real disk, first the file is synced, then its directory."""
    plan = Plan(fail_sync_at=nth + 1)
    files = FaultyFiles(MemoryFiles(), plan)
    files.replace("a", b"old")
    with pytest.raises(StorageFailed, match="EIO") as caught:
        files.replace("a", b"new")
    assert files.read("a") == content
    assert may_have_happened(caught.value) == unsure


def test_writes_fail() -> None:
    plan = Plan()
    file = FaultyFiles(MemoryFiles(), plan).open("a", create_bytes=4)
    plan.fail_writes, plan.write_errno = True, errno.EROFS
    with pytest.raises(StorageFailed, match="EROFS"):
        file.write_at(0, b"1")


def test_bits_are_flipped_on_read_only() -> None:
    plan = Plan()
    inner = MemoryFiles()
    files = FaultyFiles(inner, plan)
    files.replace("a", b"\0\0\0")
    plan.flips["a"] = {0, 15, 999}
    assert files.read("a") == b"\x01\x80\0"
    assert files.open("a").read_at(1, 2) == b"\x80\0"
    assert inner.read("a") == b"\0\0\0"


def test_each_sync_is_seen() -> None:
    seen: list[str] = []
    files = FaultyFiles(MemoryFiles(), Plan(on_sync=seen.append))
    files.open("a", create_bytes=1).sync()
    files.replace("b", b"")
    files.remove("a")
    files.sync_dir("")
    assert seen == ["a", "a", "b", "", "a", ""]
