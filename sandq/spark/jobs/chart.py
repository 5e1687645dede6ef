"""Draws a forecast as a chart: messages due in each unit of time, with the topics stacked. Needs matplotlib."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from sandq.model.errors import InvalidRequest
from sandq.spark.jobs.summary import ForecastSummary, TopicForecast

TOPICS_MAX: Final = 9
"""Maximum number of topics with a separate colour: those with the most messages. The others are added up."""
_INCHES: Final = (12.0, 5.0)
_DPI: Final = 120
_OTHERS: Final = "others"


class NoMatplotlib(InvalidRequest):
    """The package that draws charts is not installed."""


def write_png(path: Path, forecast: ForecastSummary) -> None:
    """Draw a forecast into a PNG file. Raises NoMatplotlib if matplotlib is not installed."""
    try:
        from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
        from matplotlib.figure import Figure
    except ImportError:
        raise NoMatplotlib("a chart needs matplotlib: pip install 'sandq[spark]'") from None
    # Without pyplot, matplotlib needs no window system and keeps no reference to the figure.
    figure = Figure(figsize=_INCHES, dpi=_DPI, layout="constrained")
    axes: Any = figure.subplots()
    stacked = layers(forecast)
    edges = [
        datetime.fromtimestamp((forecast.start_ms + at * forecast.unit_ms) / 1000, UTC)
        for at in range(forecast.count + 1)
    ]
    if stacked:
        # Repeat the last value, because a step is drawn up to the next edge.
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
    """Return the counts of all units of time for each topic with messages, largest topic first.

    The topics after the first TOPICS_MAX are added up in a last layer.
    """
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
            # Nodes reply one after the other, so some may already begin with the next unit of time.
            counts[min(max(at, 0), forecast.count - 1)] += messages
    return counts
