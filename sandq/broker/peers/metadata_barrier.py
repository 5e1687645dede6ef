"""Tell what does not exist from what this node has not heard of yet.

Topics are known to every node, and a node that was cut off or is slow knows them late. So "there is no such topic" is
said only once this node has caught up with everything that was acknowledged before it was asked. What is known costs
nothing.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import count

import trio

from sandq.broker.peers.links import PeerLinks
from sandq.broker.replication.node_log import NodeLog
from sandq.broker.replication.replica import METADATA_GROUP
from sandq.model.errors import SandqError, Unavailable
from sandq.protocol.peer import PeerFrame
from sandq.raft import ReadDone

ANSWER_S = 2.0
"""For the leader of metadata to say how far it is, and for this node to get there."""

QUESTION_BITS = 62

Settle = Callable[[], Awaitable[SandqError]]


class Unsure(Unavailable):
    """Nothing is known here of what was asked for. Whoever can wait for it asks `settled` what to answer; whoever does
    not passes this on, which says to ask again."""

    def __init__(self, claim: SandqError, settle: Settle) -> None:
        super().__init__(f"{claim.message}, as far as this node knows; ask again in a moment", **claim.details)
        self.settled = settle


class MetadataBarrier:
    """How far metadata is, by the word of its leader (ReadIndex, see `raft/read_index.py`). One round for all that
    asked before it began."""

    def __init__(self, node_log: NodeLog, links: PeerLinks) -> None:
        self._links = links
        self._node_log = node_log
        self._coming = _Round()
        self._one_round = trio.Lock()
        # Not from 1: an answer to a question of an earlier life of this node is none to a question of this one.
        self._questions = count(random.getrandbits(QUESTION_BITS))
        self._asked: dict[int, _Round] = {}

    async def index(self) -> int:
        """Everything that metadata acknowledged before this call stands up to this index. Raises Unavailable."""
        mine = self._coming
        async with self._one_round:
            if mine is self._coming:
                # From here on it is too late for others: what they want to see may come after what this one asks.
                self._coming = _Round()
                await self._hold(mine)
        if mine.index is None:
            raise Unavailable("nobody says what there is at present; ask again in a moment")
        return mine.index

    async def _hold(self, round_: _Round) -> None:
        leader, question = self._node_log.metadata.leader, next(self._questions)
        if leader is None:
            return
        self._asked[question] = round_
        try:
            if leader == self._node_log.node_id:
                self.answer(partial(self.told, question))
            elif not self._links.send(leader, PeerFrame.ASKED, question):
                return
            await round_.answered.wait()
        finally:
            del self._asked[question]

    def asked(self, node: str, question: int) -> None:
        """Answer a node, as soon as it is known."""
        self.answer(lambda index: self._tell(node, question, index))

    def _tell(self, node: str, question: int, index: int | None) -> None:
        self._links.send(node, PeerFrame.TOLD, (question, index))

    def answer(self, done: ReadDone) -> None:
        """Say it, as the leader; `done(None)` when this node does not lead."""
        host = self._node_log.hosts.get(METADATA_GROUP)
        if host is not None:
            host.ask_index(done)
        else:
            done(None)

    def told(self, question: int, index: int | None) -> None:
        """The answer; to a question that nobody waits for any more, nothing happens."""
        round_ = self._asked.get(question)
        if round_ is not None:
            round_.index = index
            round_.answered.set()


class _Round:
    def __init__(self) -> None:
        self.answered = trio.Event()
        self.index: int | None = None
