"""Compare the guarded clocks of a cluster, and let nodes with correct clocks lead.

Nodes ask each other for the values of their clocks. A node whose clock is in alarm hands its groups over to nodes with
better clocks.

In a cluster of several nodes, a node accepts no commands until its clock agrees with other clocks. It also accepts no
commands while its clock is too far from the other clocks. So a wrong clock stamps no entries (`reason_to_wait`). This
wait ends when nodes with better clocks have taken over, or after `COMPARED_WITHIN_S`. So a node whose peers are all
unreachable continues after this time.

While a group is handed over, it accepts no commands. If no node takes over a group, this node continues to lead the
group, and tries again later. After a hand-over, this node never asks to lead the group again. The task that balances
leaders checks `may_lead` before it moves a leadership.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from itertools import count
from typing import Any, Final

import trio

from sandq.broker.clock.guarded_clock import DISPUTED, OFF, UNCOMPARED, WALL, GuardedClock
from sandq.broker.clock.peer_clocks import FRESH_S, Standing
from sandq.broker.peers.links import PeerLinks
from sandq.broker.replication.leadership_transfer import can_leave, hand_over
from sandq.broker.replication.raft_group import RaftGroup
from sandq.model.logger import get_logger
from sandq.protocol.peer import PeerFrame

CLOCK_ASK_S: Final = 2.0
"""Interval in s at which peers are asked for their clocks."""
CLOCK_ASK_EAGER_S: Final = 0.25
"""Interval in s at which peers are asked for their clocks, if this node's clock is in alarm or has not agreed with
other clocks yet."""
GIVE_UP_PAUSE_S: Final = 15.0
"""Pause in s after a failed attempt to hand over a group. During an attempt, the group accepts no commands."""
REQUESTS_MOST: Final = round(FRESH_S / CLOCK_ASK_EAGER_S)
"""Maximum number of unanswered requests to one peer.

At the maximum, a new request replaces the oldest request, because a reply to that request would be too old to count."""
TAKE_OVER_S: Final = 10.0
"""Time limit in s for nodes with better clocks to take over: the election may need several long round trips."""
NUMBER_BITS: Final = 62
GUARDED_US_MOST: Final = (1 << 48) * 1000
"""Maximum clock value in a frame, in µs. Delivery times have 48 bits of milliseconds."""

_STANDINGS: Final = frozenset(int(standing) for standing in Standing)
_REASONS: Final = {
    OFF: (
        "this node's clock differs from most others",
        "correct its wall clock; if the others are wrong, correct theirs",
    ),
    UNCOMPARED: (
        "other nodes are linked, but their replies take too long to say anything about this node's clock",
        "find out why replies of other nodes are slow: the network, or stalled nodes",
    ),
    WALL: (
        "the wall clock has jumped: this node continues at its own pace and does not follow it",
        "correct the wall clock, or accept it with: sandctl cluster clock accept",
    ),
    DISPUTED: (
        "as many other clocks contradict this node's clock as agree with it: it is unknown which are right",
        "correct the wall clocks of all nodes",
    ),
}

log = get_logger("sandq.clock")


class ClockKeeper:
    """Compares this node's clock with the clocks of its peers. Call `run` once. Call all methods on the event loop."""

    def __init__(self, clock: GuardedClock, links: PeerLinks, nodes: Callable[[], int] = lambda: 0) -> None:
        """`nodes()`: returns the number of nodes in the cluster, including this one."""
        self._clock = clock
        clock.listen(on_alarm=lambda drift_ms: self._recheck.set())
        self._links = links
        self._nodes = nodes
        self._recheck = trio.Event()
        self._must_hand_over = trio.Event()
        """Set when groups should be handed over to nodes with better clocks."""
        # Start at a random number: replies to requests before a restart must not match new requests.
        self._numbers = count(random.getrandbits(NUMBER_BITS))
        self._requests: dict[str, dict[int, float]] = {}
        """Unanswered requests, by linked node of this cluster: number of the request -> time of the request in s
        (monotonic)."""
        self._reason: str | None = None
        self._standing = Standing.GOOD
        self._since_s = 0.0
        """Time in s (monotonic) at which this clock's state last became worse. Reports that peers sent before may be
        outdated."""
        self._held: list[RaftGroup] = []
        """Groups that this node has just begun to lead, and now hands over. Meanwhile these groups accept no
        commands."""
        self._not_before_s: dict[int, float] = {}
        """By group number: time before which the group is not handed over again. Set after a failed attempt."""

    # -- peers ----------------------------------------------------------------------------------------------------

    def up(self, node: str) -> None:
        """Handle a new link with a node of this cluster."""
        self._requests[node] = {}
        self._clock.peers.linked(node, self._clock.monotonic_s())
        self._ask(node)
        self._recheck.set()  # compare again now: the interval is shorter if there are peers

    def down(self, node: str) -> None:
        """Handle the end of a link."""
        self._requests.pop(node, None)
        self._clock.peers.forget(node)

    def on_frame(self, node: str, kind: int, body: Any) -> bool:
        """Handle a frame. Return True if the frame is well-formed and for this component."""
        if kind == PeerFrame.CLOCK_ASKED and _is_request(body):
            guarded_us = int(self._clock.now_s() * 1_000_000)
            self._links.send(node, PeerFrame.CLOCK_TOLD, (body[0], guarded_us, int(self._clock.reported_standing)))
            self._clock.peers.worse(node, Standing(body[1]))
        elif kind == PeerFrame.CLOCK_TOLD and _is_reply(body):
            self._on_reply(node, body[0], body[1], Standing(body[2]))
        else:
            return False
        return True

    @property
    def _is_unfit(self) -> bool:
        """True if this node should hand its groups over to nodes with better clocks."""
        return self._clock.alarm or not self._clock.peers.agreed

    def good(self) -> set[str]:
        """Return the linked nodes that recently reported a good clock. These nodes are preferred as leaders."""
        return {node for node, standing in self._standings().items() if standing is Standing.GOOD}

    def may_lead(self, node: str) -> bool:
        """Return whether this node may hand a leadership to `node`.

        The clock of `node` must be at least as good as this node's clock. Otherwise `node` would hand the leadership
        over again."""
        own = self._clock.reported_standing
        return self._standings().get(node, own) <= own

    def _standings(self) -> dict[str, Standing]:
        """Return the clock states that peers reported recently, by node."""
        return self._clock.peers.recent_standings(self._clock.monotonic_s())

    def _ask(self, node: str) -> None:
        """Ask a peer for its clock. If the peer has too many unanswered requests, forget the oldest of them."""
        number, asked = next(self._numbers), self._requests[node]
        if len(asked) >= REQUESTS_MOST:
            del asked[next(iter(asked))]  # the first key of a dict is the oldest
        asked[number] = self._clock.monotonic_s()
        self._links.send(node, PeerFrame.CLOCK_ASKED, (number, int(self._clock.reported_standing)))

    def _ask_all(self) -> None:
        for node in self._requests:
            self._ask(node)

    def _on_reply(self, node: str, number: int, guarded_us: int, standing: Standing) -> None:
        """Use a peer's reply to compare the clocks. Ignore a reply whose request is unknown."""
        asked_s = self._requests.get(node, {}).pop(number, None)
        if asked_s is None:
            log.debug("a clock reply came too late, or without a request", peer=node)
            return
        self._clock.peers.heard(node, guarded_us / 1_000_000, standing, asked_s, self._clock.monotonic_s())
        self._compare()

    def _compare(self) -> None:
        """Compare this clock with the peers' clocks.

        If this clock has become worse, ask all peers again: only new reports show which nodes may take over now."""
        clock = self._clock
        clock.peers.nodes = self._nodes()
        followed_ms = clock.compare()
        if followed_ms is not None:
            log.warning("the other nodes' clocks confirm the step of the wall clock: it is followed", by_ms=followed_ms)
        self._log_change()
        worse, self._standing = clock.standing > self._standing, clock.standing
        if worse:
            self._since_s = clock.monotonic_s()
            self._ask_all()

    def _log_change(self) -> None:
        """If the reason of the alarm has changed, log the new reason."""
        reason = self._clock.reason
        if reason == self._reason:
            return
        self._reason = reason
        status = self._clock.status()
        known = {"drift_ms": status.drift_ms, "median_ms": status.median_ms, "peers": dict(status.peers)}
        if reason is None:
            log.info("this node's clock is right again", **known)
        else:
            event, remedy = _REASONS[reason]
            log.error(event, reason=reason, **known, remedy=remedy)

    # -- leading --------------------------------------------------------------------------------------------------

    def reason_to_wait(self, host: RaftGroup) -> str | None:
        """Return the reason why a group that this node leads must not stamp entries now.

        Return None if the group may stamp entries."""
        peers = self._clock.peers
        if peers.agreed and not peers.off:
            return None
        nodes = self._nodes()
        if nodes == 1:
            peers.stand_alone(self._clock.monotonic_s())
        if not self._clock.waits or nodes <= 1 or (peers.off and host.group.is_only_voter):
            return None
        return "this node's clock was not compared with most other nodes yet, or is wrong"

    def leads(self, host: RaftGroup) -> None:
        """If a node with a better clock can take over, begin the hand-over of a group that this node starts to lead.

        Called before this node answers requests for the group."""
        nodes = self._better()
        if nodes and self._may_hand_over(host) and can_leave(host, nodes):
            host.hand_over(nodes)
            self._held.append(host)
            self._must_hand_over.set()

    def _better(self) -> set[str]:
        """Return the nodes that should lead instead of this node."""
        return self._clock.better_peers(self._since_s)

    def _may_hand_over(self, host: RaftGroup) -> bool:
        """Return whether a group may be handed over now: False for some time after a failed attempt."""
        return self._not_before_s.get(host.number, 0.0) <= trio.current_time()

    async def _hand_over_to(self, nodes: set[str], hosts: Callable[[], Iterable[RaftGroup]]) -> None:
        """Hand over the groups to `nodes`, whose clocks are better. Log the groups that no node took over."""

        def tried() -> list[RaftGroup]:
            """Return the groups that may be handed over now."""
            return [host for host in hosts() if self._may_hand_over(host)]

        leaving = [host.number for host in tried() if can_leave(host, nodes)]
        if not leaving:
            return
        log.warning(
            "nodes with better clocks should lead instead",
            reason=self._clock.reason,
            groups=len(leaving),
            nodes=sorted(nodes),
        )
        kept = await hand_over(tried, nodes, TAKE_OVER_S)
        if kept:
            retry_s = trio.current_time() + GIVE_UP_PAUSE_S
            self._not_before_s.update(dict.fromkeys(kept, retry_s))
            log.warning(
                "no node took over: this node continues to lead, with its clock as it is",
                groups=kept,
                again_in_s=GIVE_UP_PAUSE_S,
            )

    # -- tasks ----------------------------------------------------------------------------------------------------

    async def run(self, hosts: Callable[[], Iterable[RaftGroup]]) -> None:
        """Compare clocks and hand over groups until cancelled. `hosts()` returns all groups on this node."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._ask_often)
            nursery.start_soon(self._keep_handing_over, hosts)

    async def _ask_often(self) -> None:
        """Ask the peers for their clocks, and compare, until cancelled."""
        while True:
            self._ask_all()
            self._compare()
            if self._is_unfit:
                self._must_hand_over.set()
            eager = self._requests and self._is_unfit
            with trio.move_on_after(CLOCK_ASK_EAGER_S if eager else CLOCK_ASK_S):
                await self._recheck.wait()
            self._recheck = trio.Event()

    async def _keep_handing_over(self, hosts: Callable[[], Iterable[RaftGroup]]) -> None:
        """Hand over groups whenever this node's clock is unfit, until cancelled."""
        while True:
            await self._must_hand_over.wait()
            self._must_hand_over = trio.Event()
            try:
                await self._hand_over_to(self._better(), hosts)
            finally:
                # The hand-over has ended. Let groups that this node still leads accept commands again.
                held, self._held = self._held, []
                for host in held:
                    host.stop_leaving()


def _is_request(body: Any) -> bool:
    return _are_ints(body, 2) and body[1] in _STANDINGS


def _is_reply(body: Any) -> bool:
    return _are_ints(body, 3) and 0 <= body[1] <= GUARDED_US_MOST and body[2] in _STANDINGS


def _are_ints(body: Any, count: int) -> bool:
    return isinstance(body, tuple) and [type(part) for part in body] == [int] * count
