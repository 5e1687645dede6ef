"""Order by key: of each key, one message at a time is with a consumer of a group, and the next one only after it.

A key is *busy* while a message of it is leased or waits for another attempt. The cursor goes on beyond messages whose
key is busy: they are *blocked*, remembered in order, and leased first once their turn has come. Without `ordering: key`
nothing is ever in here.
"""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict
from collections.abc import Callable

from sandq.partition.stale_heaps import is_overgrown


class KeyOrder:
    """Keys stand here as hashes (`ordering_hash`)."""

    def __init__(self, on_change: Callable[[], None] = lambda: None) -> None:
        """`on_change` is called when a message is blocked, or is no longer."""
        self._on_change = on_change
        self.blocked: dict[bytes, int] = {}
        """Offset -> key of the messages behind the cursor whose turn has not come."""
        self._busy: dict[bytes, int] = {}
        """Offset -> key of what is leased or waits."""
        self._at_once: Counter[int] = Counter()
        """How many of a key are busy: one, but for what was redriven."""
        self._behind: dict[int, OrderedDict[bytes, None]] = {}
        """Busy key -> its blocked messages, in order."""
        self._turn: dict[int, bytes] = {}
        """Key -> its blocked message whose turn has come; a key that is in here is not busy otherwise."""
        self._free: list[bytes] = []
        """Heap of blocked messages whose turn has come; those of which that is no longer so are skipped when met."""
        self._lowest: list[bytes] = []
        """Heap of blocked messages, likewise."""
        self.kept: set[bytes] = set()
        """Blocked messages that are in rows of the group's own: the log need not keep them for it."""
        self._logged: list[bytes] = []
        """Heap of blocked messages that are not; likewise."""

    def is_busy(self, key: int) -> bool:
        return key in self._behind

    def start(self, offset: bytes, key: int) -> None:
        """The message is with a consumer."""
        self._busy[offset] = key
        self._at_once[key] += 1
        behind = self._behind.get(key)
        if behind is None:
            behind = self._behind[key] = OrderedDict()
        if key in self._turn:
            # What was redriven goes before.
            first = self._turn.pop(key)
            behind[first] = None
            behind.move_to_end(first, last=False)
            self._on_change()

    def block(self, offset: bytes, key: int) -> None:
        """The cursor passes a message whose key is busy."""
        self.blocked[offset] = key
        self._behind[key][offset] = None
        self._watch_lowest(offset)
        self._watch_logged(offset)
        self._on_change()

    def load(self, offset: bytes, key: int, kept: bool = False) -> None:
        """A blocked message from its row, after all that is busy was started; in the order of offsets."""
        if kept:
            self.kept.add(offset)
        if key in self._behind:
            self.block(offset, key)
        else:
            self.blocked[offset] = key
            self._behind[key] = OrderedDict({offset: None})
            self._next(key)
            self._watch_lowest(offset)
            self._watch_logged(offset)
            self._on_change()

    def keep(self, offset: bytes) -> None:
        """A blocked message is in a row of the group's own from now on."""
        self.kept.add(offset)
        self._on_change()

    def finish(self, offset: bytes) -> None:
        """The message was acked, or is dead: the next of its key may go."""
        key = self._busy.pop(offset, None)
        if key is None:
            return
        self._at_once[key] -= 1
        if not self._at_once[key]:
            del self._at_once[key]
            self._next(key)
            self._on_change()

    def remove(self, offset: bytes) -> None:
        """A blocked message is gone: cancelled, moved, or dead by its ttl."""
        key = self.blocked.pop(offset)
        self.kept.discard(offset)
        if self._turn.get(key) == offset:
            del self._turn[key]
            self._next(key)
        else:
            del self._behind[key][offset]
        self._on_change()

    def first_free(self) -> bytes | None:
        """The first blocked message whose turn has come; its key stays busy with it."""
        while self._free:
            key = self.blocked.get(self._free[0])
            if key is not None and self._turn.get(key) == self._free[0]:
                return self._free[0]
            heapq.heappop(self._free)
        return None

    def take(self, offset: bytes) -> None:
        """`first_free` was leased."""
        key = self.blocked.pop(offset)
        self.kept.discard(offset)
        del self._turn[key]
        self.start(offset, key)
        self._on_change()

    def lowest(self) -> bytes | None:
        """The lowest blocked message."""
        while self._lowest:
            if self._lowest[0] in self.blocked:
                return self._lowest[0]
            heapq.heappop(self._lowest)
        return None

    def lowest_logged(self) -> bytes | None:
        """The lowest blocked message that the log has to keep."""
        while self._logged:
            if self._logged[0] in self.blocked and self._logged[0] not in self.kept:
                return self._logged[0]
            heapq.heappop(self._logged)
        return None

    def _watch_logged(self, offset: bytes) -> None:
        if offset in self.kept:
            return
        if is_overgrown(len(self._logged), len(self.blocked) - len(self.kept)):
            self._logged = sorted(self.blocked.keys() - self.kept)
        else:
            heapq.heappush(self._logged, offset)

    def _watch_lowest(self, offset: bytes) -> None:
        if is_overgrown(len(self._lowest), len(self.blocked)):
            self._lowest = sorted(self.blocked)
        else:
            heapq.heappush(self._lowest, offset)

    def _next(self, key: int) -> None:
        behind = self._behind[key]
        if behind:
            self._turn[key] = behind.popitem(last=False)[0]
            if is_overgrown(len(self._free), len(self._turn)):
                self._free = sorted(self._turn.values())
            else:
                heapq.heappush(self._free, self._turn[key])
        else:
            del self._behind[key]

    def clear(self) -> None:
        """Nothing is busy or blocked."""
        for held in (self.blocked, self._busy, self._at_once, self._behind, self._turn, self.kept):
            held.clear()
        for heap in (self._free, self._lowest, self._logged):
            heap.clear()
        self._on_change()
