"""The demo's own record, outside of the broker, and the figures of its verdict. Reads no clock.

A *receipt* confirms that a reminder is stored, and contains the offset of the message. If a reminder is stored as two
messages, the broker did not recognise a retry of the producer. Times are epoch milliseconds. Lateness is the first
delivery minus the requested time, in milliseconds, negative if early.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from sandq.model import offsets

EARLY_TOLERANCE_MS = 1.0
"""A delivery counts as early only if it is early by more than this time, in ms.

Two processes read one clock at two moments, and the broker uses whole milliseconds."""
RECENT_MS = 5000.0


@dataclass(slots=True)
class Failover:
    """The time from the kill of a node until other nodes serve the partitions that it led."""

    node: str
    partitions: frozenset[int]
    """Partitions that the killed node led."""
    killed_ms: float
    led_ms: float | None = None
    """Time at which each of these partitions had a new leader."""
    delivered_ms: float | None = None
    """Time of the first delivery from these partitions after they had new leaders."""
    confirmed_ms: float | None = None
    """Time of the first receipt for these partitions after they had new leaders."""

    def delayed(self, partition: int, due_ms: float, delivered_ms: float, confirmed_ms: float | None) -> bool:
        """Return whether this failover explains why a message was late.

        While its partition had no leader, no worker could get the message, or its producer could not store it."""
        if partition not in self.partitions:
            return False
        if delivered_ms >= self.killed_ms and (self.delivered_ms is None or due_ms <= self.delivered_ms):
            return True
        if confirmed_ms is None or self.confirmed_ms is None:
            return False
        return confirmed_ms >= self.confirmed_ms >= due_ms


@dataclass(slots=True)
class Join:
    """The time from the start of a new node until it holds its share."""

    node: str
    replicas: int
    """Minimum number of replicas that the new node should hold."""
    leads: int
    """Minimum number of partitions that the new node should lead."""
    before: dict[str, int] = field(default_factory=dict)
    """By node: number of replicas before the new node started."""
    after: dict[str, int] = field(default_factory=dict)
    """By node: number of replicas in the latest report of the cluster."""
    led: frozenset[int] = frozenset()
    """Partitions that the new node leads."""
    started_ms: float | None = None
    joined_ms: float | None = None
    """Time at which the cluster had registered the new node and could reach it."""
    settled_ms: float | None = None
    """Time at which the new node held and led its share, and no partition moved any more."""

    def disturbed(self, due_ms: float) -> bool:
        """Return whether partitions were moving to the new node at this time."""
        if self.joined_ms is None or due_ms < self.joined_ms:
            return False
        return self.settled_ms is None or due_ms <= self.settled_ms

    @property
    def faults(self) -> list[str]:
        """Why the new node has not got its share. Empty if it has."""
        if self.started_ms is None:
            return [f"{self.node} was never started"]
        if self.joined_ms is None:
            return [f"{self.node} has not joined the cluster"]
        if self.settled_ms is None:
            return [
                f"{self.node} has not got its share: it holds {self.after.get(self.node, 0)} of {self.replicas} "
                f"replicas and leads {len(self.led)} of {self.leads} partitions, or something is still moving"
            ]
        return []


@dataclass(slots=True)
class Ledger:
    """Reminders that were requested, confirmed, delivered and acked."""

    planned: int
    due_ms: dict[str, int] = field(default_factory=dict)
    """By reminder: its requested time."""
    receipts: dict[str, tuple[str, float]] = field(default_factory=dict)
    """By offset of a confirmed message: (reminder, time of the receipt)."""
    failed: dict[str, str] = field(default_factory=dict)
    """By reminder: the reason why it could not be produced."""
    delivered: dict[str, tuple[str, float]] = field(default_factory=dict)
    """By offset of a message: (reminder, time of its first delivery)."""
    acked: set[str] = field(default_factory=set)
    """Offsets of the messages whose ack was confirmed."""
    open: set[str] = field(default_factory=set)
    """Offsets of the messages with a receipt but without a confirmed ack."""
    failovers: list[Failover] = field(default_factory=list)
    join: Join | None = None
    by_worker: Counter[str] = field(default_factory=Counter)
    redelivered: int = 0
    after_ack: int = 0
    """Number of deliveries of messages whose ack was already confirmed."""
    acks_lost: int = 0
    recent: deque[tuple[float, float]] = field(default_factory=deque)
    """(time, lateness) of the deliveries in the last `RECENT_MS`, in ms."""

    @property
    def events(self) -> int:
        """Counter that grows with every event."""
        return len(self.receipts) + len(self.failed) + self.by_worker.total() + len(self.acked)

    @property
    def in_flight(self) -> int:
        """Return the messages that were delivered without a confirmed ack."""
        return len(self.delivered) - len(self.acked)

    def confirm(self, reminder: str, message: str, now_ms: float) -> None:
        """Record a receipt."""
        self.receipts[message] = reminder, now_ms
        failover = self._failover_of(message)
        if failover is not None and failover.confirmed_ms is None:
            failover.confirmed_ms = now_ms
        if message not in self.acked:
            self.open.add(message)

    def deliver(self, worker: str, reminder: str, message: str, now_ms: float) -> None:
        """Record a delivery to a worker."""
        self.by_worker[worker] += 1
        failover = self._failover_of(message)
        if failover is not None and failover.delivered_ms is None:
            failover.delivered_ms = now_ms
        if message in self.delivered:
            self.redelivered += 1
            self.after_ack += message in self.acked
            return
        self.delivered[message] = reminder, now_ms
        due_ms = self.due_ms.get(reminder)
        if due_ms is not None:
            self.recent.append((now_ms, now_ms - due_ms))
        while self.recent and self.recent[0][0] < now_ms - RECENT_MS:
            self.recent.popleft()

    def _failover_of(self, message: str) -> Failover | None:
        """Return the last failover if it affected the partition of this message, and if new leaders have been found."""
        last = self.failovers[-1] if self.failovers else None
        if last is None or last.led_ms is None or partition_of(message) not in last.partitions:
            return None
        return last

    def ack(self, message: str) -> None:
        """Record a confirmed ack."""
        self.acked.add(message)
        self.open.discard(message)


def partition_of(message: str) -> int:
    """Return the partition number that an offset contains."""
    return offsets.unpack(offsets.from_text(message)).partition


@dataclass(frozen=True, slots=True)
class Lateness:
    """Percentiles of the lateness of some messages, in milliseconds. All are 0 without messages."""

    count: int
    least_ms: float
    p50_ms: float
    p99_ms: float
    most_ms: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Lateness:
        found = sorted(values)
        if not found:
            return cls(0, 0.0, 0.0, 0.0, 0.0)
        return cls(len(found), found[0], percentile(found, 50), percentile(found, 99), found[-1])


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return a percentile by the nearest-rank method.

    It is the lowest value such that at least `percent` % of the values are equal or lower."""
    rank = math.ceil(len(ordered) * percent / 100)
    return ordered[max(1, rank) - 1]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The figures at the end of the demo."""

    planned: int
    produced: int
    failed: int
    delivered: int
    """Number of produced messages that were delivered at least once."""
    lost: int
    acked: int
    redelivered: int
    after_ack: int
    stored_twice: int
    early: int
    all: Lateness
    undisturbed: Lateness
    in_failover: Lateness
    """Lateness of the messages that were late because their partition had no leader."""
    failovers: tuple[Failover, ...]
    in_move: Lateness
    """Lateness of the messages that were due while partitions moved to the new node. Excludes those of
    `in_failover`."""
    join: Join | None

    @property
    def faults(self) -> list[str]:
        """Return a text for each promise that the broker broke. Empty if it kept all promises."""
        checks = (
            (self.lost, "{} lost: stored but never delivered"),
            (self.early, "{} delivered before their time"),
            (self.after_ack, "{} redelivered although their ack had been confirmed"),
            (self.stored_twice, "{} stored twice: the broker did not recognise a retry of the producer"),
            (self.failed, "{} could not be produced"),
        )
        faults = [text.format(f"{count:,}") for count, text in checks if count]
        missing = self.planned - self.produced - self.failed
        if missing > 0:
            faults.append(f"{missing:,} never confirmed by the broker")
        for failover in self.failovers:
            if failover.led_ms is None:
                faults.append(f"the partitions of {failover.node} found no new leader")
        return faults + (self.join.faults if self.join is not None else [])

    @property
    def exit_code(self) -> int:
        return 1 if self.faults else 0


def verdict(ledger: Ledger) -> Verdict:
    """Compute the figures."""
    undisturbed: list[float] = []
    in_failover: list[float] = []
    in_move: list[float] = []
    early = 0
    for message, (reminder, delivered_ms) in ledger.delivered.items():
        due_ms = ledger.due_ms.get(reminder)
        if due_ms is None:
            continue
        early += delivered_ms - due_ms < -EARLY_TOLERANCE_MS
        receipt = ledger.receipts.get(message)
        confirmed_ms = receipt[1] if receipt is not None else None
        partition = partition_of(message)
        delayed = any(failover.delayed(partition, due_ms, delivered_ms, confirmed_ms) for failover in ledger.failovers)
        moved = ledger.join is not None and ledger.join.disturbed(due_ms)
        (in_failover if delayed else in_move if moved else undisturbed).append(delivered_ms - due_ms)
    lost = sum(message not in ledger.delivered for message in ledger.receipts)
    reminders = Counter(reminder for reminder, _ in ledger.delivered.values())
    return Verdict(
        planned=ledger.planned,
        produced=len(ledger.receipts),
        failed=len(ledger.failed),
        delivered=len(ledger.receipts) - lost,
        lost=lost,
        acked=sum(message in ledger.acked for message in ledger.receipts),
        redelivered=ledger.redelivered,
        after_ack=ledger.after_ack,
        stored_twice=sum(count - 1 for count in reminders.values()),
        early=early,
        all=Lateness.of(undisturbed + in_failover + in_move),
        undisturbed=Lateness.of(undisturbed),
        in_failover=Lateness.of(in_failover),
        failovers=tuple(ledger.failovers),
        in_move=Lateness.of(in_move),
        join=ledger.join,
    )
