"""Hold the knowledge of the clients of a simulated node, and check every delivery against it."""

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
"""Answers after which the outcome is unknown: the request may be executed, now or later, or never."""


class Clock(Protocol):
    """The clock of the node that delivers now."""

    @property
    def ms(self) -> int: ...

    @property
    def reached_ms(self) -> int:
        """Time up to which leases may have expired. An entry of a node with a faster clock may have ended them."""
        ...


@dataclass
class Sent:
    payload: bytes
    not_before_ms: int
    offset: bytes | None = None
    """Current offset; None until the producer has an answer."""
    id: bytes | None = None
    """Id of the message, which a move does not change; None until the producer has an answer."""
    key: bytes | None = None
    unique_key: bytes | None = None
    tenant: bytes = b"default"
    moving: int = 0
    """Number of unanswered moves. While there are any, the offset may be old or new."""
    vague: bool = False
    """Whether the offset is unknown, because a move was never answered, or was made by a job."""
    placed_anew: bool = False
    """Whether the partition's clock was set back after the message was sent.

    Then its offset may differ from the producer's answer."""
    excused: bool = False
    """Whether the message may be missing, because a cancel was not answered, or a job may have cancelled it."""
    cancelled: bool = False
    """Whether its cancel was confirmed, so that it must not be delivered."""
    together: bool = False
    """Whether it was stored in a batch row, before the common delivery time of the row."""
    seen_at: bytes | None = None
    """Offset at its delivery, if it was delivered before its producer had an answer."""


@dataclass
class Held:
    """A lease, as far as its consumer knows it."""

    group: str
    token: int
    messages: list[tuple[bytes, bytes]]


@dataclass
class Oracle:
    """Everything that the clients know. A violation of a promise raises AssertionError."""

    clock: Clock
    ordered: bool
    """Whether keys have the limit `per_key`."""
    sent: dict[bytes, Sent] = field(default_factory=dict)
    acked: dict[str, set[bytes]] = field(default_factory=lambda: {group: set() for group in GROUPS})
    """Group -> payloads whose ack was confirmed."""
    unsure: dict[str, set[tuple[bytes, int]]] = field(default_factory=lambda: {group: set() for group in GROUPS})
    """Group -> (payload, token) of acks without an answer. Each of them may have been applied."""
    holders: dict[tuple[str, bytes], tuple[int, int, str]] = field(default_factory=dict)
    """(group, payload) -> (token, deadline, consumer) of its current lease, which excludes other leases."""
    again: dict[str, set[bytes]] = field(default_factory=lambda: {group: set() for group in GROUPS})
    """Group -> acked payloads that may be delivered again, because of a seek."""
    passed: dict[str, set[bytes]] = field(default_factory=lambda: {group: set() for group in GROUPS})
    """Group -> payloads that need not be delivered, because of a seek."""
    seeks: dict[str, int] = field(default_factory=lambda: dict.fromkeys(GROUPS, 0))
    """Group -> number of seeks in progress, which may end leases at any moment."""
    set_back_token: int = 0
    """Leases with smaller tokens have ended, because the partition's clock was set back."""
    deliveries: int = 0
    redeliveries: int = 0
    per_key: int = 1
    """Maximum number of messages of a key that may be leased at the same time."""
    per_tenant: Callable[[bytes], int | None] = lambda tenant: None
    """Return the maximum number of messages of a tenant that may be leased at the same time; None for no limit."""
    watch: Callable[[str, Delivery], None] = lambda group, delivery: None
    """Called with each delivery."""
    at_most: int = 0
    """Number of times that a tenant reached its limit."""
    seen: set[tuple[str, bytes]] = field(default_factory=set)

    def delivered(self, group: str, delivery: Delivery) -> list[tuple[bytes, bytes]]:
        """Check a delivery; return [(offset, payload), ...]."""
        found = messages_of(delivery)
        self.watch(group, delivery)
        for offset, payload in found:
            now_ms = self.clock.ms
            sent = self.sent.get(payload)
            assert sent is not None, f"{payload!r} was never sent"
            assert not sent.cancelled, f"{payload!r} was cancelled, but is delivered"
            assert now_ms >= sent.not_before_ms, f"{payload!r} is {sent.not_before_ms - now_ms} ms early"
            assert now_ms >= offsets.deliver_ms(offset), f"{payload!r} is delivered before its position in the log"
            if not sent.moving and not sent.vague and not sent.placed_anew:
                assert sent.offset in (None, offset), f"{payload!r} has another offset than the answer to its producer"
                assert sent.seen_at in (None, offset) or sent.offset, f"{payload!r} was stored twice"
                sent.seen_at = offset
            assert payload not in self.acked[group], f"{payload!r} was acked in {group}, but is delivered again"
            holder = self._holder(group, payload)
            self._check_limits(group, sent)
            if holder is not None and holder[0] != delivery.token and not self.seeks[group]:
                assert holder[1] <= self.clock.reached_ms, f"{payload!r} is leased twice at once in {group}"
                assert delivery.token > holder[0], f"{payload!r} is delivered with an older token"
            self.holders[group, payload] = (delivery.token, delivery.deadline_ms, delivery.consumer)
            self.deliveries += 1
            self.redeliveries += (group, payload) in self.seen
            self.seen.add((group, payload))
        return found

    def _holder(self, group: str, payload: bytes) -> tuple[int, int, str] | None:
        holder = self.holders.get((group, payload))
        return None if holder is None or holder[0] < self.set_back_token else holder

    def set_back(self, token: int) -> None:
        """Note that the partition's clock is set back: leases with smaller tokens end, and messages get new offsets."""
        self.set_back_token = max(self.set_back_token, token)
        for sent in self.sent.values():
            sent.placed_anew = True

    def may_be_forgotten(self, sent: Sent) -> bool:
        """Return whether the partition may not know the id of a message any more: all groups are done with the message,
        and the partition's clock was set back since."""
        return sent.placed_anew and all(
            [
                sent.payload in self.acked[group] | self.passed[group] | {payload for payload, _ in self.unsure[group]}
                for group in GROUPS
            ]
        )

    def _check_limits(self, group: str, sent: Sent) -> None:
        """Check that the limits of keys and tenants allow one more leased message."""
        if self.seeks[group]:
            return
        if self.ordered and sent.key is not None:
            others = self._held(group, sent, lambda other: other.key == sent.key)
            assert len(others) < self.per_key, f"{others!r} and {sent.payload!r} of one key are leased at once"
        most = self.per_tenant(sent.tenant)
        if most is not None:
            others = self._held(group, sent, lambda other: other.tenant == sent.tenant)
            assert len(others) < most, f"{others!r} and {sent.payload!r} of tenant {sent.tenant!r} are leased at once"
            self.at_most += len(others) == most - 1

    def _held(self, group: str, sent: Sent, is_alike: Callable[[Sent], bool]) -> list[bytes]:
        """Return the other leased messages of the group for which `is_alike` is true."""
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
        """Note a confirmed ack. A seek in progress may undo the ack."""
        if self.seeks[group]:
            self.again[group].add(payload)
            self.passed[group].add(payload)
        else:
            self.acked[group].add(payload)

    def seek(self, group: str) -> None:
        """Note that a seek begins: acked messages may be delivered again, and others may be skipped."""
        self.again[group] |= self.acked[group]
        self.acked[group].clear()
        self.passed[group] |= self.sent.keys()
        self.seeks[group] += 1

    def sought(self, group: str) -> None:
        """Note that a seek has ended: all leases of the group were revoked."""
        self.seeks[group] -= 1
        for key in [key for key in self.holders if key[0] == group]:
            del self.holders[key]

    def together(self) -> list[Sent]:
        """Return the messages that were stored in a batch row, before the common delivery time of the row."""
        return [sent for sent in self.sent.values() if sent.together]

    def missing(self) -> list[tuple[str, bytes]]:
        """Return acknowledged messages whose ack is not confirmed, with their groups."""
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
    """Return the offset and the value of each message."""
    return [(offset, value) for offset, value, _ in cells_of(delivery)]


def cells_of(delivery: Delivery) -> list[tuple[bytes, bytes, bytes | None]]:
    """Return the offset, the value and the packed headers of each message."""
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
