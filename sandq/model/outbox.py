"""Messages that partitions send to other partitions: the sender's producer id, the destination, and the headers.

The record of a topic's settings has `dead_letter` if it has a dead letter topic: `[number of that topic, the partitions
it was created with, its kind, the name of the topic with these settings]`. PERSISTED. The number distinguishes topics
of the same name. Replicas do not know the names of topics, so the record also includes the name of the own topic.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from sandq.model.batch import Column
from sandq.model.names import COMPACTED, DEFAULT_TENANT, FAIR, PRIORITY
from sandq.model.partitioning import partition_for

DEAD_LETTER_TOPIC: Final = "dead_letter_topic"
"""Setting as a user writes it: the name of a topic."""
DEAD_LETTER: Final = "dead_letter"
"""Key in the record, which replicas read."""

RESERVED_PRODUCERS: Final = 0xFFFF_FFFF << 32
"""First producer id of partitions. The id of a partition is this plus the number of its Raft group."""

DEAD_TOPIC_HEADER: Final = "sandq-dead-topic"
DEAD_PARTITION_HEADER: Final = "sandq-dead-partition"
DEAD_ID_HEADER: Final = "sandq-dead-id"
DEAD_GROUP_HEADER: Final = "sandq-dead-group"
DEAD_REASON_HEADER: Final = "sandq-dead-reason"
DEAD_ERROR_HEADER: Final = "sandq-dead-error"
DEAD_ATTEMPTS_HEADER: Final = "sandq-dead-attempts"
DEAD_AT_HEADER: Final = "sandq-dead-at"
DEAD_CREATED_HEADER: Final = "sandq-dead-created"
DEAD_PRIORITY_HEADER: Final = "sandq-dead-priority"
DEAD_TENANT_HEADER: Final = "sandq-dead-tenant"
DEAD_UNIQUE_KEY_HEADER: Final = "sandq-dead-unique-key"
"""Header with the unique key that the message had: text, or bytes if the key is not UTF-8."""
DEAD_HEADERS_HEADER: Final = "sandq-dead-headers"
"""Header with the original headers, unchanged, if they were no msgpack map."""


class Target(NamedTuple):
    """A partition that messages are sent to. `topic`: the number of its topic, which is never reused."""

    topic: int
    partition: int


class DeadLetterTopic(NamedTuple):
    """Destination of a topic's dead letters."""

    number: int
    partitions: int
    """Number of partitions with which the topic was created. It determines the partition of a key."""
    kind: str
    source: str
    """Name of the topic that the dead letters come from."""

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> DeadLetterTopic | None:
        """Return the destination in the record of a topic's settings. None if dead letters stay in their topic."""
        found = settings.get(DEAD_LETTER)
        return None if found is None else cls(*found)

    def target(self, fields: Mapping[int, Any], partition: int) -> Target:
        """Return the destination of a message of this partition."""
        return Target(self.number, route(fields, self.kind, self.partitions, partition))


def route(fields: Mapping[int, Any], kind: str, partitions: int, sender: int) -> int:
    """Return the partition of a message in a topic, by its tenant or its key, as for a producer. All messages without a
    key from one partition (`sender`) go to the same partition."""
    if kind == FAIR:
        tenant = fields.get(Column.TENANT)
        return partition_for(DEFAULT_TENANT.encode() if tenant is None else tenant, partitions)
    key = fields.get(Column.KEY)
    return sender % partitions if key is None else partition_for(key, partitions)


def takes_priority(kind: str) -> bool:
    """Return whether messages of topics of this kind have priorities."""
    return kind in (PRIORITY, FAIR)


def takes_tenant(kind: str) -> bool:
    """Return whether messages of topics of this kind have tenants."""
    return kind == FAIR


def takes_time(kind: str) -> bool:
    """Return whether messages of topics of this kind have a delivery time of their own."""
    return kind != COMPACTED


def reserved_producer(group: int) -> int:
    """Return the producer id of the partition with this Raft group."""
    return RESERVED_PRODUCERS + group


def is_reserved(producer_id: int) -> bool:
    """Return whether a producer id belongs to a partition."""
    return producer_id >= RESERVED_PRODUCERS
