"""What a partition reads of its stored rows, and what it changes. Keys are relative to the partition's store."""

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
"""Of the rows with start <= key < stop."""


class Rows(Protocol):
    """Stored rows, keys relative to one store."""

    def get(self, key: bytes) -> bytes | None: ...

    def scan(self, start: bytes, stop: bytes, *, limit: int, max_bytes: int, reverse: bool = False) -> list[Row]:
        """Rows with start <= key < stop in key order (or backwards). Ends after `limit` rows, or with the row
        that brings the values returned to `max_bytes`."""
        ...

    def vacant(self, ranges: Sequence[Bounds]) -> list[bool]:
        """Say of each range, in the order of their starts, whether it holds no row."""
        ...


class View:
    """Stored rows with the changes that are not yet written laid over them.

    The partition puts and deletes here; the host takes the changes with `drain` and writes them, always of whole
    entries and together with the applied index that they imply.
    """

    def __init__(self, base: Rows) -> None:
        self._base = base
        self._changes: dict[bytes, bytes | None] = {}
        self._order: dict[int, list[bytes]] = {}
        """Changed keys in order, by their first byte; of those first bytes that were scanned since the last drain."""
        self._ahead: list[tuple[bytes, bytes, dict[bytes, bytes]]] = []
        """All stored rows from one key to another, that `get_ahead` read since the last drain."""
        self._vacant: set[Bounds] = set()
        """Ranges without a stored row, that `note_vacant` found since the last drain."""
        self.has_overlays: bool | None = None
        """Whether there are, or were, rows of `log/overlays.py`; None: nobody has looked."""
        self._made: tuple[bytes, Any] | None = None
        """What `note_made` was told last since the last drain."""
        self.bytes = 0
        """Of values that were put, or read ahead, since the last drain: what is kept in memory until then, at most."""

    def __len__(self) -> int:
        """What is kept in memory until the next drain: changed rows, those that were read ahead, and ranges without."""
        ahead = sum([len(known) for _, _, known in self._ahead])
        return len(self._changes) + ahead + len(self._vacant)

    def put(self, key: bytes, value: bytes) -> None:
        self.bytes += len(value)
        self._change(key, value)

    def put_all(self, rows: Sequence[Row]) -> None:
        """Rows of one first byte."""
        self.bytes += sum([len(value) for _, value in rows])
        if rows[0][0][0] in self._order:
            self._note_order([key for key, _ in rows])
        self._changes.update(rows)

    def delete(self, key: bytes) -> None:
        self._change(key, None)

    def delete_all(self, keys: Sequence[bytes]) -> None:
        """Delete rows of one first byte."""
        if keys[0][0] in self._order:
            self._note_order(keys)
        self._changes.update(dict.fromkeys(keys))

    def _note_order(self, keys: Sequence[bytes]) -> None:
        """These, of a first byte whose changes are in order, are going to be changed."""
        order = self._order[keys[0][0]]
        order += {key for key in keys if key not in self._changes}
        order.sort()  # most of it is sorted

    def _change(self, key: bytes, value: bytes | None) -> None:
        if self._order and key not in self._changes and (keys := self._order.get(key[0])) is not None:
            insort(keys, key)
        self._changes[key] = value

    def drain(self, prefix: bytes = b"") -> list[Change]:
        """The changes since the last drain, their keys behind a prefix. Call it only once they are about to be
        written."""
        changes = [(prefix + key, value) for key, value in self._changes.items()]
        self._changes.clear()
        self._order.clear()
        self._ahead.clear()
        self._vacant.clear()
        self._made = None
        self.bytes = 0
        return changes

    def get(self, key: bytes) -> bytes | None:
        try:
            return self._changes[key]
        except KeyError:
            if self._vacant and (key, key + b"\x00") in self._vacant:
                return None
            return self._base.get(key)

    def note_vacant(self, ranges: Sequence[Bounds]) -> set[Bounds]:
        """Those of these ranges, in the order of their starts, that hold no stored row. It is remembered until the next
        drain: `get` (of the key of a range of one) and `scan` do not ask the store then. For many ranges at a time."""
        found = self._base.vacant(ranges)
        vacant = {bounds for bounds, is_vacant in zip(ranges, found, strict=True) if is_vacant}
        self._vacant |= vacant
        return vacant

    def forget_vacant(self) -> None:
        """Forget what `note_vacant` remembered, before other ranges are looked at."""
        self._vacant.clear()

    def note_made(self, key: bytes, made: Any) -> None:
        """Keep what was made of a row, alone of all, until the next drain or a change of the row. Nothing is kept while
        nothing is changed: who only asks brings no drain, and rows of each partition would stay in memory."""
        if self._changes:
            self._made = key, made

    @property
    def made_last(self) -> tuple[bytes, Any] | None:
        """What was made of a row last, and its key; None: nothing, or the row is another by now."""
        made = self._made
        return None if made is None or made[0] in self._changes else made

    def _scan(self, start: bytes, stop: bytes, limit: int, max_bytes: int, reverse: bool) -> list[Row]:
        """Stored rows alone."""
        if (start, stop) in self._vacant:
            return []
        return self._base.scan(start, stop, limit=limit, max_bytes=max_bytes, reverse=reverse)

    def get_ahead(self, key: bytes, stop: bytes) -> bytes | None:
        """`get` for those who look up many keys below `stop`, most of which are not there: stored rows are read many at
        a time. Beside a large row the store takes as long to say that there is none as to read that row."""
        if key in self._changes:
            return self._changes[key]
        for start, end, known in self._ahead:
            if start <= key < end:
                return known.get(key)
        found = self._base.scan(key, stop, limit=AHEAD_ROWS, max_bytes=AHEAD_BYTES)
        size = sum([len(value) for _, value in found])
        self.bytes += size
        if len(found) == AHEAD_ROWS or size >= AHEAD_BYTES:
            stop = found[-1][0] + b"\x00"
        known = dict(found)
        if len(self._ahead) >= AHEAD_STRETCHES:
            self._ahead.clear()
        self._ahead.append((key, stop, known))
        return known.get(key)

    def scan(self, start: bytes, stop: bytes, *, limit: int, max_bytes: int, reverse: bool = False) -> list[Row]:
        changed = self._changed(start, stop)
        if not changed:
            return self._scan(start, stop, limit, max_bytes, reverse)

        def scan(start: bytes, stop: bytes, wanted: int) -> list[Row]:
            return self._scan(start, stop, wanted, max_bytes, reverse)

        return scan_over(scan, changed, start, stop, limit=limit, max_bytes=max_bytes, reverse=reverse)

    def _changed(self, start: bytes, stop: bytes) -> dict[bytes, bytes | None]:
        """Changes with start <= key < stop."""
        if not self._changes or not start:
            return {key: value for key, value in self._changes.items() if start <= key < stop}
        found: dict[bytes, bytes | None] = {}
        for tag in range(start[0], stop[0] + 1 if len(stop) > 1 else stop[0]):
            keys = self._order.get(tag)
            if keys is None:
                keys = self._order[tag] = sorted([key for key in self._changes if key[0] == tag])
            for key in keys[bisect_left(keys, start) : bisect_left(keys, stop)]:
                found[key] = self._changes[key]
        return found
