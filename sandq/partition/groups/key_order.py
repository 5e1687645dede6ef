"""Concurrency by key: of each key, so many messages at most are with a group's consumers, the next ones after them.

A message is *busy* while it is leased or waits for another attempt. The cursor goes on beyond messages whose keys have
as many busy ones as their limit: they are *blocked*, remembered in order, and leased first once their turn has come.
Of a key with blocked messages those have their turn, from the first one on, for which there is room below the limit.
`ordering: key` is the limit 1. Where keys have no limit nothing is ever in here.
"""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict
from collections.abc import Callable

from sandq.partition.base.stale_heaps import is_overgrown

Offsets = OrderedDict[bytes, None]


class KeyOrder:
    """Keys stand here as hashes (`ordering_hash`)."""

    def __init__(self, on_change: Callable[[], None] = lambda: None) -> None:
        """`on_change` is called when a message is blocked, or is no longer, or its turn has come."""
        self._on_change = on_change
        self.limit = 1
        """How many of a key may be busy. More are after it was lowered, and of what was redriven."""
        self.blocked: dict[bytes, int] = {}
        """Offset -> key of the messages behind the cursor that are not busy."""
        self._busy: dict[bytes, int] = {}
        """Offset -> key of what is leased or waits."""
        self._at_once: Counter[int] = Counter()
        """How many of a key are busy."""
        self._behind: dict[int, Offsets] = {}
        """Key -> its blocked messages whose turn has not come, in order: none without any."""
        self._turn: dict[int, Offsets] = {}
        """Key -> its blocked messages whose turn has come, likewise: before all that are behind."""
        self._free: list[bytes] = []
        """Heap of blocked messages whose turn has come; those of which that is no longer so are skipped when met."""
        self._lowest: list[bytes] = []
        """Heap of blocked messages, likewise."""
        self.kept: set[bytes] = set()
        """Blocked messages that are in rows of the group's own: the log need not keep them for it."""
        self._logged: list[bytes] = []
        """Heap of blocked messages that are not; likewise."""

    def is_full(self, key: int) -> bool:
        """Whether the next message of a key is blocked: behind as many as there may be, or behind blocked ones."""
        return self._at_once[key] >= self.limit or key in self._turn or key in self._behind

    def busy_of(self, key: int) -> int:
        """How many messages of a key are leased or wait."""
        return self._at_once[key]

    @property
    def waiting(self) -> int:
        """How many blocked messages wait for others of their key."""
        return sum(map(len, self._behind.values()))

    def is_free(self, offset: bytes) -> bool:
        """Whether a message is blocked no longer but by want of a consumer."""
        key = self.blocked.get(offset)
        return key is not None and offset in self._turn.get(key, ())

    def set_limit(self, limit: int) -> None:
        """Have another limit from now on: messages come to their turn by it, and what is busy stays so."""
        if limit == self.limit:
            return
        self.limit = limit
        for key in list(self._turn.keys() | self._behind.keys()):
            self._give_turns(key)
        self._on_change()

    def start(self, offset: bytes, key: int) -> None:
        """The message is with a consumer."""
        self._busy[offset] = key
        self._at_once[key] += 1
        if key in self._turn:
            # What was redriven goes before.
            self._give_turns(key)
            self._on_change()

    def block(self, offset: bytes, key: int) -> None:
        """The cursor passes a message whose key is full."""
        self.blocked[offset] = key
        self._behind.setdefault(key, OrderedDict())[offset] = None
        self._give_turns(key)
        self._watch_lowest(offset)
        self._watch_logged(offset)
        self._on_change()

    def load(self, offset: bytes, key: int, kept: bool = False) -> None:
        """A blocked message from its row, after all that is busy was started; in the order of offsets."""
        if kept:
            self.kept.add(offset)
        self.block(offset, key)

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
        if key in self._behind:
            self._give_turns(key)
            self._on_change()

    def remove(self, offset: bytes) -> None:
        """A blocked message is gone: cancelled, moved, or dead by its ttl."""
        self._unblock(offset)
        self._on_change()

    def first_free(self) -> bytes | None:
        """The first blocked message whose turn has come."""
        while self._free:
            if self.is_free(self._free[0]):
                return self._free[0]
            heapq.heappop(self._free)
        return None

    def take(self, offset: bytes) -> None:
        """`first_free` was leased."""
        key = self.blocked[offset]
        self._busy[offset] = key
        self._at_once[key] += 1
        self._unblock(offset)
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

    def _watch_free(self, offset: bytes) -> None:
        if is_overgrown(len(self._free), len(self.blocked)):
            self._free = sorted([offset for turn in self._turn.values() for offset in turn])
        else:
            heapq.heappush(self._free, offset)

    def _unblock(self, offset: bytes) -> None:
        key = self.blocked.pop(offset)
        self.kept.discard(offset)
        for queues in (self._turn, self._behind):
            queue = queues.get(key)
            if queue is not None and offset in queue:
                del queue[offset]
                if not queue:
                    del queues[key]
        self._give_turns(key)

    def _give_turns(self, key: int) -> None:
        """Have as many blocked messages of a key come to their turn as there is room for, and no others."""
        turn, behind = self._turn.setdefault(key, OrderedDict()), self._behind.setdefault(key, OrderedDict())
        room = self.limit - self._at_once[key]
        while behind and len(turn) < room:
            offset, _ = behind.popitem(last=False)
            turn[offset] = None
            self._watch_free(offset)
        while turn and len(turn) > room:
            offset, _ = turn.popitem()
            behind[offset] = None
            behind.move_to_end(offset, last=False)
        if not turn:
            del self._turn[key]
        if not behind:
            del self._behind[key]

    def clear(self) -> None:
        """Nothing is busy or blocked."""
        for held in (self.blocked, self._busy, self._at_once, self._behind, self._turn, self.kept):
            held.clear()
        for heap in (self._free, self._lowest, self._logged):
            heap.clear()
        self._on_change()
