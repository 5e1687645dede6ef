"""Schedules as the broker reports them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sandq.model import offsets as offset_model
from sandq.model.batch import headers_unpack
from sandq.model.names import of_schedule, schedule_id
from sandq.model.retries import Backoff, MaxAttempts, written_rules
from sandq.protocol.requests_schedules import ScheduleRecord

ACTIVE, PAUSED, ENDED = "active", "paused", "ended"


class Occurrence(NamedTuple):
    """The outcome of one occurrence.

    "sent": its message was sent. "skipped": not sent, because the message of the previous occurrence was not acked.
    "missed": not sent, because it would have been too late. "triggered": an additional message that a caller requested.
    """

    occurrence_ms: int
    fired_ms: int
    outcome: str
    id: str | None
    """Id of its message; None if there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A schedule, its state, and its latest occurrences. All times are epoch milliseconds.

    `next_ms` is the next occurrence. `fire_ms` is the delivery time of its message: `next_ms` plus the jitter.
    `next_id` is the id of this message, if it exists already. `fired` counts past occurrences. `missed` counts
    occurrences that were left out, because no node could fire them in time. `state` is active, paused or ended.
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
    max_attempts: MaxAttempts | None = None
    backoff: Backoff | None = None
    cost: int | None = None
    """Retry rules of its messages. None unless they have their own."""

    @classmethod
    def of(cls, topic: str, partition: int, record: ScheduleRecord) -> Schedule:
        """Build a schedule from the broker's record of it."""
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
            **written_rules(record.max_attempts, record.backoff, record.cost),
        )

    @property
    def headers(self) -> dict[str, Any]:
        """The headers of each message, without the headers that sandq adds; a new dict for each access."""
        return headers_unpack(self._headers)

    @property
    def headers_bytes(self) -> bytes | None:
        """The headers as they are stored (msgpack); None if there are none."""
        return self._headers

    @property
    def id(self) -> str:
        """The name, followed by the tenant in a fair topic; `list` accepts it as `after`."""
        return schedule_id(self.name, self.tenant)

    @property
    def state(self) -> str:
        """active, paused, or ended (no occurrence is left)."""
        if self.paused:
            return PAUSED
        return ENDED if self.next_ms is None else ACTIVE


def _text(message_id: bytes | None) -> str | None:
    return None if message_id is None else offset_model.to_text(message_id)
