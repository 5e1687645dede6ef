"""Schedules as the broker keeps them: what looking at them gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sandq.model import offsets as offset_model
from sandq.model.batch import headers_unpack
from sandq.model.names import of_schedule, schedule_id
from sandq.protocol.requests_schedules import ScheduleRecord

ACTIVE, PAUSED, ENDED = "active", "paused", "ended"


class Occurrence(NamedTuple):
    """What became of an occurrence: its message was "sent", it was "skipped" because the one before was unacked, it
    was "missed" because it came too late; or somebody "triggered" a message beside all occurrences."""

    occurrence_ms: int
    fired_ms: int
    outcome: str
    id: str | None
    """The id of its message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A schedule, how it stands, and what it did last. All times are epoch milliseconds.

    `next_ms` is the next occurrence, `fire_ms` when its message is delivered (later by the jitter), `next_id` the id of
    that message where it is made ahead of its time. `fired` counts occurrences that are over, `missed` those that
    were left out because nobody could fire them in time. `state` is active, paused or ended.
    """

    name: str
    topic: str
    partition: int
    version: int
    cron: str | None
    every_ms: int | None
    zone: str
    start_ms: int | None
    end_ms: int | None
    jitter_ms: int
    count: int | None
    misfire: str
    misfire_most: int | None
    overlap_group: str | None
    value: bytes
    key: bytes | None
    priority: int
    tenant: str | None
    ttl_ms: int | None
    paused: bool
    next_ms: int | None
    fire_ms: int | None
    next_id: str | None
    fired: int
    missed: int
    created_ms: int
    changed_ms: int
    history: Sequence[Occurrence]
    _headers: bytes | None = field(repr=False)
    _anchor_ms: int | None = field(repr=False, default=None)

    @classmethod
    def of(cls, topic: str, partition: int, record: ScheduleRecord) -> Schedule:
        """From what the broker said."""
        settings = record.settings
        return cls(
            name=of_schedule(record.name)[0],
            topic=topic,
            partition=partition,
            version=record.version,
            cron=settings.get("cron"),
            every_ms=settings.get("every_ms"),
            zone=settings.get("zone", "UTC"),
            start_ms=settings.get("start_ms"),
            end_ms=settings.get("end_ms"),
            jitter_ms=settings.get("jitter_ms", 0),
            count=settings.get("count"),
            misfire=settings.get("misfire", "one"),
            misfire_most=settings.get("misfire_most"),
            overlap_group=settings.get("overlap_group"),
            value=record.value,
            key=record.key,
            priority=record.priority,
            tenant=record.tenant,
            ttl_ms=record.ttl_ms,
            paused=record.paused,
            next_ms=record.next_ms,
            fire_ms=record.fire_ms,
            next_id=_text(record.next_id),
            fired=record.fired,
            missed=record.missed,
            created_ms=record.created_ms,
            changed_ms=record.changed_ms,
            history=[Occurrence(row[0], row[1], row[2], _text(row[3])) for row in record.history],
            _headers=record.headers,
            _anchor_ms=settings.get("anchor_ms"),
        )

    @property
    def headers(self) -> dict[str, Any]:
        """Those of each message, beside what sandq adds; a new dict each time."""
        return headers_unpack(self._headers)

    @property
    def headers_bytes(self) -> bytes | None:
        """The headers as they are stored: msgpack; None when there are none."""
        return self._headers

    @property
    def id(self) -> str:
        """Its name, with the tenant behind it in a fair topic: what `list` takes as `after`."""
        return schedule_id(self.name, self.tenant)

    @property
    def state(self) -> str:
        """active, paused, or ended: there is no occurrence any more."""
        if self.paused:
            return PAUSED
        return ENDED if self.next_ms is None else ACTIVE


def _text(message_id: bytes | None) -> str | None:
    return None if message_id is None else offset_model.to_text(message_id)
