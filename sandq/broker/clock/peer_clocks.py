"""The guarded clocks of the other nodes, and what they say of this one's (pure).

A clock that was asked for over a link was read somewhere between the question and the answer: it lies in an interval as
wide as the round trip, and where all intervals of late overlap. It is kept as its distance from this node's monotonic
clock, so that it stays right when this node's own guarded clock is slewed or set.

Every node judges only itself, by what is certain wherever in their intervals the clocks are. Its clock is off when the
median of all clocks, its own among them, is further away than `max_drift`. When as many contradict as agree there is no
such median: the clock is disputed. Then one that has agreed before has the better claim than one that was just started;
of two that were just started neither has. A clock agrees with the others once that is certain of a majority of the
cluster, itself included; one that has not, for a while, although there are peers, is uncompared.

A clock that has not agreed yet, or is found to be off, stamps nothing for a while: it may turn out to be right, or
others may take over whose clocks are.
"""

from __future__ import annotations

import enum
import math
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final, NamedTuple

SAMPLES_KEPT: Final = 8
"""Of a peer: its clock is where they all say that it may be."""
FRESH_S: Final = 10.0
"""What is older counts no more."""
COMPARED_WITHIN_S: Final = 10.0
"""So long after its start, or its first link, a node's clock need not have agreed with others', and stamps nothing."""
AGREE_OF_DRIFT: Final = 0.75
"""A clock that was off, or disputed, agrees again only within this part of `max_drift`: nothing flaps at the edge."""
RATE: Final = 0.001
"""How much two clocks go apart, generously (a slew of 500 ppm, two crystals)."""


class Standing(enum.IntEnum):
    """How a node's clock stands among the others. Leadership goes to a better standing only: so it never comes back."""

    GOOD = 0
    DOUBTED = 1
    """Its wall clock has left it, or as many clocks contradict it as agree with it; or nothing is certain of it."""
    OFF = 2
    """It is further from the others' than allowed; or, as a node tells others, it was not compared yet."""


class Interval(NamedTuple):
    """Where a clock is, ahead of another one, in seconds."""

    low_s: float
    high_s: float

    @property
    def middle_s(self) -> float:
        return (self.low_s + self.high_s) / 2

    def less(self, seconds: float) -> Interval:
        """The same, ahead of a clock that is so far ahead."""
        return Interval(self.low_s - seconds, self.high_s - seconds)


class Sample(NamedTuple):
    asked_s: float
    base_s: float
    """The peer's guarded clock, less this node's monotonic clock."""
    error_s: float

    def error_at(self, now_s: float) -> float:
        return self.error_s + (now_s - self.asked_s) * RATE

    def contradicts(self, other: Sample) -> bool:
        apart_s = abs(self.asked_s - other.asked_s)
        return abs(self.base_s - other.base_s) > self.error_s + other.error_s + apart_s * RATE


@dataclass(slots=True)
class _Peer:
    standing: Standing = Standing.OFF
    told_s: float = -math.inf
    """When it was asked what it says of itself: it may have changed its mind right after."""
    samples: deque[Sample] = field(default_factory=lambda: deque(maxlen=SAMPLES_KEPT))

    def add(self, sample: Sample) -> None:
        if any(sample.contradicts(other) for other in self.samples):
            self.samples.clear()  # its clock was set, or this machine stood still: what was known is wrong now
        self.samples.append(sample)

    def base(self, now_s: float) -> Interval | None:
        """Where its guarded clock is, less this node's monotonic clock; None: nothing was heard of late."""
        fresh = [(s.base_s, s.error_at(now_s)) for s in self.samples if now_s - s.asked_s <= FRESH_S]
        if not fresh:
            return None
        # They all overlap: a sample that contradicts an earlier one takes the place of all before it.
        return Interval(max([base_s - e_s for base_s, e_s in fresh]), min([base_s + e_s for base_s, e_s in fresh]))


class PeerClocks:
    """All times in seconds; `now_s`, `asked_s` on this node's monotonic clock, `own_base_s` as in `Sample`."""

    def __init__(self, max_drift_s: float, now_s: float) -> None:
        self.off = False
        self.disputed = False
        self.agreed = False
        """This node's clock has agreed with a majority of the cluster since it was started."""
        self.heard_majority = False
        """Clocks of a majority are known, if not well enough to be certain of anything."""
        self.nodes = 0
        """Of the cluster, this one included; 0: not known."""
        self.uncompared = False
        """There are peers, and for too long nothing was certain of this node's clock."""
        self._max_drift_s = max_drift_s
        self._certain_s = now_s
        """When something was certain last, or the first of these peers was linked."""
        self._unsure_s = now_s
        """Since when this clock is to be compared before it stamps anything."""
        self._anew_s = -math.inf
        """When that began anew last because the first of its peers had come."""
        self._has_heard = False
        """Something is known of others, as it was judged last."""
        self._peers: dict[str, _Peer] = {}

    # -- what is heard --------------------------------------------------------------------------------------------

    def linked(self, node: str, now_s: float) -> None:
        """There is a link with a peer: its clock is to be heard."""
        if not self._peers:
            self._certain_s = now_s
            if now_s - self._anew_s > 2 * COMPARED_WITHIN_S:  # where links come and go the waiting ends in between
                self._anew_s = self._unsure_s = now_s
        self._peers.setdefault(node, _Peer())

    def heard(self, node: str, guarded_s: float, standing: Standing, asked_s: float, now_s: float) -> None:
        """A peer's answer."""
        self.linked(node, asked_s)
        peer = self._peers[node]
        peer.standing, peer.told_s = standing, asked_s
        error_s = (now_s - asked_s) / 2
        peer.add(Sample(asked_s, guarded_s - asked_s - error_s, error_s))

    def worse(self, node: str, standing: Standing) -> None:
        """A peer said, nobody knows when, how its clock stands. Only bad news counts: good news may be old."""
        if node in self._peers:
            self._peers[node].standing = max(standing, self._peers[node].standing)

    def forget(self, node: str) -> None:
        """There is no link with it any more."""
        self._peers.pop(node, None)

    # -- what follows ---------------------------------------------------------------------------------------------

    def offsets(self, own_base_s: float, now_s: float) -> dict[str, Interval]:
        """How far ahead of this node's guarded clock each peer's is that is known at present."""
        known = {node: peer.base(now_s) for node, peer in self._peers.items()}
        return {node: base.less(own_base_s) for node, base in known.items() if base is not None}

    def judge(self, own_base_s: float, now_s: float) -> None:
        """Say anew whether this node's clock has agreed with the others', or is off, disputed, or uncompared."""
        offsets = self.offsets(own_base_s, now_s).values()
        was_off, had_heard, self._has_heard = self.off, self._has_heard, bool(offsets)
        self.heard_majority = bool(offsets) and 2 * (len(offsets) + 1) > self.nodes
        if offsets:
            low, high = _median_intervals([_HERE, *offsets])
            near = [o for o in offsets if -self._max_drift_s <= o.low_s and o.high_s <= self._max_drift_s]
            if self._judge(low, high, 2 * (len(near) + 1) > self.nodes):
                self._certain_s = now_s
        else:
            self.disputed = False  # nobody contradicts; and nobody takes back that it is off
            if self.nodes == 1:
                self.stand_alone(now_s)
        if (self.off and not was_off) or (had_heard and not offsets):
            self._unsure_s = now_s  # nobody better was known so far, or is known any more
        uncertain_s = now_s - self._certain_s
        if self._peers and uncertain_s > self._max_drift_s / RATE:
            self.agreed = False  # it may be as far away as that by now
        self.uncompared = bool(self._peers) and not self.agreed and uncertain_s > COMPARED_WITHIN_S

    def stand_alone(self, now_s: float) -> None:
        """This node is the whole cluster, and stamps what there is: who joins it has to agree with it."""
        if not self.off:
            self.agreed, self._certain_s = True, now_s

    def _judge(self, low: Interval, high: Interval, near_majority: bool) -> bool:
        """By where the two medians are, and whether a majority of the cluster is certainly near. Whether that made
        anything certain."""
        most_s = self._max_drift_s
        if low.low_s > most_s or high.high_s < -most_s:
            self.off, self.disputed = True, False
            return True
        if high.low_s > most_s or low.high_s < -most_s:
            self.off, self.disputed = self.off or not self.agreed, True
            return True
        within_s = max(-low.low_s, high.high_s)
        agree_s = most_s * AGREE_OF_DRIFT
        if within_s <= (agree_s if self.off or self.disputed else most_s):
            self.agreed, self.off, self.disputed = self.agreed or near_majority, False, False
            return True
        if self.disputed and high.low_s <= agree_s and low.high_s >= -agree_s:
            self.off = self.disputed = False  # another one is there now, which may well be here
        return False

    def waits(self, now_s: float) -> bool:
        """Whether this node's clock is to stamp nothing yet: it has not agreed with the others', or is off, and may yet
        agree, or be relieved by nodes with better clocks. Ends after `COMPARED_WITHIN_S`."""
        return (self.off or not self.agreed) and now_s - self._unsure_s <= COMPARED_WITHIN_S

    def acquit(self) -> None:
        """Somebody says that this node's clock is right. The next judgement may say otherwise."""
        self.off = self.disputed = False

    def confirm(self, step_s: float, own_base_s: float, now_s: float) -> bool:
        """Whether the median of the peers' clocks is there, too, where this node's wall clock stepped to."""
        offsets = self.offsets(own_base_s, now_s).values()
        if not offsets:
            return False
        low, high = _median_intervals(offsets)
        return step_s - self._max_drift_s <= low.low_s and high.high_s <= step_s + self._max_drift_s

    def better(self, than: Standing, since_s: float, own_base_s: float, now_s: float) -> set[str]:
        """Peers of a better standing, by what they said after `since_s`, whose clocks may be right, seen from here."""
        offsets = self.offsets(own_base_s, now_s)
        low, high = _median_intervals([_HERE, *offsets.values()])
        since_s = max(since_s, now_s - FRESH_S)
        return {
            node
            for node, offset in offsets.items()
            if self._peers[node].standing < than
            and self._peers[node].told_s >= since_s
            and low.low_s - self._max_drift_s <= offset.high_s
            and offset.low_s <= high.high_s + self._max_drift_s
        }

    def told(self, now_s: float) -> dict[str, Standing]:
        """What peers said of themselves of late."""
        return {node: peer.standing for node, peer in self._peers.items() if now_s - peer.told_s <= FRESH_S}

    def median(self, own_base_s: float, now_s: float) -> float | None:
        """How far ahead of this node's guarded clock the median of the peers' is, as well as that is known; None: none
        is known."""
        offsets = self.offsets(own_base_s, now_s).values()
        return sum(_medians([offset.middle_s for offset in offsets])) / 2 if offsets else None


_HERE: Final = Interval(0.0, 0.0)
"""This node's own clock."""


def _median_intervals(intervals: Collection[Interval]) -> tuple[Interval, Interval]:
    """Where the lower and the upper median are, wherever in its interval each clock is."""
    lows = _medians([interval.low_s for interval in intervals])
    highs = _medians([interval.high_s for interval in intervals])
    return Interval(lows[0], highs[0]), Interval(lows[1], highs[1])


def _medians(values: Collection[float]) -> tuple[float, float]:
    """The lower and the upper median: the same one of an odd number of values."""
    rising = sorted(values)
    return rising[(len(rising) - 1) // 2], rising[len(rising) // 2]
