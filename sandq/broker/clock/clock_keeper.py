"""Keeps the guarded clocks of a cluster together: nodes ask each other for theirs, and one whose clock is in alarm lets
nodes with better clocks lead.

A node of a cluster of several takes no commands, in whatever it leads, before its clock has agreed with others', and
none when it turns out to be off: so that a clock that is wrong stamps nothing (`reason_to_wait`). That ends when nodes
with better clocks have taken over, or else after `COMPARED_WITHIN_S`: a node whose peers are all away goes on. While a
group is handed over it takes no commands either. A group that nobody takes over the node goes on leading, with the
alarm, and tries again later. What it gave up it does not ask back; who balances leaders asks `may_lead` first.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from itertools import count
from typing import Any, Final

import structlog
import trio

from sandq.broker.clock.guarded_clock import DISPUTED, OFF, UNCOMPARED, WALL, GuardedClock
from sandq.broker.clock.peer_clocks import FRESH_S, Standing
from sandq.broker.peers.links import PeerLinks
from sandq.broker.replication.leadership_transfer import can_leave, hand_over
from sandq.broker.replication.raft_group import RaftGroup
from sandq.protocol.peer import PeerFrame

CLOCK_ASK_S: Final = 2.0
CLOCK_ASK_EAGER_S: Final = 0.25
"""While this node's clock has not agreed with others yet, or is in alarm."""
GIVE_UP_PAUSE_S: Final = 15.0
"""Before a group is tried again that nobody took over: while it is tried it takes no commands."""
QUESTIONS_MOST: Final = round(FRESH_S / CLOCK_ASK_EAGER_S)
"""Of one peer that are not answered yet: an answer to an older one would not count. The oldest is given up for a newer
one."""
TAKE_OVER_S: Final = 10.0
"""For nodes with better clocks to take over: the election may need several long round trips."""
QUESTION_BITS: Final = 62
GUARDED_US_MOST: Final = (1 << 48) * 1000
"""Delivery times have 48 bits of milliseconds."""

_STANDINGS: Final = frozenset(int(standing) for standing in Standing)
_REASONS: Final = {
    OFF: (
        "this node's clock is not where most others' are",
        "set its wall clock right; if the others are wrong, set theirs",
    ),
    UNCOMPARED: (
        "other nodes are linked, and what they tell of their clocks takes too long to say anything about this node's",
        "see why answers of other nodes take so long: the network, or nodes that stand still",
    ),
    WALL: (
        "the wall clock is not where it was: this node goes on at its own pace and does not follow it",
        "set the wall clock right, or accept it with: sandctl cluster clock accept",
    ),
    DISPUTED: (
        "as many other clocks contradict this node's as agree with it, and nobody knows who is right",
        "set the wall clocks of all nodes right",
    ),
}

log = structlog.get_logger("sandq.clock")


class ClockKeeper:
    """`run` it once. `up`, `down`, `on_frame`, `leads` and `reason_to_wait` are to be called on the loop."""

    def __init__(self, clock: GuardedClock, links: PeerLinks, nodes: Callable[[], int] = lambda: 0) -> None:
        """`nodes()`: how many the cluster has, this one included."""
        self._clock = clock
        clock.listen(on_alarm=lambda drift_ms: self._look.set())
        self._links = links
        self._nodes = nodes
        self._look = trio.Event()
        self._lead_less = trio.Event()
        # Not from 1: an answer to a question of an earlier life of this node is none to a question of this one.
        self._questions = count(random.getrandbits(QUESTION_BITS))
        self._asked: dict[str, dict[int, float]] = {}
        """Of each linked node of this cluster: question -> when it was asked."""
        self._reason: str | None = None
        self._standing = Standing.GOOD
        self._since_s = 0.0
        """Since when it has been as bad: what peers said before that may have been true before only."""
        self._held: list[RaftGroup] = []
        self._not_before_s: dict[int, float] = {}
        """Group number -> when it is tried again: nobody took it over."""

    # -- peers ----------------------------------------------------------------------------------------------------

    def up(self, node: str) -> None:
        """There is a link with a node of this cluster."""
        self._asked[node] = {}
        self._clock.peers.linked(node, self._clock.monotonic_s())
        self._ask(node)
        self._look.set()  # to ask as often as there is reason to, now that there is somebody

    def down(self, node: str) -> None:
        self._asked.pop(node, None)
        self._clock.peers.forget(node)

    def on_frame(self, node: str, kind: int, body: Any) -> bool:
        """Whether it was one of these."""
        if kind == PeerFrame.CLOCK_ASKED and _is_asked(body):
            guarded_us = int(self._clock.now_s() * 1_000_000)
            self._links.send(node, PeerFrame.CLOCK_TOLD, (body[0], guarded_us, int(self._clock.told_standing)))
            self._clock.peers.worse(node, Standing(body[1]))
        elif kind == PeerFrame.CLOCK_TOLD and _is_told(body):
            self._told(node, body[0], body[1], Standing(body[2]))
        else:
            return False
        return True

    @property
    def _is_unfit(self) -> bool:
        """Whether nodes with better clocks are to lead, if there are any."""
        return self._clock.alarm or not self._clock.peers.agreed

    def good(self) -> set[str]:
        """The linked nodes that have said of late that their clocks are good: rather these should lead than others."""
        return {node for node, standing in self._standings().items() if standing is Standing.GOOD}

    def may_lead(self, node: str) -> bool:
        """Whether a node would keep what this one gave it to lead: its clock stands no worse."""
        own = self._clock.told_standing
        return self._standings().get(node, own) <= own

    def _standings(self) -> dict[str, Standing]:
        return self._clock.peers.told(self._clock.monotonic_s())

    def _ask(self, node: str) -> None:
        question, asked = next(self._questions), self._asked[node]
        if len(asked) >= QUESTIONS_MOST:
            del asked[next(iter(asked))]
        asked[question] = self._clock.monotonic_s()
        self._links.send(node, PeerFrame.CLOCK_ASKED, (question, int(self._clock.told_standing)))

    def _ask_all(self) -> None:
        for node in self._asked:
            self._ask(node)

    def _told(self, node: str, question: int, guarded_us: int, standing: Standing) -> None:
        asked_s = self._asked.get(node, {}).pop(question, None)
        if asked_s is None:
            log.debug("a clock was told too late, or unasked", peer=node)
            return
        self._clock.peers.heard(node, guarded_us / 1_000_000, standing, asked_s, self._clock.monotonic_s())
        self._compare()

    def _compare(self) -> None:
        clock = self._clock
        clock.peers.nodes = self._nodes()
        followed_ms = clock.compare()
        if followed_ms is not None:
            log.warning("the others' clocks confirm where the wall clock stepped to: it is followed", by_ms=followed_ms)
        self._tell()
        worse, self._standing = clock.standing > self._standing, clock.standing
        if worse:
            self._since_s = clock.monotonic_s()
            self._ask_all()

    def _tell(self) -> None:
        reason = self._clock.reason
        if reason == self._reason:
            return
        self._reason = reason
        status = self._clock.status()
        known = {"drift_ms": status.drift_ms, "median_ms": status.median_ms, "peers": dict(status.peers)}
        if reason is None:
            log.info("this node's clock is right again", **known)
        else:
            what, remedy = _REASONS[reason]
            log.error(what, reason=reason, **known, remedy=remedy)

    # -- leading --------------------------------------------------------------------------------------------------

    def reason_to_wait(self, host: RaftGroup) -> str | None:
        """Why this node is to stamp nothing now in a group that it leads; None: it may."""
        peers = self._clock.peers
        if peers.agreed and not peers.off:
            return None
        nodes = self._nodes()
        if nodes == 1:
            peers.stand_alone(self._clock.monotonic_s())
        if not self._clock.waits or nodes <= 1 or (peers.off and host.group.is_only_voter):
            return None
        return "this node's clock was not compared with most others' yet, or is wrong"

    def leads(self, host: RaftGroup) -> None:
        """This node begins to lead a group, and does not answer for it yet."""
        nodes = self._better()
        if nodes and self._may_try(host) and can_leave(host, nodes):
            host.hand_over(nodes)
            self._held.append(host)
            self._lead_less.set()

    def _better(self) -> set[str]:
        """Who is to lead instead of this node."""
        return self._clock.better_peers(self._since_s)

    def _may_try(self, host: RaftGroup) -> bool:
        return self._not_before_s.get(host.number, 0.0) <= trio.current_time()

    async def _give_up(self, nodes: set[str], hosts: Callable[[], Iterable[RaftGroup]]) -> None:
        def tried() -> list[RaftGroup]:
            return [host for host in hosts() if self._may_try(host)]

        leaving = [host.number for host in tried() if can_leave(host, nodes)]
        if not leaving:
            return
        log.warning(
            "nodes with better clocks are to lead", reason=self._clock.reason, groups=len(leaving), nodes=sorted(nodes)
        )
        kept = await hand_over(tried, nodes, TAKE_OVER_S)
        if kept:
            again_s = trio.current_time() + GIVE_UP_PAUSE_S
            self._not_before_s.update(dict.fromkeys(kept, again_s))
            log.warning(
                "nobody took over: this node goes on leading, with its clock as it is",
                groups=kept,
                again_in_s=GIVE_UP_PAUSE_S,
            )

    # -- tasks ----------------------------------------------------------------------------------------------------

    async def run(self, hosts: Callable[[], Iterable[RaftGroup]]) -> None:
        """Compare clocks, and give up leaderships of `hosts()`, all groups that run here, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._ask_often)
            nursery.start_soon(self._give_up_often, hosts)

    async def _ask_often(self) -> None:
        while True:
            self._ask_all()
            self._compare()
            if self._is_unfit:
                self._lead_less.set()
            eager = self._asked and self._is_unfit
            with trio.move_on_after(CLOCK_ASK_EAGER_S if eager else CLOCK_ASK_S):
                await self._look.wait()
            self._look = trio.Event()

    async def _give_up_often(self, hosts: Callable[[], Iterable[RaftGroup]]) -> None:
        while True:
            await self._lead_less.wait()
            self._lead_less = trio.Event()
            try:
                await self._give_up(self._better(), hosts)
            finally:
                held, self._held = self._held, []
                for host in held:
                    host.stay()


def _is_asked(body: Any) -> bool:
    return _are_ints(body, 2) and body[1] in _STANDINGS


def _is_told(body: Any) -> bool:
    return _are_ints(body, 3) and 0 <= body[1] <= GUARDED_US_MOST and body[2] in _STANDINGS


def _are_ints(body: Any, number: int) -> bool:
    return isinstance(body, tuple) and [type(part) for part in body] == [int] * number
