"""Moves limits of groups between the partitions of a topic, whoever leads them.

The node that leads partition 0 decides, and writes it into the ledger there (`LimitHome`); the nodes that lead the
others tell it when something waits for the limits, and have their partitions go by what it lets them have. Between them
go `LIMITS_ASKED` and `LIMITS_TOLD`. For topics without limits, and for those of one partition, nothing is done.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import Any, Final
from weakref import WeakKeyDictionary

from sandq.broker.catalog import Catalog, OpenTopic
from sandq.broker.clock.guarded_clock import GuardedClock
from sandq.broker.clock.timers import Timers
from sandq.broker.delivery.limit_home import ASK_MS, Asked, LimitHome, Told, newer, told_of
from sandq.broker.leader.partition_leader import PartitionLeader
from sandq.broker.peers.links import PeerLinks
from sandq.broker.replication.fair_queue import BEHIND
from sandq.model.errors import SandqError
from sandq.partition import commands as c
from sandq.partition.groups.group_limits import HOME
from sandq.protocol.peer import PeerFrame

_ASKED: Final = [str, *[int] * 5]


class _Known:
    """What is remembered for one partition that is led here; it may be lost at any time."""

    def __init__(self) -> None:
        self.homes: dict[str, LimitHome] = {}
        """In the home partition, by group."""
        self.busy: set[str] = set()
        """Groups whose ledger is being changed."""
        self.told: dict[str, tuple[Told, int]] = {}
        """In others: what was told last of each group, and when."""
        self.is_due = False
        """It is looked at in the next turn of the loop."""
        self.again_ms: int | None = None
        """When it is looked at again."""


class LimitShares:
    def __init__(self, own: str, catalog: Catalog, links: PeerLinks, clock: GuardedClock, timers: Timers) -> None:
        """`own`: this node."""
        self._own = own
        self._catalog = catalog
        self._links = links
        self._clock = clock
        self._timers = timers
        self._known: WeakKeyDictionary[PartitionLeader, _Known] = WeakKeyDictionary()

    def look(self, leader: PartitionLeader) -> None:
        """Something has changed in a partition that is led here and has limits, or somebody waits for them."""
        known = self._known.get(leader)
        if known is None:
            known = self._known[leader] = _Known()
        if not known.is_due:
            known.is_due = True
            self._timers.at(self._clock.now_ms(), partial(self._look, leader, known))

    def _look_again(self, leader: PartitionLeader, known: _Known) -> None:
        """Look before long, though nothing may happen."""
        at_ms = self._clock.now_ms() + ASK_MS
        if known.again_ms is None or not self._clock.now_ms() < known.again_ms <= at_ms:
            known.again_ms = at_ms
            self._timers.at(at_ms, partial(self.look, leader))

    def _look(self, leader: PartitionLeader, known: _Known) -> None:
        known.is_due = False
        topic = self._topic_of(leader)
        if topic is None or leader.raft_group.status.limits is None or len(topic.record.partitions) == 1:
            return
        if leader.partition == HOME:
            self._decide(topic, leader, known)
        else:
            self._tell(topic, leader, known, leader.raft_group.status.limits.allowances, is_asked=False)

    def _topic_of(self, leader: PartitionLeader) -> OpenTopic | None:
        """The topic of a partition that this node leads."""
        if leader.closed or not leader.raft_group.ready:
            return None
        name, partition = self._catalog.view.partition_of_group.get(leader.raft_group.number, ("", -1))
        topic = self._catalog.topics.get(name)
        return topic if topic is not None and topic.partitions.get(partition) is leader else None

    # -- the home partition ---------------------------------------------------------------------------------------

    def _decide(self, topic: OpenTopic, leader: PartitionLeader, known: _Known) -> None:
        status, now_ms = leader.raft_group.status, self._clock.now_ms()
        asks: dict[int, list[Asked]] = defaultdict(list)
        is_restless = False
        for name, ledger in status.limits.ledgers.items():
            home = known.homes.get(name)
            if home is None:
                home = known.homes[name] = LimitHome()
            own = told_of(status, name, leader.is_hungry(name), now_ms)
            if own is None:
                continue
            if name not in known.busy and (command := home.decide(name, ledger, own, now_ms)) is not None:
                self._share(leader, known, command)
            for partition, asked in home.asks(ledger, own, now_ms):
                asks[partition].append(asked)
            is_restless |= home.is_restless(ledger, own, now_ms)
        for partition, items in asks.items():
            self._ask(topic, partition, items)
        if is_restless:
            self._look_again(leader, known)

    def _share(self, leader: PartitionLeader, known: _Known, command: c.ShareLimit) -> None:
        known.busy.add(command.group)

        def done(result: Any) -> None:
            known.busy.discard(command.group)
            if not isinstance(result, SandqError):
                self.look(leader)

        try:
            leader.raft_group.submit(command, done, line=BEHIND)
        except SandqError:
            known.busy.discard(command.group)
        # Refused, or lost: it is thought over again.
        self._look_again(leader, known)

    def _ask(self, topic: OpenTopic, partition: int, items: list[Asked]) -> None:
        if partition >= len(topic.record.partitions):
            return
        node = self._catalog.leader(topic, partition)
        if node == self._own:
            local = topic.partitions.get(partition)
            if local is not None:
                self._asked(local, items)
        elif node is not None:
            self._links.send(node, PeerFrame.LIMITS_ASKED, (topic.record.partitions[partition].group, items))

    def _heard(self, leader: PartitionLeader, partition: int, rows: Iterable[Told]) -> None:
        """A partition tells the home partition how it stands."""
        if self._topic_of(leader) is None or leader.partition != HOME:
            return
        known, is_news = self._known.setdefault(leader, _Known()), False
        for told in rows:
            is_news |= known.homes.setdefault(told.group, LimitHome()).heard(partition, told, self._clock.now_ms())
        if is_news:
            self.look(leader)

    # -- the others -----------------------------------------------------------------------------------------------

    def _asked(self, leader: PartitionLeader, items: list[Asked]) -> None:
        """The home partition asks how this one stands, and says what it may have."""
        topic = self._topic_of(leader)
        if topic is None or leader.partition == HOME:
            return
        known = self._known.setdefault(leader, _Known())
        tell = partial(self._tell, topic, leader, known, [item.group for item in items], is_asked=True)
        news = newer(leader.raft_group.status, items)
        if not news:
            tell()
            return
        with suppress(SandqError):  # it is asked again
            leader.raft_group.submit(c.AllowLimit(news), lambda result: tell(), line=BEHIND)

    def _tell(
        self, topic: OpenTopic, leader: PartitionLeader, known: _Known, groups: Iterable[str], *, is_asked: bool
    ) -> None:
        """Tell the home partition how this one stands, if it has asked or has to know."""
        status, now_ms = leader.raft_group.status, self._clock.now_ms()
        rows = []
        for name in list(groups):
            told = told_of(status, name, leader.is_hungry(name), now_ms)
            if told is None:
                known.told.pop(name, None)
                continue
            if told.is_starved:
                self._look_again(leader, known)
            before, before_ms = known.told.get(name, (None, 0))
            if is_asked or _is_news(told, before, before_ms, now_ms):
                known.told[name] = told, now_ms
                rows.append(told)
        node = self._catalog.leader(topic, HOME) if rows else None
        if node == self._own:
            self._heard(topic.partitions[HOME], leader.partition, rows)
        elif node is not None:
            body = (topic.record.partitions[HOME].group, leader.partition, rows)
            self._links.send(node, PeerFrame.LIMITS_TOLD, body)

    # -- frames ---------------------------------------------------------------------------------------------------

    def on_frame(self, node: str, kind: int, body: Any) -> bool:
        """Take what another node sent. Whether it was of this kind, and whole."""
        if kind == PeerFrame.LIMITS_ASKED:
            items = _items(body)
            if items is None:
                return False
            leader = self._catalog.by_group.get(body[0])
            if leader is not None:
                self._asked(leader, items)
            return True
        if kind == PeerFrame.LIMITS_TOLD:
            if not isinstance(body, tuple) or [type(part) for part in body] != [int, int, tuple]:
                return False
            rows = [Told.parse(row) for row in body[2]]
            if None in rows:
                return False
            leader = self._catalog.by_group.get(body[0])
            if leader is not None:
                self._heard(leader, body[1], [row for row in rows if row is not None])
            return True
        return False


def _is_news(told: Told, before: Told | None, before_ms: int, now_ms: int) -> bool:
    """Whether the home partition has to know: somebody waits, or does not any more; something came back."""
    if before is None or before.epoch != told.epoch:
        return told.is_starved or told.version == 0
    if told.is_starved != before.is_starved or told.version != before.version:
        return True
    if told.is_starved and not 0 <= now_ms - before_ms < ASK_MS:
        return True
    return told.leased < before.leased and before.leased > told.may_have


def _items(body: Any) -> list[Asked] | None:
    """What LIMITS_ASKED asks; None when that is nothing of the kind."""
    if not isinstance(body, tuple) or [type(part) for part in body] != [int, tuple]:
        return None
    items: list[Asked] = []
    for row in body[1]:
        if not isinstance(row, tuple) or [type(part) for part in row] != _ASKED:
            return None
        items.append(Asked(*row))
    return items
