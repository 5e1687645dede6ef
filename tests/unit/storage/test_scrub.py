"""Tests of scrubbing: stored data is read again and compared with its checksums."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sandq.model.errors import Corruption
from sandq.storage.level_stores import LevelStores
from sandq.storage.memory_files import MemoryFiles
from sandq.storage.scrub import QUIET_S, scrub_tables, scrub_wal
from sandq.storage.wal import Kind, Record, Wal
from tests.support.storage.faulty_files import FaultyFiles, Plan

SEGMENT = 4096
OLD_S = 1_000_000_000.0


def written(files: MemoryFiles, batches: int) -> Wal:
    wal, _ = Wal.open(files, segment_bytes=SEGMENT, known_groups=lambda group: True)
    for index in range(1, batches + 1):
        record: Record = (Kind.ENTRY, 7, index, 1, bytes([index % 256]) * 100)
        wal.commit([record])
    return wal


def test_log_is_scrubbed_except_the_current_segment() -> None:
    files = MemoryFiles()
    wal = written(files, 100)
    wal.prepare()
    assert wal.segments > 3
    read = sum(scrub_wal(files))
    assert SEGMENT < read < wal.bytes_on_disk, "all segments except the open segment"


def test_a_log_of_one_segment_has_nothing_to_read() -> None:
    files = MemoryFiles()
    written(files, 3).prepare()
    assert list(scrub_wal(files)) == []


@pytest.mark.parametrize("byte", [0, 20, 200, 1500, 3900])
def test_a_flipped_bit_in_the_log_is_named(byte: int) -> None:
    files, plan = MemoryFiles(), Plan()
    written(files, 100)
    plan.flips["wal/0000000002.wal"] = {byte * 8 + 3}
    with pytest.raises(Corruption, match=r"wal/0000000002\.wal is damaged at byte \d+") as found:
        list(scrub_wal(FaultyFiles(files, plan)))
    assert abs(int(str(found.value.details["offset"])) - byte) <= 200


def tables(directory: Path) -> list[Path]:
    """Return the tables of a database with some rows."""
    stores = LevelStores(directory)
    for part in range(3):
        stores.write([(b"%d-%04d" % (part, row), os.urandom(100)) for row in range(500)])
        stores.flush()
    stores.close()
    found = sorted(directory.glob("*.ldb"))
    for path in found:
        os.utime(path, (OLD_S, OLD_S))
    return found


def test_tables_are_scrubbed(tmp_path: Path) -> None:
    found = tables(tmp_path / "stores")
    sizes = list(scrub_tables(tmp_path / "stores", lambda: OLD_S + QUIET_S))
    assert sizes == [path.stat().st_size for path in found] and found


def test_a_flipped_bit_in_a_table_is_named(tmp_path: Path) -> None:
    found = tables(tmp_path / "stores")
    data = bytearray(found[-1].read_bytes())
    data[len(data) // 3] ^= 1
    found[-1].write_bytes(data)
    os.utime(found[-1], (OLD_S, OLD_S))
    with pytest.raises(Corruption, match="a block's checksum does not match") as caught:
        list(scrub_tables(tmp_path / "stores", lambda: OLD_S + QUIET_S))
    assert caught.value.details["file"] == str(found[-1])


def test_a_table_that_may_be_written_still_is_left_alone(tmp_path: Path) -> None:
    tables(tmp_path / "stores")[0].write_bytes(b"half of it")
    now_s = (tmp_path / "stores").stat().st_mtime
    list(scrub_tables(tmp_path / "stores", lambda: now_s + QUIET_S / 2))
    with pytest.raises(Corruption, match="no table footer"):
        list(scrub_tables(tmp_path / "stores", lambda: now_s + 2 * QUIET_S))
