"""What partitions send to other partitions by themselves: who it is from, where it goes, and the names that tell of it.

The record of a topic's settings has `dead_letter` where it has a dead letter topic: `[number of that topic, the
partitions it was created with, its kind, the name of this topic]`. PERSISTED. The number makes another topic of the
same name another one; a replica knows no names, so it is told that of its own topic.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from sandq.model.batch import Column
from sandq.model.names import COMPACTED, DEFAULT_TENANT, FAIR, PRIORITY
from sandq.model.partitioning import partition_for

DEAD_LETTER_TOPIC: Final = "dead_letter_topic"
"""The setting, as a user writes it: the name of a topic."""
DEAD_LETTER: Final = "dead_letter"
"""In the record: what replicas go by."""

RESERVED_PRODUCERS: Final = 0xFFFF_FFFF << 32
"""Producer ids from here on are those of partitions: the number of the sender's Raft group is added."""

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
"""The unique key that the message had: text, or bytes if it is no UTF-8."""
DEAD_HEADERS_HEADER: Final = "sandq-dead-headers"
"""Headers that were no msgpack map, as they were."""


class Target(NamedTuple):
    """A partition that messages are sent to, by the number of its topic, which is given to no other."""

    topic: int
    partition: int


class DeadLetterTopic(NamedTuple):
    """Where dead letters of a topic go."""

    number: int
    partitions: int
    """That it was created with: keys go by them."""
    kind: str
    source: str
    """The name of the topic whose dead letters they are."""

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> DeadLetterTopic | None:
        """From the record of a topic's settings; None: dead letters stay where they are."""
        found = settings.get(DEAD_LETTER)
        return None if found is None else cls(*found)

    def target(self, fields: Mapping[int, Any], partition: int) -> Target:
        """Return where a message of this partition goes."""
        return Target(self.number, route(fields, self.kind, self.partitions, partition))


def route(fields: Mapping[int, Any], kind: str, partitions: int, sender: int) -> int:
    """Return the partition of a topic for a message: by its tenant or its key, as for who produces it; without a key
    always the same for those that one partition (`sender`) sends."""
    if kind == FAIR:
        tenant = fields.get(Column.TENANT)
        return partition_for(DEFAULT_TENANT.encode() if tenant is None else tenant, partitions)
    key = fields.get(Column.KEY)
    return sender % partitions if key is None else partition_for(key, partitions)


def takes_priority(kind: str) -> bool:
    """Return whether messages of such a topic have priorities."""
    return kind in (PRIORITY, FAIR)


def takes_tenant(kind: str) -> bool:
    """Return whether messages of such a topic have tenants."""
    return kind == FAIR


def takes_time(kind: str) -> bool:
    """Return whether messages of such a topic come at a time of their own."""
    return kind != COMPACTED


def reserved_producer(group: int) -> int:
    """Return the producer id of the partition with this Raft group."""
    return RESERVED_PRODUCERS + group


def is_reserved(producer_id: int) -> bool:
    """Return whether a producer id is that of a partition."""
    return producer_id >= RESERVED_PRODUCERS
