"""Distinguish topics that do not exist from topics that this node does not know yet.

Every node knows the topics, but a node that was cut off, or is slow, learns of them late. So "there is no such topic"
is reported only after this node has caught up with everything acknowledged before the request. Requests about known
topics cost nothing extra.
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
"""Time limit in s for the metadata leader to reply, and for this node to catch up."""

NUMBER_BITS = 62

Settle = Callable[[], Awaitable[SandqError]]


class Unsure(Unavailable):
    """This node does not know whether the requested object exists.

    A caller that can wait gets the final answer from `settled`. A caller that cannot wait passes on this error, which
    says to ask again.
    """

    def __init__(self, claim: SandqError, settle: Settle) -> None:
        super().__init__(f"{claim.message}, as far as this node knows; ask again in a moment", **claim.details)
        self.settled = settle


class MetadataBarrier:
    """Ask the metadata leader for its commit index (ReadIndex, see `raft/read_index.py`).

    One round serves all callers that asked before it began.
    """

    def __init__(self, node_log: NodeLog, links: PeerLinks) -> None:
        self._links = links
        self._node_log = node_log
        self._next_round = _Round()
        self._one_round = trio.Lock()
        # Start at a random number: replies to requests before a restart must not match new requests.
        self._numbers = count(random.getrandbits(NUMBER_BITS))
        self._rounds: dict[int, _Round] = {}

    async def index(self) -> int:
        """Return an index up to which metadata contains everything acknowledged before this call. Raise Unavailable."""
        own = self._next_round
        async with self._one_round:
            if own is self._next_round:
                # Later callers need the next round, as they must see changes that are acknowledged after this request.
                self._next_round = _Round()
                await self._hold(own)
        if own.index is None:
            raise Unavailable("the metadata leader does not answer at present; ask again in a moment")
        return own.index

    async def _hold(self, round_: _Round) -> None:
        """Send one request to the leader, and wait for its reply. Leave the index None if there is no leader."""
        leader, number = self._node_log.metadata.leader, next(self._numbers)
        if leader is None:
            return
        self._rounds[number] = round_
        try:
            if leader == self._node_log.node_id:
                self.answer(partial(self.on_reply, number))
            elif not self._links.send(leader, PeerFrame.ASKED, number):
                return
            await round_.answered.wait()
        finally:
            del self._rounds[number]

    def on_request(self, node: str, number: int) -> None:
        """Reply to a node once the index is known."""
        self.answer(lambda index: self._reply(node, number, index))

    def _reply(self, node: str, number: int, index: int | None) -> None:
        self._links.send(node, PeerFrame.TOLD, (number, index))

    def answer(self, done: ReadDone) -> None:
        """Call `done(index)` as the leader; `done(None)` if this node does not lead."""
        host = self._node_log.hosts.get(METADATA_GROUP)
        if host is not None:
            host.ask_index(done)
        else:
            done(None)

    def on_reply(self, number: int, index: int | None) -> None:
        """Handle a reply. Ignore it if no task waits for it any more."""
        round_ = self._rounds.get(number)
        if round_ is not None:
            round_.index = index
            round_.answered.set()


class _Round:
    """One request to the leader, and the index that it replied."""

    def __init__(self) -> None:
        self.answered = trio.Event()
        self.index: int | None = None
