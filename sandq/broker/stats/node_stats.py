"""What a node counts of its own work, in plain numbers: who shows them (`server/metrics/metrics.py`) reads them.

Each number is written by one thread alone. Work is counted per batch, lease or pass, never per message.
"""

from __future__ import annotations

from bisect import bisect_left

from sandq.broker.replication.replica import Delivery
from sandq.broker.stats.histogram import ATTEMPTS, COUNTS, LATENESS, SECONDS, Histogram
from sandq.model import offsets

_MS_BYTES = 6
"""Of an offset: the delivery time."""


class NodeStats:
    """What is not of any topic."""

    def __init__(self, slo_lateness_s: float = 0.1) -> None:
        """`slo_lateness_s`: what is later than that misses the lateness objective."""
        self.slo_lateness_s = slo_lateness_s
        self.slo = Histogram(LATENESS)
        """Of the first deliveries that count for the objective: their lateness."""
        self.fsync = Histogram(SECONDS)
        self.pass_records = Histogram(COUNTS)
        """Of each pass that was written: WAL records."""
        self.apply = Histogram(SECONDS)
        self.apply_entries = Histogram(COUNTS)
        """Of each batch of the apply thread: entries."""
        self.store_write = Histogram(SECONDS)
        self.stalls = Histogram(SECONDS)
        """How late the event loop came to a task that was due."""
        self.attempts = Histogram(ATTEMPTS)
        self.round_trips = Histogram(SECONDS)
        """Of probes of other members by gossip."""
        self.early = 0
        """Messages that were sent before their time."""

    def applied(self, entries: int, apply_s: float) -> None:
        """A batch of the apply thread is done."""
        if entries:
            self.apply.observe(apply_s)
            self.apply_entries.observe(entries)


class TopicStats:
    """What was sent of a topic. What was stored and settled, its partitions count: `Status.counted`."""

    def __init__(self, node: NodeStats) -> None:
        self._node = node
        self.sent = 0
        self.sent_bytes = 0
        self.redelivered = 0
        """Messages that had been leased before."""
        self.lateness = Histogram(LATENESS)
        self.slo_deliveries = 0
        """First deliveries of messages for which a consumer had room when they were due ..."""
        self.slo_late = 0
        """... and those of them that came later than the objective allows."""

    def delivered(self, delivery: Delivery, now_s: float, free_since_ms: int | None = None) -> None:
        """A lease is being sent at this moment of the guarded clock (epoch seconds). `free_since_ms`: since when a
        consumer has room for it, without a stop; what was due before that waited for consumers, and None says that of
        all."""
        self.sent += delivery.count
        now_ms = now_s * 1000
        for piece in delivery.pieces:
            self.sent_bytes += len(piece.batch)
            last_ms = offsets.deliver_ms(piece.offsets[-offsets.OFFSET_BYTES :])
            if last_ms > now_ms:
                self._node.early += _after(piece.offsets, now_ms, piece.count)
            if not (delivery.returning or delivery.repeated):
                counts = free_since_ms is not None and last_ms >= free_since_ms
                if len(piece.offsets) == offsets.OFFSET_BYTES:
                    self._observe((now_ms - last_ms) / 1000, piece.count, counts)
                    continue
                if free_since_ms is not None and counts:
                    self._observe_for_slo(piece.offsets, piece.count, now_ms, free_since_ms)
                else:
                    _spread(piece.offsets, 0, piece.count, now_ms, self.lateness)
        if not delivery.repeated:
            self._node.attempts.observe(delivery.attempt, delivery.count)
            if delivery.returning:
                self.redelivered += delivery.count

    def _observe(self, late_s: float, count: int, counts: bool) -> None:
        """Messages of one instant. `counts`: for the objective, too."""
        lateness = self.lateness
        bucket = bisect_left(lateness.bounds, late_s)
        lateness.counts[bucket] += count
        lateness.total += late_s * count
        if counts:
            node = self._node
            node.slo.counts[bucket] += count
            self.slo_deliveries += count
            if late_s > node.slo_lateness_s:
                self.slo_late += count

    def _observe_for_slo(self, column: bytes, count: int, now_ms: float, free_since_ms: int) -> None:
        """A column of messages, of which some were due at `free_since_ms` or later: those count for the objective."""
        node = self._node
        start = 0 if _ms_at(column, 0) >= free_since_ms else _first_from(column, free_since_ms, 0, count)
        if start:
            _spread(column, 0, count, now_ms, self.lateness)
            _spread(column, start, count, now_ms, node.slo)
        else:
            _spread(column, 0, count, now_ms, self.lateness, node.slo)
        self.slo_deliveries += count - start
        in_time_ms = now_ms - node.slo_lateness_s * 1000
        if _ms_at(column, start) < in_time_ms:
            self.slo_late += _first_from(column, in_time_ms, start, count) - start


def _spread(column: bytes, start: int, count: int, now_ms: float, lateness: Histogram, *others: Histogram) -> None:
    """Count how late the messages of a column are, from `start` on, each in its bucket; without a look at each of
    them. The `others` have the same bounds."""
    first_s = (now_ms - _ms_at(column, start)) / 1000
    last_s = (now_ms - offsets.deliver_ms(column[-offsets.OFFSET_BYTES :])) / 1000
    if first_s == last_s:
        for histogram in (lateness, *others):
            histogram.observe(first_s, count - start)
        return
    # In order, so the latest come first.
    at = start
    while at < count:
        bucket = bisect_left(lateness.bounds, (now_ms - _ms_at(column, at)) / 1000)
        stop = count
        if bucket and last_s <= lateness.bounds[bucket - 1]:
            below_ms = now_ms - lateness.bounds[bucket - 1] * 1000
            stop = max(_first_from(column, below_ms, at, count), at + 1)
        lateness.counts[bucket] += stop - at
        for other in others:
            other.counts[bucket] += stop - at
        at = stop


def _ms_at(column: bytes, at: int) -> int:
    start = at * offsets.OFFSET_BYTES
    return int.from_bytes(column[start : start + _MS_BYTES], "big")


def _first_from(column: bytes, at_ms: float, start: int, count: int) -> int:
    """The first message, from `start` on, whose time is `at_ms` or later."""
    return bisect_left(range(count), at_ms, lo=start, key=lambda at: _ms_at(column, at))


def _after(column: bytes, now_ms: float, count: int) -> int:
    """How many messages of a piece are due after `now_ms`."""
    if len(column) == offsets.OFFSET_BYTES:
        return count
    return sum(_ms_at(column, at) > now_ms for at in range(count))
