"""Decide when the partitions of a node lease scheduled messages, so that their leases share commit batches (ADR 51).

A lease costs as much as dozens of messages: an entry, a part of a commit batch, a delivery and an ack. So messages that
become due within a window of a few ms are leased together. All partitions and groups of the node request such leases at
the same time. The window grows with the number of messages that become due per second. If no lease was requested within
the last window, a message does not wait.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from typing import Final

from sandq.broker.clock.timers import Timers
from sandq.broker.stats.node_stats import NodeStats

LEAST_MS: Final = 3
MOST_MS: Final = 18
"""Longest window in ms. A message may be late by up to this time, unless its topic sets `precision`."""
MESSAGES_PER_S: Final = 60
"""The length of the window in ms is the number of messages leased per second, divided by this number."""
STORE_MS: Final = 5
"""Minimum time in ms between the request of a lease and the due time of its last message.

Storing a lease rarely takes longer."""
SAMPLE_MS: Final = 250
"""Time in ms over which messages are counted before the window changes."""


def wake_ms(next_ms: int, now_ms: int, *, asked_ms: int, ahead_ms: int, span_ms: int) -> int:
    """Return the time in ms at which to request a lease whose first message is due at `next_ms`.

    The time is one window (`span_ms`) after the last request (`asked_ms`), within two bounds. The time is at most
    `ahead_ms` before `next_ms`, and the message is late by at most `span_ms`."""
    if asked_ms > now_ms:  # the clock was set back
        return next_ms - ahead_ms
    # Storing the lease takes up to `STORE_MS`.
    latest_ms = next_ms + span_ms - min(ahead_ms, STORE_MS)
    return max(next_ms - ahead_ms, min(asked_ms + span_ms, latest_ms))


def push_ms(*, asked_ms: int, ahead_ms: int, span_ms: int) -> int:
    """Return the time in ms before which a lease is not sent to its consumer. The lease was requested at `asked_ms`.

    In a long window (`span_ms`), leases that were requested together are sent together, so that their acks come
    together. The result is 0 if the window is short."""
    return asked_ms + min(ahead_ms, STORE_MS) if span_ms > LEAST_MS else 0


class LeaseWindow:
    """The window of a node. All its partitions share one object."""

    def __init__(self, timers: Timers, *, ahead_ms: int, stats: NodeStats, most_ms: int = MOST_MS) -> None:
        """Create a window of the shortest length.

        `ahead_ms`: maximum time in ms by which a message may be leased before it is due. `stats.lease_window_s` always
        has the current length. `most_ms`: maximum length in ms, which is limited to the range from `LEAST_MS` to
        `MOST_MS`."""
        self.ahead_ms = ahead_ms
        self._timers = timers
        self._stats = stats
        self.most_ms = max(LEAST_MS, min(most_ms, MOST_MS))
        """Maximum length of the window in ms."""
        self.asked_ms = 0
        """Time in ms at which leases of scheduled messages were requested last."""
        self._messages = 0
        """Number of messages leased since `_since_ms`."""
        self._since_ms = 0
        self._rate = 0.0
        """Messages leased per second."""
        self._waiting: list[tuple[int, int, Callable[[], None]]] = []
        """Heap of calls that request leases along with other requests: (time in ms from which the call is allowed,
        order, call)."""
        self._order = count()
        self._set(LEAST_MS)

    def _set(self, span_ms: int) -> None:
        self.span_ms = self._timers.pause_ms(span_ms)
        """Current window in ms. 0 in tests with virtual time, so that every message comes exactly at its time."""
        self._stats.lease_window_s = self.span_ms / 1000

    def wait(self, along_ms: int, call: Callable[[], None]) -> None:
        """Call `call` when another lease is requested at `along_ms` or later, so that both leases are stored together.

        The call may come late or never. So the caller also sets a timer."""
        heapq.heappush(self._waiting, (along_ms, next(self._order), call))

    def asked(self, now_ms: int) -> None:
        """Record that a lease of scheduled messages was requested at `now_ms`. Make the calls that were registered with
        `wait`."""
        if self.asked_ms != now_ms:
            self.asked_ms = now_ms
            self._call_waiting(now_ms)

    def before_proposals(self, now_ms: int) -> None:
        """Make the calls that were registered with `wait`, because other requests are about to be stored.

        In the first three quarters of a window, do nothing. In this time, the acks of the previous leases come. If
        leases were requested along with these acks, all windows would become shorter."""
        if self._waiting and not 0 <= 4 * (now_ms - self.asked_ms) < 3 * self.span_ms:
            self._call_waiting(now_ms)

    def _call_waiting(self, now_ms: int) -> None:
        ready = []
        while self._waiting and self._waiting[0][0] <= now_ms:
            ready.append(heapq.heappop(self._waiting)[2])
        for call in ready:
            call()

    def leased(self, messages: int, now_ms: int) -> None:
        """Count leased messages, and adapt the window to the number of messages per second."""
        self._messages += messages
        passed_ms = now_ms - self._since_ms
        if 0 <= passed_ms < SAMPLE_MS:
            return
        rate = self._messages * 1000 / passed_ms if passed_ms > 0 else 0.0
        # After a pause, the previous rate is outdated.
        self._rate = (self._rate + rate) / 2 if passed_ms < 2 * SAMPLE_MS else rate
        self._messages, self._since_ms = 0, now_ms
        self._set(max(LEAST_MS, min(round(self._rate / MESSAGES_PER_S), self.most_ms)))
