"""What the demo knows by itself, outside of the broker, and the arithmetic of its verdict. No clock is read here.

A *receipt* is the broker's word that a reminder is stored; it names the message by its offset. A reminder may be
stored twice, as two messages, when the producer had to try again after its connection broke. Times are epoch
milliseconds; lateness is the first delivery minus the moment asked for, in milliseconds, negative when early.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

EARLY_TOLERANCE_MS = 1.0
"""Two processes read one clock at two moments, and the broker whole milliseconds of it."""
RECENT_MS = 5000.0


@dataclass(slots=True)
class Outage:
    """A time without the node: from the kill until workers and producer are served again."""

    killed_ms: float
    served_ms: float | None = None
    """The node took connections again."""
    delivered_ms: float | None = None
    """The first delivery after that."""
    confirmed_ms: float | None = None
    """The first receipt after that."""

    def delayed(self, due_ms: float, delivered_ms: float, confirmed_ms: float | None) -> bool:
        """Whether a message that was due, delivered and confirmed at these moments was late because of it: no worker
        could be given it, or its producer could not store it in time.
        """
        if delivered_ms >= self.killed_ms and (self.delivered_ms is None or due_ms <= self.delivered_ms):
            return True
        if confirmed_ms is None or self.confirmed_ms is None:
            return False
        return confirmed_ms >= self.confirmed_ms >= due_ms


@dataclass(slots=True)
class Ledger:
    """What was asked for, confirmed, delivered and acked."""

    planned: int
    due_ms: dict[str, int] = field(default_factory=dict)
    """Reminder -> the moment asked for."""
    receipts: dict[str, tuple[str, float]] = field(default_factory=dict)
    """Message -> (reminder, moment), of those whose storing was confirmed."""
    failed: dict[str, str] = field(default_factory=dict)
    """Reminder -> why it could not be produced."""
    delivered: dict[str, tuple[str, float]] = field(default_factory=dict)
    """Message -> (reminder, moment of its first delivery)."""
    acked: set[str] = field(default_factory=set)
    """Messages whose ack was confirmed."""
    open: set[str] = field(default_factory=set)
    """Messages with a receipt and without a confirmed ack."""
    outages: list[Outage] = field(default_factory=list)
    by_worker: Counter[str] = field(default_factory=Counter)
    redelivered: int = 0
    after_ack: int = 0
    """Deliveries of a message whose ack had been confirmed."""
    acks_lost: int = 0
    recent: deque[tuple[float, float]] = field(default_factory=deque)
    """(moment, lateness) of the last deliveries."""

    @property
    def events(self) -> int:
        """Grows with whatever happens."""
        return len(self.receipts) + len(self.failed) + self.by_worker.total() + len(self.acked)

    @property
    def in_flight(self) -> int:
        """Delivered, and no ack confirmed."""
        return len(self.delivered) - len(self.acked)

    @property
    def recovered(self) -> bool:
        """Whether something was delivered after the last outage."""
        return bool(self.outages) and self.outages[-1].delivered_ms is not None

    def confirm(self, reminder: str, message: str, now_ms: float) -> None:
        """A receipt came."""
        self.receipts[message] = reminder, now_ms
        outage = self.outages[-1] if self.outages else None
        if outage is not None and outage.confirmed_ms is None and outage.served_ms is not None:
            outage.confirmed_ms = now_ms
        if message not in self.acked:
            self.open.add(message)

    def deliver(self, worker: str, reminder: str, message: str, now_ms: float) -> None:
        """A worker was given a message."""
        self.by_worker[worker] += 1
        outage = self.outages[-1] if self.outages else None
        if outage is not None and outage.delivered_ms is None and outage.served_ms is not None:
            outage.delivered_ms = now_ms
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

    def ack(self, message: str) -> None:
        """The broker confirmed an ack."""
        self.acked.add(message)
        self.open.discard(message)


@dataclass(frozen=True, slots=True)
class Lateness:
    """Of some messages, in milliseconds; all 0 when there are none."""

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
    """The nearest rank: the least value that at least so many percent of them do not exceed."""
    rank = math.ceil(len(ordered) * percent / 100)
    return ordered[max(1, rank) - 1]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The end of the demo, in figures."""

    planned: int
    produced: int
    failed: int
    delivered: int
    """Of the produced ones, at least once."""
    lost: int
    acked: int
    redelivered: int
    after_ack: int
    stored_twice: int
    early: int
    all: Lateness
    while_up: Lateness
    while_down: Lateness
    """Those that were late because the node was down, until workers and producer had found it again."""
    outages: tuple[Outage, ...]

    @property
    def faults(self) -> list[str]:
        """What must not be; empty when the broker kept its word."""
        checks = (
            (self.lost, "{} lost: stored, and never delivered"),
            (self.early, "{} delivered before their time"),
            (self.after_ack, "{} delivered again although their ack had been confirmed"),
            (self.failed, "{} could not be produced"),
        )
        faults = [text.format(f"{count:,}") for count, text in checks if count]
        missing = self.planned - self.produced - self.failed
        if missing > 0:
            faults.append(f"{missing:,} never confirmed by the broker")
        return faults

    @property
    def exit_code(self) -> int:
        return 1 if self.faults else 0


def verdict(ledger: Ledger) -> Verdict:
    """Add it all up."""
    up: list[float] = []
    down: list[float] = []
    early = 0
    for message, (reminder, delivered_ms) in ledger.delivered.items():
        due_ms = ledger.due_ms.get(reminder)
        if due_ms is None:
            continue
        early += delivered_ms - due_ms < -EARLY_TOLERANCE_MS
        receipt = ledger.receipts.get(message)
        confirmed_ms = receipt[1] if receipt is not None else None
        delayed = any(outage.delayed(due_ms, delivered_ms, confirmed_ms) for outage in ledger.outages)
        (down if delayed else up).append(delivered_ms - due_ms)
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
        all=Lateness.of(up + down),
        while_up=Lateness.of(up),
        while_down=Lateness.of(down),
        outages=tuple(ledger.outages),
    )
