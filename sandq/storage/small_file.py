"""The envelope of the small files that are always replaced as a whole. PERSISTED.

::

     0  8  magic, identifies the kind of file
     8  4  version of the content, u32 little-endian
    12  4  length of the body, u32 little-endian
    16  4  crc32c of bytes 0..16 and the body, u32 little-endian
    20  n  body: msgpack; the file ends with it
"""

from __future__ import annotations

import struct
from typing import Any

import msgpack
from google_crc32c import extend, value

from sandq.model.errors import Corruption

_HEADER = struct.Struct("<8sII")
_CRC = struct.Struct("<I")
_BODY = _HEADER.size + _CRC.size


def encode(magic: bytes, version: int, content: object) -> bytes:
    """Return the bytes of the whole file."""
    body: bytes = msgpack.packb(content)
    header = _HEADER.pack(magic, version, len(body))
    return header + _CRC.pack(extend(value(header), body)) + body


def decode(data: bytes, magic: bytes, version: int, name: str) -> Any:
    """Return the content of a whole file. Raise `Corruption`, which names `name`, if the file is damaged."""
    found = version_of(data, magic, name)
    if found != version:
        raise _damaged(name, 8, f"its version {found} is not known here")
    return msgpack.unpackb(data[_BODY:])


def version_of(data: bytes, magic: bytes, name: str) -> int:
    """Return the version of the content of a whole file. Raise `Corruption`, which names `name`, if it is damaged."""
    if len(data) < _BODY:
        raise _damaged(name, len(data), "it is shorter than its header")
    found, version, length = _HEADER.unpack_from(data)
    body = data[_BODY:]
    if found != magic:
        raise _damaged(name, 0, "its magic is wrong")
    if length != len(body):
        raise _damaged(name, 12, f"its body has {len(body)} bytes instead of {length}")
    if _CRC.unpack_from(data, _HEADER.size)[0] != extend(value(data[: _HEADER.size]), body):
        raise _damaged(name, 16, "its checksum does not match")
    return int(version)


def _damaged(name: str, offset: int, why: str) -> Corruption:
    return Corruption(f"{name} is damaged at byte {offset}: {why}", file=name, offset=offset)
