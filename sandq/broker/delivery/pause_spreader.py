"""Make a pause by a consumer hold in all partitions of its topic.

The leader of the message's partition verifies the lease through its log. Then `PauseSpreader` pauses the same group, or
the same tenant, in all partitions: through their logs, and through the nodes that lead them (`PAUSE_ASKED` and
`PAUSE_TOLD`). Clients cannot send these frames. A pause never shortens or ends another pause, so it may be repeated.
"""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any, Final

import trio

from sandq.broker.catalog import Catalog
from sandq.broker.event_loop import TimeSlice
from sandq.broker.leader.partition_leader import PartitionLeader
from sandq.broker.peers.links import PeerLinks
from sandq.broker.peers.routes import Routes
from sandq.broker.reads.fan_out import GROUP_WORK
from sandq.broker.replication.fair_queue import BEHIND
from sandq.broker.replication.replica import PartitionReplica
from sandq.broker.replication.runner import Runner
from sandq.metadata.records import Topic
from sandq.model.errors import InvalidRequest, Overloaded, SandqError
from sandq.model.logger import get_logger
from sandq.model.names import check_name, check_tenant
from sandq.model.offsets import U48_MAX
from sandq.model.pauses import incomplete_pause
from sandq.partition import commands as c
from sandq.protocol.peer import PeerFrame

log = get_logger("sandq.broker")

ENTRY_S: Final = 2.0
"""Time in s within which the partitions that a node leads must store the pause."""
ANSWER_S: Final = 3.0
"""Time in s within which other nodes must answer. Longer than `ENTRY_S`, so that a node can report a partition that
does not store the pause."""
WAIT_S: Final = 2 * ANSWER_S
"""Time in s within which a caller gets an answer: the round in progress may have to end first."""
PENDING_MAX: Final = 1000
"""Maximum number of groups and tenants with a pending round."""
ROUNDS_AT_ONCE: Final = 16
"""Maximum number of rounds that are in progress at the same time."""
ANSWERS_AT_ONCE: Final = 64
"""Maximum number of requests of other nodes that are being answered. A further request is dropped: it is repeated by
the client."""
ENTRIES_AT_ONCE: Final = 100
"""Maximum number of partitions whose logs are written at the same time, for all rounds and requests."""
_REQUEST_FIELDS: Final = ([int, tuple, str, str, int], [int, tuple, str, type(None), int])
_REPLY_FIELDS: Final = [int, tuple, tuple, str]

_Key = tuple[int, str, str | None]
"""(number of the topic, group, tenant)."""


class _Outcome:
    """The partitions in which a pause holds, and those that refuse it, by the number of their Raft group."""

    def __init__(self) -> None:
        self.held: set[int] = set()
        self.refused: set[int] = set()
        self.reason = ""
        """Why the last of `refused` refused."""


class _Round:
    """One pause in all partitions, for all callers that asked before it began."""

    def __init__(self) -> None:
        self.topic: Topic | None = None
        self.until_ms = 0
        self.outcome = _Outcome()
        self.done = trio.Event()


class _Asked:
    """A request to another node. `groups`: the partitions about which the node was asked."""

    def __init__(self, node: str, groups: frozenset[int], outcome: _Outcome) -> None:
        self.node = node
        self.groups = groups
        self.outcome = outcome
        self.answered = trio.Event()


class PauseSpreader:
    """Pauses groups and tenants in all partitions of a topic, and answers such requests of other nodes.

    For each group or tenant, one round is in progress at a time. A caller joins the next round. So if many consumers
    pause at the same moment, they share a few rounds.
    """

    def __init__(
        self,
        own: str,
        catalog: Catalog,
        *,
        routes: Routes,
        runner: Runner,
        links: PeerLinks,
        nursery: trio.Nursery,
    ) -> None:
        """`own`: id of this node. `nursery` must outlive every connection."""
        self._own = own
        self._catalog = catalog
        self._routes = routes
        self._runner = runner
        self._links = links
        self._nursery = nursery
        self._next: dict[_Key, _Round] = {}
        """Rounds that have not begun, which callers join."""
        self._running: dict[_Key, _Round] = {}
        self._slots = trio.Semaphore(ROUNDS_AT_ONCE)
        self._entries = trio.Semaphore(ENTRIES_AT_ONCE)
        self._answering = 0
        """Number of requests of other nodes that are being answered."""
        self._numbers = count(secrets.randbits(62))  # random: replies to a previous process match no number
        self._asked: dict[int, _Asked] = {}

    # -- requesting side ------------------------------------------------------------------------------------------

    async def spread(self, topic: Topic, command: c.PauseLonger) -> None:
        """Pause a group or a tenant in all partitions of a topic, where it is not paused for longer.

        Raise InvalidRequest if partitions refuse the pause, TimedOut if the leaders of some did not answer, and
        Overloaded."""
        key = topic.number, command.group, command.tenant
        round_ = self._next.get(key)
        if round_ is None:
            if len(self._next) >= PENDING_MAX:
                raise Overloaded(
                    f"pauses of {PENDING_MAX:,} groups and tenants are pending on this node; repeat the call"
                )
            round_ = self._next[key] = _Round()
            self._nursery.start_soon(self._run, key, round_)
        round_.topic, round_.until_ms = topic, max(round_.until_ms, command.until_ms)
        with trio.move_on_after(WAIT_S):
            await round_.done.wait()
        outcome = round_.outcome
        numbers = {partition.group: number for number, partition in enumerate(topic.partitions)}
        refused = [numbers[group] for group in outcome.refused if group in numbers]
        silent = [number for group, number in numbers.items() if group not in outcome.held | outcome.refused]
        if refused or silent:
            raise incomplete_pause(len(numbers), refused=refused, silent=silent, reason=outcome.reason)

    async def _run(self, key: _Key, round_: _Round) -> None:
        """Run a round once the previous round of the same group or tenant is done."""
        running = self._running.get(key)
        if running is not None:
            await running.done.wait()
        async with self._slots:
            del self._next[key]
            self._running[key] = round_
            assert round_.topic is not None
            try:
                command = c.PauseLonger(key[1], key[2], round_.until_ms)
                await self._pause_everywhere(round_.topic, command, round_.outcome)
            finally:
                del self._running[key]
                round_.done.set()

    async def _pause_everywhere(self, topic: Topic, command: c.PauseLonger, outcome: _Outcome) -> None:
        """Pause in all partitions that have a leader: one request for each other node."""
        by_node: dict[str, list[int]] = defaultdict(list)
        for partition in topic.partitions:
            node = self._routes.leader(partition.group)
            if node is not None:
                by_node[node].append(partition.group)
        here = by_node.pop(self._own, [])
        asked: dict[int, _Asked] = {}
        with trio.move_on_after(ANSWER_S):
            try:
                for node, groups in by_node.items():
                    number = next(self._numbers)
                    self._asked[number] = asked[number] = _Asked(node, frozenset(groups), outcome)
                    body = (number, tuple(groups), command.group, command.tenant, command.until_ms)
                    if not self._links.accepts(node) or not self._links.send(node, PeerFrame.PAUSE_ASKED, body):
                        asked[number].answered.set()  # there is no link: do not wait for an answer
                await self._pause_here(here, command, outcome)
                for one in asked.values():
                    await one.answered.wait()
            finally:
                for number in asked:
                    del self._asked[number]

    # -- answering side -------------------------------------------------------------------------------------------

    async def _pause_here(self, groups: Iterable[int], command: c.PauseLonger, outcome: _Outcome) -> None:
        """Pause in those of these partitions that this node leads."""
        time_slice = TimeSlice()
        leaders = [leader for group in groups if (leader := self._catalog.by_group.get(group)) is not None]
        leaders = [leader for leader in leaders if leader.raft_group.ready]
        with trio.move_on_after(ENTRY_S):
            unpaused = await self._unpaused(leaders, command)
            outcome.held.update({leader.raft_group.number for leader in leaders} - set(unpaused))
            async with trio.open_nursery() as nursery:
                for leader in unpaused.values():
                    nursery.start_soon(self._pause_one, leader, command, outcome)
                    await time_slice.spend(GROUP_WORK)

    async def _unpaused(self, leaders: Sequence[PartitionLeader], command: c.PauseLonger) -> dict[int, PartitionLeader]:
        """Return the partitions that need an entry in their log, by Raft group."""
        unpaused = {leader.raft_group.number: leader for leader in leaders}
        if leaders:
            query = partial(_paused_of, leaders, command)
            with suppress(SandqError):  # the entries answer for themselves
                for group in await self._runner.ask(query, group=leaders[0].raft_group.number, patient=False):
                    del unpaused[group]
        return unpaused

    async def _pause_one(self, leader: PartitionLeader, command: c.PauseLonger, outcome: _Outcome) -> None:
        """Pause in one partition, through its log."""
        group = leader.raft_group.number
        async with self._entries:
            try:
                await leader.raft_group.call(command, BEHIND)
            except InvalidRequest as error:
                outcome.refused.add(group)
                outcome.reason = error.message
            except SandqError as error:
                log.debug("a partition did not store a pause", raft_group=group, error=error.message)
            else:
                outcome.held.add(group)

    async def _answer(self, node: str, number: int, groups: Sequence[int], command: c.PauseLonger) -> None:
        """Pause in these partitions, and reply to the node that asked."""
        outcome = _Outcome()
        try:
            await self._pause_here(groups, command, outcome)
            body = (number, tuple(outcome.held), tuple(outcome.refused), outcome.reason)
            with suppress(SandqError):  # without a reply, the client repeats the pause
                self._links.send(node, PeerFrame.PAUSE_TOLD, body)
        finally:
            self._answering -= 1

    # -- frames ---------------------------------------------------------------------------------------------------

    def on_frame(self, node: str, kind: int, body: Any) -> bool:
        """Handle a frame from another node. Return True if the frame is well-formed and for this component."""
        if not isinstance(body, tuple):
            return False
        fields = [type(part) for part in body]
        if kind == PeerFrame.PAUSE_ASKED and fields in _REQUEST_FIELDS and _are_ints(body[1]):
            number, groups, *pause = body
            command = c.PauseLonger(*pause)
            if not _is_valid(command):
                return False
            if self._answering < ANSWERS_AT_ONCE:
                self._answering += 1
                self._nursery.start_soon(self._answer, node, number, groups, command)
            return True
        if kind == PeerFrame.PAUSE_TOLD and fields == _REPLY_FIELDS and _are_ints(body[1]) and _are_ints(body[2]):
            number, held, refused, reason = body
            asked = self._asked.get(number)
            if asked is not None and asked.node == node:  # otherwise the reply came too late
                asked.outcome.held.update(asked.groups.intersection(held))
                asked.outcome.refused.update(asked.groups.intersection(refused))
                asked.outcome.reason = reason or asked.outcome.reason
                asked.answered.set()
            return True
        return False


def _paused_of(leaders: Sequence[PartitionLeader], command: c.PauseLonger) -> list[int]:
    """Return the Raft groups of the partitions in which the pause holds already. Runs on the apply thread.

    A leader that was replaced a moment ago may miss that an operator has just resumed the group. Then it counts as
    resumed after the pause."""
    found = []
    for leader in leaders:
        replica = leader.raft_group.replica
        assert isinstance(replica, PartitionReplica)
        if not replica.is_mid_entry and replica.is_paused_until(command.group, command.tenant, command.until_ms):
            found.append(leader.raft_group.number)
    return found


def _is_valid(command: c.PauseLonger) -> bool:
    """Return whether another node may ask for this pause."""
    try:
        check_name("group", command.group)
        if command.tenant is not None:
            check_tenant(command.tenant)
    except InvalidRequest:
        return False
    return 0 <= command.until_ms < U48_MAX  # U48_MAX would pause until it is resumed


def _are_ints(parts: Sequence[Any]) -> bool:
    return all(type(part) is int for part in parts)
