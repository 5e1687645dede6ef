"""Splits ranges of logs into tasks: one per partition, or more if `minPartitions` asks for more.

The caller chooses how a range is split (`Cut`). `by_time` splits it into equal spans of delivery time, with which an
offset begins. The parts then have about the same number of messages if these are evenly distributed, and the same range
always gives the same parts. Such a range should begin at its first message and not at the smallest offset: the decades
between them would all be in the first part.
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
"""Weight of every range, if the number of messages is unknown for one of them."""


@dataclass(frozen=True, slots=True)
class Range:
    """A part of a partition's log, from `start` up to `end`, which is exclusive (offsets of 16 bytes).

    `number` is the topic's number. It distinguishes the topic from a later one with the same name. `messages` is the
    approximate number of messages, None if unknown. `pending`: the range may include messages that are not closed yet.
    `clock_epoch` is the epoch of the partition's clock at planning time; if the clock is set back later, the range is
    invalid.
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
    """A range that one task reads; Spark pickles it and sends it to a worker."""

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
"""Returns the offsets, ascending, that split a range into at most the given number of parts."""


def by_time(one: Range, parts: int) -> list[bytes]:
    """Return the offsets that split a range into `parts` equal spans of time."""
    first, width = _row(one.start), _row(one.end) - _row(one.start)
    return [_offset(first + width * part // parts, one.partition) for part in range(1, parts)]


def plan(ranges: Sequence[Range], min_partitions: int = 1, cut: Cut = by_time) -> list[Task]:
    """Return the tasks that read these ranges; each message is in exactly one task.

    There are at least `min_partitions` tasks, if the ranges can be split that often, and at most TASKS_MAX, unless
    there are more ranges. Tasks are ordered by topic number, partition and time; the same ranges give the same tasks.
    Empty ranges give no task. Raises InvalidRequest if a range ends before it begins.
    """
    ordered = sorted(ranges, key=lambda one: (one.number, one.partition, one.start))
    for one in ordered:
        if one.start > one.end:
            start, end = offset_model.to_text(one.start), offset_model.to_text(one.end)
            raise InvalidRequest(f"topic {one.topic!r}, partition {one.partition}: the start {start} is after {end}")
    filled = [one for one in ordered if one.start < one.end]
    parts = _shares(filled, min(min_partitions, TASKS_MAX))
    return [
        Task(one.topic, one.number, one.partition, start, end, one.pending, one.clock_epoch)
        for one, count in zip(filled, parts, strict=True)
        for start, end in pairwise([one.start, *(cut(one, count) if count > 1 else ()), one.end])
    ]


def _shares(ranges: Sequence[Range], wanted: int) -> list[int]:
    """Return the number of parts for each range: the range with the largest parts always gets the next one."""
    parts = [1] * len(ranges)
    known = all(one.messages is not None for one in ranges)
    weights = [one.messages or 0 if known else _UNKNOWN_MESSAGES for one in ranges]
    most = [_most_parts(one, weight if known else None) for one, weight in zip(ranges, weights, strict=True)]
    heap: list[tuple[float, int]] = [(-weight, index) for index, weight in enumerate(weights) if most[index] > 1]
    heapq.heapify(heap)
    left = wanted - len(ranges)
    while heap and left > 0:
        _, index = heapq.heappop(heap)
        parts[index] += 1
        left -= 1
        if parts[index] < most[index]:
            heapq.heappush(heap, (-weights[index] / parts[index], index))
    return parts


def _most_parts(one: Range, messages: int | None) -> int:
    width = max(1, _row(one.end) - _row(one.start))
    return width if messages is None else min(width, max(messages, 1))


def _row(offset: bytes) -> int:
    """Return an offset without its partition number.

    Cuts are computed on this part: a broker refuses an offset that names a different partition than the request.
    """
    return int.from_bytes(offset, "big") >> _PARTITION_BITS


def _offset(row: int, partition: int) -> bytes:
    return (row << _PARTITION_BITS | partition).to_bytes(offset_model.OFFSET_BYTES, "big")
