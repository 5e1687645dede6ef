"""The dead messages of a group by their time of death, so that the oldest are found without reading the others.

Each dead message has an index row without a value, with one exception: a message that waits in the outbox must be sent
before it can be removed, so it has no index row until its dead letter topic rejects it.
"""

from __future__ import annotations

from sandq.partition.base import rows
from sandq.partition.base.view import View

_TIME_BYTES = 6
_SCAN_BYTES = 1 << 40


class DeadIndex:
    def __init__(self, group_id: int) -> None:
        self.knows_first = False
        """Whether the time of the first death is known without reading rows."""
        self._group_id = group_id
        self._first: bytes | None = None
        """Key of the first row, if `knows_first`. None if there are no rows."""
        start, self._stop = rows.group_bounds(rows.DEATH, group_id)
        self._from = start
        """No row has a key below this one. Scans start here, so that they do not step over deleted rows."""

    def put(self, view: View, dead_ms: int, offset: bytes) -> None:
        """Add a message that died at `dead_ms`."""
        key = self._key(dead_ms, offset)
        view.put(key, b"")
        self._from = min(self._from, key)
        if self.knows_first and (self._first is None or key < self._first):
            self._first = key

    def delete(self, view: View, dead_ms: int, offset: bytes) -> None:
        """Remove a message that died at `dead_ms`."""
        key = self._key(dead_ms, offset)
        view.delete(key)
        if self.knows_first and key == self._first:
            self.knows_first, self._from = False, key

    def first_ms(self, view: View) -> int | None:
        """Return the time of the first death, in ms. None if the index is empty."""
        if not self.knows_first:
            found = view.scan(self._from, self._stop, limit=1, max_bytes=_SCAN_BYTES)
            self.knows_first, self._first = True, found[0][0] if found else None
            self._from = self._first or self._from
        return None if self._first is None else _parts(self._first)[0]

    def oldest(self, view: View, limit: int) -> list[tuple[int, bytes]]:
        """Return the time of death and the offset of up to `limit` messages, in the order of their deaths."""
        found = view.scan(self._from, self._stop, limit=limit, max_bytes=_SCAN_BYTES)
        return [_parts(key) for key, _ in found]

    def _key(self, dead_ms: int, offset: bytes) -> bytes:
        """Return the key of the row of a message."""
        return rows.death_key(self._group_id, dead_ms, offset)


def _parts(key: bytes) -> tuple[int, bytes]:
    """Return the time of death and the offset in the key of a row."""
    return int.from_bytes(key[5 : 5 + _TIME_BYTES], "big"), key[5 + _TIME_BYTES :]
