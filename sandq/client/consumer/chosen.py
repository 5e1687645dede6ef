"""The topics (by name or pattern) and the partitions that a consumer subscribes to."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Final, NamedTuple

from sandq.client.transport.cluster import Cluster
from sandq.client.transport.requests import call
from sandq.model.errors import InvalidRequest, TooLarge, UnknownPartition
from sandq.model.names import check_name
from sandq.model.topic_patterns import TopicPattern
from sandq.protocol.fields import PARTITION_MAX
from sandq.protocol.replies import Partition, TopicRecord
from sandq.protocol.requests import TopicNames, TopicNamesReply

Topics = str | Sequence[str] | TopicPattern
"""A topic's name, several names, or `pattern("orders.*")`."""
TOPICS_MAX: Final = 250
"""Maximum number of topics per subscription. The nodes keep one subscription per topic, up to 1,000 per connection."""
_SHOWN: Final = 10


def pattern(*patterns: str) -> TopicPattern:
    """Return a pattern of topic names for `client.subscribe` and `client.run`.

    A topic matches if its name matches one of the patterns: `*` stands for any characters, `?` for one character,
    `[ab]` for a or b. New topics are joined within seconds, deleted topics are left. Raises InvalidName for an invalid
    pattern.
    """
    return TopicPattern(patterns)


class ChosenTopics(NamedTuple):
    """The topics that a caller named: a list, or a pattern."""

    listed: list[str]
    pattern: TopicPattern | None
    is_one: bool

    @classmethod
    def of(cls, topics: Topics) -> ChosenTopics:
        """Check the caller's argument. Raises InvalidName, InvalidRequest, TooLarge."""
        if isinstance(topics, TopicPattern):
            return cls([], topics, False)
        if isinstance(topics, str) or not isinstance(topics, Sequence):
            return cls([check_name("topic", topics)], None, True)
        names = list(dict.fromkeys([check_name("topic", name) for name in topics]))
        if not names:
            raise InvalidRequest("topics: at least one is expected")
        if len(names) > TOPICS_MAX:
            raise too_many(_text(names), len(names))
        return cls(names, None, len(names) == 1)

    @property
    def text(self) -> str:
        """The topics as text, for errors and logs."""
        return _text(self.listed) if self.pattern is None else str(self.pattern)

    async def names(self, cluster: Cluster) -> list[str]:
        """Return the current names of these topics. For a pattern, return at most one name more than the maximum.

        Raises the errors of the request to a node.
        """
        if self.pattern is None:
            return self.listed
        request = TopicNames(list(self.pattern.patterns), TOPICS_MAX + 1)
        return list(TopicNamesReply.parse(await call(cluster, request)).names)


def too_many(topics: str, count: int) -> TooLarge:
    """Return the error for subscribing to too many topics."""
    return TooLarge(
        f"topics {topics}: a subscription has at most {TOPICS_MAX} topics; make several",
        limit="topics_per_subscription",
        maximum=TOPICS_MAX,
        size=count,
    )


def _text(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


Partitions = Sequence[int] | Set[int]
"""Partition numbers, from 0."""
_SHOWN_CHARS: Final = 80


def partitions_of(partitions: Partitions | None) -> list[int] | None:
    """Return the partitions that a caller named, sorted and without duplicates; None for all. Raises InvalidRequest."""
    if partitions is None:
        return None
    problem = None
    if isinstance(partitions, str | bytes) or not isinstance(partitions, Sequence | Set):
        problem = "a list of their numbers is expected"
    elif not partitions:
        problem = "at least one is expected, or None: all of them"
    elif not all(type(partition) is int and 0 <= partition <= PARTITION_MAX for partition in partitions):
        problem = f"numbers within 0..{PARTITION_MAX} are expected"
    if problem is not None:
        raise InvalidRequest(f"partitions: {problem}, not {repr(partitions)[:_SHOWN_CHARS]}")
    return sorted({*partitions})


def chosen_of(record: TopicRecord, partitions: Sequence[int] | None) -> Sequence[Partition]:
    """Return the chosen partitions of a topic; `partitions` is sorted. Raises UnknownPartition."""
    if partitions is None:
        return record.partitions
    count = len(record.partitions)
    if partitions[-1] >= count:
        raise UnknownPartition(
            f"topic {record.name!r} has no partition {partitions[-1]}: it has {count}, counted from 0",
            topic=record.name,
            partition=partitions[-1],
        )
    return [record.partitions[at] for at in partitions]
