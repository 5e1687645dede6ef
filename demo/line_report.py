"""The demo's own record of a file's lines, outside of the broker, and its verdict. Reads no clock.

For each line, the record needs 17 bytes: a hash of the message, the requested time, and the number of deliveries. Times
are epoch milliseconds. Lateness is the first delivery minus the requested time (or minus the sending time, if that was
later), in milliseconds, negative if early.
"""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass, field

from xxhash import xxh3_64_intdigest

from demo.lines import Line
from demo.report import EARLY_TOLERANCE_MS, Lateness

_NOT_A_MESSAGE = 255
_MOST_TIMES = 254
_NAMED = 5
_STEPS = 10
"""Steps of lateness per millisecond: lateness is counted in tenths of a millisecond."""


def line_hash(value: bytes, key: bytes | None) -> int:
    """Return a hash of value and key, to check that a delivery has the value and key that were sent."""
    return xxh3_64_intdigest(value, seed=0 if key is None else 1 + xxh3_64_intdigest(key) % 2**63)


@dataclass(slots=True)
class LineLedger:
    """Lines that were sent, confirmed and delivered, by their number in the file."""

    planned: int
    sent: int = 0
    confirmed: int = 0
    failed: dict[int, str] = field(default_factory=dict)
    """By line number: the reason why the line could not be produced."""
    delivered: int = 0
    """Number of lines that were delivered at least once."""
    again: int = 0
    """Number of further deliveries of lines that were delivered before."""
    altered: int = 0
    """Number of deliveries with a different value or key than the line."""
    unknown: int = 0
    """Number of deliveries of lines that were never sent."""
    early: int = 0
    acks_lost: int = 0
    last_lateness_ms: float = 0.0
    last_delivered_ms: float = 0.0
    _hashes: array[int] = field(default_factory=lambda: array("Q"))
    _due_ms: array[int] = field(default_factory=lambda: array("Q"))
    _times: bytearray = field(default_factory=bytearray)
    _lateness: Counter[int] = field(default_factory=Counter)

    @property
    def events(self) -> int:
        """Counter that grows with every event."""
        return self.sent + self.confirmed + len(self.failed) + self.delivered + self.again + self.altered + self.unknown

    @property
    def complete(self) -> bool:
        """True if every sent line was confirmed or has failed, and every stored line was delivered."""
        return self.confirmed + len(self.failed) == self.sent and not self.lost

    @property
    def lost(self) -> int:
        """Number of lines that are or may be stored, but were not delivered."""
        return self.sent - self.delivered - sum(not self._times[number - 1] for number in self.failed)

    def skip(self) -> None:
        """Record that the next line of the file is empty."""
        self._add(0, 0, _NOT_A_MESSAGE)

    def send(self, line: Line, due_ms: int) -> None:
        """Record that the next line is being sent, to be delivered at `due_ms`."""
        self._add(line_hash(line.value, line.key), due_ms, 0)
        self.sent += 1

    def _add(self, hashed: int, due_ms: int, times: int) -> None:
        self._hashes.append(hashed)
        self._due_ms.append(due_ms)
        self._times.append(times)

    def deliver(self, number: object, value: bytes, key: bytes | None, now_ms: float) -> None:
        """Record a delivery whose header says that it is line `number`."""
        self.last_delivered_ms = now_ms
        place = number - 1 if isinstance(number, int) else -1
        if not 0 <= place < len(self._times) or self._times[place] == _NOT_A_MESSAGE:
            self.unknown += 1
            return
        if line_hash(value, key) != self._hashes[place]:
            self.altered += 1
            return
        times = self._times[place]
        self._times[place] = min(times + 1, _MOST_TIMES)
        if times:
            self.again += 1
            return
        self.delivered += 1
        lateness_ms = now_ms - self._due_ms[place]
        self.last_lateness_ms = lateness_ms
        self.early += lateness_ms < -EARLY_TOLERANCE_MS
        self._lateness[round(lateness_ms * _STEPS)] += 1

    def lateness(self) -> Lateness:
        """Return the percentiles of lateness, over the first delivery of each line."""
        steps = sorted(self._lateness)
        if not steps:
            return Lateness.of(())
        count = self._lateness.total()
        return Lateness(
            count, steps[0] / _STEPS, self._rank(steps, count, 50), self._rank(steps, count, 99), steps[-1] / _STEPS
        )

    def _rank(self, steps: list[int], count: int, percent: int) -> float:
        """Return a percentile in ms: the nearest rank, as in `report.percentile`."""
        rank = max(1, -(-count * percent // 100))
        for step in steps:
            rank -= self._lateness[step]
            if rank <= 0:
                return step / _STEPS
        return steps[-1] / _STEPS

    def numbers(self, *, more_than_once: bool = False) -> list[int]:
        """Return up to `_NAMED` numbers of lines that were never delivered, or that were delivered more than once."""
        found = []
        for place, times in enumerate(self._times):
            if times == _NOT_A_MESSAGE or (times < 2 if more_than_once else times or place + 1 in self.failed):
                continue
            found.append(place + 1)
            if len(found) == _NAMED:
                break
        return found


def faults(ledger: LineLedger) -> list[str]:
    """Return a text for each promise that the broker broke. Empty if it kept all promises."""
    found = []
    if ledger.lost > 0:
        found.append(f"{ledger.lost:,} lost: sent, and never delivered ({_named(ledger.numbers(), ledger.lost)})")
    if ledger.again:
        numbers = ledger.numbers(more_than_once=True)
        found.append(f"{ledger.again:,} delivered more often than they stand in the file ({_named(numbers, 0)})")
    for count, text in (
        (ledger.altered, "delivered with a different value or key"),
        (ledger.unknown, "delivered but never sent"),
        (ledger.early, "delivered before their time"),
    ):
        if count:
            found.append(f"{count:,} {text}")
    if ledger.failed:
        number, why = next(iter(ledger.failed.items()))
        found.append(f"{len(ledger.failed):,} could not be produced (line {number}: {why})")
    missing = ledger.planned - ledger.sent
    if missing > 0:
        found.append(f"{missing:,} never sent")
    elif missing < 0:
        found.append(f"the file has grown in the meantime by {-missing:,} lines")
    unconfirmed = ledger.sent - ledger.confirmed - len(ledger.failed)
    if unconfirmed > 0:
        found.append(f"{unconfirmed:,} never confirmed by the broker")
    return found


def _named(numbers: list[int], count: int) -> str:
    more = ", ..." if count > len(numbers) or len(numbers) == _NAMED else ""
    return f"line{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}{more}"


def rows(ledger: LineLedger) -> list[tuple[str, str]]:
    """Return name and text of each line of the verdict."""
    lateness = ledger.lateness()
    shown = (
        f"p50 {lateness.p50_ms:.1f} ms, p99 {lateness.p99_ms:.1f} ms, most {lateness.most_ms:.1f} ms "
        f"(of {lateness.count:,})"
        if lateness.count
        else "none"
    )
    return [
        ("produced", f"{ledger.confirmed:,} of {ledger.planned:,} lines (confirmed by the broker)"),
        ("delivered", f"{ledger.delivered:,} lines"),
        ("lost", f"{max(0, ledger.lost):,}"),
        ("too often", f"{ledger.again:,}"),
        ("altered", f"{ledger.altered + ledger.unknown:,}"),
        (
            "early",
            f"{ledger.early:,} (by more than {EARLY_TOLERANCE_MS:g} ms; least lateness {lateness.least_ms:.1f} ms)",
        ),
        ("lateness", shown),
    ]
