"""Rows that remember something for a while: unique keys after delivery, what was cancelled, where it had been moved.

Each such row carries, as its last field, the instant at which it is forgotten (None: not yet known), and a row of its
own in the order of these instants leads to it. What was put there again meanwhile says another instant, and stays.
"""

from __future__ import annotations

from sandq.model import offsets
from sandq.partition.base import rows
from sandq.partition.base.step import Step

CANCEL_MEMORY_MS = 600_000
"""How long a repeated cancel is answered as the first time."""
SWEEP_ROWS = 1000
_KEY_START = 7


class ExpiringRows:
    def __init__(self) -> None:
        self.next_ms: int | None = None
        """When the next row is to be forgotten."""
        self._swept_ms = 0

    def state(self) -> tuple[int | None, int]:
        return self.next_ms, self._swept_ms

    def load(self, state: tuple[int | None, int]) -> None:
        self.next_ms, self._swept_ms = state

    def put(self, step: Step, key: bytes, due_ms: int, *fields: object) -> None:
        """Put a row of these fields, to be forgotten at `due_ms`."""
        due_ms = min(due_ms, offsets.U48_MAX)
        step.view.put(key, rows.pack(*fields, due_ms))
        step.view.put(rows.FORGET + due_ms.to_bytes(6, "big") + key, b"")
        self.next_ms = due_ms if self.next_ms is None else min(self.next_ms, due_ms)

    def expire_move(self, step: Step, message_id: bytes) -> None:
        """Remember only for a while where a message had been moved, for it is nowhere any more."""
        key = rows.MOVED + message_id
        row = step.view.get(key)
        if row is not None:
            *fields, forgotten_ms = rows.unpack(row)
            if forgotten_ms is None:
                self.put(step, key, step.now_ms + CANCEL_MEMORY_MS, *fields)

    def set_back(self, step: Step) -> None:
        """The partition's time goes back to this instant: rows may have to be forgotten from it on."""
        self._swept_ms = min(self._swept_ms, step.now_ms)
        self.next_ms = None if self.next_ms is None else min(self.next_ms, step.now_ms)

    def sweep(self, step: Step) -> None:
        """Forget what is due, a bounded number."""
        view, now_ms = step.view, step.now_ms
        if self.next_ms is None or self.next_ms > now_ms:
            return
        # From where the last sweep ended: a scan from the start would walk over every row deleted so far.
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
