"""The format of backup files: a header, blocks, and an end with their number. PERSISTED, see docs/backup.md.

    file   = "SANDQBAK" | version u8 (2) | 3 zero bytes | length u32 | crc32c u32 | header
    header = MessagePack [backup text, name text, salt (16 bytes), key id text | nil (not encrypted)]
    block  = length u32 | plain length u32 | crc32c u32 | number u32 | kind u8 | 3 zero bytes | content
    kind   = 1 rows or a document, 2 the end: MessagePack [blocks, their plain bytes]

All numbers are big-endian. Content is compressed with zstd and, with a key, encrypted with AES-256-GCM. The header and
the block's number, kind and plain length are authenticated, too. The checksum covers the block's number, kind, plain
length and content, so that damage and its position are detected without the key.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

import google_crc32c
import msgpack
import zstandard

from sandq.backup.errors import DamagedBackup, NoBackup, TruncatedBackup
from sandq.backup.keys import SALT_BYTES, BackupKey, check_key

MAGIC: Final = b"SANDQBAK"
VERSION: Final = 2
"""Version of this format, and of the documents in such files."""
DEVELOPMENT_VERSION: Final = 1
"""Version written by development versions of sandq, before v0.3.0."""
ROWS, END = 1, 2
"""Kinds of blocks."""
BLOCK_BYTES: Final = 24 << 20
"""Maximum size of a block's content, plain or not: a row may be a batch of 16 MiB."""
SEALED_BYTES: Final = 1 << 17
"""Maximum overhead of compressing incompressible content, and of sealing."""
HEADER_BYTES: Final = 64 << 10
ZSTD_LEVEL: Final = 1
"""A higher level would save little, and nothing for messages that are compressed already."""

_PREFIX: Final = struct.Struct(">8sB3xII")
_BLOCK: Final = struct.Struct(">IIIIB3x")
_ASSOCIATED: Final = struct.Struct(">IBI")


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a file."""

    backup: str
    name: str
    """Name within its backup, so that files cannot be exchanged."""
    salt: bytes
    key_id: str | None

    def encode(self) -> bytes:
        """Return the first bytes of a file."""
        body: bytes = msgpack.packb([self.backup, self.name, self.salt, self.key_id])
        return _PREFIX.pack(MAGIC, VERSION, len(body), google_crc32c.value(body)) + body


class Writer:
    """Writes one file, block by block. Blocking; for one thread at a time."""

    def __init__(self, stream: BinaryIO, backup: str, name: str, key: BackupKey | None) -> None:
        self._stream = stream
        header = Header(backup, name, os.urandom(SALT_BYTES), None if key is None else key.key_id)
        self._head = header.encode()
        self._cipher = None if key is None else key.cipher(header.salt)
        self._zstd = zstandard.ZstdCompressor(level=ZSTD_LEVEL)
        self.salt = header.salt
        """Unique for each file."""
        self.blocks = 0
        self.plain_bytes = 0
        """Size of all blocks."""
        self.bytes = len(self._head)
        """Number of bytes written so far."""
        stream.write(self._head)

    def write(self, content: bytes) -> None:
        """Add a block."""
        self._write(ROWS, content)
        self.blocks += 1
        self.plain_bytes += len(content)

    def end(self) -> None:
        """Write the end: a file without it is truncated."""
        self._write(END, msgpack.packb([self.blocks, self.plain_bytes]))
        self._stream.flush()

    def _write(self, kind: int, plain: bytes) -> None:
        if len(plain) > BLOCK_BYTES:
            raise ValueError(f"a block of {len(plain)} bytes")
        content = self._zstd.compress(plain)
        associated = _ASSOCIATED.pack(self.blocks, kind, len(plain))
        if self._cipher is not None:
            content = self._cipher.seal(self.blocks, content, self._head + associated)
        head = _BLOCK.pack(len(content), len(plain), _crc(associated, content), self.blocks, kind)
        self._stream.write(head)
        self._stream.write(content)
        self.bytes += len(head) + len(content)


class Reader:
    """Reads one file, block by block. Blocking; for one thread at a time."""

    def __init__(self, stream: BinaryIO, backup: str, name: str, key: BackupKey | None, shown: str) -> None:
        """Read the header. `shown`: name of the file in errors.

        Raises DamagedBackup if it is not the expected file of this backup, NoBackup if a development version wrote it,
        WrongKey.
        """
        self._stream = stream
        self._shown = shown
        self.at = 0
        """Position of the next byte to read."""
        self._head = self._read(_PREFIX.size, "the file ends within its first bytes")
        magic, version, length, crc = _PREFIX.unpack(self._head)
        if magic != MAGIC:
            raise self._wrong(0, "this is no file of a sandq backup")
        if version == DEVELOPMENT_VERSION:
            raise NoBackup(
                f"{shown} was made by a development version of sandq, before v0.3.0: it cannot be read, make a new one"
            )
        if version != VERSION:
            raise self._wrong(8, f"the file has version {version}, this program knows {VERSION}")
        if self._head != _PREFIX.pack(magic, version, length, crc):
            raise self._wrong(9, "the zero bytes of the header are damaged")
        if length > HEADER_BYTES:
            raise self._wrong(12, f"the header has {length} bytes, more than {HEADER_BYTES}")
        body = self._read(length, "the file ends within its header")
        if google_crc32c.value(body) != crc:
            raise self._wrong(_PREFIX.size, "the header is damaged: its checksum does not match")
        self._head += body
        header = _header(body)
        if header is None:
            raise self._wrong(_PREFIX.size, "the header cannot be read")
        if (header.backup, header.name) != (backup, name):
            raise self._wrong(
                _PREFIX.size, f"it is {header.name} of backup {header.backup}, where {name} of {backup} is expected"
            )
        check_key(key, header.key_id, shown)
        self.salt = header.salt
        self._cipher = None if key is None else key.cipher(header.salt)
        self._zstd = zstandard.ZstdDecompressor()
        self._number = self._bytes = 0

    def blocks(self) -> Iterator[bytes]:
        """Yield the content of each block once it is verified.

        Raises DamagedBackup, also if the file ends too early, or has data after its end.
        """
        while (content := self.next()) is not None:
            yield content

    def next(self) -> bytes | None:
        """Return the next block; None after the last one. Raises DamagedBackup."""
        at = self.at
        head = self._read(_BLOCK.size, "the file ends here, and more was written: it is truncated")
        length, plain_length, crc, number, kind = _BLOCK.unpack(head)
        is_block = max(length, plain_length) <= BLOCK_BYTES + SEALED_BYTES and kind in (ROWS, END)
        if not is_block or head != _BLOCK.pack(length, plain_length, crc, number, kind):
            raise self._wrong(at, "this is no block: the file is damaged here")
        content = self._read(length, "the file ends within a block: it is truncated")
        associated = _ASSOCIATED.pack(number, kind, plain_length)
        if _crc(associated, content) != crc:
            raise self._wrong(at, f"block {number} is damaged: its checksum does not match")
        if number != self._number:
            raise self._wrong(at, f"there is block {number} where block {self._number} is expected")
        if self._cipher is not None:
            opened = self._cipher.open(number, content, self._head + associated)
            if opened is None:
                raise self._wrong(at, f"block {number} was not written with this key: it was changed")
            content = opened
        try:
            # zstd would trust the size in a frame, whatever the limit: a few bytes may stand for many GiB.
            if zstandard.frame_content_size(content) != plain_length:
                raise self._wrong(at, f"block {number} should have {plain_length} bytes, and does not")
            plain = self._zstd.decompress(content, max_output_size=plain_length)
        except zstandard.ZstdError as error:
            raise self._wrong(at, f"block {number} cannot be decompressed: {error}") from None
        if len(plain) != plain_length:
            raise self._wrong(at, f"block {number} has {len(plain)} bytes instead of {plain_length}")
        if kind == END:
            self._check_end(at, plain)
            return None
        self._number += 1
        self._bytes += len(plain)
        return plain

    def _check_end(self, at: int, plain: bytes) -> None:
        if plain != msgpack.packb([self._number, self._bytes]):
            raise self._wrong(at, "the end does not match the blocks")
        if self._stream.read(1):
            raise self._wrong(self.at, "there is data after the end of the file")

    def _read(self, size: int, why: str) -> bytes:
        parts, left = [], size
        while left:
            part = self._stream.read(left)
            if not part:
                raise TruncatedBackup(self._shown, self.at + size - left, why)
            parts.append(part)
            left -= len(part)
        self.at += size
        return b"".join(parts)

    def _wrong(self, at: int, why: str) -> DamagedBackup:
        return DamagedBackup(self._shown, at, why)


def _header(body: bytes) -> Header | None:
    try:
        found: Any = msgpack.unpackb(body)
    except (ValueError, msgpack.UnpackException):
        return None
    match found:
        case [str() as backup, str() as name, bytes() as salt, str() | None as key_id] if len(salt) == SALT_BYTES:
            return Header(backup, name, salt, key_id)
    return None


def _crc(associated: bytes, content: bytes) -> int:
    return int(google_crc32c.extend(google_crc32c.value(associated), content))
