"""What all parts of a partition go by: the topic's settings, the next sequence number, what was counted."""

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
"""Outcome of what an entry had no budget left for: nothing was done, and it is to be asked for again."""
BUDGET_BYTES: Final = FIXED.entry_copied_bytes
COPIED_LEAST_BYTES: Final = 1024
"""As so many a message that is written again counts at least: a small one costs some 30 us."""
TURN_ITEMS = 64
"""Of an entry, after which it may give way: they take some milliseconds where each is a look-up."""
TURN_READS = 8
"""The same of look-ups of which others make many while a thread computes: each hands the interpreter over, and may have
to wait for it for half a millisecond."""


def _go_on() -> None:
    """Do nothing: there is nobody to give way to."""


class SharedState:
    """Holds what every part of a partition reads, and counts into."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.configure(settings)
        self.next_seq = 1
        """For what comes in an order of its own: waiting entries, ends of leases, jobs."""
        self.level = FIRST_LEVEL
        """The feature level whose rules the partition goes by (ADR 19): replicated, so that all replicas change at the
        same entry, and raised by `RaiseLevel` alone."""
        self.settled = 0
        """Messages that groups were done with since it was last looked at how many those are: replicated."""
        self.copied_bytes = 0
        """Of stored messages, that the entry which is being applied has written again so far: see `note_copied`."""
        self.totals = Totals()
        self.give_way: Callable[[], None] = _go_on
        """Called now and then while an entry of many messages is applied: other partitions may have a turn."""

    def configure(self, settings: dict[str, Any]) -> None:
        """Go by these settings of the topic from now on."""
        self.settings = settings
        """The topic's, replaced as a whole."""
        self.rank: str | None = settings.get("rank")
        """What the order of what is ready goes by, beside time: "priority", or "fair", tenants before that; None: by
        time alone. Never another one."""
        self.tenants = TenantRules.of(settings)
        self.dead_letter_topic = DeadLetterTopic.of(settings)
        """Where dead letters go; None: they stay where they are."""
        self.key_limit = key_limit(settings)
        """How many messages of a key may be with consumers of a group at once; None: any number. Never another one."""

    def in_turns(self, items: Sequence[T], most: int = TURN_ITEMS) -> Iterable[T]:
        """Give way now and then between items of an entry: after so many."""
        return items if len(items) <= most else self._in_turns(items, most)

    def _in_turns(self, items: Sequence[T], most: int) -> Iterator[T]:
        for at in range(0, len(items), most):
            self.give_way()
            yield from items[at : at + most]

    def note_copied(self, size: int, messages: int = 1) -> None:
        """So many bytes of stored messages were written again, in rows of so many messages."""
        self.copied_bytes += max(size, COPIED_LEAST_BYTES * messages)

    @property
    def is_budget_spent(self) -> bool:
        """Whether the entry that is being applied has written so much again that the next ones are to go on. The first
        message of an entry is never too large."""
        return self.copied_bytes >= BUDGET_BYTES

    @property
    def is_ordered(self) -> bool:
        """Whether only so many messages of a key are with consumers of a group at once: the log says which key each
        has."""
        return self.key_limit is not None

    def name_digest(self, fields: Fields) -> bytes | None:
        """Return the digest of the key within which a message's unique key is unique; None if there is no such key."""
        return name_digest(fields) if Column.UNIQUE_KEY in fields and self.has_keyed_names else None

    @property
    def has_keyed_names(self) -> bool:
        """Whether a unique key is unique within the key of its message. In a fair topic it is unique within the
        tenant."""
        return self.rank != FAIR


@dataclass(slots=True)
class LogState:
    """What the log keeps of itself beside its rows; in this order in the partition's state row."""

    messages: int = 0
    trimmed: bytes = offsets.FIRST
    """Nothing is left in the log at or below this offset."""
    bytes: int = 0
    gone: tuple[int, int] = (0, 0)
    """The second in which `trimmed` stands, and how many of its messages were trimmed."""

    def fields(self) -> tuple[Any, ...]:
        return self.messages, self.trimmed, self.bytes, self.gone

    def load(self, fields: Sequence[Any]) -> None:
        self.messages, self.trimmed, self.bytes, gone = fields
        self.gone = (gone[0], gone[1])
