"""Decode LZW as Go's `compress/lzw` writes it: least significant bit first, 8-bit literals, codes of 9 to 12 bits.

Codes 0 to 255 are bytes, 256 clears the table, 257 is the end. Codes from 258 on are table entries, in the order of
their creation. Go's agents compress messages this way; sandq only reads them.
"""

from __future__ import annotations

from typing import Final

from sandq.gossip.steps import Steps, at_once
from sandq.model.errors import ProtocolError

CLEAR: Final = 256
END: Final = 257
FIRST_WIDTH: Final = 9
LAST_WIDTH: Final = 12
TABLE_ENTRIES: Final = 1 << LAST_WIDTH
STEP_BYTES: Final = 2048
"""Number of compressed bytes per step."""
STEP_PLAIN_BYTES: Final = 256 << 10
"""Approximate maximum output of a step: 2,048 compressed bytes may stand for megabytes."""
STEP_WORK: Final = 128
"""Units of work of a step."""

_START: Final = [bytes((byte,)) for byte in range(256)] + [b"", b""]


def decode(data: bytes, limit: int) -> bytes:
    """Decompress. Raises ProtocolError for invalid data, and if the result is larger than `limit` bytes."""
    return at_once(decoding(data, limit))


def decoding(data: bytes, limit: int) -> Steps[bytes]:
    """Like `decode`, in steps."""
    table = _START.copy()
    width = FIRST_WIDTH
    mask = (1 << width) - 1
    last = b""
    """Bytes of the previous code; empty after a `CLEAR`."""
    # A bytearray, because a list of pieces would take 88 bytes per piece.
    plain = bytearray()
    bits = have = 0
    pause_at = STEP_BYTES
    pause_above = min(STEP_PLAIN_BYTES, limit)
    # A code has at least 9 bits, so each byte completes at most one code.
    for at, byte in enumerate(data, 1):
        if at == pause_at:
            yield STEP_WORK
            pause_at = at + STEP_BYTES
        bits |= byte << have
        have += 8
        if have < width:
            continue
        code = bits & mask
        bits >>= width
        have -= width
        if code == CLEAR:
            table = _START.copy()
            width = FIRST_WIDTH
            mask = (1 << width) - 1
            last = b""
            continue
        if code == END:
            if at != len(data):
                raise ProtocolError(f"{len(data) - at} bytes after the end of the compressed data")
            return bytes(plain)
        known = len(table)
        if code < known:
            piece = table[code]
            if last and known < TABLE_ENTRIES:
                table.append(last + piece[:1])
        elif code == known and last and known < TABLE_ENTRIES:
            # The code refers to the entry that this code itself creates.
            piece = last + last[:1]
            table.append(piece)
        else:
            raise ProtocolError(f"code {code} where {known} are known: the compressed data is corrupt")
        plain += piece
        if len(plain) > pause_above:
            if len(plain) > limit:
                raise ProtocolError(f"more than {limit} bytes are compressed: too many")
            yield STEP_WORK
            pause_above = min(len(plain) + STEP_PLAIN_BYTES, limit)
        last = piece
        # The next code may refer to the entry that it creates itself, so its width must allow that.
        if len(table) > mask and width < LAST_WIDTH:
            width += 1
            mask = (1 << width) - 1
    raise ProtocolError(f"{len(data)} compressed bytes without their end")
