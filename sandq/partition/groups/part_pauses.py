"""Pauses of parts of a group: of single tenants in a fair topic, and of single keys in a topic that limits keys.

Each pause has a row. The row of a key has the key itself, unless the key is long. A pause of a tenant ends with its
time. A pause of a key ends when its row is removed, in the first entry after its time that has capacity for this.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import NamedTuple

from sandq.model.errors import InvalidRequest
from sandq.model.limits import FIXED
from sandq.model.partitioning import ordering_hash
from sandq.model.pauses import FOREVER, STORED_KEY_BYTES, set_back_end
from sandq.partition.base import rows
from sandq.partition.base.stale_heaps import is_overgrown
from sandq.partition.base.step import Step
from sandq.partition.base.view import View
from sandq.partition.groups.key_order import KeyOrder
from sandq.partition.ready.ready_queues import ReadyQueues

Part = str | int
"""A tenant by name, or a key by its ordering hash."""


class PausedPart(NamedTuple):
    """A paused tenant or key. `until_ms`: end of the pause. `key`: None for a tenant, for a long key, and for a key
    that the caller knows."""

    part: Part
    until_ms: int
    key: bytes | None = None


def part_order(part: Part) -> tuple[bool, Part]:
    """Return the position of a part in lists, which is the same in all partitions: tenants by name, then keys by
    their hashes."""
    return isinstance(part, int), part


def split_part(named: str | bytes | int) -> tuple[Part, bytes | None]:
    """Return the part of a `PausePart` command, and the key to store with its pause."""
    return (ordering_hash(named), named) if isinstance(named, bytes) else (named, None)


def command_part(key: bytes) -> bytes | int:
    """Return a key as `PausePart` takes it: a long key by its ordering hash."""
    return key if len(key) <= STORED_KEY_BYTES else ordering_hash(key)


class PartPauses:
    """The paused tenants and keys of one group."""

    def __init__(self, group_id: int, order: KeyOrder, on_resume: Callable[[int], None]) -> None:
        """`on_resume` is called with each key whose pause has ended."""
        self._group_id = group_id
        self._order = order
        self._on_resume = on_resume
        self.ready: ReadyQueues | None = None
        """The ready queues of the group. None if the topic does not rank messages."""
        self.ends: dict[Part, int] = {}
        """End of each pause in ms."""
        self.tenants = 0
        """Number of paused tenants."""
        self._queue: list[tuple[int, bytes, Part]] = []
        """Heap of (end in ms, row key, part). Items whose end has changed are skipped at the top."""

    def load(self, view: View) -> None:
        """Load the pauses from their rows."""
        for key, value in rows.all_of_group(view, rows.PAUSE, self._group_id):
            kind, name = key[5:6], key[6:]
            part: Part = name.decode() if kind == rows.PAUSED_TENANT else int.from_bytes(name, "big")
            self._put(part, rows.unpack(value)[0])

    def pause(self, step: Step, part: Part, until_ms: int, key: bytes | None = None) -> None:
        """Pause a tenant or a key. `key`: the key to store with the pause. Raise InvalidRequest if too many are
        paused."""
        if part not in self.ends and len(self.ends) >= FIXED.paused_parts:
            raise InvalidRequest(
                f"the group has {FIXED.paused_parts:,} paused tenants and keys in this partition, and no more are "
                "allowed (paused_parts, which is fixed): resume some, or pause the group",
                limit="paused_parts",
                maximum=FIXED.paused_parts,
            )
        step.view.put(self._key(part), rows.pack(until_ms) if key is None else rows.pack(until_ms, key))
        self._put(part, until_ms)

    def resume(self, step: Step, part: Part) -> None:
        """End the pause of a tenant or a key, if it is paused."""
        if part not in self.ends:
            return
        step.view.delete(self._key(part))
        del self.ends[part]
        if isinstance(part, str):
            self.tenants -= 1
            if self.ready is not None:
                self.ready.limits.pauses.ends.pop(part, None)
                self.ready.note_pause()
        else:
            self._order.resume(part)
            self._on_resume(part)

    @property
    def keys(self) -> int:
        """Number of paused keys."""
        return len(self.ends) - self.tenants

    def first(self, now_ms: int, most: int) -> tuple[list[PausedPart], int]:
        """Return the first `most` paused parts in `part_order`, without their keys, and the number of the others.
        Pauses that have ended do not count."""
        parts = sorted([part for part, until_ms in self.ends.items() if until_ms > now_ms], key=part_order)
        return [PausedPart(part, self.ends[part]) for part in parts[:most]], max(len(parts) - most, 0)

    def with_key(self, view: View, paused: PausedPart) -> PausedPart:
        """Return a paused part with its key, if its row has one."""
        row = view.get(self._key(paused.part))
        return paused if row is None else paused._replace(key=rows.with_defaults(rows.unpack(row)[1:], None)[0])

    def next_ms(self) -> int | None:
        """Return when the next pause ends, in ms. None if none ends by itself."""
        while self._queue:
            until_ms, _, part = self._queue[0]
            if self.ends.get(part) == until_ms:
                return until_ms
            heapq.heappop(self._queue)
        return None

    def end(self, step: Step, most: int) -> int:
        """Remove up to `most` pauses that have ended. Return their number."""
        ended = 0
        while ended < most and (next_ms := self.next_ms()) is not None and next_ms <= step.now_ms:
            self.resume(step, heapq.heappop(self._queue)[2])
            ended += 1
        return ended

    def set_back(self, step: Step, old_ms: int, new_ms: int) -> None:
        """Shorten the pauses that a wrong clock has most likely set, because the time is set back from `old_ms` to
        `new_ms`."""
        for part, until_ms in sorted(self.ends.items(), key=lambda item: self._key(item[0])):
            ends_ms = set_back_end(until_ms, old_ms, new_ms)
            if ends_ms != until_ms:
                row = step.view.get(self._key(part))
                assert row is not None, "a pause has a row"
                step.view.put(self._key(part), rows.pack(ends_ms, *rows.unpack(row)[1:]))
                self._put(part, ends_ms)

    def _put(self, part: Part, until_ms: int) -> None:
        """Note a pause that is new, or has a new end."""
        is_new = part not in self.ends
        self.ends[part] = until_ms
        if until_ms != FOREVER:
            if is_overgrown(len(self._queue), len(self.ends)):
                self._queue = [(end, self._key(one), one) for one, end in self.ends.items() if end != FOREVER]
                heapq.heapify(self._queue)
            else:
                heapq.heappush(self._queue, (until_ms, self._key(part), part))
        if isinstance(part, str):
            self.tenants += is_new
            if self.ready is not None:
                self.ready.limits.pauses.ends[part] = until_ms
                self.ready.note_pause()
        else:
            self._order.pause(part)

    def _key(self, part: Part) -> bytes:
        """Return the key of the row of a pause."""
        if isinstance(part, str):
            return rows.of_group(rows.PAUSE, self._group_id, rows.PAUSED_TENANT + part.encode())
        return rows.of_group(rows.PAUSE, self._group_id, rows.PAUSED_KEY + part.to_bytes(8, "big"))
