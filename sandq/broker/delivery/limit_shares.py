"""Move shares of group limits between the partitions of a topic, even if these partitions have different leaders.

The leader of partition 0 decides, and records its decisions in a ledger (`LimitHome`). The leaders of the other
partitions report when messages wait for the limits. These leaders receive shares, and apply the shares to their
partitions. The frames are `LIMITS_ASKED` and `LIMITS_TOLD`. If a topic has no limits, or only one partition and limits
of its own, this module does nothing for it.

The leader of the topic `sandq.limits` does the same for named limits. Their members are groups in partitions of all
topics, so the frames name partitions by their Raft groups.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final
from weakref import WeakKeyDictionary

from sandq.broker.catalog import Catalog, OpenTopic
from sandq.broker.clock.guarded_clock import GuardedClock
from sandq.broker.clock.timers import Timers
from sandq.broker.delivery.limit_home import ASK_MS, LEFT, LimitHome, Offer, Report, left, newer, report_of
from sandq.broker.event_loop import Signal
from sandq.broker.leader.partition_leader import PartitionLeader
from sandq.broker.peers.links import PeerLinks
from sandq.broker.replication.fair_queue import BEHIND
from sandq.model.errors import SandqError
from sandq.model.group_limits import limit_used
from sandq.model.limits import FIXED
from sandq.model.names import LIMITS_TOPIC
from sandq.partition import commands as c
from sandq.partition.groups.group_limits import HOME
from sandq.partition.limits.ledger import LedgerStatus, Member
from sandq.protocol.peer import PeerFrame

JOINING_MOST: Final = FIXED.limit_members
"""Maximum number of members of a limit that wait for their first entry in its ledger."""


class _Known:
    """The state kept for one partition that this node leads. A new, empty state may replace it at any time."""

    def __init__(self) -> None:
        self.homes: dict[str, LimitHome] = {}
        """In the home partition: the `LimitHome` of each group."""
        self.busy: set[str] = set()
        """Groups whose ledger is being changed."""
        self.joining: dict[str, dict[Member, Report]] = {}
        """In the home of named limits: last reports of members that the ledger of a limit does not have yet."""
        self.reported: dict[str, tuple[Report, int]] = {}
        """In the other partitions: last report of each group, and its time in ms."""
        self.is_due = False
        """True if the partition is checked in the next iteration of the loop."""
        self.reported_news = Signal()
        """In the home of named limits: set when a member has reported."""
        self.recheck_ms: int | None = None
        """Time in ms of the check that `_check_later` has scheduled."""


class LimitShares:
    """Exchange reports and shares with the leaders of other partitions."""

    def __init__(self, own: str, catalog: Catalog, links: PeerLinks, clock: GuardedClock, timers: Timers) -> None:
        """`own`: id of this node."""
        self._own = own
        self._catalog = catalog
        self._links = links
        self._clock = clock
        self._timers = timers
        self._known: WeakKeyDictionary[PartitionLeader, _Known] = WeakKeyDictionary()

    def on_change(self, leader: PartitionLeader) -> None:
        """Check a partition with limits soon, because its state has changed or a consumer waits for the limits.

        This node leads the partition."""
        known = self._known.get(leader)
        if known is None:
            known = self._known[leader] = _Known()
        if not known.is_due:
            known.is_due = True
            self._timers.at(self._clock.now_ms(), partial(self._check, leader, known))

    def _check_later(self, leader: PartitionLeader, known: _Known) -> None:
        """Check the partition again after `ASK_MS`, even if nothing happens."""
        at_ms = self._clock.now_ms() + ASK_MS
        if known.recheck_ms is None or not self._clock.now_ms() < known.recheck_ms <= at_ms:
            known.recheck_ms = at_ms
            self._timers.at(at_ms, partial(self.on_change, leader))

    def _check(self, leader: PartitionLeader, known: _Known) -> None:
        """Decide for the home partition, or report the state of any other partition."""
        known.is_due = False
        topic = self._topic_of(leader)
        limits = leader.raft_group.status.limits
        if topic is None or limits is None:
            return
        if leader.partition == HOME and (len(topic.record.partitions) > 1 or topic.record.name == LIMITS_TOPIC):
            self._decide(topic, leader, known)
        named = [name for name, one in limits.allowances.items() if leader.partition != HOME or one.name is not None]
        if named:
            self._report(topic, leader, known, named, is_asked=False)

    def _topic_of(self, leader: PartitionLeader) -> OpenTopic | None:
        """Return the topic of a partition; None if this node does not lead the partition."""
        if leader.closed or not leader.raft_group.ready:
            return None
        name, partition = self._catalog.view.partition_of_group.get(leader.raft_group.number, ("", -1))
        topic = self._catalog.topics.get(name)
        return topic if topic is not None and topic.partitions.get(partition) is leader else None

    # -- the home partition ---------------------------------------------------------------------------------------

    def _decide(self, topic: OpenTopic, leader: PartitionLeader, known: _Known) -> None:
        """If necessary, change the ledgers of the home partition, and ask other partitions for their state."""
        status, now_ms = leader.raft_group.status, self._clock.now_ms()
        asks: dict[int, list[Offer]] = defaultdict(list)
        needs_recheck = False
        for name, ledger in status.limits.ledgers.items():
            home = known.homes.get(name)
            if home is None:
                home = known.homes[name] = LimitHome()
            own = report_of(status, name, leader.is_hungry(name), now_ms)
            if own is None:
                continue
            joined, gone, leaving = self._changed_members(known, name, home, ledger)
            if name not in known.busy:
                command = home.decide(name, ledger, own, now_ms)
                if joined or gone:
                    command = command or c.ShareLimit(name, ledger.limit.epoch, [], [])
                    command = replace(command, joined=joined, gone=gone)
                if command is not None:
                    self._share(leader, known, command)
            for partition, offer in home.asks(ledger, own, now_ms, leaving):
                member = ledger.members.get(partition)
                group = self._group_of(topic, partition) if member is None else member.raft_group
                if group is not None:
                    asks[group].append(offer)
            needs_recheck |= home.needs_recheck(ledger, own, now_ms)
        for group, items in asks.items():
            self._ask(group, items)
        if needs_recheck:
            self._check_later(leader, known)

    def _changed_members(
        self, known: _Known, name: str, home: LimitHome, ledger: LedgerStatus
    ) -> tuple[list[tuple[int, int, str, int | None]], list[int], set[int]]:
        """Return the members of a named limit that are new, as items of `ShareLimit`, the numbers of those that no
        longer use it, and the numbers of those that must be asked whether they still use it."""
        if not ledger.limit.is_named:
            return [], [], set()
        joining = known.joining.get(name, {})
        for number, member in ledger.members.items():
            report = joining.pop(member, None)
            if report is not None:
                home.heard(number, report, self._clock.now_ms())
        joined = [
            (*member, report.leased if _has_nothing(report, ledger) else None) for member, report in joining.items()
        ]
        gone, leaving, view = home.gone(ledger), set[int](), self._catalog.view
        for number, member in ledger.members.items():
            topic, _ = view.partition_of_group.get(member.raft_group, ("", -1))
            if self._is_deleted(member):
                gone.append(number)
            elif topic and limit_used(view.topics[topic].settings, member.group) != (member.assigned, name):
                leaving.add(number)
        return joined[: FIXED.limit_members - len(ledger.members)], gone, leaving - set(gone)

    def _group_of(self, topic: OpenTopic, partition: int) -> int | None:
        """Return the Raft group of a partition; None if the topic does not have this partition."""
        partitions = topic.record.partitions
        return partitions[partition].group if partition < len(partitions) else None

    def _share(self, leader: PartitionLeader, known: _Known, command: c.ShareLimit) -> None:
        """Submit a change of a group's ledger. Until the outcome is known, no other change of this ledger is
        submitted."""
        known.busy.add(command.group)

        def done(result: Any) -> None:
            known.busy.discard(command.group)
            if not isinstance(result, SandqError):
                self.on_change(leader)

        try:
            leader.raft_group.submit(command, done, line=BEHIND)
        except SandqError:
            known.busy.discard(command.group)
        # Decide again later, as the command may be refused or lost.
        self._check_later(leader, known)

    def _ask(self, group: int, items: list[Offer]) -> None:
        """Send shares to the leader of a partition, and ask for the state of the partition. `group`: its Raft group."""
        name, partition = self._catalog.view.partition_of_group.get(group, ("", -1))
        topic = self._catalog.topics.get(name)
        node = None if topic is None else self._catalog.leader(topic, partition)
        if node == self._own:
            local = self._catalog.by_group.get(group)
            if local is not None:
                self._take_offers(local, items)
        elif node is not None:
            self._links.send(node, PeerFrame.LIMITS_ASKED, (group, items))

    def _take_reports(self, leader: PartitionLeader, group: int, rows: Iterable[Report]) -> None:
        """Handle reports of a partition, on the leader of the home partition. `group`: Raft group of the partition."""
        topic = self._topic_of(leader)
        if topic is None or leader.partition != HOME:
            return
        name, partition = self._catalog.view.partition_of_group.get(group, ("", -1))
        known, is_news = self._known.setdefault(leader, _Known()), False
        for report in rows:
            if report.limit:
                is_news |= self._take_member_report(leader, known, group, report)
            elif name == topic.record.name:
                home = known.homes.setdefault(report.group, LimitHome())
                is_news |= home.heard(partition, report, self._clock.now_ms())
        known.reported_news.set()
        if is_news:
            self.on_change(leader)

    def _take_member_report(self, leader: PartitionLeader, known: _Known, group: int, report: Report) -> bool:
        """Handle the report of a member of a named limit. Return True if it has news."""
        limits = leader.raft_group.status.limits
        ledger = None if limits is None else limits.ledgers.get(report.limit)
        if ledger is None or not ledger.limit.is_named:
            return False
        member = Member(group, report.assigned, report.group)
        number = ledger.numbers.get(member)
        if number is not None:
            return known.homes.setdefault(report.limit, LimitHome()).heard(number, report, self._clock.now_ms())
        joining = known.joining.setdefault(report.limit, {})
        if report.epoch == LEFT or (len(joining) >= JOINING_MOST and member not in joining):
            return False
        joining[member] = report
        return True

    def unpaused(self, leader: PartitionLeader, limit: str) -> list[Member]:
        """Return the members of a named limit that have not reported that they apply its pause, or its end. This node
        leads the home."""
        limits = leader.raft_group.status.limits
        ledger = None if limits is None else limits.ledgers.get(limit)
        known = self._known.get(leader)
        if ledger is None or not ledger.pause.version:
            return []
        home = LimitHome() if known is None else known.homes.get(limit, LimitHome())
        members = [ledger.members[number] for number in home.unpaused(ledger)]
        return [member for member in members if not self._is_deleted(member)]

    async def until_paused(self, leader: PartitionLeader, limit: str) -> None:
        """Wait until all members of a named limit that have a leader apply its pause, or its end. This node leads the
        home."""
        while any([self._has_leader(member) for member in self.unpaused(leader, limit)]):
            self.on_change(leader)
            await self._known[leader].reported_news.wait()

    def _is_deleted(self, member: Member) -> bool:
        """Return whether the topic of a member was deleted: numbers of Raft groups are never used again."""
        view = self._catalog.view
        return member.raft_group not in view.partition_of_group and member.raft_group < view.next_group

    def _has_leader(self, member: Member) -> bool:
        name, partition = self._catalog.view.partition_of_group.get(member.raft_group, ("", -1))
        topic = self._catalog.topics.get(name)
        return topic is not None and self._catalog.leader(topic, partition) is not None

    # -- the other partitions -------------------------------------------------------------------------------------

    def _take_offers(self, leader: PartitionLeader, items: list[Offer]) -> None:
        """Apply shares sent by the home partition, and report the state of this partition."""
        topic = self._topic_of(leader)
        items = [item for item in items if item.limit or leader.partition != HOME]
        if topic is None or not items:
            return
        known = self._known.setdefault(leader, _Known())
        status = leader.raft_group.status
        gone = [one for item in items if (one := left(status, item)) is not None]
        if gone:
            self._send(topic, leader, gone)
        left_groups = {one.group for one in gone}
        groups = [item.group for item in items if item.group not in left_groups]
        report = partial(self._report, topic, leader, known, groups, is_asked=True)
        news = newer(status, items)
        if not news:
            report()
            return
        with suppress(SandqError):  # if this fails, the home partition asks again
            leader.raft_group.submit(c.AllowLimit([one[:-1] for one in news]), lambda result: report(), line=BEHIND)

    def _report(
        self, topic: OpenTopic, leader: PartitionLeader, known: _Known, groups: Iterable[str], *, is_asked: bool
    ) -> None:
        """Report the state of a partition to the home partition, if the home partition has asked or if there is
        news."""
        status, now_ms = leader.raft_group.status, self._clock.now_ms()
        rows = []
        for name in list(groups):
            report = report_of(status, name, leader.is_hungry(name), now_ms)
            if report is None:
                known.reported.pop(name, None)
                continue
            if report.is_starved:
                self._check_later(leader, known)
            before, before_ms = known.reported.get(name, (None, 0))
            if is_asked or _is_news(report, before, before_ms, now_ms):
                known.reported[name] = report, now_ms
                rows.append(report)
        self._send(topic, leader, rows)

    def _send(self, topic: OpenTopic, leader: PartitionLeader, rows: list[Report]) -> None:
        """Send reports of a partition to the homes of its limits."""
        limits = self._catalog.topics.get(LIMITS_TOPIC)
        for home in (topic, limits):
            found = [row for row in rows if home is not None and bool(row.limit) == (home is limits)]
            node = self._catalog.leader(home, HOME) if found and home is not None else None
            if home is None or node is None:
                continue
            group = home.record.partitions[HOME].group
            if node != self._own:
                self._links.send(node, PeerFrame.LIMITS_TOLD, (group, leader.raft_group.number, found))
            elif (local := self._catalog.by_group.get(group)) is not None:
                self._take_reports(local, leader.raft_group.number, found)

    # -- frames ---------------------------------------------------------------------------------------------------

    def on_frame(self, node: str, kind: int, body: Any) -> bool:
        """Handle a frame from another node. Return True if the frame is well-formed and for this component."""
        if kind == PeerFrame.LIMITS_ASKED:
            items = _items(body)
            if items is None:
                return False
            leader = self._catalog.by_group.get(body[0])
            if leader is not None:
                self._take_offers(leader, items)
            return True
        if kind == PeerFrame.LIMITS_TOLD:
            if not isinstance(body, tuple) or [type(part) for part in body] != [int, int, tuple]:
                return False
            rows = [Report.parse(row) for row in body[2]]
            if None in rows:
                return False
            leader = self._catalog.by_group.get(body[0])
            if leader is not None:
                self._take_reports(leader, body[1], [row for row in rows if row is not None])
            return True
        return False


def _is_news(report: Report, before: Report | None, before_ms: int, now_ms: int) -> bool:
    """Return whether a report has news for the home partition.

    The first report since the limits were set is news if the partition is starved or has no share yet. A later report
    is news if `is_starved` or the applied share has changed, or if messages beyond the share were settled. A starved
    partition reports again after `ASK_MS`."""
    if before is None or before.epoch != report.epoch:
        return report.is_starved or report.version == 0
    if report.is_starved != before.is_starved or report.version != before.version:
        return True
    if report.is_starved and not 0 <= now_ms - before_ms < ASK_MS:
        return True
    return report.leased < before.leased and before.leased > report.may_have


def _has_nothing(report: Report, ledger: LedgerStatus) -> bool:
    """Return whether a new member has no share of any definition of the limit, now and later."""
    return report.version == 0 and report.epoch in (0, ledger.limit.epoch)


def _items(body: Any) -> list[Offer] | None:
    """Return the shares in a LIMITS_ASKED frame; None if the frame is malformed."""
    if not isinstance(body, tuple) or [type(part) for part in body] != [int, tuple]:
        return None
    offers = [Offer.parse(row) for row in body[1]]
    return None if None in offers else [offer for offer in offers if offer is not None]
