"""How often members speak to each other, how patient they are, and what follows from it.

With n members, probe interval P, suspicion multiplier M and maximum X, retransmit multiplier R:

    each member probes one other every P, all of them in turn:  a crash is noticed by somebody after P/2 on average
    the probe fails after                                       P, times its own doubt about itself (`Awareness`)
    a suspect has at least                                      M * max(1, log10 n) * P   to say that it lives
    and, while fewer than M - 2 others suspect it too, at most  X times as long
    a message is handed on                                      R * max(2, ceil(log10(n + 1)))   times by each member
    two members compare all they know every                     push-pull interval, longer from 33 members on

Small intervals notice a crash sooner and cost packets; small multipliers do too, and take slow members for dead ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """All in seconds, but for the counts."""

    probe_interval_s: float = 1.0
    probe_timeout_s: float = 0.5
    """Until others are asked to try; the probe fails at the end of the interval."""
    indirect_checks: int = 3
    suspicion_mult: int = 4
    suspicion_max_mult: int = 6
    gossip_interval_s: float = 0.2
    gossip_fanout: int = 3
    retransmit_mult: int = 4
    push_pull_interval_s: float = 30.0
    stream_timeout_s: float = 10.0
    dead_gossip_s: float = 30.0
    """So long members that failed are still told what is said of them, and may answer it; and so long nobody else may
    take their name."""
    reconnect_interval_s: float = 10.0
    """Between two attempts to reach one of those that failed."""
    forget_s: float = 24 * 3600.0
    """After which a member that failed, or left, is listed no more."""

    def suspicion_s(self, members: int) -> float:
        """How long a suspect has at least."""
        return self.suspicion_mult * max(1.0, math.log10(max(1, members))) * self.probe_interval_s

    def confirmations(self, members: int) -> int:
        """How many others must suspect the same for the shortest time; 0 where there are too few to ask."""
        wanted = self.suspicion_mult - 2
        return 0 if members - 2 < wanted else max(0, wanted)

    def transmits(self, members: int) -> int:
        """How often each member hands a message on."""
        # Of up to nine members one power of ten would do, by this rule; yet with R = 4 one in 25 messages then missed
        # one of them, which heard of it when it compared with another, half a minute later.
        return self.retransmit_mult * max(2, math.ceil(math.log10(members + 1)))

    def push_pull_s(self, members: int) -> float:
        """Between two comparisons that a member begins."""
        doublings = math.ceil(math.log2(members) - math.log2(PUSH_PULL_MEMBERS)) if members > PUSH_PULL_MEMBERS else 0
        return self.push_pull_interval_s * (1 + doublings)


PUSH_PULL_MEMBERS: Final = 32
"""From here on members compare less often, as they have more to compare."""

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
"""`lan`: as Serf's agents on a network do. `local`: as they do on one machine. `fast`: a crash is seen in half the
time, for twice the packets, and a member must not stand still for longer than a second and a half."""
