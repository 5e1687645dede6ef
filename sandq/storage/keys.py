"""Order-preserving encodings for keys of the store. PERSISTED: docs/storage-format.md specifies them.

Every key begins with the number of its store (u32, big-endian). Store numbers begin at 1 and are never reused. Keys of
store 0 belong to the node itself.
"""

from __future__ import annotations

import struct

STORE_PREFIX_BYTES = 4
NODE_STORE = 0

_U16, _U32, _U64 = struct.Struct(">H"), struct.Struct(">I"), struct.Struct(">Q")
_ESCAPE, _END = b"\x00\xff", b"\x00\x01"


def store_prefix(number: int) -> bytes:
    """Return the prefix of all keys of a store."""
    return _U32.pack(number)


def store_of(key: bytes) -> int:
    """Return the store number in a key."""
    return int(_U32.unpack_from(key)[0])


def store_range(number: int) -> tuple[bytes, bytes]:
    """Return the range (start, stop) of all keys of a store. `stop` is exclusive."""
    return store_prefix(number), after_prefix(store_prefix(number))


def after_prefix(prefix: bytes) -> bytes:
    """Return the least key that is greater than every key with this prefix. Raise ValueError if there is none."""
    stem = prefix.rstrip(b"\xff")
    if not stem:
        raise ValueError("no key lies behind a prefix of 0xff only")
    return stem[:-1] + bytes([stem[-1] + 1])


def u16(number: int) -> bytes:
    """Return two bytes, big-endian."""
    return _U16.pack(number)


def u32(number: int) -> bytes:
    """Return four bytes, big-endian."""
    return _U32.pack(number)


def u48(number: int) -> bytes:
    """Return six bytes, big-endian. Raise OverflowError if the number does not fit."""
    return number.to_bytes(6, "big")


def u64(number: int) -> bytes:
    """Return eight bytes, big-endian."""
    return _U64.pack(number)


def string(content: bytes) -> bytes:
    """Encode bytes of any length, so that the encoding keeps their order and marks its own end.

    0x00 becomes 0x00 0xff, and the end is 0x00 0x01. So "a" sorts before "a\\0" and before "ab", for any bytes that
    follow in the key."""
    return content.replace(b"\x00", _ESCAPE) + _END
