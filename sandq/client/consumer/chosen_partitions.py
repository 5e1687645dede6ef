"""The partitions of a topic that a consumer wants: all, or some that it names."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Final

from sandq.model.errors import InvalidRequest, UnknownPartition
from sandq.protocol.fields import PARTITION_MAX
from sandq.protocol.replies import Partition, TopicRecord

Partitions = Sequence[int] | Set[int]
"""Numbers of partitions, from 0 on."""
_SHOWN: Final = 80


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
        raise InvalidRequest(f"partitions: {problem}, not {repr(partitions)[:_SHOWN]}")
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
