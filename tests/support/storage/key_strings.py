"""Read strings from keys of stores: the inverse of `sandq.storage.keys.string`."""

from __future__ import annotations

from sandq.model.errors import Corruption

_END = b"\x00\x01"
_ESCAPE = b"\x00\xff"


def take_string(key: bytes, at: int) -> tuple[bytes, int]:
    """Return the content of the string at `at` in a key, and the position after the string. Raises Corruption."""
    position = at
    while True:
        zero = key.find(b"\x00", position)
        mark = key[zero : zero + 2] if zero >= 0 else b""
        if mark == _END:
            return key[at:zero].replace(_ESCAPE, b"\x00"), zero + 2
        if mark != _ESCAPE:
            raise Corruption(f"a key holds no whole string at byte {at}: {key.hex()}", key=key, offset=at)
        position = zero + 2
