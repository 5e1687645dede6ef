"""Simulate messages that expire or use up their attempts on three nodes, and the removal of dead letters.

One group drops expired messages, and the other one gets them as dead letters. Some messages have their own ttl, number
of attempts and back-off."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, TypeVar

from sandq.broker.replication.applier import Apply
from sandq.metadata.records import Topic
from sandq.model.batch import Column
from sandq.model.errors import SandqError
from sandq.model.nack_ends import SNOOZE
from sandq.model.names import FAIR, PRIORITY, TIMER
from sandq.model.retries import UNLIMITED, pack_backoff
from sandq.model.settings import parse_settings
from sandq.partition import commands as c
from sandq.partition.groups import dead_letters, spilling
from sandq.partition.jobs import dead_retention
from tests.support.simulation import cluster_world
from tests.support.simulation.cluster_clients import Clients
from tests.support.simulation.cluster_consumer import CONSUMERS, Consumer
from tests.support.simulation.cluster_node import ClusterNode, topic_of
from tests.support.simulation.cluster_world import DRIFT_MS, NAMES, ClusterWorld
from tests.support.simulation.endings_oracle import Endings, Limits, Rules, View
from tests.support.simulation.oracle import GROUPS, Held, Sent
from tests.support.simulation.pause_world import RECALLED_MS, Pausing
from tests.support.simulation.ranked_world import RankedClients

E = TypeVar("E", bound="Ending")
HOUR_MS = 3_600_000
TTL_MS = (None, 300, 2000, HOUR_MS)
"""The messages' own ttls, in ms."""
MAX_ATTEMPTS = (None, 1, 2, 4, UNLIMITED)
"""The messages' own numbers of attempts."""
BACKOFFS = (None, (500, 1), (1500, 1), (250, 2))
"""The messages' own back-offs: wait after the first attempt in ms, and factor of each further wait."""
REMOVAL_MS = 500
"""Minimum time between two removals of dead letters in a group, in ms."""
ENDED_MS = 20_000
"""Time after the last fault within which all messages must have ended, in ms."""


class EndingConsumer(Consumer):
    """A consumer that often nacks messages, and often lets leases expire."""

    _clients: Ending

    def settle(self) -> None:
        chance = self._rng.random()
        if self.held and chance < 0.4:
            held = self.held.pop(self._rng.randrange(len(self.held)))
            if chance < 0.3:
                self._nack(held, held.messages)
        else:
            super().settle()

    def leave(self) -> None:
        self._clients.endings.may_leave(self.group, self.name)
        super().leave()

    def _nack(self, held: Held, chosen: list[tuple[bytes, bytes]]) -> None:
        endings, delay_ms = self._clients.endings, self._rng.choice((None, None, 0, 200))
        item: tuple[Any, ...] = (held.token, [[offset, 1] for offset, _ in chosen], delay_ms, "no")
        for _, payload in chosen:
            self._oracle.holders.pop((self.group, payload), None)
        if self._rng.random() < 0.1:
            item = (*item, True, None, SNOOZE)
            for _, payload in chosen:
                endings.may_not_count(self.group, payload, held.token)
        times = endings.delivery_times([payload for _, payload in chosen])
        from_ms = self._clients.clock.ms - self._clients.margin_ms

        def done(result: Any) -> None:
            self._settled(held.token)
            if not isinstance(result, SandqError) and result[0] is None and delay_ms is None:
                endings.nacked(self.group, held.token, times, from_ms)

        self._settling[held.token] += 1
        self._clients.submit(c.Nack([item]), done)


class Ending(Clients):
    """Clients whose messages have rules of their own."""

    def add_endings(self, topic: Topic, seed: int) -> None:
        self._rules_rng = random.Random(f"rules of messages of {seed}")
        """Random numbers only for the messages' own rules."""
        settings = topic.settings
        backoff = settings["backoff"]
        self._rules = Rules(settings.get("ttl_ms"), settings["max_attempts"], backoff["first_ms"], 1)
        limits = Limits(settings.get("dead_retention_ms"), settings.get("max_dead_letters"))
        self.endings = Endings(self.oracle, self.lease_ms, limits, {GROUPS[0]})
        self.oracle.watch = self.endings.delivered
        self.consumers = [EndingConsumer(self, group, name) for group in GROUPS for name in CONSUMERS]

    def messages(self) -> tuple[list[Sent], dict[int, list[Any]]]:
        sent, columns = super().messages()
        rng = self._rules_rng
        if rng.random() < 0.6:
            columns[Column.TTL_MS] = [rng.choice(TTL_MS) for _ in sent]
        if rng.random() < 0.4:
            columns[Column.MAX_ATTEMPTS] = [rng.choice(MAX_ATTEMPTS) for _ in sent]
        backoffs = [rng.choice(BACKOFFS) for _ in sent] if rng.random() < 0.4 else [None] * len(sent)
        if any(backoffs):
            columns[Column.BACKOFF] = [None if one is None else _packed(*one) for one in backoffs]
        attempts = columns.get(Column.MAX_ATTEMPTS, [None] * len(sent))
        ttls = columns.get(Column.TTL_MS, [None] * len(sent))
        for message, ttl_ms, most, backoff in zip(sent, ttls, attempts, backoffs, strict=True):
            self.endings.rules[message.payload] = Rules(
                self._rules.ttl_ms if ttl_ms is None else ttl_ms,
                self._rules.max_attempts if most is None else most or None,
                *(backoff or (self._rules.first_ms, self._rules.factor)),
            )
        return sent, columns

    def is_split(self, columns: dict[int, list[Any]]) -> bool:
        own = (Column.TTL_MS, Column.MAX_ATTEMPTS, Column.BACKOFF)
        return super().is_split(columns) or any(column in columns for column in own)

    def set_back(self, new_ms: int) -> None:
        """Note that the partition's clock is set back."""
        self.endings.set_back(new_ms)

    @property
    def is_done(self) -> bool:
        is_stored = not any(producer.unanswered for producer in self.producers)
        return is_stored and not self.endings.unexplained() and not self.endings.has_excess()

    def describe_pending(self) -> Any:
        numbers = [(group, len(view.dead), view.dropped, view.removed) for group, view in self.endings.views.items()]
        return numbers, self.endings.unexplained()[:5]


def _packed(first_ms: int, factor: int) -> bytes:
    """Return the column BACKOFF."""
    kind = "fixed" if factor == 1 else "exponential"
    parts = {"kind": kind, "first_ms": first_ms, "factor_permille": 1000 * factor, "cap_ms": HOUR_MS}
    return pack_backoff(parts | {"jitter_percent": 0})


class RankedEnding(Ending, RankedClients):
    """Clients of a priority or fair topic whose messages have rules of their own."""


class EndingWorld(ClusterWorld):
    kinds: tuple[str, ...] = (TIMER, PRIORITY, FAIR)
    """Kinds of topics. The seeds take turns."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._viewed = 0
        """Index of the last entry in the views of the oracle."""
        super().__init__(seed)
        self.clocks_go_wrong = seed % 4 == 1
        self.set(cluster_world, "HEALED_MS", ENDED_MS)
        self.set(dead_retention, "PAUSE_MS", REMOVAL_MS)
        self.set(spilling, "HELD_UP_MS", RECALLED_MS)
        self._open_groups()

    def make_topic(self) -> Topic:
        rng = random.Random(f"endings of {self._seed}")
        kind = self.kinds[self._seed % len(self.kinds)]
        settings: dict[str, Any] = {
            "lease": "1s",
            "ttl": rng.choice(("none", "3s")),
            "on_expiry": "drop",
            "max_attempts": rng.choice(("none", 3)),
            "backoff": {"kind": "fixed", "first": "400ms", "jitter_percent": 0},
            "retention": rng.choice(("0s", "1s")),
        }
        if (removal := rng.randrange(4)) % 2:
            settings["dead_retention"] = "4s"
        if removal >= 2:
            settings["max_dead_letters"] = 5
        return topic_of(NAMES, parse_settings(settings, kind).record(), kind)

    def make_clients(self) -> Ending:
        if self.topic.kind == TIMER:
            return self.make_with(Ending)
        return self.make_with(RankedEnding, topic=self.topic, seed=self._seed)

    def make_with(self, make: Callable[..., E], **options: Any) -> E:
        """Make the clients with a class."""
        nodes = self.nodes
        clients = make(self.rng, self.clock, nodes, self._moments, ordered=False, margin_ms=DRIFT_MS, **options)
        clients.add_endings(self.topic, self._seed)
        return clients

    def _open_groups(self) -> None:
        """Open the groups. The second one overrides `on_expiry` of the topic."""
        answers: list[Any] = []
        while not (leader := self.clients.leader()):
            self.step(calm=True)
        for group in GROUPS:
            leader.call(c.OpenGroup(group, "earliest"), answers.append)
        leader.call(c.ConfigureGroup(GROUPS[1], {"on_expiry": "dead"}), answers.append)
        while len(answers) < 3:
            self.step(calm=True)
        assert not any(isinstance(answer, SandqError) for answer in answers), answers

    def step(self, *, calm: bool = False) -> None:
        super().step(calm=calm)
        for node in self.nodes.values():
            pointer = node.node_log.pointers.get(node.host.number)
            is_whole = pointer is not None and pointer.store == node.replica.store
            if is_whole and node.replica.applied_index > self._viewed:
                self._viewed = node.replica.applied_index
                self._view(node)

    def _view(self, node: ClusterNode) -> None:
        """Give the oracle a view of each group that has changed."""
        endings, now_ms = self.clients.endings, node.replica.machine.now_ms
        for group in node.replica.machine.groups.by_id.values():
            before = endings.views.get(group.name, View(0, {}, 0, 0))
            dead = before.dead
            if (group.dead.total(), group.dropped, group.removed) != (len(dead), before.dropped, before.removed):
                found = dead_letters.scan(group.group_id, None, 1 << 30, 1 << 40, node.replica._view)
                dead = {letter.fields[Column.VALUE]: letter for letter in found}
                endings.viewed(group.name, View(now_ms, dead, group.dropped, group.removed))
            else:
                endings.time_passed(group.name, now_ms)

    def _note_reset(self, task: Apply) -> None:
        super()._note_reset(task)
        for command in c.Entry.decode(task.command).commands if task.command else ():
            if isinstance(command, c.ClockReset):
                self.clients.set_back(command.new_ms)


class PausedEnding(Pausing, RankedEnding):
    """Clients of a fair topic that also pause groups and tenants."""

    def set_back(self, new_ms: int) -> None:
        super().set_back(new_ms)
        self.pauses.set_back()


class PausedEndingWorld(EndingWorld):
    """A fair topic whose messages expire and use up their attempts, also while they are paused."""

    kinds = (FAIR,)

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.set(spilling, "POSTPONED_MS", RECALLED_MS)

    def make_clients(self) -> PausedEnding:
        clients = self.make_with(PausedEnding, topic=self.topic, seed=self._seed)
        clients.add_pauses(self._seed, is_fair=True)
        return clients
