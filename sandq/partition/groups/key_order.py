"""Concurrency per key: the consumers of a group hold a limited number of messages of each key at the same time.

A message is *busy* while it is leased or waits for its next attempt. If a key has as many busy messages as its limit,
its further messages are *blocked* when the cursor passes them. Blocked messages are kept in order, and leased before
messages of the log. If a key has fewer busy messages than its limit, its first blocked messages become *free*. A
blocked message may be leased only if it is free. `ordering: key` is a limit of 1. Without a limit, this object stays
empty.
"""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict
from collections.abc import Callable

from sandq.partition.base.stale_heaps import is_overgrown

Offsets = OrderedDict[bytes, None]


class KeyOrder:
    """The busy and blocked messages of one group. Keys are represented by hashes (`ordering_hash`)."""

    def __init__(self, on_change: Callable[[], None] = lambda: None) -> None:
        """`on_change` is called when a message becomes blocked or free, or is no longer blocked."""
        self._on_change = on_change
        self.limit = 1
        """Maximum number of busy messages of a key. A key may exceed it after the limit was lowered, or after a
        redrive."""
        self.paused: set[int] = set()
        """Keys that are paused. All their messages are blocked."""
        self.blocked: dict[bytes, int] = {}
        """Key by offset, for messages that the cursor has passed and that are not busy."""
        self._busy: dict[bytes, int] = {}
        """Key by offset, for messages that are leased or wait."""
        self._at_once: Counter[int] = Counter()
        """Number of busy messages by key."""
        self._blocked_by_key: dict[int, Offsets] = {}
        """By key: blocked messages that are not free, in order. Keys without any are missing."""
        self._free_by_key: dict[int, Offsets] = {}
        """By key: blocked messages that are free, in order. They all precede the messages in `_blocked_by_key`."""
        self._free: list[bytes] = []
        """Heap of free messages. Items that are no longer free are skipped at the top."""
        self._lowest: list[bytes] = []
        """Heap of blocked messages. Items that are no longer blocked are skipped at the top."""
        self.kept: set[bytes] = set()
        """Blocked messages that are in rows of the group, so that the log need not be kept for them."""
        self._logged: list[bytes] = []
        """Heap of blocked messages that are not in `kept`. All other items are skipped at the top."""

    def is_full(self, key: int) -> bool:
        """Return whether the next message of a key is blocked: by a pause, by busy messages or by earlier blocked
        messages."""
        if key in self.paused:
            return True
        return self._at_once[key] >= self.limit or key in self._free_by_key or key in self._blocked_by_key

    def key_of(self, offset: bytes) -> int | None:
        """Return the key of a busy message. None if it has no key."""
        return self._busy.get(offset)

    def paused_key_of(self, offset: bytes) -> int | None:
        """Return the key of a busy message if it is paused. None if it is not paused, or if the message has no key."""
        key = self._busy.get(offset)
        return key if key in self.paused else None

    def busy_of(self, key: int) -> int:
        """Return how many messages of a key are leased or wait."""
        return self._at_once[key]

    @property
    def waiting(self) -> int:
        """Number of blocked messages that are not free."""
        return sum(map(len, self._blocked_by_key.values()))

    def is_free(self, offset: bytes) -> bool:
        """Return whether a blocked message may be leased."""
        key = self.blocked.get(offset)
        return key is not None and offset in self._free_by_key.get(key, ())

    def set_limit(self, limit: int) -> None:
        """Set the limit. It decides which blocked messages are free. Busy messages stay busy."""
        if limit == self.limit:
            return
        self.limit = limit
        for key in list(self._free_by_key.keys() | self._blocked_by_key.keys()):
            self._update_free(key)
        self._on_change()

    def pause(self, key: int) -> None:
        """Block all messages of a key that are not busy."""
        self.paused.add(key)
        self._update_paused(key)

    def resume(self, key: int) -> None:
        """End the pause of a key. Its first blocked messages may become free."""
        self.paused.discard(key)
        self._update_paused(key)

    def _update_paused(self, key: int) -> None:
        """Update the messages of a key after its pause began or ended."""
        if key in self._free_by_key or key in self._blocked_by_key:
            self._update_free(key)
        self._on_change()

    def start(self, offset: bytes, key: int) -> None:
        """Note that a message is held by a consumer or waits."""
        self._busy[offset] = key
        self._at_once[key] += 1
        if key in self._free_by_key:
            # A redriven message takes precedence over free messages of its key.
            self._update_free(key)
            self._on_change()

    def block(self, offset: bytes, key: int) -> None:
        """Note that the cursor passes a message whose key is full."""
        self.blocked[offset] = key
        self._blocked_by_key.setdefault(key, OrderedDict())[offset] = None
        self._update_free(key)
        self._watch_lowest(offset)
        self._watch_logged(offset)
        self._on_change()

    def load(self, offset: bytes, key: int, kept: bool = False) -> None:
        """Load a blocked message from its row. Load all busy messages first, and blocked messages in the order of their
        offsets."""
        if kept:
            self.kept.add(offset)
        self.block(offset, key)

    def keep(self, offset: bytes) -> None:
        """Note that a blocked message is in a row of the group from now on."""
        self.kept.add(offset)
        self._on_change()

    def finish(self, offset: bytes) -> None:
        """Note that a message was acked or is dead. The next message of its key may become free."""
        key = self._busy.pop(offset, None)
        if key is None:
            return
        self._at_once[key] -= 1
        if not self._at_once[key]:
            del self._at_once[key]
        if key in self._blocked_by_key:
            self._update_free(key)
            self._on_change()

    def remove(self, offset: bytes) -> None:
        """Remove a blocked message that was cancelled, moved, or has expired."""
        self._unblock(offset)
        self._on_change()

    def first_free(self) -> bytes | None:
        """Return the first free message. None if there is none."""
        while self._free:
            if self.is_free(self._free[0]):
                return self._free[0]
            heapq.heappop(self._free)
        return None

    def take(self, offset: bytes) -> None:
        """Make the message that `first_free` returned busy."""
        key = self.blocked[offset]
        self._busy[offset] = key
        self._at_once[key] += 1
        self._unblock(offset)
        self._on_change()

    def lowest(self) -> bytes | None:
        """Return the lowest blocked message. None if there is none."""
        while self._lowest:
            if self._lowest[0] in self.blocked:
                return self._lowest[0]
            heapq.heappop(self._lowest)
        return None

    def lowest_logged(self) -> bytes | None:
        """Return the lowest blocked message for which the log must be kept. None if there is none."""
        while self._logged:
            if self._logged[0] in self.blocked and self._logged[0] not in self.kept:
                return self._logged[0]
            heapq.heappop(self._logged)
        return None

    def _watch_logged(self, offset: bytes) -> None:
        """Add a blocked message to the heap `_logged`, unless the group keeps it."""
        if offset in self.kept:
            return
        if is_overgrown(len(self._logged), len(self.blocked) - len(self.kept)):
            self._logged = sorted(self.blocked.keys() - self.kept)
        else:
            heapq.heappush(self._logged, offset)

    def _watch_lowest(self, offset: bytes) -> None:
        """Add a blocked message to the heap `_lowest`."""
        if is_overgrown(len(self._lowest), len(self.blocked)):
            self._lowest = sorted(self.blocked)
        else:
            heapq.heappush(self._lowest, offset)

    def _watch_free(self, offset: bytes) -> None:
        """Add a free message to the heap `_free`."""
        if is_overgrown(len(self._free), len(self.blocked)):
            self._free = sorted([offset for free in self._free_by_key.values() for offset in free])
        else:
            heapq.heappush(self._free, offset)

    def _unblock(self, offset: bytes) -> None:
        """Remove a message from the blocked messages. Another message of its key may become free."""
        key = self.blocked.pop(offset)
        self.kept.discard(offset)
        for queues in (self._free_by_key, self._blocked_by_key):
            queue = queues.get(key)
            if queue is not None and offset in queue:
                del queue[offset]
                if not queue:
                    del queues[key]
        self._update_free(key)

    def _update_free(self, key: int) -> None:
        """Make exactly as many blocked messages of a key free as its limit allows."""
        free = self._free_by_key.setdefault(key, OrderedDict())
        blocked = self._blocked_by_key.setdefault(key, OrderedDict())
        capacity = 0 if key in self.paused else self.limit - self._at_once[key]
        while blocked and len(free) < capacity:
            offset, _ = blocked.popitem(last=False)
            free[offset] = None
            self._watch_free(offset)
        while free and len(free) > capacity:
            offset, _ = free.popitem()
            blocked[offset] = None
            blocked.move_to_end(offset, last=False)
        if not free:
            del self._free_by_key[key]
        if not blocked:
            del self._blocked_by_key[key]

    def clear(self) -> None:
        """Forget all messages. Paused keys stay paused."""
        for held in (self.blocked, self._busy, self._at_once, self._blocked_by_key, self._free_by_key, self.kept):
            held.clear()
        for heap in (self._free, self._lowest, self._logged):
            heap.clear()
        self._on_change()
