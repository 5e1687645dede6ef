"""Judge this node's guarded clock by the guarded clocks of the other nodes. This module does no I/O.

A peer reads its clock at some time between the request and the reply. So one reply gives an interval, as wide as the
round trip, in which the value of the peer's clock lies. The value lies in the overlap of all recent intervals. Each
interval is stored relative to this node's monotonic clock. So the interval stays valid when this node's guarded clock
is slewed or set.

Every node judges only its own clock. A verdict must hold for all possible values within the intervals:

- *Off*: the median of all clocks, including this clock, differs from this clock by more than `max_drift`.
- *Disputed*: as many clocks contradict this clock as agree with it, so the median does not decide. Then a clock that
  has agreed before takes precedence over a clock that was just started.
- *Agreed*: the clock certainly agrees with a majority of the cluster, including itself.
- *Uncompared*: the clock has not agreed yet, there are peers, and for some time no verdict was certain.

A clock that has not agreed yet, or is off, stamps no entries for some time. In this time, the other clocks may confirm
this clock, or nodes with correct clocks may take over.
"""

from __future__ import annotations

import enum
import math
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final, NamedTuple

SAMPLES_KEPT: Final = 8
"""Maximum number of samples of each peer. The peer's clock lies where the intervals of all its samples overlap."""
FRESH_S: Final = 10.0
"""Age in s above which a sample or report is ignored."""
COMPARED_WITHIN_S: Final = 10.0
"""Maximum time in s for which a clock waits to be compared, and stamps no entries (`PeerClocks.waits`).

The wait begins when the node starts, when a peer is linked while no other peer is, when this node's clock becomes off,
or when no peer's clock is known any more."""
AGREE_OF_DRIFT: Final = 0.75
"""Fraction of `max_drift`. A clock that was off or disputed agrees again only within this smaller distance, so that the
state does not flap."""
RATE: Final = 0.001
"""Upper bound of the rate at which two clocks diverge, in s per s. 500 ppm are for slewing, the rest is for the drift
of two crystals."""


class Standing(enum.IntEnum):
    """The state of a node's clock relative to the other clocks.

    Because of clocks, leadership moves only to a node with a better state, so it never moves back and forth.
    """

    GOOD = 0
    DOUBTED = 1
    """The wall clock has jumped away, or half of all clocks contradict this clock, or too little is known about this
    clock."""
    OFF = 2
    """The clock differs from the other clocks by more than allowed. A node also reports OFF until it knows the clocks
    of a majority."""


class Interval(NamedTuple):
    """The range in which the difference of two clocks lies, in seconds."""

    low_s: float
    high_s: float

    @property
    def middle_s(self) -> float:
        """The middle of the range, in seconds."""
        return (self.low_s + self.high_s) / 2

    def less(self, seconds: float) -> Interval:
        """Return the range, reduced by `seconds`: the same difference, measured from a clock that is ahead by them."""
        return Interval(self.low_s - seconds, self.high_s - seconds)


class Sample(NamedTuple):
    """One reading of a peer's clock."""

    asked_s: float
    base_s: float
    """The peer's guarded clock minus this node's monotonic clock, in s."""
    error_s: float
    """Maximum error of `base_s`, in s, at the time of the request."""

    def error_at(self, now_s: float) -> float:
        """Return the maximum error of `base_s` in s at the time `now_s`. The error grows as the clocks diverge."""
        return self.error_s + (now_s - self.asked_s) * RATE

    def contradicts(self, other: Sample) -> bool:
        """Return whether the two values differ so much that the clock must have been set between the readings."""
        apart_s = abs(self.asked_s - other.asked_s)
        return abs(self.base_s - other.base_s) > self.error_s + other.error_s + apart_s * RATE


@dataclass(slots=True)
class _Peer:
    standing: Standing = Standing.OFF
    reported_s: float = -math.inf
    """Time at which the last report was requested. The peer's state may have changed since."""
    samples: deque[Sample] = field(default_factory=lambda: deque(maxlen=SAMPLES_KEPT))

    def add(self, sample: Sample) -> None:
        if any(sample.contradicts(other) for other in self.samples):
            self.samples.clear()  # the peer's clock was set, or this machine paused: the older samples are wrong now
        self.samples.append(sample)

    def base(self, now_s: float) -> Interval | None:
        """Return the range of the peer's guarded clock minus this node's monotonic clock.

        Return None if there is no recent sample."""
        fresh = [(s.base_s, s.error_at(now_s)) for s in self.samples if now_s - s.asked_s <= FRESH_S]
        if not fresh:
            return None
        # All ranges overlap: a sample that contradicts an earlier sample replaces all earlier samples.
        return Interval(max([base_s - e_s for base_s, e_s in fresh]), min([base_s + e_s for base_s, e_s in fresh]))


class PeerClocks:
    """The clocks of all linked peers.

    All times are in seconds. `now_s` and `asked_s` are on this node's monotonic clock; `own_base_s` is this node's
    guarded clock minus its monotonic clock.
    """

    def __init__(self, max_drift_s: float, now_s: float) -> None:
        self.off = False
        self.disputed = False
        self.agreed = False
        """True once this node's clock has agreed with a majority of the cluster. False again if there is no verdict for
        so long that the clock may have drifted by `max_drift`."""
        self.heard_majority = False
        """True if the clocks of a majority are known, even if they are known too imprecisely for a verdict."""
        self.nodes = 0
        """Number of nodes in the cluster, including this one; 0 if unknown."""
        self.uncompared = False
        """True if there are peers, `agreed` is False, and for more than `COMPARED_WITHIN_S` there was no verdict about
        this node's clock."""
        self._max_drift_s = max_drift_s
        self._certain_s = now_s
        """Time in s of the last verdict, or of the first link after a time without peers, whichever was later."""
        self._unsure_s = now_s
        """Time in s at which the current wait for a comparison began (`waits`)."""
        self._restarted_s = -math.inf
        """Time in s at which `_unsure_s` was last set because a first peer was linked."""
        self._has_heard = False
        """True if peers' clocks were known at the last judgement."""
        self._peers: dict[str, _Peer] = {}

    # -- reports of peers -----------------------------------------------------------------------------------------

    def linked(self, node: str, now_s: float) -> None:
        """Register a linked peer."""
        if not self._peers:
            self._certain_s = now_s
            # A link may fail and return again and again. If each new link restarted the wait for a comparison
            # (`waits`), this node would never stamp an entry.
            if now_s - self._restarted_s > 2 * COMPARED_WITHIN_S:
                self._restarted_s = self._unsure_s = now_s
        self._peers.setdefault(node, _Peer())

    def heard(self, node: str, guarded_s: float, standing: Standing, asked_s: float, now_s: float) -> None:
        """Record a peer's reply."""
        self.linked(node, asked_s)
        peer = self._peers[node]
        peer.standing, peer.reported_s = standing, asked_s
        # Assume that the peer read its clock in the middle of the round trip. The error is at most half of this time.
        error_s = (now_s - asked_s) / 2
        peer.add(Sample(asked_s, guarded_s - asked_s - error_s, error_s))

    def worse(self, node: str, standing: Standing) -> None:
        """Record the state of its own clock that a peer reported in a request. The age of the report is unknown.

        So a worse state than before counts, but a better state is ignored, because it may be outdated."""
        if node in self._peers:
            self._peers[node].standing = max(standing, self._peers[node].standing)

    def forget(self, node: str) -> None:
        """Forget a peer whose link has ended."""
        self._peers.pop(node, None)

    # -- judgement ------------------------------------------------------------------------------------------------

    def offsets(self, own_base_s: float, now_s: float) -> dict[str, Interval]:
        """Return, for each peer, the range by which its clock is ahead of this node's guarded clock.

        Peers without a recent sample are omitted."""
        known = {node: peer.base(now_s) for node, peer in self._peers.items()}
        return {node: base.less(own_base_s) for node, base in known.items() if base is not None}

    def judge(self, own_base_s: float, now_s: float) -> None:
        """Decide again whether this node's clock has agreed with the others, or is off, disputed or uncompared."""
        offsets = self.offsets(own_base_s, now_s).values()
        was_off, had_heard, self._has_heard = self.off, self._has_heard, bool(offsets)
        self.heard_majority = bool(offsets) and 2 * (len(offsets) + 1) > self.nodes
        if offsets:
            low, high = _median_intervals([_HERE, *offsets])
            # Clocks that are certainly at most `max_drift` away.
            near = [o for o in offsets if -self._max_drift_s <= o.low_s and o.high_s <= self._max_drift_s]
            if self._judge(low, high, 2 * (len(near) + 1) > self.nodes):
                self._certain_s = now_s
        else:
            self.disputed = False  # no known clock contradicts this clock; `off` stays until other clocks confirm it
            if self.nodes == 1:
                self.stand_alone(now_s)
        if (self.off and not was_off) or (had_heard and not offsets):
            self._unsure_s = now_s  # wait again: this clock has become off, or all other clocks have become unknown
        uncertain_s = now_s - self._certain_s
        if self._peers and uncertain_s > self._max_drift_s / RATE:
            self.agreed = False  # the clock may have drifted by `max_drift` since the last verdict
        self.uncompared = bool(self._peers) and not self.agreed and uncertain_s > COMPARED_WITHIN_S

    def stand_alone(self, now_s: float) -> None:
        """Record that this node is the whole cluster. Its clock then counts as agreed: nodes that join must agree with
        it."""
        if not self.off:
            self.agreed, self._certain_s = True, now_s

    def _judge(self, low: Interval, high: Interval, near_majority: bool) -> bool:
        """Judge this clock by `low` and `high`, the ranges of the lower and upper median of all clocks.

        `near_majority`: the clocks of a majority of the cluster are certainly near this clock.

        Return True if the ranges prove a verdict: this clock agrees with the others, is off, or is disputed. Return
        False if the measurements are too imprecise for a verdict."""
        most_s = self._max_drift_s
        # Both medians are certainly too far away, on the same side: this clock is off.
        if low.low_s > most_s or high.high_s < -most_s:
            self.off, self.disputed = True, False
            return True
        # One of the two medians is certainly too far away: half of the clocks contradict this clock.
        if high.low_s > most_s or low.high_s < -most_s:
            self.off, self.disputed = self.off or not self.agreed, True
            return True
        # Both medians are at most `within_s` away: if this is near enough, this clock agrees with the others.
        within_s = max(-low.low_s, high.high_s)
        agree_s = most_s * AGREE_OF_DRIFT
        if within_s <= (agree_s if self.off or self.disputed else most_s):
            self.agreed, self.off, self.disputed = self.agreed or near_majority, False, False
            return True
        if self.disputed and high.low_s <= agree_s and low.high_s >= -agree_s:
            self.off = self.disputed = False  # a further clock is known now, and may agree with this clock
        return False

    def waits(self, now_s: float) -> bool:
        """Return whether this node's clock must wait before it stamps entries.

        A clock waits if it has not agreed with the others, or is off. Meanwhile the others may confirm this clock, or
        nodes with better clocks may take over. The wait ends after `COMPARED_WITHIN_S`."""
        return (self.off or not self.agreed) and now_s - self._unsure_s <= COMPARED_WITHIN_S

    def acquit(self) -> None:
        """Clear `off` and `disputed`, because an operator says that this node's clock is right. The next `judge` may
        set them again."""
        self.off = self.disputed = False

    def confirm(self, step_s: float, own_base_s: float, now_s: float) -> bool:
        """Return whether the median of the peers' clocks confirms a step of this node's wall clock."""
        offsets = self.offsets(own_base_s, now_s).values()
        if not offsets:
            return False
        low, high = _median_intervals(offsets)
        return step_s - self._max_drift_s <= low.low_s and high.high_s <= step_s + self._max_drift_s

    def better(self, than: Standing, since_s: float, own_base_s: float, now_s: float) -> set[str]:
        """Return the peers that should lead instead of this node.

        Such a peer has reported a better state than `than` since `since_s`. In addition, its clock may be within
        `max_drift` of the median of all clocks: the measurements do not rule this out."""
        offsets = self.offsets(own_base_s, now_s)
        low, high = _median_intervals([_HERE, *offsets.values()])
        since_s = max(since_s, now_s - FRESH_S)
        return {
            node
            for node, offset in offsets.items()
            if self._peers[node].standing < than
            and self._peers[node].reported_s >= since_s
            and low.low_s - self._max_drift_s <= offset.high_s
            and offset.low_s <= high.high_s + self._max_drift_s
        }

    def recent_standings(self, now_s: float) -> dict[str, Standing]:
        """Return the states that peers reported within the last `FRESH_S`."""
        return {node: peer.standing for node, peer in self._peers.items() if now_s - peer.reported_s <= FRESH_S}

    def median(self, own_base_s: float, now_s: float) -> float | None:
        """Return approximately by how many s the median of the peers' clocks is ahead of this node's guarded clock.

        None if no peer's clock is known."""
        offsets = self.offsets(own_base_s, now_s).values()
        return sum(_medians([offset.middle_s for offset in offsets])) / 2 if offsets else None


_HERE: Final = Interval(0.0, 0.0)
"""The interval of this node's own clock, relative to itself."""


def _median_intervals(intervals: Collection[Interval]) -> tuple[Interval, Interval]:
    """Return the intervals of the lower and of the upper median of clocks. `intervals` has the interval of each
    clock."""
    lows = _medians([interval.low_s for interval in intervals])
    highs = _medians([interval.high_s for interval in intervals])
    return Interval(lows[0], highs[0]), Interval(lows[1], highs[1])


def _medians(values: Collection[float]) -> tuple[float, float]:
    """Return the lower and the upper median. If the number of values is odd, both are equal."""
    rising = sorted(values)
    return rising[(len(rising) - 1) // 2], rising[len(rising) // 2]
