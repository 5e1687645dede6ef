"""What the event loop knows of a partition: a copy that is made after each applied entry."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from sandq.model.features import FIRST_LEVEL
from sandq.partition.group_status import GroupStatuses
from sandq.partition.groups.group_limits import LimitsStatus
from sandq.partition.log.holds import Hold
from sandq.partition.outbox import OutboxStatus
from sandq.partition.records.metrics import Counted
from sandq.partition.records.restore_state import RestoreState


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """An immutable copy of what the event loop needs to know."""

    applied_index: int
    now_ms: int
    floor_ms: int
    next_expiry_ms: int | None
    upkeep_ms: int | None
    """When an `Upkeep` has something to do."""
    messages: int
    later: int
    """Messages whose second has not come."""
    trimmed: bytes
    bytes: int
    dead: int
    garbage_rows: int
    """Log rows that were deleted and are still in the way of who reads there."""
    garbage_bytes: int
    """That the store keeps, though nobody needs them any more."""
    settings: dict[str, Any]
    groups: GroupStatuses
    counted: Counted = field(compare=False)
    """Of this process alone."""
    keys: int = 0
    """That have a value, of a compacted topic."""
    keys_bytes: int = 0
    keys_expire_ms: int | None = None
    """When the time of some value is over."""
    is_resting: bool = False
    """What there is to be compacted of the log is."""
    holds: tuple[Hold, ...] = ()
    level: int = FIRST_LEVEL
    """The feature level whose rules the partition goes by."""
    producers: int = 0
    """Idempotent ones that are known."""
    clock_epoch: int = 0
    """How often the clock was set back."""
    limits: LimitsStatus | None = None
    """Of groups; None when none has any."""
    reset: tuple[int, int] | None = None
    """While it is being set back: so many messages were looked at, of about so many."""
    schedules: int = 0
    schedule_ms: int | None = None
    """When the next of them fires."""
    planned_to: str | None = None
    """The clock was set back: up to this name schedules go by its time again; None: all do."""
    outbox: OutboxStatus | None = None
    """What is to be sent to other partitions; None: nothing."""
    restore: RestoreState | None = None
    """How far the partition is restored from a backup; None: it is not being."""
    skipped: Collection[Any] = frozenset()
    """Digests of the commands that an operator skipped last: they are refused when they come again (ADR 46)."""
