"""Compare the lateness of deliveries with the objective, for all nodes together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from sandq.model.errors import ProtocolError
from sandq.model.shares import PPM
from sandq.model.times import format_duration
from sandq.protocol.frames import Frame

TOPICS_MOST: Final = 100
_REPLY: Final = 3
"""Number of items of a reply: type, id, data."""
_REASONS: Final = {
    "off": "it is further from most others' than allowed",
    "uncompared": "it was not compared with the others'",
    "wall": "the wall clock stepped, and is not followed",
    "disputed": "as many others contradict it as agree with it",
}


class SloReport(NamedTuple):
    """How late messages were delivered in the last `window_ms`, for all nodes that replied.

    `target`: the share of deliveries that should come within `lateness_ms`. `in_time`: the actual share. `budget_left`:
    share of the allowed late deliveries that is left; below 0 if too many were late. `in_time` and `budget_left` are
    None if nothing was delivered. `burn_rates`: by time span ("1h"), the budget's rate of use relative to the allowed
    rate; None if nothing was delivered. `early`: early deliveries, always 0. `histogram`: pairs (bound in ms,
    deliveries above the previous bound up to this one); the bound is None for deliveries above all bounds.

    `is_proven`: all nodes replied, and their clocks were trusted; otherwise `doubts` has the reasons. `nodes`: one row
    per node. `topics`: the topics with the most late deliveries since the nodes started. `missing`: by node, the reason
    why it did not reply.
    """

    lateness_ms: int
    target: float
    window_ms: int
    since_ms: int
    deliveries: int
    late: int
    in_time: float | None
    budget_left: float | None
    burn_rates: dict[str, float | None]
    early: int
    histogram: list[tuple[float | None, int]]
    is_proven: bool
    doubts: list[str]
    nodes: list[dict[str, Any]]
    topics: list[dict[str, Any]]
    missing: dict[str, str]


class Window(NamedTuple):
    """Counts of a node's deliveries in one time span."""

    over_ms: int
    counts: Sequence[int]
    early: int
    unproven: int


class NodeSlo(NamedTuple):
    """The reply of one node."""

    lateness_ms: int
    target_ppm: int
    window_ms: int
    since_ms: int
    bounds_us: Sequence[int]
    windows: Sequence[Window]
    clock: Mapping[str, Any]
    topics: Sequence[Sequence[Any]]

    @property
    def promise(self) -> tuple[int, int, int]:
        """The configured objective: lateness in ms, target in ppm, window in ms."""
        return self.lateness_ms, self.target_ppm, self.window_ms

    def late(self, counts: Sequence[int], lateness_ms: int) -> int:
        """Return how many of these deliveries were later than `lateness_ms`."""
        in_time = [n for bound, n in zip(self.bounds_us, counts, strict=False) if bound <= lateness_ms * 1000]
        return sum(counts) - sum(in_time)


def parse_reply(frame: Frame) -> NodeSlo:
    """Parse the reply to SLO. Raises ProtocolError."""
    found = frame[2] if len(frame) >= _REPLY else None
    try:
        windows = [Window(*window) for window in found["windows"]]  # type: ignore[index]
        reply = NodeSlo(**{name: found[name] for name in NodeSlo._fields} | {"windows": windows})  # type: ignore[index]
        is_whole = bool(windows) and all([len(window.counts) == len(reply.bounds_us) + 1 for window in windows])
    except (KeyError, TypeError) as error:
        raise ProtocolError(f"SLO reply: {error!r}") from error
    if not is_whole:
        raise ProtocolError("SLO reply: counts of each bound are expected")
    return reply


def merge(replies: Mapping[str, NodeSlo], missing: Mapping[str, str]) -> SloReport:
    """Merge the replies of at least one node. The objective of the first node applies to all."""
    first = next(iter(replies.values()))
    lateness_ms, target_ppm, window_ms = first.promise
    missing, doubts = dict(missing), []
    nodes: list[dict[str, Any]] = []
    sums: dict[int, list[int]] = {}
    early = 0
    topics: Counter[str] = Counter()
    late_of: Counter[str] = Counter()
    for name, found in replies.items():
        if found.bounds_us != first.bounds_us:
            missing[name] = "it counts by other bounds: it has another version"
            continue
        for window in found.windows:
            key = 0 if window is found.windows[-1] else window.over_ms
            before = sums.get(key, [0] * len(window.counts))
            sums[key] = [have + more for have, more in zip(before, window.counts, strict=True)]
        whole = found.windows[-1]
        early += whole.early
        for topic, deliveries, late in found.topics:
            topics[str(topic)] += deliveries
            late_of[str(topic)] += late
        nodes.append(_row(name, found, lateness_ms))
        doubts += _doubts(name, found, first)
    doubts += [f"{name} did not report: {why}" for name, why in missing.items()]
    counts = sums.pop(0)
    deliveries, late = sum(counts), first.late(counts, lateness_ms)
    in_time, burnt = _shares(deliveries, late, target_ppm)
    burn_rates = {
        format_duration(over_ms): _shares(sum(of), first.late(of, lateness_ms), target_ppm)[1]
        for over_ms, of in sorted(sums.items())
    }
    bounds: list[float | None] = [*[bound / 1000 for bound in first.bounds_us], None]
    worst = sorted(topics, key=lambda topic: (-late_of[topic], topic))[:TOPICS_MOST]
    return SloReport(
        lateness_ms,
        target_ppm / PPM,
        window_ms,
        min([found.since_ms for found in replies.values()]),
        deliveries,
        late,
        in_time,
        None if burnt is None else round(1 - burnt, 6),
        burn_rates,
        early,
        list(zip(bounds, counts, strict=True)),
        not doubts,
        doubts,
        nodes,
        [{"topic": topic, "deliveries": topics[topic], "late": late_of[topic]} for topic in worst],
        missing,
    )


def _shares(deliveries: int, late: int, target_ppm: int) -> tuple[float | None, float | None]:
    """Return (share of deliveries in time, ratio of late deliveries to the late deliveries that the target allows)."""
    if not deliveries:
        return None, None
    return round(1 - late / deliveries, 9), round(late / deliveries / (1 - target_ppm / PPM), 6)


def _row(name: str, found: NodeSlo, lateness_ms: int) -> dict[str, Any]:
    whole = found.windows[-1]
    return {
        "node": name,
        "since_ms": found.since_ms,
        "deliveries": sum(whole.counts),
        "late": found.late(whole.counts, lateness_ms),
        "early": whole.early,
        "unproven": whole.unproven,
        "clock_trusted": bool(found.clock.get("trusted")),
        "clock_reason": found.clock.get("reason"),
        "clock_drift_ms": found.clock.get("drift_ms"),
        "clock_median_ms": found.clock.get("median_ms"),
    }


def _doubts(name: str, found: NodeSlo, first: NodeSlo) -> list[str]:
    """Return the reasons why the reply of a node is no proof of the objective."""
    doubts = []
    if not found.clock.get("trusted"):
        reason = found.clock.get("reason")
        doubts.append(f"the clock of {name} is not trusted: {_REASONS.get(str(reason), reason)}")
    if unproven := found.windows[-1].unproven:
        doubts.append(f"{unproven:,} deliveries of {name} were measured while its clock was not trusted")
    if found.promise != first.promise:
        share = f"{found.target_ppm / 10_000:g}% within {format_duration(found.lateness_ms)}"
        doubts.append(f"{name} has a different objective: {share}, over {format_duration(found.window_ms)}")
    return doubts
