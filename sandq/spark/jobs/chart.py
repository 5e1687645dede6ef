"""A forecast as a picture: messages due in each unit of time, several topics stacked. Needs matplotlib."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from sandq.model.errors import InvalidRequest
from sandq.spark.jobs.summary import ForecastSummary, TopicForecast

TOPICS_MAX: Final = 9
"""Topics with a colour of their own, those with the most messages; the others are added up."""
_INCHES: Final = (12.0, 5.0)
_DPI: Final = 120
_OTHERS: Final = "others"


class NoMatplotlib(InvalidRequest):
    """The package that draws charts is not installed."""


def write_png(path: Path, forecast: ForecastSummary) -> None:
    """Draw it. InvalidRequest when matplotlib is not there."""
    try:
        from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
        from matplotlib.figure import Figure
    except ImportError:
        raise NoMatplotlib("a chart needs matplotlib: pip install 'sandq[spark]'") from None
    # A figure of its own, not pyplot's: no window system is looked for, and nothing is kept.
    figure = Figure(figsize=_INCHES, dpi=_DPI, layout="constrained")
    axes: Any = figure.subplots()
    stacked = layers(forecast)
    edges = [
        datetime.fromtimestamp((forecast.start_ms + at * forecast.unit_ms) / 1000, UTC)
        for at in range(forecast.count + 1)
    ]
    if stacked:
        # The last value twice: a step is drawn up to the next edge.
        heights = [[*counts, counts[-1]] for counts in stacked.values()]
        axes.stackplot(edges, *heights, labels=list(stacked), step="post")
        axes.legend(loc="upper right", fontsize="small")
    locator = AutoDateLocator(tz=UTC)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=UTC))
    axes.set_xlim(edges[0], edges[-1])
    axes.set_ylim(bottom=0)
    axes.set_ylabel(f"messages due in each {forecast.unit}")
    axes.set_xlabel("UTC")
    later = sum(topic.later for topic in forecast.topics)
    within = sum(topic.messages for topic in forecast.topics)
    axes.set_title(f"{within:,} messages due, {later:,} later")
    axes.grid(axis="y", alpha=0.3)
    figure.savefig(path, format="png")


def layers(forecast: ForecastSummary) -> dict[str, list[int]]:
    """Counts of every unit of time for each topic that has any, the largest first; behind TOPICS_MAX the others."""
    topics = sorted((topic for topic in forecast.topics if topic.buckets), key=lambda topic: -topic.messages)
    found = {topic.topic: _counts(forecast, [topic]) for topic in topics[:TOPICS_MAX]}
    if len(topics) > TOPICS_MAX:
        found[f"{_OTHERS} ({len(topics) - TOPICS_MAX})"] = _counts(forecast, topics[TOPICS_MAX:])
    return found


def _counts(forecast: ForecastSummary, topics: list[TopicForecast]) -> list[int]:
    counts = [0] * forecast.count
    for topic in topics:
        for start_ms, messages in topic.buckets:
            at = (start_ms - forecast.start_ms) // forecast.unit_ms
            # Nodes are asked one after the other: at the edge of a unit one may begin with the next.
            counts[min(max(at, 0), forecast.count - 1)] += messages
    return counts
