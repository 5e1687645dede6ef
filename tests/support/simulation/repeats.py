"""Simulate an idempotent producer that outlives the node.

Answers are lost. The producer resends batches while the first copy is in flight, and after a crash until it has an
answer."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sandq.model.errors import SandqError, StorageFailed
from sandq.model.limits import FIXED
from sandq.model.sequence import RESENT
from sandq.partition import commands as c
from tests.support.simulation.oracle import Sent

if TYPE_CHECKING:
    from tests.support.simulation.node_world import Node

LOST, AGAIN, GIVE_UP = 0.3, 0.05, 0.003
"""Probability that an answer is lost; probabilities per step that all batches are resent, or given up."""


@dataclass
class Numbered:
    """A batch, and its state at the producer."""

    epoch: int
    number: int
    batch: bytes
    split: bool
    on_conflict: int
    sent: list[Sent]
    was_sent: bool = False
    first_answer: Any = None
    """First answer of the broker. All later answers must be equal."""
    answered: bool = False
    """Whether an answer has reached the producer."""


class Repeater:
    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        """Random numbers only for this producer, so that it does not change the rest of the world."""
        self._producer_id = self._rng.getrandbits(63) | 1
        self._epoch, self._number = 1, 0
        self.unanswered: list[Numbered] = []
        self.repeated = 0
        """Number of answers to batches that were stored before."""

    def takes(self, on_conflict: int) -> bool:
        """Return whether this producer sends a batch, with a sequence number.

        It excludes batches with IGNORE, because their answers may name messages of unknown producers."""
        few = not self.unanswered or self._number + 1 - self.unanswered[0].number < FIXED.producer_answers
        return on_conflict != c.IGNORE and few and self._rng.random() < 0.5

    def produce(self, node: Node, sent: list[Sent], batch: bytes, on_conflict: int, split: bool) -> None:
        self._number += 1
        self.unanswered.append(Numbered(self._epoch, self._number, batch, split, on_conflict, sent))
        self._submit(node, self.unanswered[-1])

    def act(self, node: Node) -> None:
        """Run the producer after a step of the world."""
        chance = self._rng.random()
        if chance < GIVE_UP:
            self._epoch, self._number = self._epoch + 1, 0
            self.unanswered.clear()
        elif chance < AGAIN:
            self.repeat(node)

    def repeat(self, node: Node) -> None:
        """Resend all unanswered batches, the oldest first."""
        for numbered in list(self.unanswered):
            self._submit(node, numbered)

    def _submit(self, node: Node, numbered: Numbered) -> None:
        def done(result: Any) -> None:
            if isinstance(result, StorageFailed):
                return  # the outcome is unknown
            assert not isinstance(result, SandqError), result
            assert numbered.first_answer in (None, result), "a resent batch has another answer"
            self.repeated += numbered.first_answer is not None
            numbered.first_answer = result
            if self._rng.random() >= LOST and not numbered.answered:
                numbered.answered = True
                if numbered in self.unanswered:
                    self.unanswered.remove(numbered)
                node.owner.stored(numbered.sent, result, numbered.on_conflict)

        if numbered.on_conflict == c.REPLACE:
            for message in numbered.sent:
                node.owner.may_replace(message)
        sequence = numbered.number | (RESENT if numbered.was_sent else 0)
        numbered.was_sent = True
        append = c.Append(
            numbered.batch, self._producer_id, numbered.epoch, sequence, numbered.on_conflict, numbered.split
        )
        node.host.submit(append, done, messages=len(numbered.sent))
