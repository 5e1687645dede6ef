"""The entries of a group's ready queues. The first entries of each queue are in memory, all others only in rows.

The entries in memory are a cache: it grows as messages are taken, and shrinks when the node needs the memory.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, islice
from typing import Final

from sandq.model import offsets
from sandq.partition.base import rows
from sandq.partition.base.rows import LogEntry
from sandq.partition.base.step import Step
from sandq.partition.base.view import View
from sandq.partition.reader.look_aheads import LookAheads
from sandq.partition.reader.reader import without
from sandq.partition.ready.ready_queue import ENTRY_BYTES, ReadyQueue, bytes_of, row_of

HEAD_ENTRIES: Final = 8
"""Number of entries that the first read of a queue loads. Each further read loads twice as many."""
MOST_ENTRIES: Final = 1024
HELD_SHARE: Final = 1 / 2
"""Share of the memory for all look-aheads of a node that the queues of one group may use, beyond `HEAD_ENTRIES` per
queue."""
READ_BYTES: Final = 1 << 20
_NO_LIMIT = 1 << 40


class QueueEntries:
    """Owns the rows of the entries of ready queues."""

    def __init__(self, group_id: int, look_aheads: LookAheads | None) -> None:
        self.bytes = 0
        """Bytes of the entries in memory."""
        self._rows = rows.of_group(rows.READY, group_id)
        self._look_aheads = look_aheads
        self._unsaved: dict[bytes, tuple[ReadyQueue, LogEntry]] = {}
        """Entries that have no row yet, by their first offset."""
        self._gone: list[bytes] = []
        """Keys of rows to delete, because their entries were taken."""
        self._most_entries = MOST_ENTRIES
        """Maximum number of small entries that a queue reads or keeps at once. Large entries are limited to the same
        number of bytes."""

    # -- adding ---------------------------------------------------------------------------------------------------

    def append(self, step: Step, queue: ReadyQueue, entry: LogEntry) -> None:
        """Append an entry to its queue. If it stays in memory, `save` puts its row later."""
        if queue.covered == offsets.LAST and queue.held_bytes < self._most_entries * ENTRY_BYTES:
            queue.entries.append(entry)
            self._note_held(queue, bytes_of(entry))
            self._unsaved[entry.first] = queue, entry
        else:
            if queue.covered == offsets.LAST:
                queue.covered = rows.last_of(queue.entries[-1])
            self._save(step, queue, entry)
            if entry.first <= queue.covered:
                # A clock reset moved the last messages in memory to lower offsets, and this is one of them.
                self._hold(queue, [entry])

    def insert(self, step: Step, queue: ReadyQueue, added: Sequence[LogEntry]) -> None:
        """Insert sorted entries into a queue, in the order of offsets."""
        prefix = self._rows + queue.key
        step.view.put_all([(prefix + entry.first, row_of(entry)) for entry in added])
        near = [entry for entry in added if entry.first <= queue.covered]
        if near:
            self._hold(queue, near)

    def _hold(self, queue: ReadyQueue, added: Sequence[LogEntry]) -> None:
        """Add entries to the in-memory entries of a queue."""
        held = queue.entries
        if len(added) == 1:
            held.insert(bisect_left(held, added[0].first, key=_first), added[0])
        else:
            held = queue.entries = deque(sorted([*held, *added], key=_first))
        self._note_held(queue, sum(map(bytes_of, added)))
        most_bytes = self._most_entries * ENTRY_BYTES
        if queue.held_bytes > 2 * most_bytes:
            ends = accumulate(map(bytes_of, held))
            count = next((at for at, size in enumerate(ends, 1) if size >= most_bytes), len(held))
            queue.entries = deque(islice(held, count))
            self._note_held(queue, sum(map(bytes_of, queue.entries)) - queue.held_bytes)
            queue.covered = rows.last_of(queue.entries[-1])

    def _note_held(self, queue: ReadyQueue, more: int) -> None:
        """Count `more` additional bytes of a queue in memory."""
        queue.held_bytes += more
        self.bytes += more

    # -- lookups --------------------------------------------------------------------------------------------------

    def load_first(self, queue: ReadyQueue, view: View) -> None:
        """Load the first entries of a queue into memory, unless some are in memory already."""
        if queue.entries or not queue.messages:
            return
        prefix = self._rows + queue.key
        start = prefix + max(queue.first, queue.covered)
        if queue.covered >= queue.first:
            start = rows.after(start)
        stop = prefix + offsets.LAST + b"\0"
        window = min(queue.window, self._most_entries)
        found = view.scan(start, stop, limit=window, max_bytes=min(READ_BYTES, window * ENTRY_BYTES))
        queue.entries.extend([queue.load(key, value) for key, value in found])
        self._note_held(queue, sum(map(bytes_of, queue.entries)))
        assert queue.entries, "a queue with messages has rows"
        is_all = sum([entry.length for entry in queue.entries]) == queue.messages
        queue.covered = offsets.LAST if is_all else rows.last_of(queue.entries[-1])
        queue.window = 2 * window

    def find(self, queue: ReadyQueue, offset: bytes, view: View) -> LogEntry | None:
        """Return the entry of a queue that contains a message. None if there is none."""
        if not queue.messages or offset < queue.first:
            return None
        if offset <= queue.covered:
            before = bisect_right(queue.entries, offset, key=_first) - 1
            entry = queue.entries[before] if before >= 0 else None
        else:
            prefix = self._rows + queue.key
            found = view.scan(prefix, rows.after(prefix + offset), limit=1, max_bytes=1, reverse=True)
            entry = queue.load(*found[0]) if found else None
        behind = None if entry is None else offsets.distance(entry.first, offset)
        return entry if entry is not None and behind is not None and 0 <= behind < entry.length else None

    def between(self, queue: ReadyQueue, first: bytes, last: bytes, view: View) -> list[LogEntry]:
        """Return the entries of a queue that begin between `first` and `last`, both included."""
        prefix = self._rows + queue.key
        found = view.scan(prefix + first, rows.after(prefix + last), limit=_NO_LIMIT, max_bytes=_NO_LIMIT)
        return [queue.load(key, row) for key, row in found]

    def firsts_between(self, queue: ReadyQueue, first: bytes, last: bytes, view: View) -> set[bytes]:
        """Return the offsets at which entries of a queue begin, between `first` and `last`, both included."""
        prefix = self._rows + queue.key
        found = view.scan(prefix + first, rows.after(prefix + last), limit=_NO_LIMIT, max_bytes=_NO_LIMIT)
        return {key[-offsets.OFFSET_BYTES :] for key, _ in found}

    def count_below(
        self, queues: Iterable[ReadyQueue], bound: Callable[[bytes], bytes | None], most: int, view: View
    ) -> tuple[int, bool]:
        """Count the messages of queues below an offset. `bound` returns the offset for the key of a queue (None: skip
        the queue). Messages that were given back do not count.

        Stop after `most` messages, or after reading `most` rows. Return (number of messages, whether all rows were
        read).
        """
        count, left = 0, most
        for queue in queues:
            stop = bound(queue.key) if queue.messages else None
            if stop is None or stop <= queue.first:
                continue
            if stop == offsets.LAST:
                count += queue.messages
            elif left > 0:
                prefix = self._rows + queue.key
                found = view.scan(prefix + queue.first, prefix + stop, limit=left, max_bytes=READ_BYTES)
                left -= max(len(found), 1)
                for key, row in found:
                    entry = queue.load(key, row)
                    behind = offsets.distance(entry.first, stop)
                    # The messages of one entry have consecutive offsets; the last of them may be beyond the bound.
                    count += entry.length if behind is None else min(entry.length, behind)
            if count >= most:
                return count, True
        return count, left > 0

    # -- removing -------------------------------------------------------------------------------------------------

    def take(self, queue: ReadyQueue, count: int) -> None:
        """Take the first `count` messages out of the first entry of a queue."""
        entry = queue.entries.popleft()
        self._note_held(queue, -bytes_of(entry))
        if self._unsaved.pop(entry.first, None) is None:
            self._gone.append(self._rows + queue.key + entry.first)
        if count < entry.length:
            rest = entry.part(count, entry.length)
            queue.entries.appendleft(rest)
            self._note_held(queue, bytes_of(rest))
            self._unsaved[rest.first] = queue, rest

    def take_singles(self, queue: ReadyQueue, limit: int, max_bytes: int) -> tuple[list[bytes], int]:
        """Take single messages as `ReadyQueues.take_singles` does. Return their offsets and their bytes."""
        entries, taken, size = queue.entries, 0, 0
        for _, length, its_size, extra, *_ in islice(entries, limit):
            if length > 1 or extra is not None or size >= max_bytes:
                break
            taken += 1
            size += its_size
        if not taken:
            return [], 0
        firsts = [entries.popleft().first for _ in range(taken)]
        self._note_held(queue, -taken * ENTRY_BYTES)
        prefix = self._rows + queue.key
        self._gone += [prefix + first for first in firsts if self._unsaved.pop(first, None) is None]
        return firsts, size

    def remove(self, step: Step, queue: ReadyQueue, found: LogEntry, offset: bytes) -> None:
        """Remove a message from the entry that contains it."""
        parts = without(found, [offset])
        held = queue.entries
        at = bisect_left(held, found.first, key=_first)
        if self._unsaved.pop(found.first, None) is None:
            step.view.delete(self._rows + queue.key + found.first)
        for part in parts:
            self._save(step, queue, part)
        if at < len(held) and held[at].first == found.first:
            self._note_held(queue, sum(map(bytes_of, parts)) - bytes_of(held[at]))
            del held[at]
            for part in reversed(parts):
                held.insert(at, part)

    def remove_singles(self, step: Step, queue: ReadyQueue, firsts: Sequence[bytes]) -> None:
        """Remove messages, each of which is an entry by itself."""
        prefix, gone = self._rows + queue.key, set(firsts)
        step.view.delete_all([prefix + first for first in firsts])
        queue.entries = deque([entry for entry in queue.entries if entry.first not in gone])
        self._note_held(queue, sum(map(bytes_of, queue.entries)) - queue.held_bytes)

    # -- rows -----------------------------------------------------------------------------------------------------

    def _save(self, step: Step, queue: ReadyQueue, entry: LogEntry) -> None:
        """Put the row of an entry."""
        step.view.put(self._rows + queue.key + entry.first, row_of(entry))

    def save(self, step: Step) -> None:
        """Put the rows of entries that have no row yet."""
        if self._unsaved:
            prefix = self._rows
            step.view.put_all(
                [(prefix + queue.key + first, row_of(entry)) for first, (queue, entry) in self._unsaved.items()]
            )
            self._unsaved.clear()

    def delete_taken(self, step: Step) -> None:
        """Delete the rows of entries that were taken."""
        if self._gone:
            step.view.delete_all(self._gone)
            self._gone = []

    def clear(self) -> None:
        """Forget all entries. The caller deletes their rows."""
        self._unsaved.clear()
        self._gone.clear()
        self.bytes = 0

    # -- memory ---------------------------------------------------------------------------------------------------

    def evict(self, queues: Iterable[ReadyQueue]) -> None:
        """Drop all entries from memory, until they are needed again."""
        for queue in queues:
            if queue.messages:
                queue.entries.clear()
                queue.covered, queue.window, queue.held_bytes = offsets.FIRST, HEAD_ENTRIES, 0
        self.bytes = 0

    def share_memory(self, queues: int) -> None:
        """Adjust to the number of queues: with many queues, each keeps fewer entries in memory, so that the memory
        suffices for all queues."""
        share_bytes = math.inf if self._look_aheads is None else self._look_aheads.share_bytes
        held = HELD_SHARE * share_bytes / ENTRY_BYTES / max(queues, 1)
        self._most_entries = int(min(max(held, HEAD_ENTRIES), MOST_ENTRIES))


def _first(entry: LogEntry) -> bytes:
    """Return the first offset of an entry: its sort key."""
    return entry.first
