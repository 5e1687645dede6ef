"""Turn samples of several rounds into rows: medians with their spread, and ratios of sandq to a peer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

from benchmarks.peers.driver import Sample
from benchmarks.peers.registry import OURS


@dataclass(frozen=True, slots=True)
class Outcome:
    """One load on one peer in one round: a sample, or the reason why there is none."""

    round: int
    peer: str
    workload: str
    sample: Sample | None
    error: str | None = None
    stolen: float = 0.0
    """Share of the machine's CPU time that its host gave to other machines meanwhile."""


class Spread(NamedTuple):
    """Median, least and most of the rounds."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(median(values), min(values), max(values))


@dataclass(frozen=True, slots=True)
class Row:
    """Figures of a peer in one load. CPU in microseconds per message, times in milliseconds."""

    peer: str
    messages: int
    """Messages of all rounds together."""
    rate: Spread
    server_us: Spread
    client_us: float
    p50_ms: float | None = None
    p99_ms: Spread | None = None
    max_ms: float | None = None
    """Median of the largest latency of each round, in ms, as in `Sample`."""
    early: int | None = None
    per_sync: float | None = None
    """Messages per sync of the log."""
    stolen: float = 0.0
    """Median share of the CPU time that the host gave to other machines."""
    rate_ratio: float | None = None
    """sandq's rate divided by this peer's rate. The other ratios are computed in the same way."""
    cpu_ratio: float | None = None
    p99_ratio: float | None = None


def rows(outcomes: Sequence[Outcome], workload: str) -> list[Row]:
    """Return the rows of one load, for each peer that has samples, in their first order."""
    samples: dict[str, list[Sample]] = {}
    stolen: dict[str, list[float]] = {}
    for outcome in outcomes:
        if outcome.workload == workload and outcome.sample is not None:
            samples.setdefault(outcome.peer, []).append(outcome.sample)
            stolen.setdefault(outcome.peer, []).append(outcome.stolen)
    bare = {peer: _row(peer, found, median(stolen[peer])) for peer, found in samples.items()}
    return [_compared(row, bare.get(OURS)) for row in bare.values()]


def _row(peer: str, samples: Sequence[Sample], stolen: float) -> Row:
    times = [sample.times_ms for sample in samples if sample.times_ms is not None]
    early = [sample.early for sample in samples if sample.early is not None]
    syncs = sum(sample.syncs or 0 for sample in samples)
    messages = sum(sample.messages for sample in samples)
    return Row(
        peer,
        messages,
        Spread.of([sample.messages / sample.seconds for sample in samples]),
        Spread.of([sample.server_s * 1e6 / sample.messages for sample in samples]),
        median(sample.client_s * 1e6 / sample.messages for sample in samples),
        median(found[0] for found in times) if times else None,
        Spread.of([found[1] for found in times]) if times else None,
        max(found[2] for found in times) if times else None,
        sum(early) if early else None,
        messages / syncs if syncs else None,
        stolen,
    )


def _compared(row: Row, ours: Row | None) -> Row:
    if ours is None or row is ours:
        return row
    fields: dict[str, Any] = {name: getattr(row, name) for name in Row.__slots__}
    fields["rate_ratio"] = ratio(ours.rate.median, row.rate.median)
    fields["cpu_ratio"] = ratio(ours.server_us.median, row.server_us.median)
    if ours.p99_ms is not None and row.p99_ms is not None:
        fields["p99_ratio"] = ratio(ours.p99_ms.median, row.p99_ms.median)
    return Row(**fields)


def ratio(ours: float, theirs: float) -> float | None:
    """Return the ratio; None if the divisor is zero, because it was below the clock's resolution."""
    return ours / theirs if theirs > 0 else None


def errors(outcomes: Sequence[Outcome]) -> Mapping[str, list[str]]:
    """Return the failures by load."""
    found: dict[str, list[str]] = {}
    for outcome in outcomes:
        if outcome.error is not None:
            found.setdefault(outcome.workload, []).append(f"{outcome.peer}, round {outcome.round}: {outcome.error}")
    return found
