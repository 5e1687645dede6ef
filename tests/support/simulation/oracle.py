"""What clients of a simulated node know, and may expect of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from sandq.broker.replication.replica import Delivery
from sandq.model import offsets
from sandq.model.batch import Batch, Column
from sandq.model.errors import NotLeader, StorageFailed, TimedOut, Unavailable

GROUPS = ("a", "b")
UNKNOWN = (StorageFailed, TimedOut, NotLeader, Unavailable)
"""Answers after which what was asked for may have been done, or may be done yet, or not."""


class Clock(Protocol):
    """What time it is for the node that delivers."""

    @property
    def ms(self) -> int: ...

    @property
    def reached_ms(self) -> int:
        """Leases that end by then may have been ended: by an entry that another node stamped, ahead of this one."""
        ...


@dataclass
class Sent:
    payload: bytes
    not_before_ms: int
    offset: bytes | None = None
    """Set once the producer has its answer."""
    id: bytes | None = None
    """Likewise; it stays when the message moves."""
    key: bytes | None = None
    unique_key: bytes | None = None
    tenant: bytes = b"default"
    moving: int = 0
    """Moves that were asked for and not answered: it may stand in its old place or in a new one."""
    vague: bool = False
    """A move was never answered, or is a job's: where it stands is not known any more."""
    placed_anew: bool = False
    """The partition's clock was set back since it was sent: it may stand elsewhere than its producer is told."""
    excused: bool = False
    """It may come or not: a cancel was not answered, or a job may have taken it."""
    cancelled: bool = False
    """Its cancel was confirmed: it must not come."""
    together: bool = False
    """It was stored in one row with others, before the moment that is theirs."""
    seen_at: bytes | None = None
    """Where it stood when it was delivered before its producer had an answer."""


@dataclass
class Held:
    """A lease as its consumer knows it."""

    group: str
    token: int
    messages: list[tuple[bytes, bytes]]


@dataclass
class Oracle:
    """What clients know. A violation raises AssertionError."""

    clock: Clock
    ordered: bool
    """Keys have a limit, which is `per_key`."""
    sent: dict[bytes, Sent] = field(default_factory=dict)
    acked: dict[str, set[bytes]] = field(default_factory=lambda: {group: set() for group in GROUPS})
    """Group -> payloads whose ack was confirmed."""
    unsure: dict[str, set[tuple[bytes, int]]] = field(default_factory=lambda: {group: set() for group in GROUPS})
    """Group -> (payload, token) whose ack was sent and not answered yet: a crash may leave it either way."""
    holders: dict[tuple[str, bytes], tuple[int, int, str]] = field(default_factory=dict)
    """(group, payload) -> (token, deadline, consumer) while nobody else may have it."""
    again: dict[str, set[bytes]] = field(default_factory=lambda: {group: set() for group in GROUPS})
    """Group -> payloads that were acked and may come again, for the group was put back."""
    passed: dict[str, set[bytes]] = field(default_factory=lambda: {group: set() for group in GROUPS})
    """Group -> payloads that need not come, for the group was put elsewhere."""
    seeks: dict[str, int] = field(default_factory=lambda: dict.fromkeys(GROUPS, 0))
    """Group -> seeks under way: what is leased may be taken away at any moment."""
    set_back_token: int = 0
    """Leases with smaller tokens ended when the partition's clock was set back."""
    deliveries: int = 0
    redeliveries: int = 0
    per_key: int = 1
    """So many messages of a key may be out at once."""
    per_tenant: Callable[[bytes], int | None] = lambda tenant: None
    """And so many of a tenant."""
    watch: Callable[[str, Delivery], None] = lambda group, delivery: None
    """Is told of each push."""
    at_most: int = 0
    """How often a tenant had as many out as it may."""
    seen: set[tuple[str, bytes]] = field(default_factory=set)

    def delivered(self, group: str, delivery: Delivery) -> list[tuple[bytes, bytes]]:
        """Check a push; returns [(offset, payload), ...]."""
        found = messages_of(delivery)
        self.watch(group, delivery)
        for offset, payload in found:
            now_ms = self.clock.ms
            sent = self.sent.get(payload)
            assert sent is not None, f"{payload!r} was never sent"
            assert not sent.cancelled, f"{payload!r} was cancelled and comes"
            assert now_ms >= sent.not_before_ms, f"{payload!r} is {sent.not_before_ms - now_ms} ms early"
            assert now_ms >= offsets.deliver_ms(offset), f"{payload!r} comes before its place in the log"
            if not sent.moving and not sent.vague and not sent.placed_anew:
                assert sent.offset in (None, offset), f"{payload!r} is at another offset than its producer was told"
                assert sent.seen_at in (None, offset) or sent.offset, f"{payload!r} was stored twice"
                sent.seen_at = offset
            assert payload not in self.acked[group], f"{payload!r} was acked in {group} and comes again"
            holder = self._holder(group, payload)
            self._check_limits(group, sent)
            if holder is not None and holder[0] != delivery.token and not self.seeks[group]:
                assert holder[1] <= self.clock.reached_ms, f"{payload!r} is leased twice at once in {group}"
                assert delivery.token > holder[0], f"{payload!r} comes with an older token"
            self.holders[group, payload] = (delivery.token, delivery.deadline_ms, delivery.consumer)
            self.deliveries += 1
            self.redeliveries += (group, payload) in self.seen
            self.seen.add((group, payload))
        return found

    def _holder(self, group: str, payload: bytes) -> tuple[int, int, str] | None:
        holder = self.holders.get((group, payload))
        return None if holder is None or holder[0] < self.set_back_token else holder

    def set_back(self, token: int) -> None:
        """The partition's clock is set back: leases with smaller tokens end, and messages are placed anew."""
        self.set_back_token = max(self.set_back_token, token)
        for sent in self.sent.values():
            sent.placed_anew = True

    def _check_limits(self, group: str, sent: Sent) -> None:
        """Where keys or tenants have a limit, not so many other messages of this one are held by somebody."""
        if self.seeks[group]:
            return
        if self.ordered and sent.key is not None:
            others = self._held(group, sent, lambda other: other.key == sent.key)
            assert len(others) < self.per_key, f"{others!r} and {sent.payload!r} of one key are out at once"
        most = self.per_tenant(sent.tenant)
        if most is not None:
            others = self._held(group, sent, lambda other: other.tenant == sent.tenant)
            assert len(others) < most, f"{others!r} and {sent.payload!r} of tenant {sent.tenant!r} are out at once"
            self.at_most += len(others) == most - 1

    def _held(self, group: str, sent: Sent, is_alike: Callable[[Sent], bool]) -> list[bytes]:
        """Other messages that are held."""
        return [
            payload
            for (of_group, payload), (token, deadline_ms, _) in self.holders.items()
            if of_group == group
            and payload != sent.payload
            and is_alike(self.sent[payload])
            and token >= self.set_back_token
            and (payload, token) not in self.unsure[group]
            and deadline_ms > self.clock.reached_ms
        ]

    def confirm(self, group: str, payload: bytes) -> None:
        """An ack was confirmed. A seek that is under way may undo it."""
        if self.seeks[group]:
            self.again[group].add(payload)
            self.passed[group].add(payload)
        else:
            self.acked[group].add(payload)

    def seek(self, group: str) -> None:
        """A group is about to be put elsewhere: what it acked may come again, what it did not may not."""
        self.again[group] |= self.acked[group]
        self.acked[group].clear()
        self.passed[group] |= self.sent.keys()
        self.seeks[group] += 1

    def sought(self, group: str) -> None:
        """It was: all its leases were revoked."""
        self.seeks[group] -= 1
        for key in [key for key in self.holders if key[0] == group]:
            del self.holders[key]

    def together(self) -> list[Sent]:
        """Messages that were stored in one row with others, before the moment that is theirs."""
        return [sent for sent in self.sent.values() if sent.together]

    def missing(self) -> list[tuple[str, bytes]]:
        """Acknowledged messages whose ack is not confirmed."""
        found: list[tuple[str, bytes]] = []
        for group in GROUPS:
            settled = self.acked[group] | self.passed[group] | {payload for payload, _ in self.unsure[group]}
            stored = (
                sent.payload
                for sent in self.sent.values()
                if sent.offset is not None and not sent.cancelled and not sent.excused
            )
            found += [(group, payload) for payload in stored if payload not in settled]
        return found


def messages_of(delivery: Delivery) -> list[tuple[bytes, bytes]]:
    """The offset and the value of each message."""
    return [(offset, value) for offset, value, _ in cells_of(delivery)]


def cells_of(delivery: Delivery) -> list[tuple[bytes, bytes, bytes | None]]:
    """The offset, the value and the packed headers of each message."""
    found: list[tuple[bytes, bytes, bytes | None]] = []
    for piece in delivery.pieces:
        batch = Batch.parse(piece.batch)
        values, headers = batch.values(), batch.bytes_column(Column.HEADERS)
        column = [piece.offsets[at : at + 16] for at in range(0, len(piece.offsets), 16)]
        if len(column) == 1:
            column = offsets.run(piece.offsets, len(values))
        positions = range(len(values)) if piece.live is None else [p + i for p, n in piece.live for i in range(n)]
        for position in positions:
            value = values[position]
            assert value is not None
            found.append((column[position], value, None if headers is None else headers[position]))
    return found
