"""What a consumer takes messages of: topics, by name or pattern, and partitions of one."""

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
"""A topic's name, several, or `pattern("orders.*")`."""
TOPICS_MAX: Final = 250
"""Topics of one subscription: each is a subscription of its own on the nodes, which a connection has 1,000 of."""
_SHOWN: Final = 10


def pattern(*patterns: str) -> TopicPattern:
    """Topics whose names are like one of these, for `client.subscribe` and `client.run`: `*` stands for any characters,
    `?` for one, `[ab]` for one of them. Topics that come later are joined within seconds, and those that are deleted
    are left. InvalidName when one of them is no pattern."""
    return TopicPattern(patterns)


class ChosenTopics(NamedTuple):
    """What a caller named."""

    listed: list[str]
    pattern: TopicPattern | None
    is_one: bool

    @classmethod
    def of(cls, topics: Topics) -> ChosenTopics:
        """Raises InvalidName, InvalidRequest, TooLarge."""
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
        """For people."""
        return _text(self.listed) if self.pattern is None else str(self.pattern)

    async def names(self, cluster: Cluster) -> list[str]:
        """Which topics these are now: of a pattern one more than may be, at most. Raises what asking a node does."""
        if self.pattern is None:
            return self.listed
        request = TopicNames(list(self.pattern.patterns), TOPICS_MAX + 1)
        return list(TopicNamesReply.parse(await call(cluster, request)).names)


def too_many(topics: str, count: int) -> TooLarge:
    """The error of subscribing to more topics than may be."""
    return TooLarge(
        f"topics {topics}: a subscription is about {TOPICS_MAX} at most; make several",
        limit="topics_per_subscription",
        maximum=TOPICS_MAX,
        size=count,
    )


def _text(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


Partitions = Sequence[int] | Set[int]
"""Numbers of partitions, from 0 on."""
_SHOWN_CHARS: Final = 80


def partitions_of(partitions: Partitions | None) -> list[int] | None:
    """The partitions that a caller names, each once and in order; None: all. Raises InvalidRequest."""
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
    """Those of a topic's partitions, of which `partitions` are in order. Raises UnknownPartition."""
    if partitions is None:
        return record.partitions
    there = len(record.partitions)
    if partitions[-1] >= there:
        raise UnknownPartition(
            f"topic {record.name!r} has no partition {partitions[-1]}: it has {there}, counted from 0",
            topic=record.name,
            partition=partitions[-1],
        )
    return [record.partitions[at] for at in partitions]
