"""Sorted ranges in packed form, as rows store them. Removing a message moves bytes, so no object per range is
needed."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from sandq.model import offsets
from sandq.partition.base import rows
from sandq.partition.base.rows import RANGE_BYTES, Range

_BASE_BYTES = offsets.OFFSET_BYTES


class PackedRanges:
    """Sorted ranges without overlaps."""

    __slots__ = ("_packed", "messages")

    def __init__(self, ranges: Sequence[Range]) -> None:
        self._packed = bytearray(rows.pack_ranges(ranges))
        self.messages = sum([length for _, length in ranges])
        """Number of messages in all ranges."""

    def __len__(self) -> int:
        """Return the number of ranges."""
        return len(self._packed) // RANGE_BYTES

    def __iter__(self) -> Iterator[Range]:
        """Yield the ranges in order, unpacked one by one."""
        for at in range(len(self)):
            yield self._range(at)

    def packed(self) -> bytes:
        """Return all ranges, packed as in a row."""
        return bytes(self._packed)

    @property
    def first(self) -> bytes | None:
        """The first message. None if there are no ranges."""
        return self._base(0) if self._packed else None

    def find(self, offset: bytes) -> tuple[int, int] | None:
        """Return (index of the range that contains a message, position of the message in the range). None if no range
        contains it."""
        at = bisect_right(range(len(self)), offset, key=self._base) - 1
        if at < 0:
            return None
        base, length = self._range(at)
        behind = offsets.distance(base, offset)
        return (at, behind) if behind is not None and 0 <= behind < length else None

    def count_below(self, offset: bytes, most: int) -> int:
        """Return the number of messages below an offset, up to `most`."""
        count = 0
        for base, length in self:
            if count >= most or base >= offset:
                break
            behind = offsets.distance(base, offset)
            count += length if behind is None else min(length, behind)
        return min(count, most)

    def take(self, count: int) -> list[Range]:
        """Remove the first `count` messages and return them."""
        taken: list[Range] = []
        whole = 0
        while count > 0 and whole < len(self):
            base, length = self._range(whole)
            taken.append(Range(base, min(length, count)))
            if length > count:
                self._put(whole, 1, [Range(offsets.shift(base, count), length - count)])
                break
            count -= length
            whole += 1
        del self._packed[: whole * RANGE_BYTES]
        self.messages -= sum([length for _, length in taken])
        return taken

    def take_range(self, offset: bytes) -> Range | None:
        """Remove the whole range that contains a message and return it. None if no range contains the message."""
        found = self.find(offset)
        if found is None:
            return None
        taken = self._range(found[0])
        self._put(found[0], 1, [])
        self.messages -= taken.length
        return taken

    def part(self, offset: bytes) -> list[Range]:
        """Remove one message and return the rest of its range. Raise KeyError if no range contains it."""
        found = self.find(offset)
        if found is None:
            raise KeyError(offset)
        at, behind = found
        base, length = self._range(at)
        parts = [Range(base, behind)] if behind else []
        if behind + 1 < length:
            parts.append(Range(offsets.shift(offset, 1), length - behind - 1))
        self._put(at, 1, parts)
        self.messages -= 1
        return parts

    def clear(self) -> list[Range]:
        """Remove all messages and return them."""
        taken = list(self)
        self._packed.clear()
        self.messages = 0
        return taken

    def _put(self, at: int, count: int, ranges: Sequence[Range]) -> None:
        """Replace the `count` ranges from index `at` on."""
        self._packed[at * RANGE_BYTES : (at + count) * RANGE_BYTES] = rows.pack_ranges(ranges)

    def _base(self, at: int) -> bytes:
        """Return the first message of the range at an index."""
        start = at * RANGE_BYTES
        return bytes(self._packed[start : start + _BASE_BYTES])

    def _range(self, at: int) -> Range:
        """Return the range at an index, unpacked."""
        start = at * RANGE_BYTES
        middle = start + _BASE_BYTES
        packed = self._packed
        length = int.from_bytes(packed[middle : start + RANGE_BYTES], "big")
        return Range(bytes(packed[start:middle]), length)
