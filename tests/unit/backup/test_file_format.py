"""Tests of the file format of backups: written files can be read, and an error names the place of the damage."""

from __future__ import annotations

import io
import os
import tracemalloc
from pathlib import Path

import pytest
import zstandard

from sandq.backup.errors import DamagedBackup, WrongKey
from sandq.backup.file_format import _ASSOCIATED, _BLOCK, ROWS, Reader, Writer, _crc
from sandq.backup.keys import BackupKey
from sandq.model.errors import ConfigError, InvalidRequest

KEY = BackupKey(bytes(range(32)))
BLOCKS = [b"a" * 1000, b"", os.urandom(300)]


def written(key: BackupKey | None = None, backup: str = "b", name: str = "n") -> bytes:
    stream = io.BytesIO()
    writer = Writer(stream, backup, name, key)
    for block in BLOCKS:
        writer.write(block)
    writer.end()
    assert writer.bytes == len(stream.getvalue()) and writer.plain_bytes == sum(map(len, BLOCKS))
    return stream.getvalue()


def read(data: bytes, key: BackupKey | None = None, backup: str = "b", name: str = "n") -> list[bytes]:
    return [*Reader(io.BytesIO(data), backup, name, key, "the file").blocks()]


@pytest.mark.parametrize("key", [None, KEY], ids=["plain", "encrypted"])
def test_written_data_is_read(key: BackupKey | None) -> None:
    assert read(written(key), key) == BLOCKS


@pytest.mark.parametrize("key", [None, KEY], ids=["plain", "encrypted"])
def test_changed_or_truncated_file_is_refused(key: BackupKey | None) -> None:
    data = written(key)
    for at in range(len(data)):
        with pytest.raises((DamagedBackup, WrongKey)) as refused:
            read(data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :], key)
        assert "the file" in refused.value.message
        with pytest.raises(DamagedBackup) as cut:
            read(data[:at], key)
        assert cut.value.details["byte"] == at or at == 0
    with pytest.raises(DamagedBackup, match=f"byte {len(data)}: there is data after the end"):
        read(data + b"\0", key)


def test_file_is_not_mistaken_for_a_different_one() -> None:
    for other in (written(backup="c"), written(name="m")):
        with pytest.raises(DamagedBackup, match="is expected"):
            read(other)


def test_blocks_have_their_positions() -> None:
    stream = io.BytesIO()
    writer = Writer(stream, "b", "n", None)
    ends = []
    for block in (b"one", b"two"):
        writer.write(block)
        ends.append(writer.bytes)
    writer.end()
    data = stream.getvalue()
    head = ends[0] - (ends[1] - ends[0])
    swapped = data[:head] + data[ends[0] : ends[1]] + data[head : ends[0]] + data[ends[1] :]
    with pytest.raises(DamagedBackup, match="there is block 1 where block 0 is expected"):
        read(swapped)
    with pytest.raises(DamagedBackup, match=r"does not match the blocks|there is block"):
        read(data[: ends[0]] + data[ends[1] :])


def test_attacker_without_the_key_cannot_change_anything() -> None:
    forged = written()
    with pytest.raises(WrongKey, match="not encrypted"):
        read(forged, KEY)
    with pytest.raises(WrongKey, match="is encrypted"):
        read(written(KEY))
    with pytest.raises(WrongKey, match=KEY.key_id):
        read(written(KEY), BackupKey(bytes(32)))
    assert written(KEY) != written(KEY), "each file has its own key"


def test_a_key_is_read_from_a_file_of_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "key"
    for text in (KEY._key.hex(), "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n"):
        path.write_text(text)
        path.chmod(0o600)
        assert BackupKey.read(path).key_id == KEY.key_id
    assert "AAEC" not in repr(KEY) and KEY._key.hex() not in repr(KEY)
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        BackupKey.read(path)
    path.chmod(0o600)
    path.write_text("short")
    with pytest.raises(ConfigError, match="no key of backups"):
        BackupKey.read(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        BackupKey.read(tmp_path / "none")
    with pytest.raises(InvalidRequest):
        BackupKey(b"short")


def test_a_block_of_another_plain_length_is_refused() -> None:
    with pytest.raises(ValueError, match="a block of"):
        Writer(io.BytesIO(), "b", "n", None).write(bytes(25 << 20))


def test_a_block_that_would_be_more_than_it_says_takes_no_memory() -> None:
    stream = io.BytesIO()
    writer = Writer(stream, "b", "n", None)
    frame = zstandard.ZstdCompressor().compress(bytes(64 << 20))
    beside = _ASSOCIATED.pack(0, ROWS, 100)
    stream.write(_BLOCK.pack(len(frame), 100, _crc(beside, frame), 0, ROWS) + frame)
    writer.end()
    tracemalloc.start()
    with pytest.raises(DamagedBackup, match="should have 100 bytes"):
        read(stream.getvalue())
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
