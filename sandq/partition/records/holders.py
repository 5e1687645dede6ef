"""Finds the lease or the waiting entry that holds a message of a group, by the message's offset.

A range of one message is found by its offset in a dict. Longer ranges lie within one row of the log. Their spans are
kept in one sorted list per delivery time and entry. A span is cut where another holder takes over a part of it. A lease
that gave back some of its messages stays registered for them until another holder takes them over. So `find` checks
whether the registered holder still holds the message.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from sandq.model import offsets
from sandq.partition.base.rows import Range
from sandq.partition.records.leases import Lease, Waiting

Holder = Lease | Waiting
_PREFIX_BYTES = 12
"""Length of the delivery time and entry at the beginning of an offset. The position in the entry follows."""


class _Span(NamedTuple):
    """Positions with the same delivery time and entry, start <= position < stop."""

    start: int
    stop: int
    holder: Holder


class Holders:
    def __init__(self) -> None:
        self._alone: dict[bytes, Holder] = {}
        self._spans: dict[bytes, list[_Span]] = {}
        """Spans by delivery time and entry, sorted and without overlaps."""

    def find(self, offset: bytes) -> Holder | None:
        """Return the live lease that holds a message, or its waiting entry. None if it is neither leased nor
        waiting."""
        holder = self._alone.get(offset)
        if holder is not None and holder.holds(offset):
            return holder
        spans = self._spans.get(offset[:_PREFIX_BYTES])
        if spans is None:
            return None
        place = _place(offset)
        at = bisect_right(spans, place, key=_start) - 1
        if at < 0 or spans[at].stop <= place:
            return None
        holder = spans[at].holder
        return holder if holder.holds(offset) else None

    def put(self, ranges: Iterable[Range], holder: Holder) -> None:
        """Register a holder for these messages, and replace all other holders."""
        for base, length in ranges:
            if length == 1:
                self._alone[base] = holder
            else:
                prefix, start, stop = _bounds(base, length)
                spans = self._spans.setdefault(prefix, [])
                span = _Span(start, stop, holder)
                if not spans or spans[-1].stop <= start:  # usual case: a row is leased from start to end
                    spans.append(span)
                else:
                    spans.insert(_cut(spans, start, stop, None), span)

    def drop(self, ranges: Iterable[Range], holder: Holder) -> None:
        """Unregister a holder from these messages, unless another holder has taken them over."""
        alone = self._alone
        for base, length in ranges:
            if length == 1 and alone.get(base) is holder:
                del alone[base]
                continue
            prefix, start, stop = _bounds(base, length)
            spans = self._spans.get(prefix)
            if spans is not None:
                if spans[0] == (start, stop, holder):  # usual case: a row is acked from start to end
                    del spans[0]
                else:
                    _cut(spans, start, stop, holder)
                if not spans:
                    del self._spans[prefix]

    def __len__(self) -> int:
        """Return the number of registrations."""
        return len(self._alone) + sum([len(spans) for spans in self._spans.values()])


def _cut(spans: list[_Span], start: int, stop: int, holder: Holder | None) -> int:
    """Remove the positions from `start` to `stop` from the spans of a holder (None: of all holders). Return the index
    at which a span that begins at `start` must be inserted."""
    first = bisect_right(spans, start, key=_stop)
    last = bisect_left(spans, stop, first, key=_start)
    left: list[_Span] = []
    for span in spans[first:last]:
        if holder is not None and span.holder is not holder:
            left.append(span)
            continue
        if span.start < start:
            left.append(span._replace(stop=start))
        if span.stop > stop:
            left.append(span._replace(start=stop))
    spans[first:last] = left
    return bisect_left(spans, start, first, key=_start)


def _bounds(base: bytes, length: int) -> tuple[bytes, int, int]:
    """Return the span of a range: (delivery time and entry, first position, position after the last)."""
    start = _place(base)
    return base[:_PREFIX_BYTES], start, start + length * offsets.PLACE_STEP


def _place(offset: bytes) -> int:
    """Return the position of a message within its delivery time and entry."""
    return int.from_bytes(offset[_PREFIX_BYTES:], "big")


def _start(span: _Span) -> int:
    """Return the first position of a span: its sort key."""
    return span.start


def _stop(span: _Span) -> int:
    """Return the position after a span: its sort key."""
    return span.stop
