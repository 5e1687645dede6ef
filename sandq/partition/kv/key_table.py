"""The latest value of every key of a compacted topic, and its version for compare-and-set.

The log keeps every write until it is compacted (`compaction.py`). This table has the result of the last write of each
key. If the last write is a deletion, the table keeps it as long as the log does. The version of a value is the offset
of the write. Versions only rise, in the whole partition. So two values never have the same version, even if the key was
deleted and written again.

Rows, PERSISTED::

    "v" key                 `<B 3x I q 16s`: flags u8, three zero bytes, length of the headers u32, expires_ms i64
                            (0: never), version 16; then the headers, then the value
    "x" expires_ms u48, key the value of the key expires at expires_ms, if its own row still says so
    "y" key                 version 16 of the deletion that was the key's last write, while the log has it
    "o"                     [keys, bytes of their rows, next expiry | nil, time of the last sweep (ms), deletions]
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from sandq.partition.base import rows
from sandq.partition.base.garbage import Garbage
from sandq.partition.base.step import Step
from sandq.partition.base.view import Row, View

VALUE, EXPIRY, DELETION, STATE = b"v", b"x", b"y", b"o"
VALUE_HEADER = struct.Struct("<B3xIq16s")
FLAG_HEADERS = 1
_NEVER = bytes(8)
"""Bytes 8 to 16 of a row whose value never expires. Scans compare them for each key."""
_, _VALUE_STOP = rows.tag_bounds(VALUE)
SWEEP_KEYS = 1000
"""Maximum number of expired values that one step deletes."""
SWEEP_BYTES = 4 << 20
"""Maximum bytes of keys of expired values that one step deletes."""
SCAN_ROWS = 256
SCAN_BYTES = 256 << 10
"""Maximum number of rows (`SCAN_ROWS`), and of bytes of values before the last row, that are read at once and returned
as one part. `SCAN_BYTES` does not count the bytes of keys. The limit of a page (`max_bytes`) counts keys and values."""
KNOWN_KEYS = 8192
"""Number of recently written keys whose data for the next write is cached. Reading this data from the rows is half the
cost of a write. The cache holds at most twice this number of keys."""


Known = tuple[int, int, bytes]
"""Data that a write needs about the previous value: bytes of its row including the key; expires_ms; version."""


class Value(NamedTuple):
    """The value of a key. `headers`: as they were sent (msgpack). `expires_ms`: 0 for never."""

    version: bytes
    value: bytes
    headers: bytes | None = None
    expires_ms: int = 0

    def row(self) -> bytes:
        """Return the row of the value."""
        version, value, headers, expires_ms = self
        if headers is None:
            return VALUE_HEADER.pack(0, 0, expires_ms, version) + value
        return VALUE_HEADER.pack(FLAG_HEADERS, len(headers), expires_ms, version) + headers + value

    @classmethod
    def load(cls, row: bytes) -> Value:
        """Read a value from its row."""
        flags, length, expires_ms, version = VALUE_HEADER.unpack_from(row)
        start = VALUE_HEADER.size
        headers = row[start : start + length] if flags & FLAG_HEADERS else None
        return cls(version, row[start + length :], headers, expires_ms)


class KeyTable:
    def __init__(self, garbage: Garbage | None = None) -> None:
        self.live = 0
        """Number of keys that have a value."""
        self.bytes = 0
        """Bytes of the rows of these keys, including the keys."""
        self.deletions = 0
        """Number of deleted keys whose deletions are still in the log."""
        self.next_expiry_ms: int | None = None
        """Lower bound of the next expiry time of a value, in ms. None if no value expires."""
        self._swept_ms = 0
        self._garbage = garbage if garbage is not None else Garbage()
        # A cache with two generations. It is not part of the state, as its content never changes a result.
        self._young: dict[bytes, Known] = {}
        self._old: dict[bytes, Known] = {}

    def write(self, view: View) -> None:
        """Put the state row. Called once for each set of changes that is written."""
        view.put(STATE, rows.pack(self.live, self.bytes, self.next_expiry_ms, self._swept_ms, self.deletions))

    def load(self, view: View) -> None:
        """Load the state row."""
        row = view.get(STATE)
        if row is not None:
            self.live, self.bytes, self.next_expiry_ms, self._swept_ms, self.deletions = rows.unpack(row)

    # -- writing --------------------------------------------------------------------------------------------------

    def put(self, step: Step, key: bytes, value: Value) -> None:
        """Set the value of a key."""
        view = step.view
        before = self._known(key, view)
        if before is not None:
            self._forget(step, key, before)
        elif self.deletions:
            self.forget_deletion(step, key)
        row = value.row()
        version, _, _, expires_ms = value
        size = len(key) + len(row)
        self.live += 1
        self.bytes += size
        view.put(VALUE + key, row)
        self._remember(key, (size, expires_ms, version))
        if expires_ms:
            view.put(_expiry_key(expires_ms, key), b"")
            self.next_expiry_ms = min(self.next_expiry_ms or expires_ms, expires_ms)

    def delete(self, step: Step, key: bytes, version: bytes) -> None:
        """Delete the value of a key. `version`: version of the deletion."""
        view = step.view
        before = self._known(key, view)
        if before is not None:
            self._forget(step, key, before)
            view.delete(VALUE + key)
            self._young.pop(key, None)
            self._old.pop(key, None)
        if before is not None or view.get(DELETION + key) is None:
            self.deletions += 1
        view.put(DELETION + key, version)

    def forget_deletion(self, step: Step, key: bytes) -> None:
        """If the last write of a key was a deletion, forget it, because the log no longer has it."""
        if step.view.get(DELETION + key) is not None:
            step.view.delete(DELETION + key)
            self.deletions -= 1

    def _forget(self, step: Step, key: bytes, value: Known) -> None:
        """Remove a value from all counts."""
        size, expires_ms, _ = value
        self.live -= 1
        self.bytes -= size
        self._garbage.overwritten(VALUE, size)
        if expires_ms:
            step.view.delete(_expiry_key(expires_ms, key))

    def _known(self, key: bytes, view: View) -> Known | None:
        """Return data about the value of a key, even if it has expired. None if the key has no value."""
        known = self._young.get(key) or self._old.get(key)
        if known is None:
            row = view.get(VALUE + key)
            if row is not None:
                _, _, expires_ms, version = VALUE_HEADER.unpack_from(row)
                known = (len(key) + len(row), expires_ms, version)
                self._remember(key, known)
        return known

    def knows(self, keys: Sequence[bytes | None]) -> bool:
        """Return whether calling `put` for all of these keys, one after the other, reads no rows."""
        young, old = self._young, self._old
        if len(young) + len(keys) < KNOWN_KEYS:
            return all([key in young or key in old for key in keys])
        return all([key in young for key in keys])  # these stay known when they become the old generation

    def _remember(self, key: bytes, value: Known) -> None:
        """Cache data about the value of a key. If the young generation is full, it becomes the old one."""
        if len(self._young) >= KNOWN_KEYS:
            self._young, self._old = {}, self._young
        self._young[key] = value

    def expired(self, now_ms: int, view: View) -> list[bytes]:
        """Return a bounded number of keys with expired values, the earliest first. The caller must delete them."""
        if self.next_expiry_ms is None or self.next_expiry_ms > now_ms:
            return []
        # Start where the last sweep ended. A scan from the start would step over all rows deleted so far.
        start, stop = _expiry_key(self._swept_ms, b""), rows.tag_bounds(EXPIRY)[1]
        due: list[tuple[int, bytes]] = []
        is_cut = False
        for found, goes_on in _scan(view, start, stop, SWEEP_KEYS, SWEEP_BYTES):
            due += [(_expiry_of(key), key[7:]) for key, _ in found]
            is_cut = goes_on
        over = [key for at_ms, key in due if at_ms <= now_ms]
        # If the scan was cut, more rows follow, which may be due as well.
        following = due[-1][0] if is_cut else None
        self.next_expiry_ms = due[len(over)][0] if len(over) < len(due) else following
        self._swept_ms = due[len(over) - 1][0] if over else self._swept_ms
        return over

    # -- reading --------------------------------------------------------------------------------------------------

    def version(self, key: bytes, now_ms: int, view: View) -> bytes | None:
        """Return the version of a key's value. None if it has no value."""
        known = self._known(key, view)
        return None if known is None or 0 < known[1] <= now_ms else known[2]

    def is_latest(self, key: bytes, offset: bytes, view: View) -> bool:
        """Return whether the write at this offset is the last one of its key."""
        return offset == self.write_of(key, view)

    def write_of(self, key: bytes, view: View) -> bytes | None:
        """Return the offset of the last write of a key. None if the key was never written, or if its deletion is
        forgotten."""
        known = self._known(key, view)
        return view.get(DELETION + key) if known is None else known[2]

    def get(self, key: bytes, now_ms: int, view: View) -> bytes | None:
        """Return the row of a key's value. None if it has no value."""
        row = view.get(VALUE + key)
        return None if row is None or _is_over(row, now_ms) else row

    def scan(
        self, start: bytes, stop: bytes | None, *, limit: int, max_bytes: int, now_ms: int, view: View
    ) -> Iterator[tuple[list[Row], bytes | None]]:
        """Yield a page in parts of about `SCAN_BYTES`: keys with start <= key < stop (None: no bound), and the rows of
        their values, in order.

        A page ends after `limit` keys, or after the key that brings the bytes, including keys, to `max_bytes`. Each
        part comes with the key at which to continue, or None after the last key. The rows must not change between two
        parts.
        """
        end = _VALUE_STOP if stop is None else VALUE + stop
        for found, is_cut in _scan(view, VALUE + start, end, limit, max_bytes):
            following = found[-1][0][1:] + b"\0" if is_cut else None
            yield [(key[1:], row) for key, row in found if row[8:16] == _NEVER or not _is_over(row, now_ms)], following


def _scan(view: View, start: bytes, stop: bytes, limit: int, max_bytes: int) -> Iterator[tuple[list[Row], bool]]:
    """Yield (rows in order, whether more may follow), part by part. Stop after `limit` rows, or after the row that
    brings the bytes, including keys, to `max_bytes`."""
    while True:
        most, most_bytes = min(SCAN_ROWS, limit), min(SCAN_BYTES, max_bytes)
        part = view.scan(start, stop, limit=most, max_bytes=most_bytes)
        is_last = len(part) < most and sum([len(row) for _, row in part]) < most_bytes
        size = sum([len(key) + len(row) for key, row in part])
        if len(part) >= limit or size >= max_bytes:
            while size - len(part[-1][0]) - len(part[-1][1]) >= max_bytes:
                key, row = part.pop()
                size -= len(key) + len(row)
            yield part, True
            return
        yield part, not is_last
        if is_last:
            return
        limit -= len(part)
        max_bytes -= size
        start = part[-1][0] + b"\0"


def _is_over(row: bytes, now_ms: int) -> bool:
    """Return whether the value in a row has expired."""
    expires_ms: int = VALUE_HEADER.unpack_from(row)[2]
    return 0 < expires_ms <= now_ms


def _expiry_key(expires_ms: int, key: bytes) -> bytes:
    """Return the key of the index row of a value that expires."""
    return EXPIRY + expires_ms.to_bytes(6, "big") + key


def _expiry_of(key: bytes) -> int:
    """Return the expiry time in the key of an index row, in ms."""
    return int.from_bytes(key[1:7], "big")
