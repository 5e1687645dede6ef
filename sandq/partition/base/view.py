"""Stored rows as a partition reads and changes them. Keys are relative to the partition's store."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import Any, Protocol

from sandq.model.overlay import Change, Row, scan_over

__all__ = ["Bounds", "Change", "Row", "Rows", "View"]

AHEAD_ROWS = 4096
AHEAD_BYTES = 1 << 20
AHEAD_STRETCHES = 64
Bounds = tuple[bytes, bytes]
"""A range of rows, start <= key < stop."""


class Rows(Protocol):
    """Stored rows, with keys relative to one store."""

    def get(self, key: bytes) -> bytes | None: ...

    def scan(self, start: bytes, stop: bytes, *, limit: int, max_bytes: int, reverse: bool = False) -> list[Row]:
        """Return the rows with start <= key < stop in key order, or backwards. Stop after `limit` rows, or after the
        row that brings the returned values to `max_bytes`."""
        ...

    def vacant(self, ranges: Sequence[Bounds]) -> list[bool]:
        """Return, for each range, whether it contains no row. The ranges must be sorted by their starts."""
        ...


class View:
    """Stored rows, overlaid with changes that are not written yet.

    The partition puts and deletes rows here. The caller takes the changes with `drain` and writes them. A write always
    contains all changes of an entry, together with the index of the last applied entry.
    """

    def __init__(self, base: Rows) -> None:
        self._base = base
        self._changes: dict[bytes, bytes | None] = {}
        self._order: dict[int, list[bytes]] = {}
        """By first byte: the changed keys, sorted. Only for first bytes that were scanned since the last drain."""
        self._ahead: list[tuple[bytes, bytes, dict[bytes, bytes]]] = []
        """(start, stop, all stored rows in between), as read by `get_ahead` since the last drain."""
        self._vacant: set[Bounds] = set()
        """Ranges in which `note_vacant` found no stored row since the last drain."""
        self.has_overlays: bool | None = None
        """Whether the partition has, or had, rows of `reader/overlays.py`. None: not checked yet."""
        self.has_tombstones: bool | None = None
        """Whether the partition has, or had, tombstones. None: not checked yet."""
        self._made: tuple[bytes, Any] | None = None
        """Last arguments of `note_made` since the last drain."""
        self.bytes = 0
        """Upper bound of the memory held until the next drain: bytes of values that were put or read ahead."""

    def __len__(self) -> int:
        """Return the number of items held in memory until the next drain: changed rows, rows read ahead, vacant
        ranges."""
        ahead = sum([len(known) for _, _, known in self._ahead])
        return len(self._changes) + ahead + len(self._vacant)

    def put(self, key: bytes, value: bytes) -> None:
        """Put a row."""
        self.bytes += len(value)
        self._change(key, value)

    def put_all(self, rows: Sequence[Row]) -> None:
        """Put rows whose keys have the same first byte."""
        self.bytes += sum([len(value) for _, value in rows])
        if rows[0][0][0] in self._order:
            self._note_order([key for key, _ in rows])
        self._changes.update(rows)

    def delete(self, key: bytes) -> None:
        """Delete a row."""
        self._change(key, None)

    def delete_all(self, keys: Sequence[bytes]) -> None:
        """Delete rows whose keys have the same first byte."""
        if keys[0][0] in self._order:
            self._note_order(keys)
        self._changes.update(dict.fromkeys(keys))

    def _note_order(self, keys: Sequence[bytes]) -> None:
        """Add keys that are about to be changed to the sorted keys of their first byte."""
        order = self._order[keys[0][0]]
        order += {key for key in keys if key not in self._changes}
        order.sort()  # nearly sorted already, which is fast

    def _change(self, key: bytes, value: bytes | None) -> None:
        """Note a change of one row, and keep the sorted keys up to date."""
        if self._order and key not in self._changes and (keys := self._order.get(key[0])) is not None:
            insort(keys, key)
        self._changes[key] = value

    def drain(self, prefix: bytes = b"") -> list[Change]:
        """Return the changes since the last drain, with `prefix` before their keys, and forget them. Call `drain` only
        to write the changes immediately."""
        changes = [(prefix + key, value) for key, value in self._changes.items()]
        self._changes.clear()
        self._order.clear()
        self._ahead.clear()
        self._vacant.clear()
        self._made = None
        self.bytes = 0
        return changes

    def get(self, key: bytes) -> bytes | None:
        """Return a row; None if there is none."""
        try:
            return self._changes[key]
        except KeyError:
            if self._vacant and (key, key + b"\x00") in self._vacant:
                return None
            return self._base.get(key)

    def note_vacant(self, ranges: Sequence[Bounds]) -> set[Bounds]:
        """Return the ranges that contain no stored row. `ranges` must be sorted by their starts.

        The view remembers the result until the next drain: `scan` of such a range, and `get` of the key of a one-key
        range, do not query the store. Worthwhile only for many ranges at a time.
        """
        found = self._base.vacant(ranges)
        vacant = {bounds for bounds, is_vacant in zip(ranges, found, strict=True) if is_vacant}
        self._vacant |= vacant
        return vacant

    def forget_vacant(self) -> None:
        """Forget the ranges of `note_vacant`. Call it before other ranges are checked."""
        self._vacant.clear()

    def note_made(self, key: bytes, made: Any) -> None:
        """Cache one object made from a row, until the next drain or until the row changes. Forget the last cached
        object.

        Do nothing if there are no changes. A caller that only reads causes no drain, so the cached objects of all
        partitions would stay in memory.
        """
        if self._changes:
            self._made = key, made

    @property
    def made_last(self) -> tuple[bytes, Any] | None:
        """The key and the object of the last `note_made`. None if the cache is empty, or if the row was changed
        since."""
        made = self._made
        return None if made is None or made[0] in self._changes else made

    def _scan(self, start: bytes, stop: bytes, limit: int, max_bytes: int, reverse: bool) -> list[Row]:
        """Scan the stored rows without the changes."""
        if (start, stop) in self._vacant:
            return []
        return self._base.scan(start, stop, limit=limit, max_bytes=max_bytes, reverse=reverse)

    def get_ahead(self, key: bytes, stop: bytes) -> bytes | None:
        """Return the row like `get`, for callers that look up many keys below `stop`, most of which do not exist.

        Reads many stored rows at a time. If a missing key lies next to a large row, a single look-up takes as long as
        reading that row.
        """
        if key in self._changes:
            return self._changes[key]
        for start, end, known in self._ahead:
            if start <= key < end:
                return known.get(key)
        found = self._base.scan(key, stop, limit=AHEAD_ROWS, max_bytes=AHEAD_BYTES)
        size = sum([len(value) for _, value in found])
        self.bytes += size
        if len(found) == AHEAD_ROWS or size >= AHEAD_BYTES:
            stop = found[-1][0] + b"\x00"  # the scan was cut: nothing is known beyond its last row
        known = dict(found)
        if len(self._ahead) >= AHEAD_STRETCHES:
            self._ahead.clear()
        self._ahead.append((key, stop, known))
        return known.get(key)

    def scan(self, start: bytes, stop: bytes, *, limit: int, max_bytes: int, reverse: bool = False) -> list[Row]:
        """Return rows as `Rows.scan`, with the changes applied."""
        changed = self._changed(start, stop)
        if not changed:
            return self._scan(start, stop, limit, max_bytes, reverse)

        def scan(start: bytes, stop: bytes, wanted: int) -> list[Row]:
            return self._scan(start, stop, wanted, max_bytes, reverse)

        return scan_over(scan, changed, start, stop, limit=limit, max_bytes=max_bytes, reverse=reverse)

    def _changed(self, start: bytes, stop: bytes) -> dict[bytes, bytes | None]:
        """Return the changes with start <= key < stop."""
        if not self._changes or not start:
            return {key: value for key, value in self._changes.items() if start <= key < stop}
        found: dict[bytes, bytes | None] = {}
        # Sort the keys of a first byte at its first scan, and keep them sorted from then on (`_change`). Sorting all
        # changes at every scan would cost far more in a large entry.
        for tag in range(start[0], stop[0] + 1 if len(stop) > 1 else stop[0]):
            keys = self._order.get(tag)
            if keys is None:
                keys = self._order[tag] = sorted([key for key in self._changes if key[0] == tag])
            for key in keys[bisect_left(keys, start) : bisect_left(keys, stop)]:
                found[key] = self._changes[key]
        return found
