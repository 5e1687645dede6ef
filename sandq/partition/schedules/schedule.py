"""A schedule as it is stored: its message, the time of its next occurrence, and its last occurrences.

PERSISTED: the fields of a row in their order, and the names in `settings`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Final

from sandq.model.batch import Column
from sandq.model.headers import headers_pack, headers_unpack
from sandq.model.names import of_schedule
from sandq.partition.base import rows
from sandq.partition.base.rows import Fields

HISTORY: Final = 10
"""Number of occurrences to remember: the latest ones. The last sent occurrence is always among them."""
TRIGGERS: Final = 8
"""Number of trigger tokens to remember. A repeated trigger with a remembered token gets the same reply as the first
time."""
GRACE_MS: Final = 60_000
"""If an occurrence has not fired within this time, in ms, it counts as missed. All replicas must use the same value."""

SENT, SKIPPED, MISSED, TRIGGERED = "sent", "skipped", "missed", "triggered"
"""Outcomes of an occurrence. SENT: its message was sent. SKIPPED: not sent, because the last message was not acked.
MISSED: not sent, because it was too late. TRIGGERED: a caller requested the message, independent of all occurrences."""

NAME_HEADER: Final = "sandq-schedule"
OCCURRENCE_HEADER: Final = "sandq-occurrence"
TRIGGERED_HEADER: Final = "sandq-triggered"
"""Headers of each message of a schedule: the schedule's name, and the time of the occurrence or of the trigger, in ms
since 1970."""

_VERSION: Final = 1
_RECURRENCE: Final = frozenset({"cron", "every_ms", "zone", "start_ms", "end_ms", "anchor_ms", "jitter_ms"})


@dataclass(slots=True, kw_only=True)
class Schedule:
    name: str
    """Name, followed by the tenant in a fair topic (`schedule_id`)."""
    version: int
    """Changes with every change that a caller makes. Unique within a partition."""
    settings: dict[str, Any]
    """Recurrence (`Recurrence.record`), `count`, `misfire`, `misfire_most` and `overlap_group`."""
    fields: Fields
    """Fields of the message, without those that depend on the occurrence."""
    expected_ms: int | None
    """Time of the next occurrence, in ms. None if no occurrence remains, or if the schedule is paused."""
    fire_ms: int | None
    """Delivery time of the next occurrence, in ms: its time plus the jitter."""
    made: bytes | None
    """Id of the message of the next occurrence, if it is stored ahead of its time."""
    fired: int
    """Number of completed occurrences."""
    missed: int
    """Number of due occurrences that were missed."""
    paused: bool
    created_ms: int
    changed_ms: int
    last_ms: int | None = None
    """Time of the last completed occurrence, in ms."""
    gap: list[int] | None = None
    """The last gap of missed occurrences, as two times in ms: the occurrence before the gap (or 1 ms before the first
    missed occurrence), and the occurrence after it."""
    done: list[list[int]] = field(default_factory=list)
    """[first, last] of future occurrences that are completed already, because they fired while the clock was far ahead.
    Sorted."""
    history: list[list[Any]] = field(default_factory=list)
    """Up to `HISTORY` items [occurrence, time when it fired, outcome, message id or None], in order (see `note`)."""
    triggers: list[list[Any]] = field(default_factory=list)
    """[token, message id] of the last triggers."""

    @property
    def is_ahead(self) -> bool:
        """Whether the message of the next occurrence is stored ahead of its time, because it is sent in any case."""
        return self.settings.get("overlap_group") is None and self.settings.get("misfire") != "skip"

    @property
    def recurrence(self) -> dict[str, Any]:
        """The record of its recurrence."""
        return {name: value for name, value in self.settings.items() if name in _RECURRENCE}

    @property
    def last_id(self) -> bytes | None:
        """Id of the message of the last occurrence that was sent. None if there is none."""
        return next((one[3] for one in reversed(self.history) if one[2] == SENT), None)

    def fields_of(self, at_ms: int, *, is_triggered: bool = False) -> Fields:
        """Return the message of an occurrence, or of a trigger, at `at_ms`."""
        headers = headers_unpack(self.fields.get(Column.HEADERS))
        name, _ = of_schedule(self.name)
        headers |= {NAME_HEADER: name, TRIGGERED_HEADER if is_triggered else OCCURRENCE_HEADER: at_ms}
        return self.fields | {Column.HEADERS: headers_pack(headers, max_bytes=1 << 30)}

    def note(self, occurrence_ms: int, at_ms: int, outcome: str, message_id: bytes | None) -> None:
        """Remember the outcome of an occurrence. Always keep the last sent occurrence, because its message may hold up
        later occurrences."""
        self.history = [*self.history, [occurrence_ms, at_ms, outcome, message_id]]
        while len(self.history) > HISTORY:
            is_last_sent = self.history[0][2] == SENT and all([one[2] != SENT for one in self.history[1:]])
            del self.history[1 if is_last_sent else 0]

    def row(self) -> bytes:
        """Return the row of the schedule."""
        return rows.pack(
            _VERSION,
            self.version,
            self.settings,
            self.fields,
            self.expected_ms,
            self.fire_ms,
            self.made,
            self.fired,
            self.missed,
            self.paused,
            self.created_ms,
            self.changed_ms,
            self.last_ms,
            self.gap,
            self.done,
            self.history,
            self.triggers,
        )

    @classmethod
    def load(cls, name: str, row: bytes) -> Schedule:
        """Return the schedule in a row."""
        _, *values = rows.unpack(row)
        return cls(**dict(zip([each.name for each in fields(cls)], (name, *values), strict=True)))


def key_of(name: str) -> bytes:
    """Return the key of a schedule's row."""
    return rows.SCHEDULE + name.encode()


def name_of(key: bytes) -> str:
    """Return the name in the key of a schedule's row."""
    return key[1:].decode()


def fire_key(fire_ms: int, name: str) -> bytes:
    """Return the key of an index row, which sorts schedules by the time when they fire."""
    return rows.FIRE + fire_ms.to_bytes(6, "big") + name.encode()


def fire_of(key: bytes) -> tuple[int, str]:
    """Return the time and the name in the key of an index row."""
    return int.from_bytes(key[1:7], "big"), key[7:].decode()
