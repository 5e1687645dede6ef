"""Tests of the real disk: errors of the operating system, locks of other processes."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sandq.model.errors import DataDirInUse, StorageFailed
from sandq.storage.files import RealFiles, may_have_happened
from tests.support.paths import ROOT

HOLD = """
import sys
from sandq.storage.files import RealFiles, may_have_happened
lock = RealFiles(sys.argv[1]).lock("LOCK")
print("held", flush=True)
sys.stdin.read()
"""


def test_a_lock_of_another_process(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        with pytest.raises(DataDirInUse) as caught:
            RealFiles(tmp_path).lock("LOCK")
        assert str(tmp_path) in str(caught.value)
        holder.kill()
    RealFiles(tmp_path).lock("LOCK").close()


def test_an_error_names_operation_file_and_errno(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = RealFiles(tmp_path)
    file = files.open("a", create_bytes=1)

    def full(*arguments: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    monkeypatch.setattr(os, "fdatasync", full)
    path = str(tmp_path / "a")
    with pytest.raises(StorageFailed, match=rf"cannot write {path}: No space left on device \(ENOSPC\)") as caught:
        file.write_at(0, b"x")
    assert caught.value.details == {"operation": "write", "file": path, "errno": "ENOSPC"}
    with pytest.raises(StorageFailed, match=r"cannot sync .*ENOSPC"):
        file.sync()
    file.close()


def test_a_creation_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = RealFiles(tmp_path)
    files.replace("b", b"old")

    def broken(*arguments: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(StorageFailed, match="EIO"):
        files.open("a", create_bytes=1)
    with pytest.raises(StorageFailed, match="EIO"):
        files.replace("b", b"new")
    monkeypatch.undo()
    assert files.list("") == ["b"]
    assert files.read("b") == b"old"


@pytest.mark.parametrize(("nth", "content", "unsure"), [(1, b"old", False), (2, b"new", True)])
def test_replace_with_failing_sync_reports_the_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nth: int, content: bytes, unsure: bool
) -> None:
    """If the sync of the file fails, nothing changed.

    If the sync of the directory fails, the new file exists but may be lost in a crash.
    """
    files = RealFiles(tmp_path)
    files.replace("a", b"old")
    fsync, syncs = os.fsync, iter(range(1, 3))

    def broken(descriptor: int) -> None:
        if next(syncs) == nth:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(StorageFailed, match="EIO") as caught:
        files.replace("a", b"new")
    assert files.read("a") == content
    assert may_have_happened(caught.value) == unsure


def test_a_write_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pwrite may write fewer bytes than requested."""
    file = RealFiles(tmp_path).open("a", create_bytes=10)
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda descriptor, data, offset: pwrite(descriptor, data[:3], offset))
    file.write_at(1, b"12345678")
    assert file.read_at(0, 10) == b"\x0012345678\0"
    file.close()


def test_created_files_are_private(tmp_path: Path) -> None:
    files = RealFiles(tmp_path / "data")
    files.make_dir("wal/deep")
    files.open("wal/segment", create_bytes=10).close()
    files.replace("pointers", b"x")
    files.lock("lock").close()
    made = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "data").rglob("*")}
    assert made == {"wal": 0o700, "deep": 0o700, "segment": 0o600, "pointers": 0o600, "lock": 0o600}
    assert (tmp_path / "data").stat().st_mode & 0o777 == 0o700


def test_links_are_not_followed(tmp_path: Path) -> None:
    files = RealFiles(tmp_path / "data")
    other = tmp_path / "other"
    other.write_bytes(b"of somebody else")
    (tmp_path / "data" / "pointers.tmp").symlink_to(other)
    files.replace("pointers", b"ours")
    assert files.read("pointers") == b"ours" and files.list("") == ["pointers"]
    (tmp_path / "data" / "lock").symlink_to(other)
    with pytest.raises(StorageFailed, match="cannot open"):
        files.lock("lock")
    with pytest.raises(FileExistsError):
        (tmp_path / "data" / "segment").symlink_to(other)
        files.open("segment", create_bytes=10)
    assert other.read_bytes() == b"of somebody else"
