"""One suite over every implementation of the `Files` port."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sandq.model.errors import DataDirInUse
from sandq.storage.files import Files, RealFiles
from sandq.storage.memory_files import MemoryFiles
from tests.support.storage.faulty_files import FaultyFiles, Plan

IMPLEMENTATIONS: dict[str, Callable[[Path], Files]] = {
    "real": RealFiles,
    "memory": lambda path: MemoryFiles(),
    "faulty over memory": lambda path: FaultyFiles(MemoryFiles(), Plan()),
    "faulty over real": lambda path: FaultyFiles(RealFiles(path), Plan()),
}


@pytest.fixture(params=IMPLEMENTATIONS)
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Files:
    return IMPLEMENTATIONS[request.param](tmp_path / "root")


def test_a_created_file_is_full_of_zeros(files: Files) -> None:
    file = files.open("a", create_bytes=3_000_001)
    assert file.size() == 3_000_001
    assert file.read_at(2_999_990, 100) == bytes(11)
    assert files.read("a") == bytes(3_000_001)
    file.close()


def test_bytes_are_read_where_they_were_written(files: Files) -> None:
    file = files.open("a", create_bytes=10)
    file.write_at(2, b"abc")
    file.write_at(4, memoryview(b"XYZ"))
    file.write_at(12, bytearray(b"!"))
    file.sync()
    assert file.read_at(0, 100) == b"\0\0abXYZ\0\0\0\0\0!"
    assert file.read_at(5, 2) == b"YZ"
    assert file.read_at(50, 2) == b""
    assert file.size() == 13
    file.close()
    again = files.open("a")
    assert again.read_at(2, 5) == b"abXYZ"
    again.close()


def test_two_handles_see_the_same_file(files: Files) -> None:
    one = files.open("a", create_bytes=4)
    two = files.open("a")
    one.write_at(0, b"1234")
    assert two.read_at(0, 4) == b"1234"
    one.close()
    two.close()


def test_a_file_of_no_bytes(files: Files) -> None:
    files.open("a", create_bytes=0).close()
    assert files.read("a") == b""


def test_an_existing_name_is_not_created_again(files: Files) -> None:
    files.open("a", create_bytes=1).close()
    with pytest.raises(FileExistsError):
        files.open("a", create_bytes=1)


@pytest.mark.parametrize("use", ["open", "read", "remove"])
def test_a_missing_name(files: Files, use: str) -> None:
    with pytest.raises(FileNotFoundError):
        getattr(files, use)("nothing")


def test_a_missing_directory(files: Files) -> None:
    for use in (
        lambda: files.open("d/a", create_bytes=1),
        lambda: files.replace("d/a", b""),
        lambda: files.list("d"),
    ):
        with pytest.raises(FileNotFoundError):
            use()


def test_replace_makes_and_overwrites(files: Files) -> None:
    files.replace("a", b"first, and longer")
    assert files.read("a") == b"first, and longer"
    files.replace("a", b"second")
    assert files.read("a") == b"second"
    assert files.list("") == ["a"]


def test_directories(files: Files) -> None:
    files.make_dir("x/y")
    files.make_dir("x/y")
    files.make_dir("x")
    files.replace("x/b", b"")
    files.replace("x/y/a", b"")
    assert files.list("") == ["x"]
    assert files.list("x") == ["b", "y"]
    assert files.list("x/y") == ["a"]
    assert files.exists("x/y") and files.exists("x/b") and not files.exists("x/c")
    files.sync_dir("x/y")


def test_remove(files: Files) -> None:
    files.replace("a", b"1")
    files.replace("b", b"2")
    files.remove("a")
    assert files.list("") == ["b"]
    assert not files.exists("a")


def test_lock_is_exclusive(files: Files) -> None:
    lock = files.lock("LOCK")
    with pytest.raises(DataDirInUse, match="LOCK"):
        files.lock("LOCK")
    lock.close()
    files.lock("LOCK").close()


def test_free_space_is_reported(files: Files) -> None:
    assert files.free_bytes() > 0
