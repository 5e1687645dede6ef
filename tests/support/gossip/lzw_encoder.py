"""Encode LZW for tests, with the same bytes as Go's `compress/lzw`. sandq itself only decodes LZW."""

from __future__ import annotations

CLEAR, END = 256, 257
LAST_CODE = 4095


class Bits:
    """Collects codes as bits, the least significant bit first."""

    def __init__(self) -> None:
        self.value = self.size = 0
        self.done = bytearray()

    def put(self, code: int, width: int) -> None:
        self.value |= code << self.size
        self.size += width
        while self.size >= 8:
            self.done.append(self.value & 255)
            self.value >>= 8
            self.size -= 8

    def bytes(self) -> bytes:
        return bytes(self.done) + (bytes((self.value,)) if self.size else b"")


def encode(data: bytes, *, first_clear: bool = True, clears: bool = True) -> bytes:
    """Return the LZW encoding of `data`.

    `first_clear`: begin with a CLEAR, as Go does since 1.17. `clears`: send a CLEAR when the table is full, as Go does.
    Go also decodes data in which the table stays full."""
    bits = Bits()
    if first_clear:
        bits.put(CLEAR, 9)
    if not data:
        bits.put(END, 9)
        return bits.bytes()
    table: dict[tuple[int, int], int] = {}
    code, highest, width = data[0], END, 9
    for byte in data[1:]:
        known = table.get((code, byte))
        if known is not None:
            code = known
            continue
        bits.put(code, width)
        if highest < LAST_CODE:
            highest += 1
            width = max(width, highest.bit_length())
            if highest < LAST_CODE or not clears:
                table[code, byte] = highest
        if highest == LAST_CODE and clears:
            bits.put(CLEAR, width)
            table, highest, width = {}, END, 9
        code = byte
    bits.put(code, width)
    highest += highest < LAST_CODE
    width = max(width, highest.bit_length())
    if highest == LAST_CODE and clears:
        bits.put(CLEAR, width)
        width = 9
    bits.put(END, width)
    return bits.bytes()
