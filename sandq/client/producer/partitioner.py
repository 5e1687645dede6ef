"""Choose the partition that a message goes to."""

from __future__ import annotations

import random
from collections.abc import Callable

from sandq.client.producer.validation import Lot, Rank
from sandq.model.errors import InvalidRequest, UnknownPartition
from sandq.model.names import COMPACTED, DEFAULT_TENANT, FAIR, PRIORITY, TAKERS, TIMER
from sandq.model.partitioning import KeyPartitions, partition_for
from sandq.protocol.replies import TopicRecord


def check_rank(topic: str, kind: str, priority: object, tenant: object) -> None:
    """Refuse a priority or a tenant that topics of a kind do not take; None is none."""
    for name, given in (("tenant", tenant), ("priority", priority)):
        if given is not None and kind not in TAKERS[name]:
            raise InvalidRequest(
                f"{name}: topic {topic!r} is a {kind} topic; one of the kind {' or '.join(TAKERS[name])} takes it"
            )


class Partitioner:
    """The partitions of one topic, as a producer chooses among them.

    A message with a unique key is routed over the topic's *initial* partitions, by its key if it has one, else by the
    unique key: it is found again after their number was raised. Other keys choose over those that there are. Messages
    with neither stick to one partition for the length of a batch. In a fair topic it is the tenant alone that chooses,
    over the initial partitions; in a compacted one the partition key of a key.
    """

    def __init__(self, topic: str, is_stuck: Callable[[int], bool]) -> None:
        self._topic = topic
        self._is_stuck = is_stuck  # whether a partition takes nothing at present
        self.partitions = self._initial = 1
        self._keys = KeyPartitions(1)
        self._kind = TIMER
        self.is_compacted = self.is_fair = False
        self.sticky: dict[Lot, int] = {}  # where those that may go anywhere go at present
        self._turn = random.randrange(4096)

    def update(self, record: TopicRecord) -> None:
        """What is known of the topic now."""
        self.partitions, self._initial = len(record.partitions), record.initial_partitions
        self._kind = record.kind
        self._keys = KeyPartitions.of_topic(self.partitions, record.settings)
        self.is_compacted, self.is_fair = record.kind == COMPACTED, record.kind == FAIR

    def place(self, key: bytes | None, unique_key: bytes | None, lot: Lot, partition: int | None) -> int:
        """The partition of a message; `partition` is what the caller asked for."""
        if partition is not None:
            self._check_asked_for(partition)
            if unique_key is not None and partition != (wanted := self._named_place(key, unique_key)):
                name = "unique_key" if key is None else "key"
                raise InvalidRequest(f"partition: the {name} routes the message to {wanted}, not {partition}")
            return partition
        if unique_key is not None:
            return self._named_place(key, unique_key)
        if key is not None:
            return self._keys.of(key)
        sticky = self.sticky.get(lot)
        if sticky is None:
            sticky = self.sticky[lot] = self._next()
        return sticky

    def _named_place(self, key: bytes | None, unique_key: bytes) -> int:
        """Return the partition of a message with a unique key."""
        return partition_for(unique_key if key is None else key, self._initial)

    def place_of_tenant(self, tenant: bytes | None, partition: int | None) -> int:
        """The partition of a message in a fair topic; `partition` is what the caller asked for."""
        wanted = partition_for(DEFAULT_TENANT.encode() if tenant is None else tenant, self._initial)
        if partition is not None:
            self._check_asked_for(partition)
            if partition != wanted:
                raise InvalidRequest(f"partition: the tenant routes the message to {wanted}, not {partition}")
        return wanted

    def takes(self, rank: Rank) -> bool:
        """Whether messages of a topic of this kind have such a rank."""
        return self.is_fair or (self._kind == PRIORITY and rank[1] is None)

    def check_rank(self, rank: Rank) -> None:
        """Refuse a rank that no topic of this kind takes: the broker would refuse the whole batch."""
        check_rank(self._topic, self._kind, *rank)

    def check(self, key: bytes | None, value: bytes | None) -> None:
        """Refuse what no topic of this kind takes: the broker would refuse the whole batch."""
        if self.is_compacted and not key:
            raise InvalidRequest(f"key: topic {self._topic!r} is compacted, each of its messages is a write to a key")
        if value is None and not self.is_compacted:
            raise InvalidRequest(
                f"value: bytes or str is expected, not NoneType: {self._topic!r} is a topic without keys to delete"
            )

    def sealed(self, lot: Lot, partition: int) -> None:
        """A batch is full or has waited enough: the next one goes elsewhere."""
        if self.sticky.get(lot) == partition:
            del self.sticky[lot]

    def _check_asked_for(self, partition: int) -> None:
        if type(partition) is not int:
            raise InvalidRequest(f"partition: int is expected, not {type(partition).__name__}")
        if not 0 <= partition < self.partitions:
            raise UnknownPartition(
                f"topic {self._topic!r} has partitions 0..{self.partitions - 1}, there is no {partition}"
            )

    def _next(self) -> int:
        """The next in turn; one where nothing is stuck, if there is one."""
        for _ in range(self.partitions):
            self._turn += 1
            if not self._is_stuck(self._turn % self.partitions):
                break
        return self._turn % self.partitions
