"""From what is to be read to tasks: one for each partition, more where `minPartitions` asks for more.

How a range is cut is the caller's to say. By time (an offset begins with it) the parts are equal spans, and equal
numbers of messages where those come evenly; they are the same whenever the same range is cut. Such a range should begin
where its first message is, not at the very first offset: between that and the first message lie decades.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from sandq.model import offsets as offset_model
from sandq.model.errors import InvalidRequest
from sandq.spark.source.options import TASKS_MAX

_PARTITION_BITS: Final = 12
_UNKNOWN_MESSAGES: Final = 1
"""The weight of every range, when it is not known of all of them how many messages they have."""


@dataclass(frozen=True, slots=True)
class Range:
    """A part of a partition's log: from `start` on, without `end` (16 bytes each). `messages` in it, if known, about.
    `pending`: also what is not closed, as it stands when it is read. `clock_epoch`: of the partition, when the range
    was found; once its clock was set back the range says nothing.

    `number` is the topic's: it tells the topic from another one that is made under its name later.
    """

    topic: str
    number: int
    partition: int
    start: bytes
    end: bytes
    messages: int | None = None
    pending: bool = False
    clock_epoch: int = 0


@dataclass(frozen=True, slots=True)
class Task:
    """What one task reads; it is pickled on its way to the worker."""

    topic: str
    number: int
    partition: int
    start: bytes
    end: bytes
    pending: bool = False
    clock_epoch: int = 0

    def __str__(self) -> str:
        start, end = offset_model.to_text(self.start), offset_model.to_text(self.end)
        return f"topic {self.topic!r}, partition {self.partition}, from {start} up to {end}"


Cut = Callable[[Range, int], Sequence[bytes]]
"""The offsets, rising, at which a range is cut into so many parts, or fewer."""


def by_time(one: Range, parts: int) -> list[bytes]:
    """Cuts into equal spans of time."""
    first, width = _row(one.start), _row(one.end) - _row(one.start)
    return [_offset(first + width * part // parts, one.partition) for part in range(1, parts)]


def plan(ranges: Sequence[Range], min_partitions: int = 1, cut: Cut = by_time) -> list[Task]:
    """The tasks that read these ranges, each message in exactly one of them.

    At least `min_partitions`, if there is so much to split, and never more than TASKS_MAX unless there are more ranges.
    They stand by topic number, partition and time; the same ranges give the same tasks. Empty ranges give none.
    InvalidRequest when a range ends before it begins.
    """
    ordered = sorted(ranges, key=lambda one: (one.number, one.partition, one.start))
    for one in ordered:
        if one.start > one.end:
            start, end = offset_model.to_text(one.start), offset_model.to_text(one.end)
            raise InvalidRequest(f"topic {one.topic!r}, partition {one.partition}: the start {start} is behind {end}")
    filled = [one for one in ordered if one.start < one.end]
    parts = _shares(filled, min(min_partitions, TASKS_MAX))
    return [
        Task(one.topic, one.number, one.partition, start, end, one.pending, one.clock_epoch)
        for one, count in zip(filled, parts, strict=True)
        for start, end in pairwise([one.start, *(cut(one, count) if count > 1 else ()), one.end])
    ]


def _shares(ranges: Sequence[Range], wanted: int) -> list[int]:
    """How many parts each range is to have: the one with the largest parts gets the next one."""
    parts = [1] * len(ranges)
    known = all(one.messages is not None for one in ranges)
    weights = [one.messages or 0 if known else _UNKNOWN_MESSAGES for one in ranges]
    most = [_most_parts(one, weight if known else None) for one, weight in zip(ranges, weights, strict=True)]
    heap: list[tuple[float, int]] = [(-weight, place) for place, weight in enumerate(weights) if most[place] > 1]
    heapq.heapify(heap)
    left = wanted - len(ranges)
    while heap and left > 0:
        _, place = heapq.heappop(heap)
        parts[place] += 1
        left -= 1
        if parts[place] < most[place]:
            heapq.heappush(heap, (-weights[place] / parts[place], place))
    return parts


def _most_parts(one: Range, messages: int | None) -> int:
    width = max(1, _row(one.end) - _row(one.start))
    return width if messages is None else min(width, max(messages, 1))


def _row(offset: bytes) -> int:
    """An offset without its partition: a broker refuses one that names another partition than is asked."""
    return int.from_bytes(offset, "big") >> _PARTITION_BITS


def _offset(row: int, partition: int) -> bytes:
    return (row << _PARTITION_BITS | partition).to_bytes(offset_model.OFFSET_BYTES, "big")
