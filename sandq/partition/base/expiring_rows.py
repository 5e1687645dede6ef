"""Rows that are kept for a limited time: unique keys after delivery, cancelled messages, positions of moved messages.

The last field of such a row is its expiry time in ms (None: not yet known). An index row, whose key begins with the
expiry time, names the row. If the row was replaced in the meantime, its expiry time differs from the time in the old
index row. Then the sweep deletes only the index row.
"""

from __future__ import annotations

from sandq.model import offsets
from sandq.partition.base import rows
from sandq.partition.base.step import Step

CANCEL_MEMORY_MS = 600_000
"""Time in ms during which a repeated cancel gets the same reply as the first one."""
SWEEP_ROWS = 1000
_KEY_START = 7


class ExpiringRows:
    def __init__(self) -> None:
        self.next_ms: int | None = None
        """A time at or before the first expiry, in ms. None if no row expires."""
        self._swept_ms = 0

    def state(self) -> tuple[int | None, int]:
        """Return the values to store in the state row."""
        return self.next_ms, self._swept_ms

    def load(self, state: tuple[int | None, int]) -> None:
        """Restore the values that `state` returned."""
        self.next_ms, self._swept_ms = state

    def put(self, step: Step, key: bytes, due_ms: int, *fields: object) -> None:
        """Put a row with these fields and an index row. The row expires at `due_ms`."""
        due_ms = min(due_ms, offsets.U48_MAX)
        step.view.put(key, rows.pack(*fields, due_ms))
        step.view.put(rows.FORGET + due_ms.to_bytes(6, "big") + key, b"")
        self.next_ms = due_ms if self.next_ms is None else min(self.next_ms, due_ms)

    def expire_move(self, step: Step, message_id: bytes) -> None:
        """Make the row with a moved message's position expire after `CANCEL_MEMORY_MS`, because the message no longer
        exists."""
        key = rows.MOVED + message_id
        row = step.view.get(key)
        if row is not None:
            *fields, forgotten_ms = rows.unpack(row)
            if forgotten_ms is None:
                self.put(step, key, step.now_ms + CANCEL_MEMORY_MS, *fields)

    def set_back(self, step: Step) -> None:
        """Adjust to a clock reset, which sets the partition's time back to that of `step`. New rows may expire before
        rows that were swept already, so the next sweep starts at this time."""
        self._swept_ms = min(self._swept_ms, step.now_ms)
        self.next_ms = None if self.next_ms is None else min(self.next_ms, step.now_ms)

    def sweep(self, step: Step) -> None:
        """Delete expired rows, at most `SWEEP_ROWS` of them per call."""
        view, now_ms = step.view, step.now_ms
        if self.next_ms is None or self.next_ms > now_ms:
            return
        # Start where the last sweep ended. A scan from the first key would step over all rows deleted so far, because
        # the store keeps deleted rows until it is compacted.
        start = rows.FORGET + self._swept_ms.to_bytes(6, "big")
        stop = rows.tag_bounds(rows.FORGET)[1]
        found = view.scan(start, stop, limit=SWEEP_ROWS + 1, max_bytes=1 << 40)
        self.next_ms = None
        for at, (index_key, _) in enumerate(found):
            due_ms = int.from_bytes(index_key[1:_KEY_START], "big")
            if due_ms > now_ms or at == SWEEP_ROWS:
                self.next_ms = due_ms
                break
            self._swept_ms = due_ms
            key = index_key[_KEY_START:]
            row = view.get(key)
            if row is not None and rows.unpack(row)[-1] == due_ms:
                view.delete(key)
            view.delete(index_key)
