"""Results of jobs: counts, durations and rates, for people (`lines`) and for programs (`record`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sandq.model.times import format_instant

FORECAST_COLUMNS: Final = ("start", "topic", "messages")
_GROUPS: Final = ("topic", "group", "ready", "leased", "waiting", "dead", "consumers")
_DEAD: Final = ("topic", "group", "day", "reason", "attempts", "messages")
_DUE: Final = ("topic", "day", "messages")


@dataclass(frozen=True, slots=True)
class Reason:
    """A reason for rejected rows, their number, and an example (`file`, and `row` with its columns, or `line`)."""

    text: str
    rows: int
    example: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSummary:
    """The result of `schedule`. Each row was either sent or rejected; a row can be rejected for several reasons.

    Times are epoch milliseconds; `first_ms` and `last_ms` are None if no row has a delivery time. `already_due` counts
    the rows whose time had passed when they were checked: they are delivered at once. `rejected_path`: directory of the
    rejected rows; None if there are none, or if no directory was given. `sent` is 0 in a dry run.
    """

    topic: str
    write_id: str
    files: int
    rows: int
    sent: int
    rejected: int
    reasons: Sequence[Reason] = ()
    rejected_path: str | None = None
    already_due: int = 0
    first_ms: int | None = None
    last_ms: int | None = None
    dry_run: bool = False
    check_s: float = 0.0
    send_s: float = 0.0

    @property
    def rate(self) -> float | None:
        """Messages sent per second, during the stage "sending"; None if nothing was sent."""
        return self.sent / self.send_s if self.sent and self.send_s > 0 else None

    def record(self) -> dict[str, Any]:
        """Return the result for programs."""
        return {
            "job": "schedule",
            "topic": self.topic,
            "write_id": self.write_id,
            "dry_run": self.dry_run,
            "files": self.files,
            "rows": self.rows,
            "sent": self.sent,
            "rejected": self.rejected,
            "reasons": {reason.text: reason.rows for reason in self.reasons},
            "rejected_path": self.rejected_path,
            "already_due": self.already_due,
            "first": _when(self.first_ms),
            "last": _when(self.last_ms),
            "check_seconds": round(self.check_s, 3),
            "send_seconds": round(self.send_s, 3),
            "rate": None if self.rate is None else round(self.rate, 1),
        }

    def lines(self) -> Iterator[str]:
        """Return the result as lines for people."""
        good = self.rows - self.rejected
        done = f"{good:,} would be sent" if self.dry_run else f"{self.sent:,} sent"
        of = f"{_counted(self.rows, 'row')} of {_counted(self.files, 'file')}"
        yield f"{self.topic}: {of}, {done}, {self.rejected:,} rejected"
        if self.first_ms is not None:
            yield f"  due       {_when(self.first_ms)} to {_when(self.last_ms)}"
        if self.already_due:
            yield f"  past      {self.already_due:,} are already due, and are delivered at once"
        for reason in self.reasons:
            yield f"  rejected  {reason.rows:,}: {reason.text}"
        if self.rejected_path is not None:
            yield f"  rejected  rows are in {self.rejected_path}"
        rate = "" if self.rate is None else f", {self.rate:,.0f} messages/s"
        sending = "" if self.dry_run else f", sent in {self.send_s:.1f} s{rate}"
        yield f"  took      checked in {self.check_s:.1f} s{sending}"
        yield f"  write id  {self.write_id}"


@dataclass(frozen=True, slots=True)
class TopicForecast:
    """The forecast of a topic: `(start_ms, messages)` of each unit of time with messages, and the number of later
    messages.

    `scheduled`: number of messages within the span that schedules will create. `is_complete`: false if schedules will
    create more messages than were counted.
    """

    topic: str
    buckets: Sequence[tuple[int, int]]
    later: int
    scheduled: int = 0
    is_complete: bool = True

    @property
    def messages(self) -> int:
        """Number of messages within the span."""
        return sum(messages for _, messages in self.buckets)

    @property
    def peak(self) -> tuple[int, int] | None:
        """The unit of time with the most messages; the first if there are several."""
        return max(self.buckets, key=lambda bucket: bucket[1], default=None)


@dataclass(frozen=True, slots=True)
class ForecastSummary:
    """Numbers of messages by the time at which they come due.

    `now_ms`: the brokers' time. The span is `count` units of `unit_ms`; the first unit contains `now_ms`.
    """

    now_ms: int
    unit: str
    unit_ms: int
    count: int
    topics: Sequence[TopicForecast]
    seconds: float = 0.0

    @property
    def start_ms(self) -> int:
        """Start of the first unit, in epoch ms."""
        return self.now_ms - self.now_ms % self.unit_ms

    def total(self) -> list[tuple[int, int]]:
        """Return `(start_ms, messages)` of each unit, added up over all topics."""
        found: dict[int, int] = {}
        for topic in self.topics:
            for start_ms, messages in topic.buckets:
                found[start_ms] = found.get(start_ms, 0) + messages
        return sorted(found.items())

    def rows(self) -> Iterator[dict[str, Any]]:
        """Return a row for each topic and unit of time with messages, ordered by time."""
        cells = sorted((start, topic.topic, messages) for topic in self.topics for start, messages in topic.buckets)
        for start_ms, topic, messages in cells:
            yield {"start": _when(start_ms), "topic": topic, "messages": messages}

    def topic_rows(self) -> list[dict[str, Any]]:
        """Return a row for each topic."""
        rows = []
        for topic in self.topics:
            peak_ms, most = topic.peak or (None, 0)
            counts = {"messages": topic.messages, "scheduled": topic.scheduled, "later": topic.later, "peak": most}
            rows.append({"topic": topic.topic, **counts, "peak_start": _when(peak_ms), "complete": topic.is_complete})
        return rows

    def record(self) -> dict[str, Any]:
        """Return the result for programs."""
        return {
            "job": "forecast",
            "now": _when(self.now_ms),
            "unit": self.unit,
            "count": self.count,
            "topics": self.topic_rows(),
            "buckets": list(self.rows()),
            "seconds": round(self.seconds, 3),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupBacklog:
    """The backlog of a group.

    `oldest_ms`: delivery time (epoch ms) of the oldest message of the log after the group's committed offset; None if
    there is none. `late_ms`: time since then. Messages that wait for a retry are not considered, and can be older.
    """

    topic: str
    group: str
    ready: int
    leased: int
    waiting: int
    dead: int
    consumers: int
    oldest_ms: int | None = None
    late_ms: int | None = None


@dataclass(frozen=True, slots=True)
class DueDay:
    """Number of messages of a topic that come due on a day (UTC, "2030-01-31"), or "later"."""

    topic: str
    day: str
    messages: int


@dataclass(frozen=True, slots=True)
class DeadDay:
    """Number of messages of a group that died on a day (UTC), for one reason and number of attempts."""

    topic: str
    group: str
    day: str
    reason: str
    attempts: int
    messages: int


@dataclass(frozen=True, slots=True)
class ReportSummary:
    """The result of `report`. `dead_read`: number of dead letters that were read."""

    now_ms: int
    topics: int
    groups: Sequence[GroupBacklog]
    due: Sequence[DueDay]
    dead: Sequence[DeadDay]
    dead_read: int
    seconds: float = 0.0

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """Return the rows of the three tables, by the name of the table."""
        return {
            "groups": [
                {**_fields(row, _GROUPS), "oldest": _when(row.oldest_ms), "late_ms": row.late_ms} for row in self.groups
            ],
            "due": [_fields(row, _DUE) for row in self.due],
            "dead": [_fields(row, _DEAD) for row in self.dead],
        }

    @staticmethod
    def columns() -> dict[str, tuple[str, ...]]:
        """Return the columns of the tables, by the name of the table."""
        return {"groups": (*_GROUPS, "oldest", "late_ms"), "due": _DUE, "dead": _DEAD}

    def record(self) -> dict[str, Any]:
        """Return the result for programs."""
        head = {"job": "report", "now": _when(self.now_ms), "topics": self.topics, "dead_read": self.dead_read}
        return {**head, **self.tables(), "seconds": round(self.seconds, 3)}


def _when(ms: int | None) -> str | None:
    return None if ms is None else format_instant(ms)


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _fields(row: object, names: Sequence[str]) -> dict[str, Any]:
    return {name: getattr(row, name) for name in names}
