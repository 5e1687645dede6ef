"""Row, one measurement (`Measured`) and the result of all rounds (`Result`)."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from benchmarks.process import Used, Where

GROUPS = {
    "produce": "Producing",
    "consume": "Consuming",
    "small": "One thing at a time",
    "lateness": "Lateness",
    "scheduled": "Messages at times of their own",
    "ranked": "Priorities and tenants",
    "schedules": "Schedules",
    "pending": "Messages that wait",
    "held": "One request, by the number of messages held",
    "replicas": "Replicas and clusters",
    "shape": "Partitions and sizes",
    "keys": "Compacted topics",
    "tls": "What TLS costs",
    "access": "Authentication and authorization",
    "abuse": "One client and abusive clients",
    "console": "The console",
    "backups": "Backups",
    "sql": "SQL",
    "spark": "Spark",
}
CPU, MAX, P99 = "node CPU us/msg", "max ms", "p99 ms"
"""Names of figures of a row to which a goal may refer."""
INTENDED = "from intended send"
HANDED = "from hand-over"
CALLED = "from call"
ACKED = "of acks, from hand-over"
DUE = "after due"
SHARES = (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 1.0)
"""Number of latencies kept for charts."""


def short(value: float | None) -> str:
    """Return a figure as text."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.2f}"


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal: `value` is a lower limit (`at_least`) or an upper limit of the figure `of`; see `Measured.figure`."""

    value: float
    unit: str
    at_least: bool = True
    of: str = ""

    def ratio(self, measured: float) -> float:
        """Return the ratio to the goal; 1 or more means reached."""
        if self.at_least:
            return measured / self.value
        return self.value / measured if measured > 0 else float("inf")

    def __str__(self) -> str:
        return f"{'>=' if self.at_least else '<='} {short(self.value)} {self.unit}"


@dataclass(frozen=True, slots=True)
class Latency:
    """Latencies of responses or messages, in ms. `clock` names their starting point."""

    clock: str
    count: int
    shares_ms: tuple[float, ...]
    """Latencies at `SHARES` of the messages."""

    @classmethod
    def of(cls, clock: str, seconds: Iterable[float]) -> Latency | None:
        """Return the summary; None if there were no latencies."""
        ordered = sorted(seconds)
        return cls(clock, len(ordered), tuple(at_share(ordered, share) * 1000 for share in SHARES)) if ordered else None

    def at(self, share: float) -> float:
        """Return the latency at one of `SHARES`, in ms."""
        return self.shares_ms[SHARES.index(share)]


def at_share(ordered: Sequence[float], share: float) -> float:
    """Return the least value that this share does not exceed. `ordered` is sorted and not empty."""
    return ordered[max(0, math.ceil(len(ordered) * share) - 1)]


@dataclass(slots=True)
class LoadResult:
    """The result that a load reports."""

    messages: int
    seconds: float
    latency: Latency | None = None
    errors: int = 0
    details: dict[str, float] = field(default_factory=dict)
    cpu_s: float = 0.0
    """CPU seconds of the load's process, user and system."""

    @classmethod
    def of(cls, record: dict[str, Any]) -> LoadResult:
        """Parse it from JSON."""
        latency = record.pop("latency")
        if latency is not None:
            latency = Latency(latency["clock"], latency["count"], tuple(latency["shares_ms"]))
        return cls(latency=latency, **record)


@dataclass(slots=True)
class Measured:
    """One round of a row. `value` is the figure of the goal."""

    messages: int
    value: float
    cpu_us: float | None = None
    """The nodes' CPU per message, microseconds, all threads."""
    client_cpu_us: float | None = None
    latency: Latency | None = None
    fsyncs: int | None = None
    """Syncs by the nodes while the load ran."""
    errors: int = 0
    details: dict[str, float] = field(default_factory=dict)
    stolen: float | None = field(default=None, compare=False)
    """Share of the machine's CPU time that its host gave to other machines."""

    @classmethod
    def of(cls, result: LoadResult, used: Used) -> Measured:
        """Build a rate; rows that measure something else replace `value`."""
        return cls(
            messages=result.messages,
            value=result.messages / result.seconds,
            cpu_us=used.cpu_s * 1e6 / result.messages,
            client_cpu_us=result.cpu_s * 1e6 / result.messages,
            latency=result.latency,
            fsyncs=used.fsyncs,
            errors=result.errors,
            details=dict(result.details),
        )

    @property
    def messages_per_fsync(self) -> float | None:
        return self.messages / self.fsyncs if self.fsyncs else None

    def figure(self, of: str) -> float:
        """Return `CPU`, `MAX` or `P99` of the latency, or a detail, by name; the value without a name."""
        if not of:
            return self.value
        if of == CPU:
            assert self.cpu_us is not None
            return self.cpu_us
        if of in (MAX, P99):
            assert self.latency is not None
            return self.latency.at(1.0 if of == MAX else 0.99)
        return self.details[of]


@dataclass(frozen=True, slots=True)
class Setting:
    """Conditions of the run that a row gets."""

    where: Where
    name: str
    quick: bool = False

    def count(self, full: int, quick: int) -> int:
        return quick if self.quick else full


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement of the program."""

    name: str
    group: str
    what: str
    measure: Callable[[Setting], Measured]
    unit: str = "msg/s"
    goal: Goal | None = None
    driver: str = "raw"
    """Kind of client. "raw": sockets and prepared frames; "client": the Python client; "spark"; "none"."""
    further: tuple[Goal, ...] = ()
    """Goals in addition to `goal`."""

    @property
    def goals(self) -> tuple[Goal, ...]:
        return self.further if self.goal is None else (self.goal, *self.further)


@dataclass(slots=True)
class Result:
    """A row and its result: the round with the median value."""

    row: Row
    measured: Measured
    values: list[float]
    """Values of all rounds, in order."""

    @classmethod
    def of(cls, row: Row, rounds: Sequence[Measured]) -> Result:
        ordered = sorted(rounds, key=lambda one: one.value)
        chosen = ordered[(len(ordered) - 1) // 2]
        # an error in any round counts
        return cls(row, replace(chosen, errors=sum(one.errors for one in rounds)), [one.value for one in rounds])

    @property
    def ratio(self) -> float | None:
        """Ratio to the row's own goal."""
        return self._ratio(self.row.goal) if self.row.goal is not None else None

    @property
    def ratios(self) -> list[float]:
        """Ratios to all goals, in order."""
        return [self._ratio(goal) for goal in self.row.goals]

    def _ratio(self, goal: Goal) -> float:
        return goal.ratio(self.measured.figure(goal.of))

    def record(self) -> dict[str, Any]:
        """Return the result as JSON."""
        row, goal = self.row, self.row.goal
        about = {"name": row.name, "group": row.group, "what": row.what, "driver": row.driver, "unit": row.unit}
        return {
            **about,
            **asdict(self.measured),
            "messages_per_fsync": self.measured.messages_per_fsync,
            "goal": goal.value if goal is not None else None,
            "ratio": self.ratio,
            "goals": [
                {"goal": str(goal), "of": goal.of, "ratio": ratio}
                for goal, ratio in zip(row.goals, self.ratios, strict=True)
            ],
            "rounds": self.values,
        }


def as_json(machine: dict[str, Any], results: Sequence[Result]) -> str:
    found = {"machine": machine, "shares": SHARES, "results": [result.record() for result in results]}
    return json.dumps(found, indent=2)
