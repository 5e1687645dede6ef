"""Pause named limits, for the holders of leases and for operators.

The pause of a limit is a part of the state of its home, the partition of the topic `sandq.limits`. The home sends it to
all members with their shares (`LimitShares`). A member without the pause has no share yet, or keeps it until it
answers. So a caller learns how many members apply the pause.

The leader that verifies a lease asks the leader of the home (`LIMIT_PAUSE_ASKED` and `LIMIT_PAUSE_TOLD`). Clients
cannot send these frames.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from itertools import count
from typing import Any, Final, NamedTuple

import trio

from sandq.broker.catalog import Catalog
from sandq.broker.delivery.limit_shares import LimitShares
from sandq.broker.leader.partition_leader import PartitionLeader
from sandq.broker.peers.links import PeerLinks
from sandq.broker.replication.fair_queue import BEHIND
from sandq.model.errors import InvalidRequest, NotFound, SandqError, TimedOut, Unavailable
from sandq.model.logger import get_logger
from sandq.model.names import LIMITS_TOPIC
from sandq.model.pauses import BY_CHARS, FOREVER, pause_text
from sandq.model.row_fields import COUNT, TIME, U64, integer, is_name, text
from sandq.partition import commands as c
from sandq.partition.groups.group_limits import HOME
from sandq.partition.limits.limit_checks import row_of
from sandq.protocol.peer import PeerFrame

log = get_logger("sandq.broker")

HOLD_S: Final = 2.0
"""Time in s within which the home must store the pause, and its members must confirm it."""
ANSWER_S: Final = 3.0
"""Time in s within which the leader of the home must answer. Longer than `HOLD_S`, so that it can report the members
that do not confirm the pause."""
WAIT_S: Final = 2 * ANSWER_S
"""Time in s within which a caller gets an answer: the pause of another caller may have to end first."""
ANSWERS_AT_ONCE: Final = 64
"""Maximum number of requests of other nodes that are being answered. A further request is dropped: it is repeated by
the client."""
_is_request: Final = row_of(U64, U64, is_name, integer(1, FOREVER - 1), text(BY_CHARS))
"""Check of a request: FOREVER would pause until the limit is resumed."""
_is_reply: Final = row_of(U64, TIME, COUNT, COUNT, text())


class Held(NamedTuple):
    """The result of a pause."""

    until_ms: int
    """End of the pause in ms."""
    held: int
    """Number of members that apply the pause."""
    members: int
    error: str = ""
    """Why the home refuses the pause."""


class _Asked:
    """A pause that is in progress. `until_ms`: its end in ms. `node`: the leader of the home."""

    def __init__(self, until_ms: int) -> None:
        self.until_ms = until_ms
        self.node = ""
        self.result: Held | None = None
        self.done = trio.Event()


class LimitPauses:
    """Pauses named limits, and answers such requests of other nodes.

    For each limit, one pause by a lease is in progress at a time. Callers whose pause ends no later share its result.
    """

    def __init__(
        self,
        own: str,
        catalog: Catalog,
        *,
        shares: LimitShares,
        links: PeerLinks,
        is_shut: Callable[[int, str], bool],
        nursery: trio.Nursery,
    ) -> None:
        """`own`: id of this node. `is_shut(group, node)`: whether the node's replica of the group is shut. `nursery`
        must outlive every connection."""
        self._is_shut = is_shut
        self._own = own
        self._catalog = catalog
        self.shares = shares
        self._links = links
        self._nursery = nursery
        self._running: dict[str, _Asked] = {}
        """The pause by a lease that is in progress, by limit."""
        self._answering = 0
        """Number of requests of other nodes that are being answered."""
        self._numbers = count(secrets.randbits(62))  # random: replies to a previous process match no number
        self._asked: dict[int, _Asked] = {}

    def home_problem(self) -> str | None:
        """Return why groups that wait for a named limit get no shares at present, and what to do. None if the home
        works, as far as this node knows."""
        topic = self._catalog.topics.get(LIMITS_TOPIC)
        if topic is None:
            return None
        node, group = self._catalog.leader(topic, HOME), topic.record.partitions[HOME].group
        if node is None:
            return f"topic {LIMITS_TOPIC} has no leader, so limits give no shares: see sandctl doctor"
        if self._is_shut(group, node):
            return f"topic {LIMITS_TOPIC} is shut at {node}, so limits give no shares: see sandctl doctor"
        return None

    # -- requesting side ------------------------------------------------------------------------------------------

    async def pause(self, limit: str, until_ms: int, by: str) -> int:
        """Pause a named limit, where it is not paused for longer. Return the end of the pause in ms.

        Raise TimedOut if not all members confirm the pause in time, Unavailable if the home has no leader, and
        InvalidRequest if there is no such limit."""
        with trio.move_on_after(WAIT_S):
            while (running := self._running.get(limit)) is not None:
                await running.done.wait()
                if running.result is not None and running.until_ms >= until_ms:
                    return _checked(limit, running.result)
            running = self._running[limit] = _Asked(until_ms)
            try:
                await self._ask(running, limit, by)
            finally:
                del self._running[limit]
                running.done.set()
            if running.result is not None:
                return _checked(limit, running.result)
        raise _silent(limit)

    async def _ask(self, running: _Asked, limit: str, by: str) -> None:
        """Ask the leader of the home to pause a limit."""
        topic = self._catalog.topics.get(LIMITS_TOPIC)
        node = None if topic is None else self._catalog.leader(topic, HOME)
        if topic is None or node is None:
            raise Unavailable(f"limit {limit!r} is not paused: topic {LIMITS_TOPIC} has no leader", limit=limit)
        group = topic.record.partitions[HOME].group
        with trio.move_on_after(ANSWER_S):
            if node == self._own:
                leader = self._catalog.by_group.get(group)
                if leader is not None:
                    command = c.PauseLimit(limit, running.until_ms, by, is_longer=True)
                    running.result = await self._pause_here(leader, command)
                return
            number, answered = next(self._numbers), _Asked(running.until_ms)
            answered.node = node
            self._asked[number] = answered
            try:
                body = (number, group, limit, running.until_ms, by)
                if self._links.accepts(node) and self._links.send(node, PeerFrame.LIMIT_PAUSE_ASKED, body):
                    await answered.done.wait()
                running.result = answered.result
            finally:
                del self._asked[number]

    async def change(self, leader: PartitionLeader, command: c.PauseLimit) -> None:
        """Pause or resume a limit for an operator. This node leads the home. Raise NotFound; TimedOut if not all
        members confirm the change in time."""
        result = await self._pause_here(leader, command)
        if result is None:
            raise _silent(command.limit)
        _checked(command.limit, result)

    # -- answering side -------------------------------------------------------------------------------------------

    async def _pause_here(self, leader: PartitionLeader, command: c.PauseLimit) -> Held | None:
        """Pause or resume a limit through the log of its home, and wait until its members confirm this. Return None if
        the log does not store it in time. Raise NotFound if there is no such limit."""
        pause = None
        with trio.move_on_after(HOLD_S):
            pause = await leader.raft_group.call(command, BEHIND)
            await self.shares.until_paused(leader, command.limit)
        limits = leader.raft_group.status.limits
        ledger = None if limits is None else limits.ledgers.get(command.limit)
        if pause is None:
            return None
        if ledger is None:
            raise NotFound(f"there is no limit {command.limit!r}: it was deleted meanwhile", limit=command.limit)
        unpaused = self.shares.unpaused(leader, command.limit)
        # By the clock of the home, the end of a short pause may have passed.
        until_ms = max(pause.until_ms, command.until_ms) if command.is_longer else pause.until_ms
        return Held(until_ms, len(ledger.members) - len(unpaused), len(ledger.members))

    async def _answer(self, node: str, number: int, leader: PartitionLeader, command: c.PauseLimit) -> None:
        """Pause a limit, and reply to the node that asked. Without a reply, the client repeats the pause."""
        try:
            try:
                held = await self._pause_here(leader, command)
            except NotFound as error:
                held = Held(0, 0, 0, error.message)
            if held is not None:
                self._links.send(node, PeerFrame.LIMIT_PAUSE_TOLD, (number, *held))
        except SandqError as error:
            log.debug("the home did not pause a limit", limit=command.limit, error=error.message)
        finally:
            self._answering -= 1

    # -- frames ---------------------------------------------------------------------------------------------------

    def on_frame(self, node: str, kind: int, body: Any) -> bool:
        """Handle a frame from another node. Return True if the frame is well-formed and for this component."""
        if kind == PeerFrame.LIMIT_PAUSE_ASKED and _is_request(body):
            number, group, limit, until_ms, by = body
            leader = self._catalog.by_group.get(group)
            if leader is not None and self._answering < ANSWERS_AT_ONCE:
                self._answering += 1
                command = c.PauseLimit(limit, until_ms, by, is_longer=True)
                self._nursery.start_soon(self._answer, node, number, leader, command)
            return True
        if kind == PeerFrame.LIMIT_PAUSE_TOLD and _is_reply(body):
            number, *held = body
            asked = self._asked.get(number)
            if asked is not None and asked.node == node:  # otherwise the reply came too late
                asked.result = Held(*held)
                asked.done.set()
            return True
        return False


def _silent(limit: str) -> TimedOut:
    """Return the error for a home that did not answer."""
    return TimedOut(
        f"the leader of topic {LIMITS_TOPIC} did not answer in time: it is unknown whether the pause of limit "
        f"{limit!r} has changed; repeating the call is safe",
        limit=limit,
    )


def _checked(limit: str, result: Held) -> int:
    """Return the end of a pause. Raise TimedOut if not all members apply it, and InvalidRequest if it was refused."""
    if result.error:
        raise InvalidRequest(result.error, limit=limit)
    if result.held < result.members:
        state = pause_text(result.until_ms) if result.until_ms else "resumed"
        raise TimedOut(
            f"limit {limit!r} is {state}, but only {result.held} of {result.members} partitions of its groups have "
            "confirmed this: the others follow when their leaders answer; repeating the call is safe",
            limit=limit,
            held=result.held,
            members=result.members,
        )
    return result.until_ms
