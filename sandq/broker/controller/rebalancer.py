"""Move the groups that this node leads to their assignments, step by step (`rebalance_steps.py`).

Each step changes one learner, voter or leader. The next step depends only on the committed configuration, so a new
leader can continue a move. When a group has reached its assignment, its leader reports this to the metadata leader
(`Settle`). Then nodes that the assignment does not name delete their replicas.

A new leader of a group may know an older state of the metadata than its predecessor. Then it would move the group back
to an older assignment. So before its first step in each term, the leader catches up with the metadata leader
(`MetadataBarrier`). Later in the term, this problem cannot occur, because no other node moves the group.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import trio

from sandq.broker.catalog import Catalog
from sandq.broker.controller.rebalance_steps import is_complete, next_step, report_of
from sandq.broker.controller.reports import Reports
from sandq.broker.health.node_health import NodeHealth
from sandq.broker.health.shut_replicas import ShutReplicas
from sandq.broker.peers.links import PeerLinks
from sandq.broker.peers.metadata_barrier import ANSWER_S
from sandq.broker.replication.leadership_transfer import RETRY_S, hand_over
from sandq.broker.replication.node_log import NodeLog
from sandq.broker.replication.raft_group import RaftGroup
from sandq.metadata.planning import too_many_failed
from sandq.metadata.records import Partition
from sandq.model.errors import SandqError
from sandq.model.logger import get_logger
from sandq.model.members import node_of
from sandq.raft import Members

T = TypeVar("T")

log = get_logger("sandq.moving")

CHECK_S: Final = 0.2
"""Seconds between two checks for work."""
MOVES_AT_ONCE: Final = 8
"""Maximum number of groups led by this node that get a new replica at the same time."""
LEADERS_AT_ONCE: Final = 4
"""Maximum number of groups that are handed over at the same time."""
LED_S: Final = 5.0
"""Time in s that a group stays with a new leader before it is handed to its preferred leader.

Without this time, a group could return to a node that has just handed it over in order to stop. The preferred node must
also have been reachable for this time. A node that has just started may lack links with some members, and would not be
elected."""
HAND_OVER_S: Final = 1.0
"""Maximum time in s to wait for a hand-over."""
SLICE_GROUPS: Final = 128
"""Number of groups that are checked in one time slice."""


@dataclass(slots=True)
class _Led:
    """The state of a group while this node leads it."""

    host: RaftGroup
    wanted: Partition
    since_s: float
    """Time on trio's clock, in s, at which a check first found that this node leads the group."""
    preferred: str
    """The member that the assignment prefers as leader at `since_s`."""
    fresh_in: int | None = None
    """Term for which this node's metadata is certainly recent enough for the group."""
    busy: bool = False
    """True while a step or a report is in progress."""
    transferring: bool = False
    """True while the leadership of the group is being transferred."""
    not_before_s: float = 0.0
    """Time on trio's clock before which no transfer is attempted; set after a failed transfer."""

    @property
    def is_fresh(self) -> bool:
        """True if the metadata is certainly recent enough in this term."""
        return self.fresh_in == self.host.group.term

    @property
    def differs(self) -> bool:
        """True if the group differs from its assignment, or if the end of its move is not recorded yet."""
        return self.wanted.moving or not is_complete(self.wanted, self.host.members)


class Rebalancer:
    """Changes members and leaders of the groups that this node leads."""

    def __init__(
        self,
        node_log: NodeLog,
        catalog: Catalog,
        *,
        links: PeerLinks,
        health: NodeHealth,
        shut_replicas: ShutReplicas,
        reports: Reports,
    ) -> None:
        self._links = links
        self._health = health
        self._shut_replicas = shut_replicas
        self._reports = reports
        self._node_log = node_log
        self._catalog = catalog
        self._led: dict[int, _Led] = {}
        self._up_since: dict[str, float] = {}
        """By reachable node: time in s since which the node is reachable."""
        self._asking = False
        self._transferring = 0
        """Number of groups that are being handed over."""

    async def run(self) -> None:
        """Run until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                await trio.sleep(CHECK_S)
                await self._check(nursery)

    async def _check(self, nursery: trio.Nursery) -> None:
        """Check all groups that this node leads, and start the next step of each."""
        now_s = trio.current_time()
        self._up_since = {node: self._up_since.get(node, now_s) for node in self._links.reachable()}
        self._led = await self._led_now(now_s)
        differing = [led async for led in _yielding(self._led.values()) if led.differs]
        if self._node_log.failed is not None:
            return
        # While too many nodes have failed, start no new replica and move no leader.
        halted = too_many_failed(self._catalog.view.nodes)
        if not self._asking and not all(led.is_fresh for led in differing):
            self._asking = True
            nursery.start_soon(self._ask, differing)
        await self._move([led for led in differing if led.is_fresh], 0 if halted else MOVES_AT_ONCE, nursery)
        if not halted:
            await self._balance(now_s, nursery)

    async def _led_now(self, now_s: float) -> dict[int, _Led]:
        """Return the groups that this node leads now. Keep the state of groups that this node led at the last check."""
        found = {}
        async for number in _yielding(self._catalog.led_here):
            host, wanted = self._node_log.hosts.get(number), self._catalog.view.partition(number)
            if host is None or wanted is None or not (host.works or host.is_shut_leader):
                continue
            led = self._led.get(number)
            if led is None or led.host is not host:
                led = _Led(host, wanted, now_s, wanted.members[0])
            led.wanted = wanted
            found[number] = led
        return found

    async def _ask(self, differing: Sequence[_Led]) -> None:
        """Bring the metadata here up to date, so that it is at least as recent as the metadata of these groups'
        previous leaders."""
        # Read the terms before waiting. If a group gets a new term meanwhile, ask for this group again.
        terms = [(led, led.host.group.term) for led in differing]
        try:
            with trio.move_on_after(ANSWER_S) as within:
                await self._catalog.catch_up()
                for led, term in terms:
                    led.fresh_in = term
            if within.cancelled_caught:
                log.info("no replica is moved now: the metadata leader has not answered; trying again")
        except SandqError as error:
            log.info("no replica is moved now; trying again", error=error.message)
        finally:
            self._asking = False

    # -- members --------------------------------------------------------------------------------------------------

    async def _move(self, differing: Sequence[_Led], most: int, nursery: trio.Nursery) -> None:
        """Do the next step of the move in each group that is ready for it.

        If at least `most` groups have reachable learners, start no new replica in another group. Unreachable learners
        are not counted, because they may stay for long."""
        up = self._links.reachable()
        learning = sum(any(node_of(learner) in up for learner in led.host.members.learners) for led in differing)
        async for led in _yielding(differing):
            acts = led.host.works or led.host.is_shut_leader
            if led.busy or not acts or not led.is_fresh or led.host.group.is_changing:
                continue
            if report_of(led.wanted, led.host.members) is not None:
                led.busy = True
                nursery.start_soon(self._report, led)
                continue
            step = self._step(led, up)
            if isinstance(step, str):
                self._hand_over(led, step, nursery)
            elif step is not None and (learning < most or not _begins(led.host.members, step)):
                learning += _begins(led.host.members, step)
                led.busy = True
                nursery.start_soon(self._change, led, step)

    def _step(self, led: _Led, up: Collection[str]) -> Members | str | None:
        """Return the next step of a group, as `next_step` does."""
        group, members, wanted = led.host.group, led.host.members, led.wanted
        caught_up = [learner for learner in members.learners if group.has_caught_up(learner)]
        able = [
            node_of(member)
            for member in wanted.members
            if node_of(member) in up and self._may_lead(led, node_of(member)) and group.has_caught_up(member)
        ]
        return next_step(wanted.members, members, group.member, caught_up, up, able)

    async def _change(self, led: _Led, step: Members) -> None:
        """Change the members of a group, and log the outcome."""
        host = led.host
        before = host.members
        try:
            await host.change_members(step)
            log.info("members changed", group=host.number, **_difference(before, step))
        except SandqError as error:
            log.info("the members were not changed; trying again", group=host.number, error=error.message)
        finally:
            led.busy = False

    async def _report(self, led: _Led) -> None:
        """Confirm that this node still leads a group, and report the group's configuration.

        Without the confirmation, a deposed leader could report an outdated configuration."""
        host, wanted = led.host, led.wanted
        try:
            await host.confirm_leadership()
            whole = report_of(wanted, host.members)
            if whole is not None and not host.group.is_changing:
                self._reports.report_settled([(host.number, wanted.epoch, whole)])
        except SandqError as error:
            log.info("the move of a partition cannot be reported yet", group=host.number, error=error.message)
        finally:
            led.busy = False

    # -- leaders --------------------------------------------------------------------------------------------------

    async def _balance(self, now_s: float, nursery: trio.Nursery) -> None:
        """Hand groups to the nodes that should lead them."""
        up = {node for node, since_s in self._up_since.items() if now_s - since_s >= LED_S}
        async for led in _yielding(self._led.values()):
            first = led.wanted.members[0]
            if first == led.host.group.member or led.busy or led.wanted.moving or not led.host.works:
                continue
            if first == led.preferred and now_s - led.since_s < LED_S:
                continue  # wait for `LED_S`, unless the assignment was changed to another leader since `since_s`
            if first in led.host.members.voters and node_of(first) in up:
                self._hand_over(led, first, nursery)

    def _may_lead(self, led: _Led, node: str) -> bool:
        """Return whether a node may lead a group. A node whose replica is shut must not lead, because it would hand the
        leadership over again."""
        return self._health.may_lead(node) and not self._shut_replicas.is_shut(led.host.number, node)

    def _hand_over(self, led: _Led, member: str, nursery: trio.Nursery) -> None:
        """Start to transfer a group to a member. Do nothing if too many transfers are in progress, or if the member
        must not lead now."""
        node = node_of(member)
        if led.transferring or self._transferring >= LEADERS_AT_ONCE or trio.current_time() < led.not_before_s:
            return
        if self._may_lead(led, node) and led.host.group.has_caught_up(member):
            led.transferring = True
            self._transferring += 1
            nursery.start_soon(self._transfer, led, node)

    async def _transfer(self, led: _Led, node: str) -> None:
        """Transfer a group to a node. After a failure, pause further attempts."""
        # `hand_over` returns the groups that this node still leads: none after a success.
        if await hand_over(lambda: [led.host], {node}, HAND_OVER_S):
            log.info("a node that should lead has not taken over", group=led.host.number, to=node)
            led.not_before_s = trio.current_time() + RETRY_S
        led.transferring = False
        self._transferring -= 1


async def _yielding(items: Collection[T]) -> AsyncIterator[T]:
    """Yield the items, and let other tasks run once per `SLICE_GROUPS` items."""
    for at, item in enumerate(list(items)):
        if at % SLICE_GROUPS == SLICE_GROUPS - 1:
            await trio.lowlevel.checkpoint()
        yield item


def _begins(members: Members, step: Members) -> bool:
    """Return whether the step adds a learner."""
    return len(step.learners) > len(members.learners)


def _difference(before: Members, after: Members) -> dict[str, list[str]]:
    """Return the new voters, the new learners and the members that have left, for the log."""
    named = {"voter": set(after.voters) - set(before.voters), "learner": set(after.learners) - set(before.learners)}
    named["gone"] = {*before.voters, *before.learners} - {*after.voters, *after.learners}
    return {what: sorted(members) for what, members in named.items() if members}
