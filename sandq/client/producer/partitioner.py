"""Choose the partition that a message goes to."""

from __future__ import annotations

import random
from collections.abc import Callable

from sandq.client.producer.validation import Rank, Traits
from sandq.model.errors import InvalidRequest, UnknownPartition
from sandq.model.names import ACCEPTING_KINDS, COMPACTED, DEFAULT_TENANT, FAIR, PRIORITY, TIMER
from sandq.model.partitioning import KeyPartitions, partition_for
from sandq.protocol.replies import TopicRecord


def check_rank(topic: str, kind: str, priority: object, tenant: object) -> None:
    """Raise InvalidRequest for a priority or a tenant that topics of this kind do not accept. None: not given."""
    for name, given in (("tenant", tenant), ("priority", priority)):
        if given is not None and kind not in ACCEPTING_KINDS[name]:
            raise InvalidRequest(
                f"{name}: topic {topic!r} is a {kind} topic; only {' or '.join(ACCEPTING_KINDS[name])} topics accept it"
            )


class Partitioner:
    """Chooses a partition of one topic for each message.

    A message with a unique key is routed over the *initial* partitions of the topic: by its key, or, if it has none, by
    the unique key. So it can be found after partitions were added. Other messages with a key are routed over all
    partitions. Messages without any key go to one partition until their batch is full. In a fair topic, only the tenant
    counts, over the initial partitions. In a compacted topic, the partition key of the key counts.
    """

    def __init__(self, topic: str, is_stuck: Callable[[int], bool]) -> None:
        self._topic = topic
        self._is_stuck = is_stuck  # returns whether a new batch of a partition would have to wait
        self.partitions = self._initial = 1
        self._keys = KeyPartitions(1)
        self._kind = TIMER
        self.is_compacted = self.is_fair = False
        self.sticky: dict[Traits, int] = {}  # by traits: current partition of messages that may go to any partition
        self._round_robin = random.randrange(4096)

    def update(self, record: TopicRecord) -> None:
        """Update the partitions and settings from the topic's record."""
        self.partitions, self._initial = len(record.partitions), record.initial_partitions
        self._kind = record.kind
        self._keys = KeyPartitions.of_topic(self.partitions, record.settings)
        self.is_compacted, self.is_fair = record.kind == COMPACTED, record.kind == FAIR

    def partition_of(self, key: bytes | None, unique_key: bytes | None, traits: Traits, partition: int | None) -> int:
        """Return the partition of a message. `partition`: the partition that the caller requested."""
        if partition is not None:
            self._check_asked_for(partition)
            if unique_key is not None and partition != (wanted := self._partition_of_unique(key, unique_key)):
                name = "unique_key" if key is None else "key"
                raise InvalidRequest(f"partition: the {name} routes the message to {wanted}, not {partition}")
            return partition
        if unique_key is not None:
            return self._partition_of_unique(key, unique_key)
        if key is not None:
            return self._keys.of(key)
        sticky = self.sticky.get(traits)
        if sticky is None:
            sticky = self.sticky[traits] = self._next()
        return sticky

    def _partition_of_unique(self, key: bytes | None, unique_key: bytes) -> int:
        """Return the partition of a message with a unique key."""
        return partition_for(unique_key if key is None else key, self._initial)

    def partition_of_tenant(self, tenant: bytes | None, partition: int | None) -> int:
        """Return the partition of a message in a fair topic. `partition`: the partition that the caller requested."""
        wanted = partition_for(DEFAULT_TENANT.encode() if tenant is None else tenant, self._initial)
        if partition is not None:
            self._check_asked_for(partition)
            if partition != wanted:
                raise InvalidRequest(f"partition: the tenant routes the message to {wanted}, not {partition}")
        return wanted

    def takes(self, rank: Rank) -> bool:
        """Return whether messages of this kind of topic may have such a rank."""
        return self.is_fair or (self._kind == PRIORITY and rank[1] is None)

    def check_rank(self, rank: Rank) -> None:
        """Raise InvalidRequest for a rank that this kind of topic rejects: the broker would reject the whole batch."""
        check_rank(self._topic, self._kind, *rank)

    def check(self, key: bytes | None, value: bytes | None) -> None:
        """Raise InvalidRequest if this kind of topic rejects such a message: the broker would reject its batch."""
        if self.is_compacted and not key:
            raise InvalidRequest(f"key: topic {self._topic!r} is compacted, each of its messages is a write to a key")
        if value is None and not self.is_compacted:
            raise InvalidRequest(
                f"value: bytes or str is expected, not NoneType: {self._topic!r} is a topic without keys to delete"
            )

    def move_on(self, traits: Traits, partition: int) -> None:
        """Choose another partition for the next messages that may go to any: this one's batch was sealed, or must wait
        until it can be sent."""
        if self.sticky.get(traits) == partition:
            del self.sticky[traits]

    def _check_asked_for(self, partition: int) -> None:
        if type(partition) is not int:
            raise InvalidRequest(f"partition: int is expected, not {type(partition).__name__}")
        if not 0 <= partition < self.partitions:
            raise UnknownPartition(
                f"topic {self._topic!r} has partitions 0..{self.partitions - 1}, there is no {partition}"
            )

    def _next(self) -> int:
        """Return the next partition in round-robin order. Prefer partitions that are not stuck."""
        for _ in range(self.partitions):
            self._round_robin += 1
            if not self._is_stuck(self._round_robin % self.partitions):
                break
        return self._round_robin % self.partitions
