"""The guarded clocks of the other nodes, and what they say of this one's (pure).

A clock that was asked for over a link was read somewhere between the question and the answer: it is known to half the
round trip. It is kept as its distance from this node's monotonic clock, so that it stays right when this node's own
guarded clock is slewed or set.

Every node judges only itself. Its clock is off when the median of all clocks, its own among them, is further away than
`max_drift`. When as many contradict as agree there is no such median: the clock is disputed. Then one that has agreed
before has the better claim than one that was just started; of two that were just started neither has.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final, NamedTuple

SAMPLES_KEPT: Final = 8
"""Of a peer: the one with the shortest round trip counts."""
FRESH_S: Final = 10.0
"""What is older counts no more."""
ERROR_MOST_S: Final = 0.25
ERROR_OF_DRIFT: Final = 0.25
"""A clock that is known less well than to `ERROR_MOST_S`, or to this part of `max_drift`, does not count."""
AGREE_OF_DRIFT: Final = 0.75
"""A clock that was off, or disputed, agrees again only within this part of `max_drift`: nothing flaps at the edge."""
RATE: Final = 0.001
"""How much two clocks go apart, generously (a slew of 500 ppm, two crystals)."""


class Standing(enum.IntEnum):
    """How a node's clock stands among the others. Leadership goes to a better standing only: so it never comes back."""

    GOOD = 0
    DOUBTED = 1
    """Its wall clock has left it, or as many clocks contradict it as agree with it."""
    OFF = 2
    """It is further from the others' than allowed; or, as a node tells others, it was not compared yet."""


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
    told_s: float = 0.0
    """When it was asked what it says of itself: it may have changed its mind right after."""
    samples: deque[Sample] = field(default_factory=lambda: deque(maxlen=SAMPLES_KEPT))

    def add(self, sample: Sample) -> None:
        if any(sample.contradicts(other) for other in self.samples):
            self.samples.clear()  # its clock was set, or this machine stood still: what was known is wrong now
        self.samples.append(sample)

    def best(self, now_s: float) -> Sample | None:
        fresh = [sample for sample in self.samples if now_s - sample.asked_s <= FRESH_S]
        return min(fresh, key=lambda sample: sample.error_at(now_s), default=None)


class PeerClocks:
    """All times in seconds; `now_s`, `asked_s` on this node's monotonic clock, `own_base_s` as in `Sample`."""

    def __init__(self, max_drift_s: float) -> None:
        self.off = False
        self.disputed = False
        self.agreed = False
        """This node's clock has agreed with the others since it was started."""
        self._max_drift_s = max_drift_s
        self._error_most_s = min(ERROR_MOST_S, max_drift_s * ERROR_OF_DRIFT)
        self._peers: dict[str, _Peer] = {}

    # -- what is heard --------------------------------------------------------------------------------------------

    def heard(self, node: str, guarded_s: float, standing: Standing, asked_s: float, now_s: float) -> None:
        """A peer's answer."""
        peer = self._peers.setdefault(node, _Peer())
        peer.standing, peer.told_s = standing, asked_s
        error_s = (now_s - asked_s) / 2
        if error_s <= self._error_most_s:
            peer.add(Sample(asked_s, guarded_s - asked_s - error_s, error_s))

    def worse(self, node: str, standing: Standing) -> None:
        """A peer said, nobody knows when, how its clock stands. Only bad news counts: good news may be old."""
        if node in self._peers:
            self._peers[node].standing = max(standing, self._peers[node].standing)

    def forget(self, node: str) -> None:
        """There is no link with it any more."""
        self._peers.pop(node, None)

    # -- what follows ---------------------------------------------------------------------------------------------

    def offsets(self, own_base_s: float, now_s: float) -> dict[str, float]:
        """How far ahead of this node's guarded clock each peer's is that is known well enough at present."""
        known = {node: peer.best(now_s) for node, peer in self._peers.items()}
        return {node: sample.base_s - own_base_s for node, sample in known.items() if sample is not None}

    def judge(self, own_base_s: float, now_s: float) -> None:
        """Say anew whether this node's clock is off, or disputed."""
        offsets = self.offsets(own_base_s, now_s)
        if not offsets:
            self.disputed = False  # nobody contradicts; and nobody takes back that it is off
            return
        low_s, high_s = _medians([0.0, *offsets.values()])
        furthest_s = max(abs(low_s), abs(high_s))
        if low_s > self._max_drift_s or high_s < -self._max_drift_s:
            self.off, self.disputed = True, False
        elif furthest_s > self._max_drift_s:
            self.off, self.disputed = self.off or not self.agreed, True
        elif furthest_s <= self._max_drift_s * AGREE_OF_DRIFT or not (self.off or self.disputed):
            self.agreed, self.off, self.disputed = True, False, False

    def acquit(self) -> None:
        """Somebody says that this node's clock is right. The next judgement may say otherwise."""
        self.off = self.disputed = False

    def confirm(self, step_s: float, own_base_s: float, now_s: float) -> bool:
        """Whether the median of the peers' clocks is there, too, where this node's wall clock stepped to."""
        offsets = self.offsets(own_base_s, now_s).values()
        return bool(offsets) and all(abs(median_s - step_s) <= self._max_drift_s for median_s in _medians(offsets))

    def better(self, than: Standing, since_s: float, own_base_s: float, now_s: float) -> set[str]:
        """Peers of a better standing, by what they said after `since_s`, whose clocks seem to be right from here."""
        offsets = self.offsets(own_base_s, now_s)
        low_s, high_s = _medians([0.0, *offsets.values()])
        since_s = max(since_s, now_s - FRESH_S)
        return {
            node
            for node, offset_s in offsets.items()
            if self._peers[node].standing < than
            and self._peers[node].told_s >= since_s
            and low_s - self._max_drift_s <= offset_s <= high_s + self._max_drift_s
        }

    def told(self, now_s: float) -> dict[str, Standing]:
        """What peers said of themselves of late."""
        return {node: peer.standing for node, peer in self._peers.items() if now_s - peer.told_s <= FRESH_S}

    def median(self, own_base_s: float, now_s: float) -> float | None:
        """How far ahead of this node's guarded clock the median of the peers' is; None: none is known."""
        offsets = self.offsets(own_base_s, now_s).values()
        return sum(_medians(offsets)) / 2 if offsets else None


def _medians(values: Collection[float]) -> tuple[float, float]:
    """The lower and the upper median: the same one of an odd number of values."""
    rising = sorted(values)
    return rising[(len(rising) - 1) // 2], rising[len(rising) // 2]
