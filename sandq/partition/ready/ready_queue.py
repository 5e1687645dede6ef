"""A ready queue of a group: what it holds in memory, and the rows of its entries."""

from __future__ import annotations

from collections import deque
from typing import Final

from sandq.model import offsets
from sandq.partition.base import rows
from sandq.partition.base.rows import Extra, LogEntry
from sandq.partition.ready import queue_keys

ENTRY_BYTES: Final = 300
"""What an entry takes in memory, about ..."""
EXTRA_BYTES: Final = 300
"""... and what the log has to know of it, but for its unique key and its tenant."""
QUEUE_BYTES: Final = 2400
"""What a queue takes in memory beside its entries, and its tenant in the tree of turns, about, ..."""
NAME_COPIES: Final = 4
"""... with its name so many times, ..."""
SEGMENT_BYTES: Final = 800
"""... and so much for each further segment of that. PERSISTED: replicas decide by it what is promoted."""


def queue_bytes(key: bytes) -> int:
    """Return how many bytes a queue takes in memory beside its entries, about: by its key alone."""
    return QUEUE_BYTES + NAME_COPIES * len(key) + SEGMENT_BYTES * queue_keys.tenant_of(key).count(".")


class ReadyQueue:
    """Messages of one tenant and one priority."""

    __slots__ = (
        *("covered", "entries", "first", "held_bytes", "key", "messages", "number", "priority", "returned", "size"),
        *("tenant", "window"),
    )

    def __init__(self, key: bytes, number: int, messages: int, first: bytes, window: int) -> None:
        self.key = key
        self.number = number
        """Of this process alone."""
        self.tenant, self.priority = queue_keys.unpack(key)
        self.size = queue_bytes(key)
        """What it takes in memory beside its entries, about."""
        self.messages = messages
        """Those that were returned not among them."""
        self.first = first
        """Of its entries; means nothing without any."""
        self.entries: deque[LogEntry] = deque()
        """The first ones, ..."""
        self.covered = offsets.FIRST if messages else offsets.LAST
        """... which are all that there are at or below this offset."""
        self.held_bytes = 0
        """Of its entries in memory."""
        self.returned: list[tuple[bytes, int]] = []
        """Heap of (first offset, seq) of what was given back, and is due; what is no longer so is skipped when met."""
        self.window = window
        """So many entries the next look into its rows reads."""

    def aged(self, ageing_ms: int) -> int:
        """Return what its first message counts as: the lower goes first. It rises for nobody while both wait."""
        first = self.first if self.messages else offsets.LAST
        if self.returned:
            first = min(first, self.returned[0][0])
        return offsets.deliver_ms(first) + self.priority * ageing_ms

    def load(self, key: bytes, row: bytes) -> LogEntry:
        """Return the entry that a row of it has."""
        length, size, unit, *fields = rows.unpack(row)
        extra = None
        if fields:
            message_id, ttl_ms, unique_key, *digest = fields
            extra = Extra(message_id, ttl_ms, unique_key, None, self.tenant.encode(), *digest)
        return LogEntry(key[-offsets.OFFSET_BYTES :], length, size, extra, unit)


def bytes_of(entry: LogEntry) -> int:
    """Return how many bytes an entry takes in memory, about."""
    extra = entry.extra
    if extra is None:
        return ENTRY_BYTES
    return ENTRY_BYTES + EXTRA_BYTES + len(extra.unique_key or b"") + len(extra.tenant or b"")


def row_of(entry: LogEntry) -> bytes:
    """Return the row of an entry."""
    if entry.extra is None:
        return rows.pack(entry.length, entry.size, entry.unit)
    extra = entry.extra
    digest = () if extra.key_digest is None else (extra.key_digest,)
    return rows.pack(entry.length, entry.size, entry.unit, extra.id, extra.ttl_ms, extra.unique_key, *digest)
