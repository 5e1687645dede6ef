"""What routes about all topics answer."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from sandq.server.http.answers import Answer

_LATE_50: Any = Field(description="How late half of the first deliveries were at most; null: there were none.")
_LATE_99: Any = Field(description="How late all but one in a hundred were at most.")


class TopicOverview(Answer):
    """A topic in one row. Rates are over the last `over_ms` of the answer, lateness over the last minute."""

    topic: str
    kind: str
    partitions: int
    replicas: int = Field(description="Of each partition.")
    without_leader: int
    messages: int
    delayed: int
    dead: int
    bytes: int
    keys: int
    schedules: int
    outbox: int
    lag: int = Field(description="Of the group that is furthest behind.")
    oldest_at: str | None = Field(description="When the oldest message was due that some group has not acked.")
    groups: int
    consumers: int
    paused: int = Field(description="Groups that somebody paused.")
    stalled: int = Field(description="Groups that get nothing new, the paused ones included.")
    in_per_s: float
    out_per_s: float
    acked_per_s: float
    dead_per_s: float
    late_p50_ms: float | None = _LATE_50
    late_p99_ms: float | None = _LATE_99


class GroupOverview(Answer):
    """A group in one row."""

    topic: str
    group: str
    lag: int
    ready: int
    leased: int
    waiting: int
    dead: int
    consumers: int
    paused: bool
    reason: str | None = Field(description="Why it gets nothing new; null: it does.")
    push: str | None = Field(
        default=None, description="State of its push: `pushing`, `waiting` ...; null: the group is not pushed."
    )
    push_error: str | None = Field(default=None, description="The latest error of its receiver.")
    unfinished: int | None = Field(
        default=None, description="Messages that it keeps since it expired (`group_ttl`); null: it has not expired."
    )
    held_up_by: list[str] = Field(description="Its limits for which something that is due waits.")
    oldest_at: str | None


class Finding(Answer):
    """A situation that needs attention."""

    situation: str = Field(description="Its name in docs/operations.md, What needs attention.")
    state: str = Field(description="`failed` or `warning`.")
    what: str
    found: str
    todo: str
    topic: str | None = None
    group: str | None = None


class Overview(Answer):
    at: str = Field(description="By the clock of the nodes.")
    over_ms: int = Field(description="The time that rates are over.")
    topics: list[TopicOverview]
    next: str | None = Field(description="The `after` of the next page; null: this is the last one.")
    groups: list[GroupOverview] | None = Field(
        default=None, description="With `groups=true`: of these topics, up to 50 of each, those furthest behind first."
    )
    findings: list[Finding]
    missing: dict[str, str] = Field(description="By node: why nothing is told of what it leads.")


class HistorySlot(Answer):
    """What became of messages from `start` on, in one slot of time."""

    start: str
    stored: int
    delivered: int
    acked: int
    dead: int
    late_p50_ms: float | None = _LATE_50
    late_p99_ms: float | None = _LATE_99


class History(Answer):
    slot_ms: int
    slots: list[HistorySlot] = Field(description="Those in which something happened, the oldest first.")
    missing: dict[str, str] = Field(description="By node: why nothing is told of what it leads.")
