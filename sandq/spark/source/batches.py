"""What a batch reads: for each partition a stretch of its log, cut into tasks of about as many messages each."""

from __future__ import annotations

from collections.abc import Sequence

from sandq.model import offsets as offset_model
from sandq.model.errors import InvalidRequest
from sandq.spark.source.brokers import Brokers, Found, check_kinds, closed_end
from sandq.spark.source.narrowing import WHOLE, Narrowed
from sandq.spark.source.options import ALL, EARLIEST, LATEST, PENDING, SourceOptions
from sandq.spark.source.planning import Range, Task, plan
from sandq.spark.source.positions import Place


def plan_batch(options: SourceOptions, brokers: Brokers, narrowed: Narrowed = WHOLE) -> list[Task]:
    """The tasks of a batch, each message that is asked for in one of them. InvalidRequest, UnknownTopic and their like
    say why not."""
    places = brokers.places(options.topics)
    check_kinds(places, options)

    def stretch(item: tuple[Place, Found]) -> Range | None:
        return _range(options, brokers, narrowed, *item)

    asked = [(place, found) for place, found in sorted(places.items()) if narrowed.has(found.topic, place.partition)]
    ranges = [one for one in brokers.all(stretch, asked) if one is not None]
    return plan(ranges, options.min_partitions, lambda one, parts: _cut(brokers, one, parts))


def _range(options: SourceOptions, brokers: Brokers, narrowed: Narrowed, place: Place, found: Found) -> Range | None:
    """What is read of a partition; None when that is nothing."""
    pending = options.view in (PENDING, ALL)
    starting = options.starting.of(found.topic, place.partition)
    start = _bound(starting) or offset_model.FIRST
    end = _bound(options.ending.of(found.topic, place.partition))
    if start < offset_model.pack(narrowed.start_ms, 0, 0, 0):
        starting = narrowed.start_ms
        start = offset_model.pack(starting, 0, 0, 0)
    if narrowed.end() is not None:
        end = min(end or offset_model.LAST, narrowed.end() or offset_model.LAST)
        if end <= start:
            return None
    if options.view == PENDING:
        start = max(start, closed_end(brokers.measure(place, found.topic, start, end, 1, pending)))
    reply = brokers.measure(place, found.topic, start, end, None, pending)
    if pending:
        end = end or offset_model.LAST
    else:
        closed = closed_end(reply)
        _check_closed(options, place, found, closed)
        end = min(end or closed, closed)
    # An offset that was named is a claim that it is there; else the range begins with what there is.
    if starting == EARLIEST or isinstance(starting, int):
        if reply.first is None:
            return None
        start = reply.first
    return Range(found.topic, place.number, place.partition, start, end, reply.messages, pending, reply.clock_epoch)


def _bound(place: str | int) -> bytes | None:
    """None: the earliest, or the latest, that there is."""
    if place in (EARLIEST, LATEST):
        return None
    return offset_model.pack(place, 0, 0, 0) if isinstance(place, int) else offset_model.from_text(str(place))


def _check_closed(options: SourceOptions, place: Place, found: Found, closed: bytes) -> None:
    named = options.ending.offsets.get(found.topic, {}).get(place.partition)
    if named is not None and named != LATEST and offset_model.from_text(named) > closed:
        raise InvalidRequest(
            f"endingOffsets: {found.topic}, partition {place.partition}: messages may still come to lie before "
            f"{named}; it is closed up to {offset_model.to_text(closed)}"
        )


def _cut(brokers: Brokers, one: Range, parts: int) -> Sequence[bytes]:
    """Where a range is cut into so many parts of about as many messages."""
    each = max(1, -(-(one.messages or 1) // parts))
    place = Place(one.number, one.partition)
    cuts: list[bytes] = []
    start, counted = one.start, 0
    while len(cuts) < parts - 1:
        reply = brokers.measure(place, one.topic, start, one.end, each - counted, one.pending)
        if reply.next is None:
            break
        start, counted = reply.next, counted + reply.messages
        if counted >= each:
            cuts.append(start)
            counted = 0
    return cuts
