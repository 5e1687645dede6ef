"""Count deliveries by lateness: per minute for six hours, and per hour for `slo.window`, at least three days. No I/O.

The file `slo` (envelope: small_file.py, magic "SANDQSLO", version 1) is msgpack. PERSISTED::

    [bounds in us, since_ms, minutes, hours]
    minutes, hours: lists of [number of the minute or hour since 1970, counts by bound, early, unproven]

The node writes the file every `slo.WRITE_S` seconds, and when it stops. If the node is killed, the counts of the last
minutes are lost. No other data depends on the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from sandq.broker.stats.histogram import LATENESS
from sandq.broker.stats.node_stats import NodeStats
from sandq.model.errors import Corruption
from sandq.storage import small_file

NAME: Final = "slo"
MAGIC: Final = b"SANDQSLO"
VERSION: Final = 1
MINUTE_MS: Final = 60_000
HOUR_MS: Final = 3_600_000
MINUTES_MOST: Final = 360
BURN_MS: Final = (5 * MINUTE_MS, HOUR_MS, 6 * HOUR_MS, 72 * HOUR_MS)
"""Spans in ms over which burn rates are reported, even if `slo.window` is shorter."""
BOUNDS_US: Final = [round(bound * 1_000_000) for bound in LATENESS]
"""Upper bounds of the counts, in us. One more count is for values above all bounds."""


class Counted(NamedTuple):
    """Counts of the deliveries in a span of time."""

    counts: Sequence[int]
    """Number of deliveries by lateness (see `BOUNDS_US`). Each message is one delivery."""
    early: int
    """Number of messages that were sent before their delivery time."""
    unproven: int
    """Number of deliveries in `counts` that the node made while its clock was not trusted."""


class _Slots:
    """Counts for each of the last `most` spans of time. Each span lasts `span_ms`. Spans without deliveries take no
    memory."""

    def __init__(self, span_ms: int, most: int) -> None:
        self._span_ms = span_ms
        self._most = most
        self.slots: dict[int, list[int]] = {}
        """By number of the span, in ascending order: the counts by lateness, then `early` and `unproven`."""

    def add(self, now_ms: int, more: Sequence[int]) -> None:
        """Add counts to the span that contains `now_ms`."""
        number = now_ms // self._span_ms
        # If the clock was set back, there are spans in the future: add their counts to the current span.
        ahead = [self.slots.pop(slot) for slot in [slot for slot in self.slots if slot > number]]
        for one in (*ahead, more):
            slot = self.slots.get(number)
            self.slots[number] = list(one) if slot is None else _sum(slot, one)
        self._forget(number)

    def _forget(self, number: int) -> None:
        """Delete spans that are too old. `number`: number of the current span."""
        for slot in list(self.slots):
            if slot > number - self._most:
                break
            del self.slots[slot]

    def sum(self, now_ms: int, over_ms: int) -> list[int]:
        """Return the sums of the counts in the last `over_ms` ms: the current span and the spans before it."""
        first = (now_ms - over_ms) // self._span_ms
        total = [0] * (len(BOUNDS_US) + 3)
        for number, slot in self.slots.items():
            if number > first:
                total = _sum(total, slot)
        return total

    def rows(self) -> list[list[Any]]:
        """Return the spans in the format of the file."""
        return [[number, slot[:-2], *slot[-2:]] for number, slot in self.slots.items()]

    def load(self, rows: list[Any], now_ms: int) -> None:
        """Load the spans that `rows` returned earlier. Raise ValueError, TypeError or OverflowError if one is
        invalid."""
        for number, counts, early, unproven in sorted(rows):
            slot = [int(count) for count in (*counts, early, unproven)]
            if len(slot) != len(BOUNDS_US) + 3 or min(slot) < 0:
                raise ValueError(f"its row {number!r} does not have a count for each bound")
            self.slots[int(number)] = slot
        self._forget(now_ms // self._span_ms)


def _sum(one: Sequence[int], other: Sequence[int]) -> list[int]:
    """Return the sums of two lists of counts."""
    return [have + more for have, more in zip(one, other, strict=True)]


class SloBook:
    """The counts of one node. Call `take` often, and before each call of `over`."""

    def __init__(self, stats: NodeStats, window_ms: int, now_ms: int, kept: bytes | None = None) -> None:
        """Continue the counts in `kept`, or begin to count now.

        `kept`: data that `encode` returned earlier; None if there is no file. If the data is invalid, raise
        Corruption."""
        self._stats = stats
        self.window_ms = window_ms
        self.since_ms = now_ms
        """Time in ms at which counting began."""
        self._minutes = _Slots(MINUTE_MS, MINUTES_MOST)
        self._hours = _Slots(HOUR_MS, max(window_ms, *BURN_MS) // HOUR_MS + 1)
        self._taken = self._current_counts()
        """Counts of the node's statistics at the last `take`."""
        self.changed = False
        """True if deliveries were counted since the last `encode`."""
        if kept is not None:
            self._load(kept, now_ms)

    def take(self, now_ms: int, *, is_trusted: bool) -> None:
        """Count the deliveries since the last call. `is_trusted`: True if this node's clock is trusted now."""
        counts = self._current_counts()
        more = [new - had for new, had in zip(counts, self._taken, strict=True)]
        if any(more):
            self._taken = counts
            more.append(0 if is_trusted else sum(more[:-1]))
            self._minutes.add(now_ms, more)
            self._hours.add(now_ms, more)
            self.changed = True

    def over(self, now_ms: int, over_ms: int) -> Counted:
        """Return the counts of the last `over_ms` ms: for up to six hours, the sum of whole minutes; for more, the sum
        of whole hours. The current minute or hour is included."""
        slots = self._minutes if over_ms <= MINUTES_MOST * MINUTE_MS else self._hours
        *counts, early, unproven = slots.sum(now_ms, over_ms)
        return Counted(counts, early, unproven)

    def encode(self) -> bytes:
        """Return the content for the file, and set `changed` to False."""
        self.changed = False
        content = [BOUNDS_US, self.since_ms, self._minutes.rows(), self._hours.rows()]
        return small_file.encode(MAGIC, VERSION, content)

    def _current_counts(self) -> list[int]:
        """Return the current counts of the node's statistics: counts by lateness, then early messages."""
        return [*self._stats.slo.counts, self._stats.early]

    def _load(self, kept: bytes, now_ms: int) -> None:
        """Load the content of the file. Ignore it if its bounds differ from `BOUNDS_US`. Raise Corruption."""
        try:
            bounds, since_ms, minutes, hours = small_file.decode(kept, MAGIC, VERSION, NAME)
            if bounds != BOUNDS_US:
                return  # another version wrote the file: start over
            self.since_ms = min(int(since_ms), now_ms)
            self._minutes.load(minutes, now_ms)
            self._hours.load(hours, now_ms)
        except (TypeError, ValueError, OverflowError) as error:
            raise Corruption(f"{NAME} does not contain counts of deliveries: {error}", file=NAME) from error
