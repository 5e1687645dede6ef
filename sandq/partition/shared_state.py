"""State shared by all parts of a partition: the topic's settings, the next sequence number, the numbers of messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from sandq.model import offsets
from sandq.model.batch_format import Column
from sandq.model.features import FIRST_LEVEL
from sandq.model.key_limits import key_limit
from sandq.model.limits import FIXED
from sandq.model.names import FAIR
from sandq.model.outbox import DeadLetterTopic
from sandq.partition.base.rows import Fields, name_digest
from sandq.partition.limits.tenant_rules import TenantRules
from sandq.partition.records.metrics import Totals

T = TypeVar("T")

NOT_YET: Final = "not_yet"
"""Outcome of an item for which the entry had no budget left. The item changed nothing, and the caller must ask
again."""
BUDGET_BYTES: Final = FIXED.entry_copied_bytes
COPIED_LEAST_BYTES: Final = 1024
"""Minimum number of bytes to count per message that is written again: even a small message costs about 30 us."""
SLICE_ITEMS = 64
"""Number of items of an entry after which the time slice ends. With one look-up per item, this many items take a few
milliseconds."""
SLICE_READS = 8
"""Like `SLICE_ITEMS`, for look-ups while another thread computes. Each look-up releases the interpreter lock, and may
wait half a millisecond to get the lock back."""


def _go_on() -> None:
    """Do nothing: the default of `yield_now`, if there is no other work."""


class SharedState:
    """The state that all parts of a partition read, and the numbers that they update."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.configure(settings)
        self.next_seq = 1
        """Next number for items that are ordered by their creation: waiting entries, ends of leases, jobs."""
        self.level = FIRST_LEVEL
        """The feature level whose rules the partition applies (ADR 19). Replicated, so that all replicas change at the
        same entry. Only `RaiseLevel` raises it."""
        self.settled = 0
        """Number of messages that groups have acked since the last sweep began (`log/sweep.py`). Replicated."""
        self.copied_bytes = 0
        """Bytes of stored messages that the current entry has written again so far. See `note_copied`."""
        self.totals = Totals()
        self.yield_now: Callable[[], None] = _go_on
        """Called from time to time while a large entry is applied, so that other partitions get time slices."""

    def configure(self, settings: dict[str, Any]) -> None:
        """Set the settings of the topic."""
        self.settings = settings
        """Settings of the topic. `configure` replaces the whole dict."""
        self.rank: str | None = settings.get("rank")
        """First criterion for the order of ready messages: "priority", or "fair" (tenants, then priorities). None: only
        their times count. `rank` never changes."""
        self.tenants = TenantRules.of(settings)
        self.dead_letter_topic = DeadLetterTopic.of(settings)
        """Destination of dead messages. None if dead messages stay in this partition."""
        self.key_limit = key_limit(settings)
        """Maximum number of messages of a key that consumers of a group hold at the same time. None if there is no
        limit. A topic never changes between a limit and None."""

    def in_slices(self, items: Sequence[T], most: int = SLICE_ITEMS) -> Iterable[T]:
        """Return the items of an entry. While the caller iterates, yield to other work after each `most` items."""
        return items if len(items) <= most else self._in_slices(items, most)

    def _in_slices(self, items: Sequence[T], most: int) -> Iterator[T]:
        """Yield the items, and yield to other work before each `most` of them."""
        for at in range(0, len(items), most):
            self.yield_now()
            yield from items[at : at + most]

    def note_copied(self, size: int, messages: int = 1) -> None:
        """Count stored messages that were written again, with `size` bytes in total."""
        self.copied_bytes += max(size, COPIED_LEAST_BYTES * messages)

    @property
    def is_budget_spent(self) -> bool:
        """Whether the current entry has used up its budget for writing, so that the rest must wait for a later entry.
        The first message of an entry always fits."""
        return self.copied_bytes >= BUDGET_BYTES

    @property
    def budget_messages(self) -> int:
        """Number of small messages for which the budget of the current entry suffices. 0 if it is spent."""
        return max(-(-(BUDGET_BYTES - self.copied_bytes) // COPIED_LEAST_BYTES), 0)

    @property
    def is_ordered(self) -> bool:
        """Whether the number of messages of a key that consumers hold is limited. The log then has the hash of each
        key."""
        return self.key_limit is not None

    def name_digest(self, fields: Fields) -> bytes | None:
        """Return the digest of the key within which a message's unique key is unique. None if the message has no such
        key."""
        return name_digest(fields) if Column.UNIQUE_KEY in fields and self.has_keyed_names else None

    @property
    def has_keyed_names(self) -> bool:
        """Whether unique keys are unique within the key of their message. False in a fair topic, where they are unique
        within the tenant."""
        return self.rank != FAIR


@dataclass(slots=True)
class LogState:
    """State of the log that is stored in the partition's state row, with the fields in this order."""

    messages: int = 0
    trimmed: bytes = offsets.FIRST
    """Last trimmed offset: the log has no messages at or below it."""
    bytes: int = 0
    gone: tuple[int, int] = (0, 0)
    """(second of `trimmed`, number of messages of that second that were trimmed)."""

    def fields(self) -> tuple[Any, ...]:
        """Return the fields for the state row."""
        return self.messages, self.trimmed, self.bytes, self.gone

    def load(self, fields: Sequence[Any]) -> None:
        """Restore what `fields` returned."""
        self.messages, self.trimmed, self.bytes, gone = fields
        self.gone = (gone[0], gone[1])
