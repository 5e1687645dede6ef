"""Tests of LevelDB's own behaviour where sandq/storage has a guard, with the installed version.

A failing test means that a guard of level_stores.py or level_check.py may be unnecessary, or is needed for a different
reason. LevelDB 1.22 and 1.23 behave as written here.
"""

from __future__ import annotations

import random
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sandq.storage import leveldb
from sandq.storage.level_check import record_ends

OPTIONS = {"paranoid_checks": True, "write_buffer_size": 16 << 20, "compression": None}


def put(db: leveldb.DB, first: int, last: int) -> None:
    batch = db.write_batch()
    for number in range(first, last):
        batch.put(b"%08d" % number, b"." * 100)
    batch.write()


def made(path: Path, *, rounds: int = 3) -> Path:
    """Make a database with several tables of 1,000 rows and an empty log."""
    db = leveldb.DB(str(path), create_if_missing=True, **OPTIONS)
    for round_ in range(rounds):
        put(db, round_ * 1000, round_ * 1000 + 1000)
        db.compact_range(start=b"", stop=b"")
    db.close()
    return path


def count(path: Path, **options: object) -> int:
    db = leveldb.DB(str(path), **OPTIONS, **options)
    try:
        return sum(1 for _ in db.iterator(include_value=False))
    finally:
        db.close()


def flipped(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)


def test_a_damaged_log_loses_rows_without_an_error(tmp_path: Path) -> None:
    path = tmp_path / "db"
    db = leveldb.DB(str(path), create_if_missing=True, **OPTIONS)
    for number in range(20):
        put(db, number * 100, number * 100 + 100)
    shutil.copytree(path, tmp_path / "copy")
    db.close()
    (log,) = (tmp_path / "copy").glob("*.log")
    content = log.read_bytes()
    log.write_bytes(content[: 64 << 10] + bytes(64 << 10) + content[128 << 10 :])
    db = leveldb.DB(str(tmp_path / "copy"), write_buffer_size=16 << 20, compression=None)
    left = sum(1 for _ in db.iterator(include_value=False))
    db.close()
    assert 0 < left < 2000


def test_a_damaged_length_in_the_manifest_rolls_back_without_an_error(tmp_path: Path) -> None:
    path = made(tmp_path / "db")
    (manifest,) = path.glob("MANIFEST-*")
    ends = list(record_ends(manifest.read_bytes()))
    flipped(manifest, ends[-2] + 5)  # the high byte of the last record's length
    assert 0 < count(path) < 3000


def test_a_missing_current_makes_an_empty_database(tmp_path: Path) -> None:
    path = made(tmp_path / "db")
    (path / "CURRENT").unlink()
    assert count(path, create_if_missing=True) == 0


def test_an_iterator_ends_at_a_damaged_last_block_and_a_raw_iterator_raises(tmp_path: Path) -> None:
    path = made(tmp_path / "db", rounds=1)
    (table,) = path.glob("*.ldb")
    flipped(table, table.read_bytes().rindex(b"." * 50))  # the last row of the last block
    db = leveldb.DB(str(path), **OPTIONS)
    try:
        assert 0 < len(list(db.iterator(verify_checksums=True))) < 1000
        with db.raw_iterator(verify_checksums=True) as rows, pytest.raises(leveldb.CorruptionError):
            rows.seek_to_first()
            while rows.valid():
                rows.next()
    finally:
        db.close()


def test_a_flush_that_fails_reports_no_error(tmp_path: Path) -> None:
    db = leveldb.DB(str(tmp_path / "db"), create_if_missing=True, **OPTIONS)
    batch = db.write_batch()
    for number in range(4):
        batch.put(b"%d" % number, random.Random(number).randbytes(1 << 19))
    batch.write()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        db.compact_range(start=b"", stop=b"")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    with pytest.raises(leveldb.Error):
        db.write_batch().write()
    db.close()


CLOSED = """
import sys
from sandq.storage import leveldb
db = leveldb.DB(sys.argv[1])
snapshot = db.snapshot()
db.close()
snapshot.get(b"00000001")
"""


def test_reading_a_snapshot_of_a_closed_database_never_returns_a_row(tmp_path: Path) -> None:
    path = made(tmp_path / "db", rounds=1)
    done = subprocess.run([sys.executable, "-c", CLOSED, path], capture_output=True, check=False)
    assert done.returncode != 0
