"""Simulate clients of a cluster. They outlive its nodes, send requests to any node that claims to lead, and retry."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

from sandq.model.batch import Column, encode
from sandq.model.errors import AlreadyStored, NotLeader, OutOfSequence, SandqError
from sandq.model.limits import FIXED
from sandq.model.retries import UNLIMITED
from sandq.model.sequence import RESENT
from sandq.partition import commands as c
from tests.support.simulation.cluster_consumer import CONSUMERS, Consumer
from tests.support.simulation.cluster_node import ClusterNode
from tests.support.simulation.moments import Moments
from tests.support.simulation.oracle import GROUPS, UNKNOWN, Oracle, Sent
from tests.support.simulation.owner import Owner
from tests.support.simulation.stepped import VirtualClock

LOST = 0.2
"""Share of the answers to a producer that are lost."""
KEYS = (None, b"k1", b"k2", b"k3")


class DeliveryClock:
    """The clock of the node that delivers now."""

    def __init__(self, true: VirtualClock) -> None:
        self.true = true
        self.node: ClusterNode | None = None

    @property
    def ms(self) -> int:
        return self.true.ms if self.node is None else self.node.clock.ms

    @property
    def reached_ms(self) -> int:
        return self.ms if self.node is None else max(self.ms, self.node.host.status.now_ms)


class Clients:
    """All clients. `Owner` uses this object as a node, and as the host of the node."""

    def __init__(
        self,
        rng: random.Random,
        clock: VirtualClock,
        nodes: dict[str, ClusterNode],
        moments: Moments | None,
        *,
        ordered: bool,
        margin_ms: int,
    ) -> None:
        """`margin_ms`: maximum lag of a node's clock behind the true time, in ms."""
        self.rng, self.clock = rng, clock
        self.margin_ms = margin_ms
        self.lease_ms = rng.choice((1000, 4000))
        self.unrest = rng.choice((0.01, 0.1))
        """Probability that a consumer loses its connection in a step."""
        self.leaving = 0.005
        """Probability that a consumer leaves in a step."""
        self.oracle = Oracle(DeliveryClock(clock), ordered)
        self.host = self
        self.owner = Owner(self)
        self.consumers = [Consumer(self, group, name) for group in GROUPS for name in CONSUMERS]
        self.producers = [Producer(self, number) for number in (1, 2)]
        self._nodes = nodes
        self._moments = moments
        self._payloads = count()

    def leader(self) -> ClusterNode | None:
        """Return a random node that claims to lead; None if no node does."""
        ready = [node for node in self._nodes.values() if node.host.ready]
        return self.rng.choice(ready) if ready else None

    def submit(self, command: Any, done: Callable[[Any], None], *, messages: int = 0) -> None:
        node = self.leader()
        if node is None:
            done(NotLeader("nobody leads"))
        else:
            node.call(command, done, messages=messages)

    def messages(self) -> tuple[list[Sent], dict[int, list[Any]]]:
        """Return new messages, and their columns."""
        rng, now_ms = self.rng, self.clock.ms
        sent = [Sent(b"m%d" % next(self._payloads), now_ms - self.margin_ms) for _ in range(rng.choice((1, 1, 2, 9)))]
        columns: dict[int, list[Any]] = {Column.VALUE: [message.payload for message in sent]}
        if rng.random() < 0.6:
            columns[Column.DELIVER_MS] = [now_ms + rng.choice((0, 3, 50, 400, 3000)) for _ in sent]
        one_ms = None if self._moments is None else self._moments.delay_ms()
        if one_ms is not None:
            columns[Column.DELIVER_MS] = [now_ms + one_ms] * len(sent)
        for message, at_ms in zip(sent, columns.get(Column.DELIVER_MS, ()), strict=False):
            message.not_before_ms = at_ms
        if rng.random() < 0.3:
            for message in sent:
                message.key = rng.choice(KEYS)
            columns[Column.KEY] = [message.key for message in sent]
        elif rng.random() < 0.2:
            for message in sent:
                message.unique_key = rng.choice((None, b"u1", b"u2"))
            columns[Column.UNIQUE_KEY] = [message.unique_key for message in sent]
            # The topic has no limit of attempts either, but a lease holds only messages with equal rules.
            columns[Column.MAX_ATTEMPTS] = [UNLIMITED if at % 2 == 1 else None for at in range(len(sent))]
        self.oracle.sent.update((message.payload, message) for message in sent)
        return sent, columns

    def is_split(self, columns: dict[int, list[Any]]) -> bool:
        return Column.UNIQUE_KEY in columns or (self.oracle.ordered and Column.KEY in columns)

    def produce(self) -> None:
        """Produce without a sequence number. If the answer is lost, the outcome is unknown."""
        sent, columns = self.messages()

        def done(result: Any) -> None:
            if not isinstance(result, UNKNOWN):
                assert not isinstance(result, SandqError), result
                self.owner.stored(sent, result, c.REJECT)

        self.submit(c.Append(encode(columns), split=self.is_split(columns)), done, messages=len(sent))

    def gone(self, node: ClusterNode) -> None:
        for consumer in self.consumers:
            consumer.gone(node)

    def act(self) -> None:
        """Run the random actions of all clients in a step."""
        rng = self.rng
        for consumer in self.consumers:
            consumer.act()
        for producer in self.producers:
            producer.act()
        for probability, action in ((0.1, self.produce), (0.03, self.owner.cancel), (0.03, self.owner.move)):
            if rng.random() < probability:
                action()

    def finish(self) -> None:
        """Consume all messages and produce no new ones."""
        for consumer in self.consumers:
            consumer.finish()
        for producer in self.producers:
            if self.rng.random() < 0.1:
                producer.repeat()

    @property
    def is_done(self) -> bool:
        """Return whether nothing is pending.

        Each acknowledged message must have been delivered and its ack confirmed, and each numbered batch stored."""
        return not self.oracle.missing() and not any(producer.unanswered for producer in self.producers)

    def describe_pending(self) -> Any:
        """Describe the pending batches and messages."""
        return [len(producer.unanswered) for producer in self.producers], self.oracle.missing()[:5]


@dataclass
class Numbered:
    """A batch, and its state at the producer."""

    number: int
    sent: list[Sent]
    batch: bytes
    split: bool
    was_sent: bool = False
    first_answer: Any = None
    """First answer of a leader. All later answers must be equal."""
    answered: bool = False
    """Whether an answer has reached the producer."""


class Producer:
    """An idempotent producer. It resends batches, in order, until it has a definite answer."""

    def __init__(self, clients: Clients, producer_id: int) -> None:
        self._clients = clients
        self._rng = clients.rng
        self._id = producer_id
        self._number = 0
        self.unanswered: list[Numbered] = []
        self.repeated = 0
        """Number of answers to batches that were stored before."""

    def act(self) -> None:
        if self._rng.random() < 0.1:
            self.produce()
        if self._rng.random() < 0.05:
            self.repeat()

    def produce(self) -> None:
        if not self.unanswered or self._number + 1 - self.unanswered[0].number < FIXED.producer_answers:
            self._number += 1
            sent, columns = self._clients.messages()
            numbered = Numbered(self._number, sent, encode(columns), self._clients.is_split(columns))
            self.unanswered.append(numbered)
            self._send(numbered, self._clients.leader())

    def repeat(self) -> None:
        """Resend all unanswered batches, the oldest first, to one node."""
        node = self._clients.leader()
        for numbered in list(self.unanswered):
            self._send(numbered, node)

    def _send(self, numbered: Numbered, node: ClusterNode | None) -> None:
        def done(result: Any) -> None:
            if isinstance(result, (*UNKNOWN, OutOfSequence)):
                return  # the batch will be resent
            if isinstance(result, AlreadyStored) and numbered.answered:
                return  # a late copy of an answered batch
            assert not isinstance(result, SandqError), result
            assert numbered.first_answer in (None, result), "a resent batch has another answer"
            self.repeated += numbered.first_answer is not None
            numbered.first_answer = result
            if self._rng.random() >= LOST and not numbered.answered:
                numbered.answered = True
                self.unanswered.remove(numbered)
                self._clients.owner.stored(numbered.sent, result, c.REJECT)

        if node is not None:
            sequence = numbered.number | (RESENT if numbered.was_sent else 0)
            numbered.was_sent = True
            command = c.Append(numbered.batch, self._id, 1, sequence, c.REJECT, numbered.split)
            node.call(command, done, messages=len(numbered.sent))
