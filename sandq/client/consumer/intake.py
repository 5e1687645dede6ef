"""What has arrived for the iterator of a subscription, and how much more each node may push.

    credit      what a node may still push: given by SUBSCRIBE, raised by CREDIT, spent by each message
    held        messages from this node that are neither settled nor lost
    target      this node's share of the subscription's credit: credit + held is kept at it

A message that is acked, nacked or lost frees its credit. It leaves after the acks, with the next send: at once while
somebody waits for a message, otherwise when a quarter of the target is free. Given back in crumbs it would come back as
crumbs: leases get as small as what is free when they are made (RFC 1122, 4.2.3.3, of the windows of TCP).
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
"""Credit is given back in at most this many parts of the target, while nobody waits."""


class Wakeups:
    """When the task of a subscription runs next, and the signals of a subscription."""

    def __init__(self) -> None:
        self.due_at = -math.inf
        """When the task runs next without any event, on anyio's clock."""
        self.task = Signal()
        """Set to run the task at once."""
        self.changed = Signal()
        """Set when something changed that entering the subscription waits for."""
        self.quiet = Signal()
        """Set when a partition has no request queued or unanswered any more."""

    def wake(self) -> None:
        """Something changed that the task looks after."""
        self.task.set()
        self.changed.set()


class Intake:
    """The arrivals of one subscription, and its credit, shared out among the nodes that push to it."""

    def __init__(self, credit: int, prefetch: Prefetch | None, is_one_topic: bool, wakeups: Wakeups) -> None:
        """`prefetch`: None if no more than `credit` messages may be held."""
        self.arrivals: deque[Arrival] = deque()
        self.arrived = Signal()
        self.nodes: list[NodeCredit] = []
        self.credit = credit
        self.prefetch = prefetch
        self.waiting = 0
        """Tasks that wait for a message."""
        self._is_one_topic = is_one_topic
        self._is_crowded = False
        self._is_stopped = False
        self._wakeups = wakeups

    @property
    def is_starved(self) -> bool:
        """Whether somebody waits for a message."""
        return self.waiting > 0 and not self.arrivals

    async def wait_for_more(self) -> None:
        """Wait until something arrives, or the subscription ends."""
        self.waiting += 1
        try:
            for node in self._in_use():
                node.top_up()
            await self.arrived.wait()
        finally:
            self.waiting -= 1

    def receive(self, chunk: DeliveredChunk, crossed: int) -> None:
        """Messages came: for the iterator. `crossed`: for so many of them the credit had been taken back."""
        if self._is_stopped:
            give_back(chunk, 0)
            return
        now = anyio.current_time()
        if crossed and not self._give_back_beyond(chunk, crossed):
            return
        self.arrivals.append(Arrival(chunk, now))
        self.arrived.set()
        if self.prefetch is not None and now + STALE_S < self._wakeups.due_at:
            self._wakeups.task.set()

    def freed(self, count: int) -> None:
        """So many messages are not held any more."""
        is_other = self.prefetch is not None and self.prefetch.settled(count, anyio.current_time())
        if is_other or self._is_crowded:
            self.give_credit()

    def nodes_changed(self) -> None:
        """There are others than before, or others of them have something to give."""
        self.give_credit()
        if not self._is_one_topic:
            self._wakeups.task.set()  # it is to be seen when they have nothing any more

    def hold_by_batch(self, credit: int) -> None:
        """Hold up to `credit` messages, however quickly they are settled."""
        self.prefetch, self.credit = None, max(self.credit, credit)
        self.give_credit()

    def hold_no_more(self) -> None:
        """Hold no message beyond those that are worked on."""
        self.prefetch = None

    def stop(self) -> None:
        """Take nothing more: give back what was not taken yet, and what still comes."""
        self._is_stopped, self.prefetch = True, None
        self.credit = 0
        self.give_credit()
        while self.arrivals:
            arrival = self.arrivals.popleft()
            give_back(arrival.chunk, arrival.position)

    def tend(self, now: float) -> float:
        """Take back what waits or is unused for too long. Return when to look again."""
        return min(self._return_stale(now), self._tend_busy(now))

    def _in_use(self) -> list[NodeCredit]:
        """Return those that get some."""
        return [node for node in self.nodes if not node.is_retired]

    def give_credit(self) -> None:
        """Let each node have its share of what may be held now."""
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

    def _tend_busy(self, now: float) -> float:
        """Take credit from nodes of several topics that have nothing to give any more; when to look again."""
        if self._is_one_topic:
            return math.inf
        busy = [node for node in self._in_use() if node.is_busy]
        over = [node for node in busy if not node.held and now >= node.came_at + BUSY_S]
        for node in over:
            node.is_busy = False
        if over:
            self.give_credit()
        return now + BUSY_S if len(over) < len(busy) else math.inf

    def _return_stale(self, now: float) -> float:
        """Give back what waits although work has become slow; when to look again."""
        if self.prefetch is None or not self.arrivals:
            return math.inf
        stale_at = self.arrivals[0].since + STALE_S
        if now < stale_at:
            return stale_at
        prefetch, self.prefetch = self.prefetch, None  # what is given back was not settled
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
        """Credit of one topic is another one's as soon as it is taken back, and what was on its way by then comes all
        the same: give back what of it is more than may be held, the last first. Whether something is left of it."""
        nodes = self.nodes
        most = self.credit + (self.prefetch.extra if self.prefetch is not None else 0) + len(nodes)
        beyond = min(crossed, sum([node.held for node in nodes]) - most)
        if beyond <= 0:
            return True
        waiting = positions_of(chunk.spans(OF_HELD))
        give_back(chunk, waiting[-min(beyond, len(waiting))])
        return beyond < len(waiting)


class NodeCredit:
    """How many messages of one topic one node may push, and how many of those that it pushed are held."""

    def __init__(self, intake: Intake) -> None:
        self.target = 0
        self.held = 0
        self.is_retired = False
        """Whether the node seems to lead nothing of the topic: it gets no more credit."""
        self.is_busy = False
        """Whether it has pushed something lately, or messages of it are held."""
        self.came_at = -math.inf
        """When it last pushed something."""
        self.is_accepted = False
        """Whether the node has accepted the subscription."""
        self._intake = intake
        self._connection: Connection | None = None
        self._subscription_id = 0
        self._credit = 0
        self._is_queued = False
        self._taken_back = 0  # of the credit, on this connection
        intake.nodes.append(self)

    def begin(self, connection: Connection, subscription_id: int) -> int:
        """Begin on a new connection. Return the credit for its SUBSCRIBE."""
        self._connection, self._subscription_id = connection, subscription_id
        self._credit = max(0, self.target - self.held)
        self._is_queued, self._taken_back = False, 0
        return self._credit

    def accepted(self) -> None:
        """The node has accepted the subscription."""
        self.is_accepted = True

    def end(self) -> None:
        """The connection is gone."""
        self._connection = None
        self.is_accepted = False

    def drop(self) -> None:
        """The topic or the node is left for good."""
        if self in self._intake.nodes:
            self._intake.nodes.remove(self)

    def pushed(self, pushed: int, held: int) -> None:
        """The node pushed messages, of which `held` had not been pushed before."""
        self._credit -= pushed
        self.held += held
        self.came_at = anyio.current_time()

    def crossed(self, count: int) -> int:
        """Return for how many of `count` messages just pushed the credit had been taken back."""
        return min(count, self._taken_back, max(-self._credit, 0))

    def give_back(self, count: int) -> None:
        """Messages left the held ones; below zero: so many are held again, beyond the target if need be."""
        self.held -= count
        if count > 0:
            self._intake.freed(count)
            self.top_up()

    def aim(self, target: int, *, takes_back: bool = False) -> None:
        """Let the node push up to another target. `takes_back`: what it may push beyond it is taken back."""
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
        """Let the node push up to the target again, if that is worth it."""
        connection = self._connection
        if connection is None or not self.is_accepted or self._is_queued:
            return  # before the node has accepted the subscription, credit for it is for nobody
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
    """Give messages back that were not begun, from a position on."""
    with suppress(ClosedError):  # if the subscription was left, all is given back
        chunk.consumer.give_back_from(chunk, start)
