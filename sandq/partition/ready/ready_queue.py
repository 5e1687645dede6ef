"""A ready queue of a group: its entries in memory, and the format of its rows."""

from __future__ import annotations

from collections import deque
from typing import Final

from sandq.model import offsets
from sandq.model.retries import RetryRules
from sandq.partition.base import rows
from sandq.partition.base.rows import Extra, LogEntry
from sandq.partition.ready import queue_keys

ENTRY_BYTES: Final = 300
"""Approximate memory of an entry, in bytes."""
EXTRA_BYTES: Final = 300
"""Approximate memory of an entry's `extra`, in bytes, without its unique key and its tenant."""
RETRY_BYTES: Final = 200
"""Approximate memory of the retry rules of a message, in bytes."""
QUEUE_BYTES: Final = 2400
"""Approximate memory of a queue, in bytes, without its entries and its name. PERSISTED: the memory of queues decides
which messages are promoted, and all replicas must decide alike."""
NAME_COPIES: Final = 4
"""Number of copies of a queue's name in memory. PERSISTED, like `QUEUE_BYTES`."""
SEGMENT_BYTES: Final = 800
"""Approximate memory of each segment of a tenant's name after the first, in bytes. PERSISTED, like `QUEUE_BYTES`."""


def queue_bytes(key: bytes) -> int:
    """Return the approximate memory of a queue without its entries, in bytes. The result depends only on the key."""
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
        """Identifies the queue within this process."""
        self.tenant, self.priority = queue_keys.unpack(key)
        self.size = queue_bytes(key)
        """Approximate memory of the queue without its entries, in bytes."""
        self.messages = messages
        """Number of messages, without returned messages."""
        self.first = first
        """First offset of its entries. Meaningless if there are no entries."""
        self.entries: deque[LogEntry] = deque()
        """The first entries of the queue: all entries up to `covered`."""
        self.covered = offsets.FIRST if messages else offsets.LAST
        """All entries at or below this offset are in `entries`."""
        self.held_bytes = 0
        """Bytes of its entries in memory."""
        self.returned: list[tuple[bytes, int]] = []
        """Heap of (first offset, seq) of due waiting entries that returned to this queue. Outdated items are skipped at
        the top."""
        self.window = window
        """Number of entries that the next read of its rows loads."""

    def aged(self, ageing_ms: int) -> int:
        """Return the aged time of the first message, in ms. The lowest aged time comes first. The order of two messages
        never changes while both wait."""
        first = self.first if self.messages else offsets.LAST
        if self.returned:
            first = min(first, self.returned[0][0])
        return offsets.deliver_ms(first) + self.priority * ageing_ms

    def load(self, key: bytes, row: bytes) -> LogEntry:
        """Return the entry in a row of this queue."""
        length, size, unit, *fields = rows.unpack(row)
        extra = None
        if fields:
            message_id, ttl_ms, unique_key, *more = fields
            digest, retry, cost = rows.with_defaults(more, None, None, None)
            rules = None if retry is None else RetryRules(*retry)
            extra = Extra(message_id, ttl_ms, unique_key, None, self.tenant.encode(), digest, rules, cost or 1)
        return LogEntry(key[-offsets.OFFSET_BYTES :], length, size, extra, unit)


def bytes_of(entry: LogEntry) -> int:
    """Return the approximate memory of an entry, in bytes."""
    extra = entry.extra
    if extra is None:
        return ENTRY_BYTES
    rules = 0 if extra.retry is None else RETRY_BYTES
    return ENTRY_BYTES + EXTRA_BYTES + rules + len(extra.unique_key or b"") + len(extra.tenant or b"")


def row_of(entry: LogEntry) -> bytes:
    """Return the row of an entry."""
    if entry.extra is None:
        return rows.pack(entry.length, entry.size, entry.unit)
    extra = entry.extra
    later = [extra.key_digest, extra.retry, extra.cost if extra.cost > 1 else None]
    while later and later[-1] is None:
        later.pop()
    return rows.pack(entry.length, entry.size, entry.unit, extra.id, extra.ttl_ms, extra.unique_key, *later)
