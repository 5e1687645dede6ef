"""Tests of the files of the audit log: whole lines in order, a limited number of files, and reads from a position."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from sandq.model.errors import InvalidRequest
from sandq.server.audit.files import AuditFiles


def line(number: int, size: int = 20) -> bytes:
    return b"%0*d\n" % (size - 1, number)


def numbers(lines: list[bytes]) -> list[int]:
    return [int(text) for text in lines]


def test_last_lines_are_in_order_across_files(tmp_path: Path) -> None:
    files = AuditFiles(tmp_path, 100, 10)
    for number in range(23):
        files.append(line(number))
    assert len(os.listdir(tmp_path)) == 5
    assert numbers(files.last(7)[0]) == [16, 17, 18, 19, 20, 21, 22]
    assert numbers(files.last(100)[0]) == [*range(23)]


def test_oldest_files_are_deleted(tmp_path: Path) -> None:
    files = AuditFiles(tmp_path, 100, 2)
    for number in range(23):
        files.append(line(number))
    assert sorted(os.listdir(tmp_path)) == ["audit-0000000004.jsonl", "audit-0000000005.jsonl"]
    assert numbers(files.last(100)[0]) == [*range(15, 23)]


def test_messages_after_a_position_are_read_once(tmp_path: Path) -> None:
    files = AuditFiles(tmp_path, 100, 10)
    files.append(line(0) + line(1))
    _, position = files.last(1)
    for number in range(2, 14):
        files.append(line(number))
    first, position = files.after(position, 5)
    second, position = files.after(position, 100)
    third, position = files.after(position, 100)
    assert numbers(first) == [2, 3, 4, 5, 6]
    assert numbers(second) == [*range(7, 14)]
    assert third == []
    files.append(line(14))
    assert numbers(files.after(position, 100)[0]) == [14]


def test_position_in_deleted_files_continues_at_the_oldest(tmp_path: Path) -> None:
    files = AuditFiles(tmp_path, 100, 2)
    for number in range(23):
        files.append(line(number))
    assert numbers(files.after("1:40", 3)[0]) == [15, 16, 17]
    assert numbers(files.after("9:40", 3)[0]) == [15, 16, 17]  # a recreated data directory
    assert numbers(files.after("5:99999", 3)[0]) == [20, 21, 22]


def test_log_that_ends_within_a_line_continues_on_a_new_line(tmp_path: Path) -> None:
    (tmp_path / "audit-0000000003.jsonl").write_bytes(line(1) + b"0000")
    files = AuditFiles(tmp_path, 1000, 10)
    assert numbers(files.last(10)[0]) == [1]
    files.append(line(2))
    assert files.last(10)[0] == [line(1).strip(), b"0000", line(2).strip()]


def test_failed_write_is_reported_and_the_next_one_starts_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = AuditFiles(tmp_path, 1000, 10)
    files.append(line(1))
    real = os.write

    def full(descriptor: int, data: memoryview) -> int:
        real(descriptor, data[:5])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("sandq.server.audit.files.os.write", full)
        with pytest.raises(OSError, match="No space"):
            files.append(line(2))
    files.append(line(3))
    assert files.last(1)[0] == [line(3).strip()]
    assert files.last(3)[0][0] == line(1).strip()


def test_audit_files_are_private(tmp_path: Path) -> None:
    files = AuditFiles(tmp_path / "audit", 1000, 10)
    files.append(line(1))
    assert (tmp_path / "audit").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "audit" / "audit-0000000001.jsonl").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("text", ["", "x", "1", "1:2:3", "-1:0", "1:99999999999999"])
def test_invalid_position_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidRequest, match="not a position"):
        AuditFiles(tmp_path, 1000, 10).after(text, 1)


def test_long_files_are_read_from_their_end(tmp_path: Path) -> None:
    files = AuditFiles(tmp_path, 10 << 20, 10)
    files.append(b"".join([line(number, 1000) for number in range(500)]))
    assert numbers(files.last(150)[0]) == [*range(350, 500)]


def test_a_long_file_is_read_on_before_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandq.server.audit.files.READ_BYTES", 50)
    files = AuditFiles(tmp_path, 200, 10)
    for number in range(30):
        files.append(line(number))
    found: list[int] = []
    position = "1:0"
    for _ in range(40):
        lines, position = files.after(position, 1000)
        found += numbers(lines)
    assert found == [*range(30)]


def test_last_lines_have_no_gap_after_a_partial_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandq.server.audit.files.READ_BYTES", 4000)
    monkeypatch.setattr("sandq.server.audit.files._CHUNK_BYTES", 1000)
    files = AuditFiles(tmp_path, 20_000, 10)
    for number in range(40):
        files.append(line(number, 1000))
    found = numbers(files.last(1000)[0])
    assert found == [*range(found[0], 40)] and len(found) >= 3
