"""Responses of routes about the overview and the history of topics."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from sandq.server.http.responses import ResponseModel

_LATE_50: Any = Field(description="Median lateness of first deliveries, in ms; null if there were none.")
_LATE_99: Any = Field(description="99th percentile of the lateness of first deliveries, in ms.")


class TopicOverview(ResponseModel):
    """A topic as one row. Rates cover the last `over_ms` of the response, and lateness the last minute."""

    topic: str
    kind: str
    partitions: int
    replicas: int = Field(description="Replicas of each partition.")
    without_leader: int
    messages: int
    delayed: int
    dead: int
    bytes: int
    keys: int
    schedules: int
    outbox: int
    lag: int = Field(description="Lag of the group with the largest lag.")
    oldest_at: str | None = Field(description="Due time of the oldest message that some group has not acked.")
    groups: int
    consumers: int
    paused: int = Field(description="Number of paused groups.")
    stalled: int = Field(description="Number of groups that receive nothing new, including paused ones.")
    in_per_s: float
    out_per_s: float
    acked_per_s: float
    dead_per_s: float
    late_p50_ms: float | None = _LATE_50
    late_p99_ms: float | None = _LATE_99


class GroupOverview(ResponseModel):
    """A group as one row."""

    topic: str
    group: str
    lag: int
    ready: int
    leased: int
    waiting: int
    dead: int
    consumers: int
    paused: bool
    reason: str | None = Field(description="Why it receives nothing new; null if it does.")
    push: str | None = Field(
        default=None, description="State of its push: `pushing`, `waiting` ...; null if the group is not pushed."
    )
    push_error: str | None = Field(default=None, description="Last error of its push.")
    unfinished: int | None = Field(
        default=None, description="Messages that it keeps since it expired (`group_ttl`); null if it has not expired."
    )
    held_up_by: list[str] = Field(description="Limits of the group that hold back due messages.")
    oldest_at: str | None


class Finding(ResponseModel):
    """A situation that needs attention."""

    situation: str = Field(description="Name of the situation in docs/operations/alerts.md, What needs attention.")
    state: str = Field(description="`failed` or `warning`.")
    what: str
    found: str
    todo: str
    topic: str | None = None
    group: str | None = None


class Overview(ResponseModel):
    at: str = Field(description="Time by the clock of the nodes.")
    over_ms: int = Field(description="Duration that rates cover.")
    topics: list[TopicOverview]
    next: str | None = Field(description="`after` of the next page; null on the last page.")
    groups: list[GroupOverview] | None = Field(
        default=None, description="With `groups=true`: up to 50 groups of each topic, largest lag first."
    )
    findings: list[Finding]
    missing: dict[str, str] = Field(description="Nodes whose partitions are missing here, with the reason.")


class HistorySlot(ResponseModel):
    """Counts of events in one slot of time."""

    start: str
    stored: int
    delivered: int
    acked: int
    dead: int
    late_p50_ms: float | None = _LATE_50
    late_p99_ms: float | None = _LATE_99


class History(ResponseModel):
    slot_ms: int
    slots: list[HistorySlot] = Field(description="Slots with events, oldest first.")
    missing: dict[str, str] = Field(description="Nodes whose partitions are missing here, with the reason.")
