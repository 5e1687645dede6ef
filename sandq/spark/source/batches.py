"""Planning of a batch: a range of the log for each partition, split into tasks of about the same size."""

from __future__ import annotations

from collections.abc import Sequence

from sandq.model import offsets as offset_model
from sandq.model.errors import InvalidRequest
from sandq.spark.source.brokers import Brokers, TopicInfo, check_kinds, closed_end
from sandq.spark.source.narrowing import WHOLE, Narrowed
from sandq.spark.source.options import ALL, EARLIEST, LATEST, PENDING, SourceOptions
from sandq.spark.source.planning import Range, Task, plan
from sandq.spark.source.positions import TopicPartition


def plan_batch(options: SourceOptions, brokers: Brokers, narrowed: Narrowed = WHOLE) -> list[Task]:
    """Return the tasks of a batch; each selected message is in exactly one of them.

    Raises UnknownTopic, UnknownPartition, or InvalidRequest: a view does not fit the topics, or an end is not closed
    yet.
    """
    partitions = brokers.partitions(options.topics)
    check_kinds(partitions, options)

    def range_of(item: tuple[TopicPartition, TopicInfo]) -> Range | None:
        return _range(options, brokers, narrowed, *item)

    wanted = [(tp, found) for tp, found in sorted(partitions.items()) if narrowed.has(found.topic, tp.partition)]
    ranges = [one for one in brokers.all(range_of, wanted) if one is not None]
    return plan(ranges, options.min_partitions, lambda one, parts: _cut(brokers, one, parts))


def _range(
    options: SourceOptions, brokers: Brokers, narrowed: Narrowed, tp: TopicPartition, found: TopicInfo
) -> Range | None:
    """Return the range of a partition that the batch reads; None if it is empty."""
    pending = options.view in (PENDING, ALL)
    starting = options.starting.of(found.topic, tp.partition)
    start = _bound(starting) or offset_model.FIRST
    end = _bound(options.ending.of(found.topic, tp.partition))
    if start < offset_model.pack(narrowed.start_ms, 0, 0, 0):
        starting = narrowed.start_ms
        start = offset_model.pack(starting, 0, 0, 0)
    if narrowed.end() is not None:
        end = min(end or offset_model.LAST, narrowed.end() or offset_model.LAST)
        if end <= start:
            return None
    if options.view == PENDING:
        start = max(start, closed_end(brokers.measure(tp, found.topic, start, end, 1, pending)))
    reply = brokers.measure(tp, found.topic, start, end, None, pending)
    if pending:
        end = end or offset_model.LAST
    else:
        closed = closed_end(reply)
        _check_closed(options, tp, found, closed)
        end = min(end or closed, closed)
    # A start offset that the user named must exist: the range begins there, and the reader reports it if it was
    # trimmed. Without one, the range begins at the first message, which also makes the parts by time useful.
    if starting == EARLIEST or isinstance(starting, int):
        if reply.first is None:
            return None
        start = reply.first
    return Range(found.topic, tp.number, tp.partition, start, end, reply.messages, pending, reply.clock_epoch)


def _bound(bound: str | int) -> bytes | None:
    """Return a bound as an offset; None for EARLIEST and LATEST."""
    if bound in (EARLIEST, LATEST):
        return None
    return offset_model.pack(bound, 0, 0, 0) if isinstance(bound, int) else offset_model.from_text(str(bound))


def _check_closed(options: SourceOptions, tp: TopicPartition, found: TopicInfo, closed: bytes) -> None:
    named = options.ending.offsets.get(found.topic, {}).get(tp.partition)
    if named is not None and named != LATEST and offset_model.from_text(named) > closed:
        raise InvalidRequest(
            f"endingOffsets: {found.topic}, partition {tp.partition}: messages may still be added before "
            f"{named}; the log is closed up to {offset_model.to_text(closed)}"
        )


def _cut(brokers: Brokers, one: Range, parts: int) -> Sequence[bytes]:
    """Return the offsets that split a range into at most `parts` parts with about the same number of messages."""
    each = max(1, -(-(one.messages or 1) // parts))
    tp = TopicPartition(one.number, one.partition)
    cuts: list[bytes] = []
    start, counted = one.start, 0
    while len(cuts) < parts - 1:
        reply = brokers.measure(tp, one.topic, start, one.end, each - counted, one.pending)
        if reply.next is None:
            break
        start, counted = reply.next, counted + reply.messages
        if counted >= each:
            cuts.append(start)
            counted = 0
    return cuts
