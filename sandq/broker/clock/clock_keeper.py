"""Keeps the guarded clocks of a cluster together: nodes ask each other for theirs, and one whose clock is in alarm lets
nodes with better clocks lead.

It begins to give up what it leads before anything is done in it: while a group is handed over it takes no commands, so
that a clock that is off stamps nothing. A group that nobody takes over it goes on leading, with the alarm, and tries
again later. What it gave up it does not ask back; who balances leaders asks `may_lead` first.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from itertools import count
from typing import Any, Final

import structlog
import trio

from sandq.broker.clock.guarded_clock import DISPUTED, OFF, WALL, GuardedClock
from sandq.broker.clock.peer_clocks import Standing
from sandq.broker.controller.leadership_transfer import can_leave, hand_over
from sandq.broker.replication.raft_group import RaftGroup
from sandq.protocol.peer import PeerFrame

CLOCK_ASK_S: Final = 2.0
CLOCK_ASK_EAGER_S: Final = 0.25
"""While this node's clock has not agreed with others yet, or is in alarm."""
GIVE_UP_PAUSE_S: Final = 15.0
"""Before a group is tried again that nobody took over: while it is tried it takes no commands."""
QUESTIONS_MOST: Final = 8
"""Of one peer that are not answered yet; the oldest is given up for a newer one."""
QUESTION_BITS: Final = 62
GUARDED_US_MOST: Final = (1 << 48) * 1000
"""Delivery times have 48 bits of milliseconds."""

_STANDINGS: Final = frozenset(int(standing) for standing in Standing)
_REASONS: Final = {
    OFF: (
        "this node's clock is not where most others' are",
        "set its wall clock right; if the others are wrong, set theirs",
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
    """`run` it once. `up`, `down`, `on_frame` and `leads` are to be called on the loop; `send(node, kind, body)` as
    `PeerLinks.send`."""

    def __init__(self, clock: GuardedClock, send: Callable[[str, int, Any], bool]) -> None:
        self._clock = clock
        clock.listen(on_alarm=lambda drift_ms: self._look.set())
        self._send = send
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
        self._ask(node)

    def down(self, node: str) -> None:
        self._asked.pop(node, None)
        self._clock.peers.forget(node)

    def on_frame(self, node: str, kind: int, body: Any) -> bool:
        """Whether it was one of these."""
        if kind == PeerFrame.CLOCK_ASKED and _is_asked(body):
            guarded_us = int(self._clock.now_s() * 1_000_000)
            self._send(node, PeerFrame.CLOCK_TOLD, (body[0], guarded_us, int(self._clock.told_standing)))
            self._clock.peers.worse(node, Standing(body[1]))
        elif kind == PeerFrame.CLOCK_TOLD and _is_told(body):
            self._told(node, body[0], body[1], Standing(body[2]))
        else:
            return False
        return True

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
        self._send(node, PeerFrame.CLOCK_ASKED, (question, int(self._clock.told_standing)))

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
            "the clock is in alarm: nodes with better clocks are to lead", groups=len(leaving), nodes=sorted(nodes)
        )
        kept = await hand_over(tried, nodes)
        if kept:
            again_s = trio.current_time() + GIVE_UP_PAUSE_S
            self._not_before_s.update(dict.fromkeys(kept, again_s))
            log.warning(
                "nobody took over: this node goes on leading, with its clock in alarm",
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
            if self._clock.alarm:
                self._lead_less.set()
            eager = self._asked and (self._clock.alarm or not self._clock.peers.agreed)
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
