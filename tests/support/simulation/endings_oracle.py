"""Check how messages end without an ack: they expire, and are dropped or become dead letters, which may be removed.

Also check the attempts of each message, and its back-off. The rules of a message are its own, or else the topic's. The
time at which a lease was granted is known exactly, in the partition's time: its deadline minus its duration."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

from sandq.broker.replication.replica import Delivery
from sandq.model import offsets
from sandq.partition.groups.dead_letters import EXPIRED, DeadMessage
from tests.support.simulation.oracle import Oracle, messages_of


@dataclass(frozen=True)
class Rules:
    """The rules that apply to one message."""

    ttl_ms: int | None
    max_attempts: int | None
    """None: it never dies of failed attempts."""
    first_ms: int
    """Wait after the first failed attempt, in ms."""
    factor: int
    """Each further wait is this number of times longer."""

    def wait_ms(self, attempts: int) -> int:
        """Return the wait after this number of failed attempts, in ms."""
        wait_ms: int = self.first_ms * self.factor ** (attempts - 1)
        return wait_ms


class Limits(NamedTuple):
    """The settings of the topic about dead letters."""

    dead_retention_ms: int | None
    max_dead_letters: int | None


class View(NamedTuple):
    """The state of a group on a replica, as an operator sees it."""

    now_ms: int
    """Time of the partition, in ms."""
    dead: dict[bytes, DeadMessage]
    """Payload -> dead letter."""
    dropped: int
    removed: int


class Used(NamedTuple):
    """An attempt of a message."""

    token: int
    consumer: str


class Nacked(NamedTuple):
    """A confirmed nack that leaves the wait to the rules."""

    token: int
    next_ms: int
    """Earliest time of the next attempt, in ms."""
    not_before_ms: int
    """Delivery time of the message when the nack was requested, in ms. A move changes it, and ends the wait."""


@dataclass
class Endings:
    """Knowledge of the clients about the ends of messages. A violation raises AssertionError."""

    oracle: Oracle
    lease_ms: int
    """Duration of each lease."""
    limits: Limits
    drops: set[str]
    """Groups with `on_expiry: drop`."""
    rules: dict[bytes, Rules] = field(default_factory=dict)
    """Payload -> rules."""
    views: dict[str, View] = field(default_factory=dict)
    """Group -> latest view."""
    died: defaultdict[str, set[bytes]] = field(default_factory=lambda: defaultdict(set))
    """Group -> payloads that were dead letters in any view."""
    events: Counter[str] = field(default_factory=Counter)
    """Number of checks of each kind."""
    _attempts: defaultdict[tuple[str, bytes], dict[int, Used]] = field(default_factory=lambda: defaultdict(dict))
    """(group, payload) -> token -> attempt. Attempts that may not count are removed."""
    _latest: dict[tuple[str, bytes], Used] = field(default_factory=dict)
    """(group, payload) -> its latest attempt."""
    _nacked: dict[tuple[str, bytes], Nacked] = field(default_factory=dict)
    """(group, payload) -> its last confirmed nack, if its back-off was not checked yet."""
    _latest_ms: int = 0
    """Latest time of the partition in any view, in ms. A wrong clock may have put it ahead."""
    _reset: set[str] = field(default_factory=set)
    """Groups of which no view has come since the partition's clock was set back."""
    _tokens: set[int] = field(default_factory=set)
    """Tokens of earlier deliveries. The deadlines of these leases may have been extended."""

    # -- deliveries -----------------------------------------------------------------------------------------------

    def delivered(self, group: str, delivery: Delivery) -> None:
        """Check the messages of a lease that is delivered for the first time."""
        if delivery.token in self._tokens:
            return
        self._tokens.add(delivery.token)
        used = Used(delivery.token, delivery.consumer)
        for offset, payload in messages_of(delivery):
            self._check_expiry(offset, payload, delivery.deadline_ms - self.lease_ms)
            is_over = delivery.deadline_ms <= self.oracle.clock.reached_ms
            assert is_over or payload not in self.died[group], f"{payload!r} is dead in {group}, but is delivered"
            self._check_attempts(group, payload)
            self._check_backoff(group, payload, delivery.token)
            self._latest[group, payload] = used
            if delivery.token >= self.oracle.set_back_token:  # otherwise a clock reset has ended the lease already
                self._attempts[group, payload][delivery.token] = used

    def _check_expiry(self, offset: bytes, payload: bytes, granted_ms: int) -> None:
        ttl_ms = self.rules[payload].ttl_ms
        if ttl_ms is not None:
            late_ms = granted_ms - offsets.deliver_ms(offset) - ttl_ms
            assert late_ms < 0, f"{payload!r} is leased {late_ms} ms after its expiry"

    def _check_attempts(self, group: str, payload: bytes) -> None:
        used, most = len(self._attempts[group, payload]), self.rules[payload].max_attempts
        assert most is None or used < most, f"{payload!r} is delivered after its {used} attempts in {group}"
        self.events["last attempt"] += most is not None and used == most - 1 > 0

    def _check_backoff(self, group: str, payload: bytes, token: int) -> None:
        nacked, sent = self._nacked.pop((group, payload), None), self.oracle.sent[payload]
        if nacked and nacked.token != token and not sent.vague and sent.not_before_ms == nacked.not_before_ms:
            early_ms = nacked.next_ms - self.oracle.clock.ms
            assert early_ms <= 0, f"{payload!r} is delivered {early_ms} ms before the end of its back-off in {group}"
            self.events["back-off"] += 1

    # -- settlements ----------------------------------------------------------------------------------------------

    def may_not_count(self, group: str, payload: bytes, token: int) -> None:
        """Note that an attempt is snoozed or given back, or may be. Then it does not count."""
        self._attempts[group, payload].pop(token, None)

    def may_leave(self, group: str, consumer: str) -> None:
        """Note that a consumer may leave and give all its messages back."""
        for (of_group, payload), used in self._latest.items():
            if of_group == group and used.consumer == consumer:
                self.may_not_count(group, payload, used.token)

    def delivery_times(self, payloads: list[bytes]) -> dict[bytes, int]:
        """Return the delivery times of messages in ms, except for messages that are being moved."""
        found = [self.oracle.sent[payload] for payload in payloads]
        return {sent.payload: sent.not_before_ms for sent in found if not sent.vague}

    def nacked(self, group: str, token: int, times: dict[bytes, int], from_ms: int) -> None:
        """Note a confirmed nack. `times`: delivery times before its request. `from_ms`: its earliest time, in ms."""
        for payload, not_before_ms in times.items():
            attempts = max(1, len(self._attempts[group, payload]))
            next_ms = from_ms + self.rules[payload].wait_ms(attempts)
            self._nacked[group, payload] = Nacked(token, next_ms, not_before_ms)

    def set_back(self, new_ms: int) -> None:
        """Note that the partition's clock is set back.

        Leases end without using an attempt, messages wait until other times, and no dead letter died later than now."""
        self._nacked.clear()
        for (group, payload), used in self._latest.items():
            self.may_not_count(group, payload, used.token)
        for group, view in self.views.items():
            self.views[group] = view._replace(dead=died_by(view.dead, new_ms))
            self._reset.add(group)

    # -- views of an operator -------------------------------------------------------------------------------------

    def viewed(self, group: str, view: View) -> None:
        """Check a view of a group that is later than all earlier ones."""
        before = self.views.get(group, View(0, {}, 0, 0))
        # During a clock reset, some letters still have the times of the wrong clock.
        self.views[group] = view._replace(dead=died_by(view.dead, view.now_ms))
        self._latest_ms = max(self._latest_ms, view.now_ms)
        for payload in view.dead.keys() - before.dead.keys():
            self._check_death(group, payload, view.dead[payload])
        gone = before.dead.keys() - view.dead.keys()
        if group in self._reset:
            self._reset.discard(group)  # the letters may have been removed before, when the time was ahead
        else:
            for payload in gone:
                self._check_removal(group, before.dead[payload], view)
        assert view.removed - before.removed >= len(gone), f"removed dead letters of {group} are not counted"
        expired = sum(1 for payload in self._unacked(group) if self._may_have_expired(payload))
        most = expired if group in self.drops else 0
        assert view.dropped <= most, f"{group} dropped {view.dropped} messages, but only {most} may have expired"

    def time_passed(self, group: str, now_ms: int) -> None:
        """Note that a later view of a group differs only in its time."""
        self.views[group] = self.views.get(group, View(0, {}, 0, 0))._replace(now_ms=now_ms)
        self._latest_ms = max(self._latest_ms, now_ms)

    def _check_death(self, group: str, payload: bytes, letter: DeadMessage) -> None:
        self.died[group].add(payload)
        self.oracle.passed[group].add(payload)
        rules = self.rules[payload]
        assert payload not in self.oracle.acked[group], f"{payload!r} was acked in {group}, but is a dead letter"
        if letter.reason == EXPIRED:
            assert group not in self.drops, f"{payload!r} should have been dropped in {group}"
            assert rules.ttl_ms is not None, f"{payload!r} has no ttl, but expired in {group}"
            early_ms = offsets.deliver_ms(letter.offset) + rules.ttl_ms - letter.dead_ms
            assert early_ms <= 0, f"{payload!r} died {early_ms} ms before its expiry in {group}"
        else:
            assert letter.attempts == rules.max_attempts, (
                f"{payload!r} died in {group} after {letter.attempts} attempts"
            )
        self.events["expired" if letter.reason == EXPIRED else "exhausted"] += 1

    def _check_removal(self, group: str, letter: DeadMessage, view: View) -> None:
        """Check that a dead letter was older than the retention, or that enough newer ones are left."""
        retention_ms, most = self.limits
        newer = sum(other.dead_ms >= letter.dead_ms for other in view.dead.values())
        is_old = retention_ms is not None and view.now_ms >= letter.dead_ms + retention_ms
        is_excess = most is not None and newer >= most
        age_ms = view.now_ms - letter.dead_ms
        assert is_old or is_excess, (
            f"a dead letter of {group} was removed too early: {age_ms} ms old, {newer} newer ones"
        )
        self.events["old" if is_old else "excess"] += 1

    def _unacked(self, group: str) -> list[bytes]:
        """Return payloads that may be stored, and that are neither acked nor dead letters."""
        ended = self.oracle.acked[group] | self.died[group]
        return [sent.payload for sent in self.oracle.sent.values() if sent.payload not in ended]

    def _may_have_expired(self, payload: bytes) -> bool:
        ttl_ms = self.rules[payload].ttl_ms
        return ttl_ms is not None and self.oracle.sent[payload].not_before_ms + ttl_ms <= self._latest_ms

    # -- the end --------------------------------------------------------------------------------------------------

    def unexplained(self) -> list[tuple[str, bytes]]:
        """Return acknowledged messages of which the clients cannot explain why they were not acked.

        A message that no view shows was dropped after its expiry, or was a dead letter only between two views."""
        found: list[tuple[str, bytes]] = []
        missing = self.oracle.missing()
        for group, view in self.views.items():
            payloads = [payload for of_group, payload in missing if of_group == group]
            lasting = [one for one in payloads if not self._may_have_expired(one)]
            unseen = view.removed - len(self.died[group] - view.dead.keys())
            if len(payloads) > view.dropped + unseen or len(lasting) > unseen:
                found += [(group, payload) for payload in lasting or payloads]
            self._check_sum(group, view.dropped + unseen)
        return found

    def _check_sum(self, group: str, ended: int) -> None:
        """Check that no message is counted as dropped or removed, but was acked. `ended`: number of messages that were
        dropped, and of dead letters that were removed before any view."""
        most = len(self._unacked(group))
        assert ended <= most, f"{group} counts {ended} messages as dropped or removed, but only {most} were not acked"

    def has_excess(self) -> bool:
        """Return whether any group has more dead letters than the settings allow, or will remove some."""
        retention_ms, most = self.limits
        numbers = [len(view.dead) for view in self.views.values()]
        return any(retention_ms is not None or (most is not None and number > most) for number in numbers if number)


def died_by(dead: dict[bytes, DeadMessage], now_ms: int) -> dict[bytes, DeadMessage]:
    """Return dead letters with times of death that are not after `now_ms`."""
    return {payload: letter._replace(dead_ms=min(letter.dead_ms, now_ms)) for payload, letter in dead.items()}
