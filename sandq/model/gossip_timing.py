"""Timing of gossip: how often members communicate, how long they wait, and how that scales with the number of members.

With n members, probe interval P, suspicion multiplier M and maximum X, retransmit multiplier R:

    each member probes one other every P, all of them in turn:  a crash is first noticed after P/2 on average
    a probe fails after                                         P, times the member's health score (`Awareness`)
    a suspect can refute the suspicion for at least             M * max(1, log10 n) * P
    and, while fewer than M - 2 others suspect it too, at most  X times as long
    each member transmits a message                             R * max(2, ceil(log10(n + 1)))   times
    two members exchange all they know every                    push-pull interval, longer from 33 members on

With small intervals, members notice a crash sooner but send more packets. With small multipliers, they also notice a
crash sooner, but mistake slow members for dead ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Intervals and timeouts in seconds, and counts."""

    probe_interval_s: float = 1.0
    probe_timeout_s: float = 0.5
    """Time after which other members are asked to probe, too; the probe fails at the end of the interval."""
    indirect_checks: int = 3
    suspicion_mult: int = 4
    suspicion_max_mult: int = 6
    gossip_interval_s: float = 0.2
    gossip_fanout: int = 3
    retransmit_mult: int = 4
    push_pull_interval_s: float = 30.0
    stream_timeout_s: float = 10.0
    dead_gossip_s: float = 30.0
    """How long a failed member still receives gossip, so that it can refute its failure. During this time no other node
    may take its name."""
    reconnect_interval_s: float = 10.0
    """Time between two attempts to reach a failed member."""
    forget_s: float = 24 * 3600.0
    """Time after which a member that failed, or left, is no longer listed."""

    def suspicion_s(self, members: int) -> float:
        """Return the shortest time that a suspect has to refute the suspicion, in seconds."""
        return self.suspicion_mult * max(1.0, math.log10(max(1, members))) * self.probe_interval_s

    def confirmations(self, members: int) -> int:
        """Return how many other members must confirm a suspicion to shorten it to the minimum; 0 if there are too few
        members."""
        wanted = self.suspicion_mult - 2
        return 0 if members - 2 < wanted else max(0, wanted)

    def transmits(self, members: int) -> int:
        """Return how many times each member transmits a message."""
        # The usual rule gives a factor of one for up to nine members. But with R = 4, one in 25 messages then missed a
        # member, which learned it only from the next push-pull exchange, half a minute later.
        return self.retransmit_mult * max(2, math.ceil(math.log10(members + 1)))

    def push_pull_s(self, members: int) -> float:
        """Return the time between two push-pull exchanges that a member begins, in seconds."""
        doublings = math.ceil(math.log2(members) - math.log2(PUSH_PULL_MEMBERS)) if members > PUSH_PULL_MEMBERS else 0
        return self.push_pull_interval_s * (1 + doublings)


PUSH_PULL_MEMBERS: Final = 32
"""Number of members above which push-pull exchanges become rarer, because each exchange is larger."""

PROFILES: Final = {
    "lan": Timing(),
    "local": Timing(
        probe_timeout_s=0.2,
        indirect_checks=1,
        suspicion_mult=3,
        gossip_interval_s=0.1,
        retransmit_mult=2,
        push_pull_interval_s=15.0,
        stream_timeout_s=1.0,
        dead_gossip_s=15.0,
        reconnect_interval_s=5.0,
    ),
    "fast": Timing(
        probe_interval_s=0.5,
        probe_timeout_s=0.25,
        suspicion_mult=3,
        gossip_interval_s=0.1,
        push_pull_interval_s=15.0,
        stream_timeout_s=5.0,
        dead_gossip_s=15.0,
        reconnect_interval_s=5.0,
    ),
}
"""`lan`: the timing of Serf's agents on a network. `local`: their timing on one machine. `fast`: detects a crash in
half the time, with twice the packets, but a member must not stall for longer than a second and a half."""
