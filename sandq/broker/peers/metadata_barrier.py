"""Distinguish topics that do not exist from topics that this node does not know yet.

Every node knows the topics. But a slow or disconnected node learns of a new topic late. So before a node reports "there
is no such topic", it catches up with all changes that were acknowledged before the request. Requests about known topics
need no such step.
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
"""Time limit in s that callers set: within it, the metadata leader replies, and this node applies the changes."""

NUMBER_BITS = 62

Settle = Callable[[], Awaitable[SandqError]]


class Unsure(Unavailable):
    """This node does not know whether the requested object exists.

    A caller that can wait calls `settled`, which updates the metadata and returns the error to report. A caller that
    cannot wait passes this error on: its text asks the client to try again.
    """

    def __init__(self, claim: SandqError, settle: Settle) -> None:
        super().__init__(f"{claim.message}, as far as this node knows; ask again in a moment", **claim.details)
        self.settled = settle


class MetadataBarrier:
    """Ask the metadata leader for its commit index (ReadIndex, see `raft/read_index.py`).

    One round is one request to the leader. The round serves all callers that asked before the round began.
    """

    def __init__(self, node_log: NodeLog, links: PeerLinks) -> None:
        self._links = links
        self._node_log = node_log
        self._next_round = _Round()
        self._one_round = trio.Lock()
        # Start at a random number: otherwise a late reply to a request from before a restart could match a new request.
        self._numbers = count(random.getrandbits(NUMBER_BITS))
        self._rounds: dict[int, _Round] = {}

    async def index(self) -> int:
        """Return the metadata index that this node must apply to see every change acknowledged before this call.

        Raise Unavailable if this node has no link with a metadata leader, or if the leader stops leading. If no reply
        comes, this function does not return: the caller sets a time limit."""
        own = self._next_round
        async with self._one_round:
            if own is self._next_round:
                # Later callers need the next round: they must also see changes that are acknowledged after this
                # request.
                self._next_round = _Round()
                await self._ask_leader(own)
        if own.index is None:
            raise Unavailable("the metadata leader does not answer at present; ask again in a moment")
        return own.index

    async def _ask_leader(self, round_: _Round) -> None:
        """Send one request to the leader, and wait for its reply, which sets `round_.index`.

        If this node has no link with a leader, return at once. Then the index stays None."""
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
        """Handle the request of another node: send the index once it is known."""
        self.answer(lambda index: self._reply(node, number, index))

    def _reply(self, node: str, number: int, index: int | None) -> None:
        self._links.send(node, PeerFrame.TOLD, (number, index))

    def answer(self, done: ReadDone) -> None:
        """If this node leads the metadata, call `done(index)` (see `RaftGroup.ask_index`). Otherwise call
        `done(None)`."""
        host = self._node_log.hosts.get(METADATA_GROUP)
        if host is not None:
            host.ask_index(done)
        else:
            done(None)

    def on_reply(self, number: int, index: int | None) -> None:
        """Handle a reply of the leader. If no task waits for the reply any more, ignore it."""
        round_ = self._rounds.get(number)
        if round_ is not None:
            round_.index = index
            round_.answered.set()


class _Round:
    """One request to the leader. `index`: the index in its reply; None if the leader gave no index."""

    def __init__(self) -> None:
        self.answered = trio.Event()
        self.index: int | None = None
