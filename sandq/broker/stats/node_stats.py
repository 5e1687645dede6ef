"""Statistics about a node's own work, as plain numbers. `server/metrics/metrics.py` exports these numbers.

Only one thread writes each number. To be cheap, the messages of a batch, lease or commit batch are counted together,
not one by one.
"""

from __future__ import annotations

from bisect import bisect_left

from sandq.broker.replication.replica import Delivery
from sandq.broker.stats.histogram import ATTEMPTS, COUNTS, LATENESS, SECONDS, Histogram
from sandq.model import offsets

_MS_BYTES = 6
"""Bytes of the delivery time in an offset."""


class NodeStats:
    """Statistics that do not belong to a topic."""

    def __init__(self, slo_lateness_s: float = 0.1) -> None:
        """`slo_lateness_s`: lateness in s above which a delivery misses the lateness objective (SLO)."""
        self.slo_lateness_s = slo_lateness_s
        self.slo = Histogram(LATENESS)
        """Lateness in s of the deliveries that count for the objective: see `TopicStats.slo_deliveries`."""
        self.fsync = Histogram(SECONDS)
        self.batch_records = Histogram(COUNTS)
        """WAL records of each commit batch."""
        self.apply = Histogram(SECONDS)
        self.apply_entries = Histogram(COUNTS)
        """Entries of each run of the apply thread."""
        self.store_write = Histogram(SECONDS)
        self.stalls = Histogram(SECONDS)
        """Delays in s with which the event loop ran a due task."""
        self.attempts = Histogram(ATTEMPTS)
        """Attempt number of each message that was sent to a consumer: 1 for the first attempt."""
        self.round_trips = Histogram(SECONDS)
        """Round-trip times in s of gossip probes to other members."""
        self.lease_window_s = 0.0
        """Current length in s of the window in which delayed messages are leased together."""
        self.early = 0
        """Number of messages that were sent before their delivery time."""

    def applied(self, entries: int, apply_s: float) -> None:
        """Count a run of the apply thread that took `apply_s` seconds, unless it applied no entry."""
        if entries:
            self.apply.observe(apply_s)
            self.apply_entries.observe(entries)


class TopicStats:
    """Counts of a topic's deliveries by this node. `Status.counted` counts the stored and the settled messages."""

    def __init__(self, node: NodeStats) -> None:
        self._node = node
        self.sent = 0
        self.sent_bytes = 0
        self.redelivered = 0
        """Number of sent messages that had been leased before."""
        self.lateness = Histogram(LATENESS)
        """Lateness in s of the first delivery of each message."""
        self.slo_deliveries = 0
        """Number of first deliveries of messages that became due while a consumer had free credit."""
        self.slo_late = 0
        """Number of deliveries in `slo_deliveries` that were later than the objective allows."""

    def delivered(self, delivery: Delivery, now_s: float, free_since_ms: int | None = None) -> None:
        """Count a lease that is being sent at `now_s` of the guarded clock (epoch seconds).

        `free_since_ms`: wall-clock time in ms since which a consumer has always had free credit. Messages that became
        due earlier had to wait for a consumer, so they do not count for the objective. None: no message counts for the
        objective."""
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
        """Count `count` messages with the same lateness. `counts`: True if these messages also count for the
        objective."""
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
        """Count the lateness of a column of messages.

        The messages that became due at `free_since_ms` or later also count for the objective. The caller ensures that
        there is at least one."""
        node = self._node
        # The column is ordered by delivery time: messages from position `start` on count for the objective.
        start = 0 if _ms_at(column, 0) >= free_since_ms else _first_from(column, free_since_ms, 0, count)
        if start:
            _spread(column, 0, count, now_ms, self.lateness)
            _spread(column, start, count, now_ms, node.slo)
        else:
            _spread(column, 0, count, now_ms, self.lateness, node.slo)
        self.slo_deliveries += count - start
        # Messages that became due before `in_time_ms` are later than the objective allows.
        in_time_ms = now_ms - node.slo_lateness_s * 1000
        if _ms_at(column, start) < in_time_ms:
            self.slo_late += _first_from(column, in_time_ms, start, count) - start


def _spread(column: bytes, start: int, count: int, now_ms: float, lateness: Histogram, *others: Histogram) -> None:
    """Count the lateness of a column's messages from position `start` on. Find the buckets by binary search.

    The `others` get the same counts, and must have the same bounds. The sums (`Histogram.total`) are not always
    updated: histograms of lateness are exported without a sum."""
    first_s = (now_ms - _ms_at(column, start)) / 1000
    last_s = (now_ms - offsets.deliver_ms(column[-offsets.OFFSET_BYTES :])) / 1000
    if first_s == last_s:
        for histogram in (lateness, *others):
            histogram.observe(first_s, count - start)
        return
    # The messages are ordered by delivery time, so the first messages have the greatest lateness.
    at = start
    while at < count:
        bucket = bisect_left(lateness.bounds, (now_ms - _ms_at(column, at)) / 1000)
        stop = count
        if bucket and last_s <= lateness.bounds[bucket - 1]:
            # The next bucket begins at the first message whose lateness is at most the lower bound of this bucket.
            below_ms = now_ms - lateness.bounds[bucket - 1] * 1000
            stop = max(_first_from(column, below_ms, at, count), at + 1)
        lateness.counts[bucket] += stop - at
        for other in others:
            other.counts[bucket] += stop - at
        at = stop


def _ms_at(column: bytes, at: int) -> int:
    """Return the delivery time in ms of the message at a position of a column of offsets."""
    start = at * offsets.OFFSET_BYTES
    return int.from_bytes(column[start : start + _MS_BYTES], "big")


def _first_from(column: bytes, at_ms: float, start: int, count: int) -> int:
    """Return the position of the first message, from `start` on, whose delivery time is `at_ms` or later."""
    return bisect_left(range(count), at_ms, lo=start, key=lambda at: _ms_at(column, at))


def _after(column: bytes, now_ms: float, count: int) -> int:
    """Return how many messages of a piece are due after `now_ms`. The last message must be one of them."""
    if len(column) == offsets.OFFSET_BYTES:
        return count
    return sum(_ms_at(column, at) > now_ms for at in range(count))
