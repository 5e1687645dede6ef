"""Requests about what all topics hold and do at present, for who watches over a cluster.

    OVERVIEW       [rows [row...], next name | nil, now ms, over ms, bounds [s...]]
    TOPIC_HISTORY  [rows [[start ms, stored, sent, acked, dead, lateness]...], slot ms, bounds [s...]]

Each node tells of the partitions that it leads; a client puts the answers of all nodes together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from sandq.model.errors import ProtocolError
from sandq.protocol.frames import Frame, Type
from sandq.protocol.request import Request


class Overview(Request, type=Type.OVERVIEW):
    """A page of the topics of which this node holds a partition, by name."""

    after: str | None


class TopicHistory(Request, type=Type.TOPIC_HISTORY):
    """What became of a topic's messages in the last hour, as far as this node led its partitions."""

    topic: str


class GroupRow(NamedTuple):
    """A group, over the partitions that a node leads."""

    name: str
    ready: int
    leased: int
    waiting: int
    dead: int
    consumers: int
    is_paused: bool
    reason: str | None
    """Why it gets nothing new."""
    oldest_ms: int | None
    """When the oldest message was due that is not acked."""
    held_up_by: int
    """Limits for which something that is due waits: 1 max_in_flight, 2 rate."""
    push: str | None
    """State of its push on this node; None: the group is not pushed."""
    push_error: str | None
    """Last error of its receiver on this node."""
    push_error_ms: int | None
    unfinished: int | None
    """Messages that the group keeps since it expired (`group_ttl`); None: it has not expired."""


class TopicRow(NamedTuple):
    """A topic, over the partitions that a node leads."""

    name: str
    kind: str
    partitions: int
    """Of the topic, whoever leads them."""
    led: int
    messages: int
    delayed: int
    dead: int
    keys: int
    schedules: int
    outbox: int
    bytes: int
    stored: int
    """Of messages, within the last `over_ms`; so are `sent`, `acked` and `died`."""
    sent: int
    acked: int
    died: int
    lateness: Sequence[int]
    """Of first deliveries within the last minute: number of a bucket, how many, number of the next, and so on."""
    groups: int
    """How many there are; the next field has those that are furthest behind."""
    furthest: Sequence[GroupRow]
    replicas: int
    """Replicas of each partition of the topic."""


class OverviewReply(NamedTuple):
    """What one node told."""

    rows: list[TopicRow]
    next: str | None
    now_ms: int
    over_ms: int
    bounds: list[float]

    @classmethod
    def parse(cls, frame: Frame) -> OverviewReply:
        """Raises ProtocolError."""
        try:
            rows, after, now_ms, over_ms, bounds = frame[2:7]
            return cls([_topic(row) for row in rows], after, int(now_ms), int(over_ms), [float(one) for one in bounds])
        except (ValueError, TypeError):
            raise ProtocolError("OVERVIEW reply: it is not what was expected") from None


class HistoryRow(NamedTuple):
    """What became of messages in one slot of time."""

    start_ms: int
    stored: int
    sent: int
    acked: int
    died: int
    lateness: Sequence[int]


class HistoryReply(NamedTuple):
    """What one node told."""

    rows: list[HistoryRow]
    slot_ms: int
    bounds: list[float]

    @classmethod
    def parse(cls, frame: Frame) -> HistoryReply:
        """Raises ProtocolError."""
        try:
            rows, slot_ms, bounds = frame[2:5]
            return cls(
                [HistoryRow(*row[: len(HistoryRow._fields)]) for row in rows],
                int(slot_ms),
                [float(one) for one in bounds],
            )
        except (ValueError, TypeError):
            raise ProtocolError("TOPIC_HISTORY reply: it is not what was expected") from None


_FIELDS: Final = len(TopicRow._fields)


def _topic(row: Sequence[Any]) -> TopicRow:
    found = TopicRow(*row[:_FIELDS])
    groups: Sequence[Sequence[Any]] = found.furthest
    return found._replace(furthest=[GroupRow(*group[: len(GroupRow._fields)]) for group in groups])
