"""Tests of locks in forked processes, and of the process id in a lock."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sandq.model.errors import DataDirInUse
from sandq.storage.files import flock


def test_refusal_names_the_process_that_holds_the_lock(tmp_path: Path) -> None:
    lock = flock(tmp_path / "lock")
    with pytest.raises(DataDirInUse, match=f"this process \\(pid {os.getpid()}\\) uses the data directory") as refused:
        flock(tmp_path / "lock")
    assert refused.value.details["pid"] == os.getpid()
    lock.close()
    flock(tmp_path / "lock").close()


@pytest.mark.parametrize("content", [b"", b"no number\n", b"1" * 1000])
def test_lock_without_a_process_id_is_refused_as_well(tmp_path: Path, content: bytes) -> None:
    lock = flock(tmp_path / "lock")
    (tmp_path / "lock").write_bytes(content)
    with pytest.raises(DataDirInUse, match="another process"):
        flock(tmp_path / "lock")
    lock.close()


def test_forked_child_does_not_hold_the_lock(tmp_path: Path) -> None:
    lock = flock(tmp_path / "lock")
    from_child, to_parent = os.pipe()
    from_parent, to_child = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(to_child)
        os.write(to_parent, b"x")
        os.read(from_parent, 1)
        os._exit(0)
    os.read(from_child, 1)
    with pytest.raises(DataDirInUse):  # the parent has it still
        flock(tmp_path / "lock")
    lock.close()
    flock(tmp_path / "lock").close()
    os.close(to_child)
    os.waitpid(child, 0)
    for descriptor in (from_child, to_parent, from_parent):
        os.close(descriptor)


def test_kept_lock_is_held_after_it_is_closed(tmp_path: Path) -> None:
    lock = flock(tmp_path / "lock")
    descriptor = lock._descriptor
    lock.keep()
    lock.close()
    with pytest.raises(DataDirInUse):
        flock(tmp_path / "lock")
    os.close(descriptor)
