"""The log entry that is being applied. All code that changes the partition's rows takes it as an argument.

`TimerPartition.apply` creates one `Step` per entry. Code that only reads takes a `View` instead, which exists between
entries, too.
"""

from __future__ import annotations

from sandq.partition.base.view import View


class Step:
    """One applied entry: its index, its times, and the rows that it changes."""

    __slots__ = ("floor_ms", "grants", "index", "now_ms", "position", "stamp_ms", "view")

    def __init__(self, view: View, *, index: int, stamp_ms: int, now_ms: int, floor_ms: int) -> None:
        self.view = view
        """Stored rows, and the changes that this entry makes to them."""
        self.index = index
        """Index of the entry, as it is in offsets and lease tokens."""
        self.stamp_ms = stamp_ms
        """Time stamp of the entry in ms, from which relative delays count. It may be below `now_ms`."""
        self.now_ms = now_ms
        """The partition's time in ms. It never falls, except when a clock reset begins."""
        self.floor_ms = floor_ms
        """Lowest delivery time in ms of messages that are stored from now on. Leases of the entry may raise it."""
        self.position = 0
        """Position in the entry of the next message that is stored. `index` and position make an offset unique.

        In a full entry, this is one above the highest position of an offset: do not pass it to `offsets.pack`."""
        self.grants = 0
        """Number of leases that the entry has granted so far. The next token contains this number."""

    def next_position(self) -> int:
        """Take the next position in the entry and return it."""
        position = self.position
        self.position = position + 1
        return position

    def take_positions(self, count: int) -> int:
        """Take the next `count` positions in the entry and return the first of them."""
        position = self.position
        self.position = position + count
        return position

    @property
    def latest_offset(self) -> bytes:
        """The greatest offset below all messages that the entry stores from here on."""
        return latest_offset(self.floor_ms, self.index, self.position)


def latest_offset(floor_ms: int, index: int, position: int) -> bytes:
    """Return the greatest offset below all messages that are stored from a position of an entry on.

    The result is above every due message and below every delayed message.
    """
    # `offsets.pack` would reject the position after a full entry.
    return ((floor_ms << 80) + (index << 32) + (position << 12) - 1).to_bytes(16, "big")
