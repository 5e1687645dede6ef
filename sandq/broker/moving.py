"""Groups led here, brought step by step to what metadata wants of them: one learner, voter or leader at a time.

    a learner that is not wanted goes
    who is wanted and not there comes, as a learner; gets the log, or a snapshot; and votes once it has all of it
    only then who is not wanted goes, those first that cannot be reached; the leader last: it hands over before

The committed configuration is what counts, so whoever leads next goes on from there. When it is what is wanted,
metadata is told (`Settle`), and nodes that are not named any more forget what they hold.

A leader may know less of metadata than the one before it: it would go back to an older assignment. So before its first
step it asks how far metadata is (`Latest`), once in each term. What comes later than that only it can act upon.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final

import structlog
import trio

from sandq.metadata.planning import too_many_failed
from sandq.metadata.records import Partition
from sandq.model.errors import SandqError, Unavailable
from sandq.model.members import has_majority, node_of
from sandq.raft import Members

from .catalog import Catalog
from .engine import Engine
from .handover import hand_over
from .host import GroupHost
from .latest import ANSWER_S
from .replica import MetadataView

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
AGAIN_S: Final = 10.0
"""After a hand-over that did not come about."""

Report = tuple[int, int, bool]
"""(group, epoch, whole): of the committed configuration of a group led here, see `metadata.commands.Settle`."""
Settled = Callable[[list[Report]], None]
"""Told again, until metadata knows."""


def next_step(
    wanted: Sequence[str],
    members: Members,
    own: str,
    caught_up: Collection[str],
    up: Collection[str],
    able: Collection[str],
) -> Members | str | None:
    """The next configuration of a group that `own` leads; or the member that is to lead it instead; or None, when
    nothing can be done now, or need not. `up`: nodes that can be reached; `able`: those that may lead."""
    voters, learners = members
    extra = [learner for learner in learners if learner not in wanted]
    if extra:
        return Members(voters, tuple([learner for learner in learners if learner != extra[0]]))
    # Who cannot be reached gets no vote, and nobody goes whose vote is needed then: it might leave no majority.
    ready = [learner for learner in learners if learner in caught_up and node_of(learner) in up]
    if ready:
        return Members((*voters, ready[0]), tuple([learner for learner in learners if learner != ready[0]]))
    new = [member for member in wanted if member not in voters and member not in learners and node_of(member) in up]
    if new:
        return Members(voters, (*learners, new[0]))
    if not set(wanted) <= set(voters):
        return None
    going = sorted([v for v in voters if v not in wanted and v != own], key=lambda voter: node_of(voter) in up)
    if going:
        rest = tuple([voter for voter in voters if voter != going[0]])
        return Members(rest, learners) if has_majority(rest, up) else None
    if own not in wanted:
        return next((member for member in wanted if node_of(member) in able), None)
    return None


def is_settled(wanted: Sequence[str], members: Members) -> bool:
    """All whom it wants vote, and nobody else takes part."""
    return not members.learners and sorted(members.voters) == sorted(wanted)


def is_rid(wanted: Sequence[str], members: Members) -> bool:
    """Nobody takes part whom it does not want."""
    return {*members.voters, *members.learners} <= set(wanted)


class Mover:
    def __init__(self, engine: Engine, catalog: Catalog, up: Callable[[], Collection[str]], settled: Settled) -> None:
        """`up`: the nodes that can be reached, this one included."""
        self.may_lead: Callable[[str], bool] = lambda node: True
        """Whether leadership may be given to a node."""
        self._engine = engine
        self._catalog = catalog
        self._up = up
        self._settled = settled
        self._asked: dict[int, int] = {}
        """Group -> the term in which metadata was asked."""
        self._up_since: dict[str, float] = {}
        """Of the nodes that can be reached."""
        self._tenures: dict[int, tuple[float, str]] = {}
        """Of groups led here: since when, and who was to lead it then."""
        self._busy: set[int] = set()
        """Groups of which a step is being made."""
        self._leaving: set[int] = set()
        """Groups that are being handed over."""
        self._not_before: dict[int, float] = {}
        """When a hand-over that did not come about is tried again."""

    async def run(self) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                await trio.sleep(LOOK_S)
                try:
                    await self._look(nursery)
                except SandqError as error:
                    log.info("nothing is moved now; it is tried again", error=error.message)

    async def _look(self, nursery: trio.Nursery) -> None:
        led = self._led()
        now_s = trio.current_time()
        self._up_since = {node: self._up_since.get(node, now_s) for node in self._up()}
        self._tenures = {
            host.number: self._tenures.get(host.number, (now_s, wanted.members[0])) for host, wanted in led
        }
        for known in (self._asked, self._not_before):
            for number in known.keys() - self._tenures.keys():
                del known[number]
        if self._engine.failed is not None:
            return
        halted = too_many_failed(self._view.nodes)
        odd = [(host, wanted) for host, wanted in led if wanted.moving or not is_settled(wanted.members, host.members)]
        if odd:
            await self._ask(odd)
            self._move(odd, 0 if halted else MOVES_AT_ONCE, nursery)
        if not halted:
            self._balance(led, now_s, nursery)

    @property
    def _view(self) -> MetadataView:
        return self._catalog.view

    def _led(self) -> list[tuple[GroupHost, Partition]]:
        """Of groups that this node is ready to answer for."""
        view, found = self._view, []
        for number in self._catalog.led_here:
            host, wanted = self._engine.hosts.get(number), view.partition(number)
            if host is not None and wanted is not None and host.works:
                found.append((host, wanted))
        return found

    # -- members --------------------------------------------------------------------------------------------------

    async def _ask(self, led: Sequence[tuple[GroupHost, Partition]]) -> None:
        """Know at least as much of metadata as those that led these groups before. Raises Unavailable."""
        terms = {host.number: host.group.term for host, _ in led if self._asked.get(host.number) != host.group.term}
        if not terms:
            return
        with trio.move_on_after(ANSWER_S):
            await self._catalog.until_followed(await self._catalog.latest.index())
            self._asked.update(terms)
            return
        raise Unavailable("who leads the metadata has not answered")

    def _move(self, odd: Sequence[tuple[GroupHost, Partition]], most: int, nursery: trio.Nursery) -> None:
        """A step of each, where one can be made; not more than `most` of them have learners when another one comes."""
        view = self._view
        learning = sum(bool(host.members.learners) for host, _ in odd)
        for host, _ in odd:
            wanted = view.partition(host.number)
            fresh = self._asked.get(host.number) == host.group.term and host.works
            if wanted is None or not fresh or host.number in self._busy or host.group.is_changing:
                continue
            if _has_news(wanted, host.members):
                self._busy.add(host.number)
                nursery.start_soon(self._report, host, wanted)
                continue
            step = self._step(host, wanted)
            if isinstance(step, str):
                self._hand_over(host, step, nursery)
            elif step is not None and (learning < most or not _begins(host.members, step)):
                learning += _begins(host.members, step)
                self._busy.add(host.number)
                nursery.start_soon(self._change, host, step)

    def _step(self, host: GroupHost, wanted: Partition) -> Members | str | None:
        group, members = host.group, host.members
        caught_up = [learner for learner in members.learners if group.has_caught_up(learner)]
        up = self._up()
        able = [node for node in wanted.nodes if node in up and self.may_lead(node)]
        return next_step(wanted.members, members, group.member, caught_up, up, able)

    async def _change(self, host: GroupHost, step: Members) -> None:
        before = host.members
        try:
            await host.change_members(step)
            log.info("members changed", group=host.number, **_difference(before, step))
        except SandqError as error:
            log.info("the members were not changed; it is tried again", group=host.number, error=error.message)
        finally:
            self._busy.discard(host.number)

    async def _report(self, host: GroupHost, wanted: Partition) -> None:
        """Once it is certain that this node leads still: the group of one that was deposed, and does not know it yet,
        may be another by now."""
        try:
            await host.read()
            if _has_news(wanted, host.members) and not host.group.is_changing:
                self._settled([(host.number, wanted.epoch, is_settled(wanted.members, host.members))])
        except SandqError as error:
            log.info("it is not reported yet that a partition has moved", group=host.number, error=error.message)
        finally:
            self._busy.discard(host.number)

    # -- leaders --------------------------------------------------------------------------------------------------

    def _balance(self, led: Sequence[tuple[GroupHost, Partition]], now_s: float, nursery: trio.Nursery) -> None:
        """Let those lead that are to."""
        up = {node for node, since_s in self._up_since.items() if now_s - since_s >= LED_S}
        for host, wanted in led:
            first, (since_s, first_then) = wanted.members[0], self._tenures[host.number]
            if first == host.group.member or host.number in self._busy:
                continue
            if first == first_then and now_s - since_s < LED_S:
                continue  # but whoever was named just now leads at once
            if first in host.members.voters and node_of(first) in up and not wanted.moving:
                self._hand_over(host, first, nursery)

    def _hand_over(self, host: GroupHost, member: str, nursery: trio.Nursery) -> None:
        node, group = node_of(member), host.group
        if host.number in self._leaving or len(self._leaving) >= LEADERS_AT_ONCE or not self.may_lead(node):
            return
        if trio.current_time() < self._not_before.get(host.number, 0.0):
            return
        if group.has_caught_up(member):
            self._leaving.add(host.number)
            nursery.start_soon(self._give, host, node)

    async def _give(self, host: GroupHost, node: str) -> None:
        if await hand_over(lambda: [host], {node}, HAND_OVER_S):
            log.info("another node was to lead, and has not taken over", group=host.number, to=node)
            self._not_before[host.number] = trio.current_time() + AGAIN_S
        self._leaving.discard(host.number)


def _has_news(wanted: Partition, members: Members) -> bool:
    """Whether metadata is to be told what a group has become."""
    if is_settled(wanted.members, members):
        return wanted.moving
    return bool(wanted.former) and is_rid(wanted.members, members)


def _begins(members: Members, step: Members) -> bool:
    """Whether a learner comes."""
    return len(step.learners) > len(members.learners)


def _difference(before: Members, after: Members) -> dict[str, list[str]]:
    named = {"voter": set(after.voters) - set(before.voters), "learner": set(after.learners) - set(before.learners)}
    named["gone"] = {*before.voters, *before.learners} - {*after.voters, *after.learners}
    return {what: sorted(members) for what, members in named.items() if members}
