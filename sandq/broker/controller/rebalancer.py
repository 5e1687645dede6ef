"""Bring the groups led here to their assignments step by step (`rebalance_steps.py`): one learner, voter or leader at a
time.

The committed configuration is what counts, so whoever leads next goes on from there. When it is what is wanted,
metadata is told (`Settle`), and nodes that are not named any more forget what they hold.

A leader may know less of metadata than the one before it: it would go back to an older assignment. So before its first
step it asks how far metadata is (`MetadataBarrier`), once in each term. What comes later than that only it can act
upon.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import structlog
import trio

from sandq.broker.catalog import Catalog
from sandq.broker.controller.rebalance_steps import is_whole, news, next_step
from sandq.broker.controller.reports import Reports
from sandq.broker.health.node_health import NodeHealth
from sandq.broker.health.shut_replicas import ShutReplicas
from sandq.broker.peers.links import PeerLinks
from sandq.broker.peers.metadata_barrier import ANSWER_S
from sandq.broker.replication.leadership_transfer import AGAIN_S, hand_over
from sandq.broker.replication.node_log import NodeLog
from sandq.broker.replication.raft_group import RaftGroup
from sandq.metadata.planning import too_many_failed
from sandq.metadata.records import Partition
from sandq.model.errors import SandqError
from sandq.model.members import node_of
from sandq.raft import Members

T = TypeVar("T")

log = structlog.get_logger("sandq.moving")

LOOK_S: Final = 0.2
"""How often it is looked what is to be done."""
MOVES_AT_ONCE: Final = 8
"""Groups led here that get another replica at once."""
LEADERS_AT_ONCE: Final = 4
LED_S: Final = 5.0
"""So long a group stays where it is led before it is given to the one that is to lead it: who stops is still linked.
And so long that one is there: who has just come has not all its links, and may not be elected."""
HAND_OVER_S: Final = 1.0
LOOK_GROUPS: Final = 128
"""Groups that are looked at in one turn of the loop."""


@dataclass(slots=True)
class _Led:
    """A group that this node leads, and is ready to answer for; forgotten when it is not any more."""

    host: RaftGroup
    wanted: Partition
    since_s: float
    first_then: str
    """Who was to lead it since then."""
    fresh_in: int | None = None
    """The term in which metadata is known to be new enough for it."""
    busy: bool = False
    """A step is being made, or reported."""
    leaving: bool = False
    """It is being handed over."""
    not_before_s: float = 0.0
    """When it is handed over at the earliest: the last time it did not come about."""

    @property
    def is_fresh(self) -> bool:
        return self.fresh_in == self.host.group.term

    @property
    def is_odd(self) -> bool:
        return self.wanted.moving or not is_whole(self.wanted, self.host.members)


class Rebalancer:
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
        """Of the nodes that can be reached."""
        self._asking = False
        self._leaving = 0
        """How many groups are being handed over."""

    async def run(self) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                await trio.sleep(LOOK_S)
                await self._look(nursery)

    async def _look(self, nursery: trio.Nursery) -> None:
        now_s = trio.current_time()
        self._up_since = {node: self._up_since.get(node, now_s) for node in self._links.reachable()}
        self._led = await self._led_now(now_s)
        odd = [led async for led in _in_turns(self._led.values()) if led.is_odd]
        if self._node_log.failed is not None:
            return
        halted = too_many_failed(self._catalog.view.nodes)
        if not self._asking and not all(led.is_fresh for led in odd):
            self._asking = True
            nursery.start_soon(self._ask, odd)
        await self._move([led for led in odd if led.is_fresh], 0 if halted else MOVES_AT_ONCE, nursery)
        if not halted:
            await self._balance(now_s, nursery)

    async def _led_now(self, now_s: float) -> dict[int, _Led]:
        found = {}
        async for number in _in_turns(self._catalog.led_here):
            host, wanted = self._node_log.hosts.get(number), self._catalog.view.partition(number)
            if host is None or wanted is None or not (host.works or host.is_shut_leader):
                continue
            led = self._led.get(number)
            if led is None or led.host is not host:
                led = _Led(host, wanted, now_s, wanted.members[0])
            led.wanted = wanted
            found[number] = led
        return found

    async def _ask(self, odd: Sequence[_Led]) -> None:
        """Know at least as much of metadata as those that led these groups before."""
        terms = [(led, led.host.group.term) for led in odd]
        try:
            with trio.move_on_after(ANSWER_S) as within:
                await self._catalog.catch_up()
                for led, term in terms:
                    led.fresh_in = term
            if within.cancelled_caught:
                log.info("nothing is moved now, and it is tried again: who leads the metadata has not answered")
        except SandqError as error:
            log.info("nothing is moved now; it is tried again", error=error.message)
        finally:
            self._asking = False

    # -- members --------------------------------------------------------------------------------------------------

    async def _move(self, odd: Sequence[_Led], most: int, nursery: trio.Nursery) -> None:
        """A step of each, where one can be made; not more than `most` of them have learners when another one comes:
        those that cannot be reached are not counted, they may stay for long."""
        up = self._links.reachable()
        learning = sum(any(node_of(learner) in up for learner in led.host.members.learners) for led in odd)
        async for led in _in_turns(odd):
            acts = led.host.works or led.host.is_shut_leader
            if led.busy or not acts or not led.is_fresh or led.host.group.is_changing:
                continue
            if news(led.wanted, led.host.members) is not None:
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
        group, members, wanted = led.host.group, led.host.members, led.wanted
        caught_up = [learner for learner in members.learners if group.has_caught_up(learner)]
        able = [
            node_of(member)
            for member in wanted.members
            if node_of(member) in up and self._takes(led, node_of(member)) and group.has_caught_up(member)
        ]
        return next_step(wanted.members, members, group.member, caught_up, up, able)

    async def _change(self, led: _Led, step: Members) -> None:
        host = led.host
        before = host.members
        try:
            await host.change_members(step)
            log.info("members changed", group=host.number, **_difference(before, step))
        except SandqError as error:
            log.info("the members were not changed; it is tried again", group=host.number, error=error.message)
        finally:
            led.busy = False

    async def _report(self, led: _Led) -> None:
        """Once it is certain that this node leads still: the group of one that was deposed, and does not know it yet,
        may be another by now."""
        host, wanted = led.host, led.wanted
        try:
            await host.confirm_leadership()
            whole = news(wanted, host.members)
            if whole is not None and not host.group.is_changing:
                self._reports.tell_settled([(host.number, wanted.epoch, whole)])
        except SandqError as error:
            log.info("it is not reported yet that a partition has moved", group=host.number, error=error.message)
        finally:
            led.busy = False

    # -- leaders --------------------------------------------------------------------------------------------------

    async def _balance(self, now_s: float, nursery: trio.Nursery) -> None:
        """Let those lead that are to."""
        up = {node for node, since_s in self._up_since.items() if now_s - since_s >= LED_S}
        async for led in _in_turns(self._led.values()):
            first = led.wanted.members[0]
            if first == led.host.group.member or led.busy or led.wanted.moving or not led.host.works:
                continue
            if first == led.first_then and now_s - led.since_s < LED_S:
                continue  # but whoever was named just now leads at once
            if first in led.host.members.voters and node_of(first) in up:
                self._hand_over(led, first, nursery)

    def _takes(self, led: _Led, node: str) -> bool:
        """Return whether a node may lead a group. A node whose replica is shut would hand it over again."""
        return self._health.may_lead(node) and not self._shut_replicas.is_shut(led.host.number, node)

    def _hand_over(self, led: _Led, member: str, nursery: trio.Nursery) -> None:
        node = node_of(member)
        if led.leaving or self._leaving >= LEADERS_AT_ONCE or trio.current_time() < led.not_before_s:
            return
        if self._takes(led, node) and led.host.group.has_caught_up(member):
            led.leaving = True
            self._leaving += 1
            nursery.start_soon(self._give, led, node)

    async def _give(self, led: _Led, node: str) -> None:
        if await hand_over(lambda: [led.host], {node}, HAND_OVER_S):
            log.info("another node was to lead, and has not taken over", group=led.host.number, to=node)
            led.not_before_s = trio.current_time() + AGAIN_S
        led.leaving = False
        self._leaving -= 1


async def _in_turns(items: Collection[T]) -> AsyncIterator[T]:
    """These, with a turn for everybody else now and then."""
    for at, item in enumerate(list(items)):
        if at % LOOK_GROUPS == LOOK_GROUPS - 1:
            await trio.lowlevel.checkpoint()
        yield item


def _begins(members: Members, step: Members) -> bool:
    """Whether a learner comes."""
    return len(step.learners) > len(members.learners)


def _difference(before: Members, after: Members) -> dict[str, list[str]]:
    named = {"voter": set(after.voters) - set(before.voters), "learner": set(after.learners) - set(before.learners)}
    named["gone"] = {*before.voters, *before.learners} - {*after.voters, *after.learners}
    return {what: sorted(members) for what, members in named.items() if members}
