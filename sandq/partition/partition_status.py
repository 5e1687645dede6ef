"""The state of a partition as the event loop sees it: a copy that is created after each applied entry."""

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
    """An immutable copy of everything that the event loop needs."""

    applied_index: int
    now_ms: int
    floor_ms: int
    next_expiry_ms: int | None
    upkeep_ms: int | None
    """Time from which an `Upkeep` has work to do, in ms."""
    messages: int
    later: int
    """Number of messages whose delivery second has not begun."""
    trimmed: bytes
    bytes: int
    dead: int
    garbage_rows: int
    """Number of deleted log rows that still slow down scans."""
    garbage_bytes: int
    """Bytes of deleted or overwritten rows that the store still keeps."""
    settings: dict[str, Any]
    groups: GroupStatuses
    counted: Counted = field(compare=False)
    """Local to this process, not replicated."""
    keys: int = 0
    """Number of keys that have a value, in a compacted topic."""
    keys_bytes: int = 0
    keys_expire_ms: int | None = None
    """Time at which the next value expires, in ms."""
    is_resting: bool = False
    """Whether everything in the log that can be compacted now is compacted."""
    holds: tuple[Hold, ...] = ()
    level: int = FIRST_LEVEL
    """The feature level whose rules the partition applies."""
    producers: int = 0
    """Number of known idempotent producers."""
    clock_epoch: int = 0
    """Number of clock resets so far."""
    limits: LimitsStatus | None = None
    """Limits of groups. None if no group has any."""
    reset: tuple[int, int] | None = None
    """During a clock reset: (number of processed messages, approximate total number). Otherwise None."""
    schedules: int = 0
    schedule_ms: int | None = None
    """Time at which the next schedule fires, in ms."""
    planned_to: str | None = None
    """After a clock reset: schedules up to this name are adjusted. None if all schedules are adjusted."""
    outbox: OutboxStatus | None = None
    """State of the outbox. None if there is nothing to send."""
    restore: RestoreState | None = None
    """Progress of restoring the partition from a backup. None if no restore is in progress."""
    skipped: Collection[Any] = frozenset()
    """Digests of the last commands that an operator skipped. The leader rejects these commands if they are sent again
    (ADR 46)."""
