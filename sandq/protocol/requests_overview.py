"""Requests for the current contents and activity of all topics, to monitor a cluster.

    OVERVIEW       [rows [row...], next name | nil, now ms, over ms, bounds [s...]]
    TOPIC_HISTORY  [rows [[start ms, stored, sent, acked, dead, lateness]...], slot ms, bounds [s...]]

Each node reports the partitions that it leads. A client combines the replies of all nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from sandq.model.errors import ProtocolError
from sandq.protocol.frames import Frame, Type
from sandq.protocol.request import Request


class Overview(Request, type=Type.OVERVIEW):
    """Return a page of the topics of which this node holds a partition, by name."""

    after: str | None


class TopicHistory(Request, type=Type.TOPIC_HISTORY):
    """Return the counts of a topic's messages in the last hour, for the time in which this node led its partitions."""

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
    """Reason why the group gets no new messages. None if it gets them."""
    oldest_ms: int | None
    """Time at which the group's oldest message that is not acked became due."""
    held_up_by: int
    """Bits of the limits for which due messages wait: 1 max_in_flight, 2 rate."""
    push: str | None
    """State of the group's push on this node. None: the group is not pushed."""
    push_error: str | None
    """Last error of the push receiver on this node."""
    push_error_ms: int | None
    unfinished: int | None
    """Number of messages that the group still keeps after it has expired (`group_ttl`). None: it has not expired."""


class TopicRow(NamedTuple):
    """A topic, over the partitions that a node leads."""

    name: str
    kind: str
    partitions: int
    """Number of partitions of the topic, including partitions that other nodes lead."""
    led: int
    messages: int
    delayed: int
    dead: int
    keys: int
    schedules: int
    outbox: int
    bytes: int
    stored: int
    """Number of messages stored within the last `over_ms`. `sent`, `acked` and `died` cover the same time."""
    sent: int
    acked: int
    died: int
    lateness: Sequence[int]
    """Lateness of first deliveries within the last minute: pairs of a bucket's number and its count, in one flat
    list."""
    groups: int
    """Number of groups. The next field has the groups that are furthest behind."""
    furthest: Sequence[GroupRow]
    replicas: int
    """Number of replicas per partition."""


class OverviewReply(NamedTuple):
    """The reply of one node."""

    rows: list[TopicRow]
    next: str | None
    now_ms: int
    over_ms: int
    bounds: list[float]

    @classmethod
    def parse(cls, frame: Frame) -> OverviewReply:
        """Parse the reply. Raise ProtocolError if it is malformed."""
        try:
            rows, after, now_ms, over_ms, bounds = frame[2:7]
            return cls([_topic(row) for row in rows], after, int(now_ms), int(over_ms), [float(one) for one in bounds])
        except (ValueError, TypeError):
            raise ProtocolError("OVERVIEW reply: it is not what was expected") from None


class HistoryRow(NamedTuple):
    """Counts of messages in one slot of time."""

    start_ms: int
    stored: int
    sent: int
    acked: int
    died: int
    lateness: Sequence[int]


class HistoryReply(NamedTuple):
    """The reply of one node."""

    rows: list[HistoryRow]
    slot_ms: int
    bounds: list[float]

    @classmethod
    def parse(cls, frame: Frame) -> HistoryReply:
        """Parse the reply. Raise ProtocolError if it is malformed."""
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
