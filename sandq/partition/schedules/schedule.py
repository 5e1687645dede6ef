"""A schedule as it is stored: what it sends, when it does so next, and what it did last.

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
"""Occurrences that are remembered, the last ones; among them the last one that was sent."""
TRIGGERS: Final = 8
"""Tokens of the last triggers: one that is sent again is answered as the first time."""
GRACE_MS: Final = 60_000
"""An occurrence that could be fired only later than this is one that was missed. Replicas go by it."""

SENT, SKIPPED, MISSED, TRIGGERED = "sent", "skipped", "missed", "triggered"
"""What became of an occurrence: its message was made; not, for the last one was unacked; not, for it was too late; and
a message that somebody asked for beside all occurrences."""

NAME_HEADER: Final = "sandq-schedule"
OCCURRENCE_HEADER: Final = "sandq-occurrence"
TRIGGERED_HEADER: Final = "sandq-triggered"
"""Of each message of a schedule: its name, and the occurrence, or when it was triggered instead, in ms since 1970."""

_VERSION: Final = 1
_RECURRENCE: Final = frozenset({"cron", "every_ms", "zone", "start_ms", "end_ms", "anchor_ms", "jitter_ms"})


@dataclass(slots=True, kw_only=True)
class Schedule:
    name: str
    """With the tenant behind it, in a fair topic (`schedule_id`)."""
    version: int
    """Another one with each change that somebody makes, never twice the same in a partition."""
    settings: dict[str, Any]
    """When it recurs (`Recurrence.record`); and `count`, `misfire`, `misfire_most`, `overlap_group`."""
    fields: Fields
    """The message without what each occurrence adds."""
    expected_ms: int | None
    """The occurrence that is next; None: there is none any more, or it is paused."""
    fire_ms: int | None
    """When that is to be delivered: later by its jitter."""
    made: bytes | None
    """The id of its message, which was made ahead of its time."""
    fired: int
    """Occurrences that are over."""
    missed: int
    """Of all that were due, those that were left out."""
    paused: bool
    created_ms: int
    changed_ms: int
    last_ms: int | None = None
    """The last occurrence that is over."""
    gap: list[int] | None = None
    """Where occurrences were left out last: the last before them, or a ms before the first, and the one behind."""
    done: list[list[int]] = field(default_factory=list)
    """The first and the last of occurrences to come that are over, as they fired while the clock was far ahead; some
    such, in their order."""
    history: list[list[Any]] = field(default_factory=list)
    """[occurrence, when it fired, what became of it, message id or None], `HISTORY` of them in their order (`note`)."""
    triggers: list[list[Any]] = field(default_factory=list)
    """[token, message id] of the last triggers."""

    @property
    def is_ahead(self) -> bool:
        """Whether the message of the next occurrence is made ahead of its time: it is to come in any case."""
        return self.settings.get("overlap_group") is None and self.settings.get("misfire") != "skip"

    @property
    def recurrence(self) -> dict[str, Any]:
        """The record of when it recurs."""
        return {name: value for name, value in self.settings.items() if name in _RECURRENCE}

    @property
    def last_id(self) -> bytes | None:
        """The id of the message of the last occurrence that has one."""
        return next((one[3] for one in reversed(self.history) if one[2] == SENT), None)

    def fields_of(self, at_ms: int, *, is_triggered: bool = False) -> Fields:
        """The message of an occurrence, or one that is triggered at an instant."""
        headers = headers_unpack(self.fields.get(Column.HEADERS))
        name, _ = of_schedule(self.name)
        headers |= {NAME_HEADER: name, TRIGGERED_HEADER if is_triggered else OCCURRENCE_HEADER: at_ms}
        return self.fields | {Column.HEADERS: headers_pack(headers, max_bytes=1 << 30)}

    def note(self, occurrence_ms: int, at_ms: int, outcome: str, message_id: bytes | None) -> None:
        """Remember what became of an occurrence. The last one that was sent stays, however many were skipped since:
        it is the one that holds up others."""
        self.history = [*self.history, [occurrence_ms, at_ms, outcome, message_id]]
        while len(self.history) > HISTORY:
            is_last_sent = self.history[0][2] == SENT and all([one[2] != SENT for one in self.history[1:]])
            del self.history[1 if is_last_sent else 0]

    def row(self) -> bytes:
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
        _, *values = rows.unpack(row)
        return cls(**dict(zip([each.name for each in fields(cls)], (name, *values), strict=True)))


def key_of(name: str) -> bytes:
    """The key of a schedule's row."""
    return rows.SCHEDULE + name.encode()


def name_of(key: bytes) -> str:
    """The name in the key of a schedule's row."""
    return key[1:].decode()


def fire_key(fire_ms: int, name: str) -> bytes:
    """The key of the row that leads to a schedule in the order in which they fire."""
    return rows.FIRE + fire_ms.to_bytes(6, "big") + name.encode()


def fire_of(key: bytes) -> tuple[int, str]:
    """When which schedule fires, by the key of such a row."""
    return int.from_bytes(key[1:7], "big"), key[7:].decode()
