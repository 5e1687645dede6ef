"""Who holds a message of a group: found by its offset, whatever else the group holds.

A message of a range of its own is found by its offset alone. Longer ranges lie within one row of the log, so those of
one time and entry stand together, cut where another holder has come between, in order. A lease that gave some of its
messages back still stands for them until somebody else holds them: who is found is asked whether it holds them.
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
"""Time and entry of an offset; its place stands behind."""


class _Span(NamedTuple):
    """Places of one time and entry: start <= place < stop."""

    start: int
    stop: int
    holder: Holder


class Holders:
    def __init__(self) -> None:
        self._alone: dict[bytes, Holder] = {}
        self._spans: dict[bytes, list[_Span]] = {}
        """By time and entry, in order, none over another."""

    def find(self, offset: bytes) -> Holder | None:
        """The live lease that holds a message, or what it waits in."""
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
        """From now on these messages are with this holder, and with nobody else."""
        for base, length in ranges:
            if length == 1:
                self._alone[base] = holder
            else:
                prefix, start, stop = _bounds(base, length)
                spans = self._spans.setdefault(prefix, [])
                span = _Span(start, stop, holder)
                if not spans or spans[-1].stop <= start:  # most often: a row is leased from its beginning to its end
                    spans.append(span)
                else:
                    spans.insert(_cut(spans, start, stop, None), span)

    def drop(self, ranges: Iterable[Range], holder: Holder) -> None:
        """This holder has these messages no longer, if nobody else got them from it before."""
        alone = self._alone
        for base, length in ranges:
            if length == 1 and alone.get(base) is holder:
                del alone[base]
                continue
            prefix, start, stop = _bounds(base, length)
            spans = self._spans.get(prefix)
            if spans is not None:
                if spans[0] == (start, stop, holder):  # and is acked likewise
                    del spans[0]
                else:
                    _cut(spans, start, stop, holder)
                if not spans:
                    del self._spans[prefix]

    def __len__(self) -> int:
        """How many entries it has."""
        return len(self._alone) + sum([len(spans) for spans in self._spans.values()])


def _cut(spans: list[_Span], start: int, stop: int, holder: Holder | None) -> int:
    """Take the places from `start` to `stop` from a holder (None: from whoever has them). Where a span that begins at
    `start` belongs by then."""
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
    start = _place(base)
    return base[:_PREFIX_BYTES], start, start + length * offsets.PLACE_STEP


def _place(offset: bytes) -> int:
    return int.from_bytes(offset[_PREFIX_BYTES:], "big")


def _start(span: _Span) -> int:
    return span.start


def _stop(span: _Span) -> int:
    return span.stop
