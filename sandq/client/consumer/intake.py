"""Collect the arrivals of a subscription for its iterator, and control how much each node may push.

    credit      messages that a node may still push: given by SUBSCRIBE, raised by CREDIT, used up by each message
    held        messages from this node that are neither settled nor lost
    target      this node's share of the subscription's credit; credit + held is kept at the target

An acked, nacked or lost message frees its credit. CREDIT is sent after the acks with the next send: immediately while a
task waits for a message, otherwise when a quarter of the target is free. Otherwise credit in small pieces would lead to
small leases, because a lease is at most as large as the free credit. TCP avoids the same "silly window syndrome" (RFC
1122, 4.2.3.3).
"""

from __future__ import annotations

import math
from collections import deque
from contextlib import suppress
from typing import Final

import anyio

from sandq.client.consumer.credit import BUSY_S, STALE_S, Prefetch, equal_share, is_crowded, shares
from sandq.client.consumer.deliveries import Arrival, DeliveredChunk
from sandq.client.consumer.lease import OF_HELD
from sandq.client.messages.log_page import positions_of
from sandq.client.signals import Signal
from sandq.client.transport.connection import Connection
from sandq.model.errors import ClosedError
from sandq.model.limits import DEFAULT
from sandq.protocol.requests import Credit

LUMPS: Final = 4
"""While no task waits, credit is sent in parts of at least 1/`LUMPS` of the target."""


class Wakeups:
    """The time of the next run of a subscription's task, and the signals of a subscription."""

    def __init__(self) -> None:
        self.due_at = -math.inf
        """Time of the next run of the task if no event comes before, on anyio's clock."""
        self.task = Signal()
        """Signal to run the task immediately."""
        self.changed = Signal()
        """Signal for tasks that enter the subscription: something changed that they wait for."""
        self.quiet = Signal()
        """Signal that a partition has no more queued or unanswered requests."""

    def wake(self) -> None:
        """Run the task, because something changed that it handles."""
        self.task.set()
        self.changed.set()


class Intake:
    """The arrivals of one subscription, and its credit, shared among the nodes that push to it."""

    def __init__(self, credit: int, prefetch: Prefetch | None, is_one_topic: bool, wakeups: Wakeups) -> None:
        """`prefetch`: None if at most `credit` messages may be held."""
        self.arrivals: deque[Arrival] = deque()
        self.arrived = Signal()
        self.nodes: list[NodeCredit] = []
        self.credit = credit
        self.prefetch = prefetch
        self.waiting = 0
        """Number of tasks that wait for a message."""
        self._is_one_topic = is_one_topic
        self._is_crowded = False
        self._is_stopped = False
        self._wakeups = wakeups

    @property
    def is_starved(self) -> bool:
        """True if a task waits for a message and none has arrived."""
        return self.waiting > 0 and not self.arrivals

    async def wait_for_more(self, timeout_s: float = math.inf) -> None:
        """Wait until something arrives, the subscription ends, or the time is over."""
        self.waiting += 1
        try:
            for node in self._in_use():
                node.top_up()
            await self.arrived.wait(timeout_s)
        finally:
            self.waiting -= 1

    def receive(self, chunk: DeliveredChunk, crossed: int) -> None:
        """Add an arrived chunk. `crossed`: number of its messages whose credit was taken back before they arrived."""
        if self._is_stopped:
            give_back(chunk, 0)
            return
        now = anyio.current_time()
        if crossed:
            is_kept = self._give_back_beyond(chunk, crossed)
            # The credit that these messages have used is not available to other nodes any more.
            self.give_credit()
            if not is_kept:
                return
        self.arrivals.append(Arrival(chunk, now))
        self.arrived.set()
        if self.prefetch is not None and now + STALE_S < self._wakeups.due_at:
            self._wakeups.task.set()

    def freed(self, count: int) -> None:
        """Count messages that are no longer held."""
        is_other = self.prefetch is not None and self.prefetch.settled(count, anyio.current_time())
        if is_other or self._is_crowded:
            self.give_credit()

    def nodes_changed(self) -> None:
        """Recompute the shares: nodes were added or removed, or became busy or idle."""
        self.give_credit()
        if not self._is_one_topic:
            self._wakeups.task.set()  # the task notices when nodes become idle

    def hold_by_batch(self, credit: int) -> None:
        """Hold up to `credit` messages, independent of the rate at which they are settled."""
        self.prefetch, self.credit = None, max(self.credit, credit)
        self.give_credit()

    def hold_no_more(self) -> None:
        """Hold no messages in addition to those being processed."""
        self.prefetch = None

    def stop(self) -> None:
        """Accept no more messages. Give back messages that were not taken yet, and messages that still arrive."""
        self._is_stopped, self.prefetch = True, None
        self.credit = 0
        self.give_credit()
        while self.arrivals:
            arrival = self.arrivals.popleft()
            give_back(arrival.chunk, arrival.position)

    def tend(self, now: float) -> float:
        """Give back messages that wait too long, and take back unused credit. Return the time of the next call."""
        return min(self._return_stale(now), self._find_idle(now))

    def _in_use(self) -> list[NodeCredit]:
        """Return the nodes that get credit."""
        return [node for node in self.nodes if not node.is_retired]

    def give_credit(self) -> None:
        """Set the target of each node to its share of the current credit."""
        nodes = self._in_use()
        credit = self.credit + (self.prefetch.extra if self.prefetch is not None else 0)
        if self._is_one_topic:
            share = min(equal_share(credit, len(nodes)), DEFAULT.credit_max)
            for node in nodes:
                node.aim(share)
            return
        held = [node.held if node.is_busy else None for node in nodes]
        targets = shares(min(credit, DEFAULT.credit_max), held)
        self._is_crowded = is_crowded(held, targets)
        for node, target in zip(nodes, targets, strict=True):
            node.aim(target, takes_back=True)

    def _find_idle(self, now: float) -> float:
        """Take credit back from nodes that have become idle; return the time of the next call.

        A node is idle if none of its messages is held and its last delivery was `BUSY_S` ago. If the subscription has
        one topic, idle nodes keep their credit.
        """
        if self._is_one_topic:
            return math.inf
        busy = [node for node in self._in_use() if node.is_busy]
        idle = [node for node in busy if not node.held and now >= node.came_at + BUSY_S]
        for node in idle:
            node.is_busy = False
        if idle:
            self.give_credit()
        return now + BUSY_S if len(idle) < len(busy) else math.inf

    def _return_stale(self, now: float) -> float:
        """Give back messages that wait because processing has become slow. Return the time of the next call."""
        if self.prefetch is None or not self.arrivals:
            return math.inf
        stale_at = self.arrivals[0].since + STALE_S
        if now < stale_at:
            return stale_at
        prefetch, self.prefetch = self.prefetch, None  # returned messages do not count as settled
        self.give_credit()
        held = sum([node.held for node in self.nodes])
        beyond = held - self.credit
        while self.arrivals and beyond > 0:
            arrival = self.arrivals.pop()
            waiting = positions_of(arrival.chunk.spans(OF_HELD, arrival.position))
            if len(waiting) > beyond:
                self.arrivals.append(arrival)
            if waiting:
                give_back(arrival.chunk, waiting[-min(beyond, len(waiting))])
            beyond -= len(waiting)
        prefetch.stop()
        self.prefetch = prefetch
        return now + STALE_S if self.arrivals else math.inf

    def _give_back_beyond(self, chunk: DeliveredChunk, crossed: int) -> bool:
        """Give back messages that arrived after their credit was taken back, the last first. Return whether any
        messages are left.

        Other topics get the credit as soon as it is taken back, but messages in transit still arrive. Give back only as
        many messages as exceed the total that may be held.
        """
        nodes = self.nodes
        most = self.credit + (self.prefetch.extra if self.prefetch is not None else 0) + len(nodes)
        beyond = min(crossed, sum([node.held for node in nodes]) - most)
        if beyond <= 0:
            return True
        waiting = positions_of(chunk.spans(OF_HELD))
        give_back(chunk, waiting[-min(beyond, len(waiting))])
        return beyond < len(waiting)


class NodeCredit:
    """The credit of one node for one topic, and the number of held messages from this node."""

    def __init__(self, intake: Intake) -> None:
        self.target = 0
        self.held = 0
        self.is_retired = False
        """True if the node seems to lead no partition of the topic. It then gets no more credit."""
        self.is_busy = False
        """True if the node pushed messages recently, or if messages from it are held."""
        self.came_at = -math.inf
        """Time of the node's last delivery, on anyio's clock."""
        self.is_accepted = False
        """True once the node has accepted the subscription."""
        self._intake = intake
        self._connection: Connection | None = None
        self._subscription_id = 0
        self._credit = 0
        self._is_queued = False
        self._taken_back = 0  # credit that was taken back on this connection
        intake.nodes.append(self)

    def begin(self, connection: Connection, subscription_id: int) -> int:
        """Start on a new connection; return the credit for its SUBSCRIBE."""
        self._connection, self._subscription_id = connection, subscription_id
        self._credit = max(0, self.target - self.held)
        self._is_queued, self._taken_back = False, 0
        return self._credit

    def accepted(self) -> None:
        """Record that the node has accepted the subscription."""
        self.is_accepted = True

    def end(self) -> None:
        """Record that the connection is gone."""
        self._connection = None
        self.is_accepted = False

    def drop(self) -> None:
        """Remove the node, because the subscription leaves its topic or the node for good."""
        if self in self._intake.nodes:
            self._intake.nodes.remove(self)

    def pushed(self, pushed: int, held: int) -> None:
        """Record a delivery of `pushed` messages. `held` of them are new."""
        self._credit -= pushed
        self.held += held
        self.came_at = anyio.current_time()

    def crossed(self, count: int) -> int:
        """Return how many of the `count` messages that were just pushed had their credit taken back before."""
        return min(count, self._taken_back, max(-self._credit, 0))

    def give_back(self, count: int) -> None:
        """Count messages that are no longer held. A negative count: messages that are held again, even beyond the
        target."""
        self.held -= count
        if count > 0:
            self._intake.freed(count)
            self.top_up()

    def aim(self, target: int, *, takes_back: bool = False) -> None:
        """Change the target. `takes_back`: also withdraw credit beyond it."""
        self.target = target
        connection = self._connection
        beyond = min(self.held + self._credit - target, self._credit)
        if beyond <= 0:
            self.top_up()
        elif takes_back and self.is_accepted and connection is not None and connection.accepts_negative_credit:
            self._credit -= beyond
            self._taken_back += beyond
            connection.post(Credit(self._subscription_id, -beyond).frame())

    def top_up(self) -> None:
        """Send CREDIT up to the target, if enough of it is free."""
        connection = self._connection
        if connection is None or not self.is_accepted or self._is_queued:
            return  # a node that has not accepted the subscription ignores credit
        free = self.target - self.held - self._credit
        if free > 0 and (free * LUMPS >= self.target or self._intake.is_starved):
            self._is_queued = True
            connection.flush_soon(self._send_credit, last=True)

    def _send_credit(self) -> None:
        connection = self._connection
        self._is_queued = False
        more = min(self.target - self.held - self._credit, DEFAULT.credit_max)
        if connection is not None and self.is_accepted and more > 0:
            self._credit += more
            connection.post(Credit(self._subscription_id, more).frame())


def give_back(chunk: DeliveredChunk, start: int) -> None:
    """Give back the messages of a chunk from position `start` on, which were not begun."""
    with suppress(ClosedError):  # if the subscription was left, all its messages are given back anyway
        chunk.consumer.give_back_from(chunk, start)
