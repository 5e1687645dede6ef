"""The job forecast: the number of messages that come due in each unit of time, by topic.

It needs no Spark and reads no messages: brokers keep the number of messages for each second, and add the messages that
schedules will create. A forecast covers up to 3600 seconds, minutes or hours; the first of them is the rest of the
current one.
"""

from __future__ import annotations

import csv
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from sandq.client import Client, Forecast
from sandq.client.transport import each
from sandq.model.errors import InvalidRequest
from sandq.model.times import Duration, duration_ms, format_duration
from sandq.protocol.requests_messages import BUCKETS_MAX
from sandq.spark.jobs.calling import called
from sandq.spark.jobs.summary import ForecastSummary, TopicForecast

UNITS_MS: Final = {"second": 1000, "minute": 60_000, "hour": 3_600_000}
AHEAD: Final = "24h"
SECONDS_UP_TO_MS: Final = 600_000
"""Longest span for which the default unit is the second."""
MINUTES_UP_TO_MS: Final = 2 * 86_400_000
"""Longest span for which the default unit is the minute; for longer spans it is the hour."""


def forecast(
    topics: Sequence[str] = (), *, ahead: Duration = AHEAD, unit: str | None = None, servers: Sequence[str] = ()
) -> ForecastSummary:
    """Return the forecast for these topics (by default all), from now until `ahead` later.

    Raises InvalidRequest if the span has more than 3600 units; UnknownTopic.
    """
    return called(servers, lambda client: collect_forecast(client, topics, ahead=ahead, unit=unit))


async def collect_forecast(
    client: Client, topics: Sequence[str] = (), *, ahead: Duration = AHEAD, unit: str | None = None
) -> ForecastSummary:
    """Create the forecast with an existing client."""
    began_s = time.monotonic()
    ahead_ms = duration_ms(ahead)
    unit = unit_of(ahead_ms, unit)
    count = count_of(ahead_ms, unit)
    names = list(dict.fromkeys(topics)) or [record.name for record in await client.admin.list_topics()]
    found = await each(lambda name: client.admin.forecast(name, unit=unit, count=count), names)
    parts = [_of_topic(name, one) for name, one in zip(names, found, strict=True)]
    now_ms = max((one.now_ms for one in found), default=time.time_ns() // 1_000_000)
    return ForecastSummary(now_ms, unit, UNITS_MS[unit], count, parts, time.monotonic() - began_s)


def _of_topic(name: str, found: Forecast) -> TopicForecast:
    scheduled = sum(messages for _, messages in found.scheduled)
    return TopicForecast(name, found.together(), found.later, scheduled, found.is_complete)


def unit_of(ahead_ms: int, unit: str | None) -> str:
    """Return `unit`, or the default unit for a span. Raises InvalidRequest for an unknown unit."""
    if unit is None:
        return "second" if ahead_ms <= SECONDS_UP_TO_MS else "minute" if ahead_ms <= MINUTES_UP_TO_MS else "hour"
    if unit not in UNITS_MS:
        raise InvalidRequest(f"unit: one of {', '.join(UNITS_MS)} is expected, not {unit!r}")
    return unit


def count_of(ahead_ms: int, unit: str) -> int:
    """Return the number of units in a span. Raises InvalidRequest if brokers do not count that far ahead."""
    count = -(-ahead_ms // UNITS_MS[unit])
    if not 1 <= count <= BUCKETS_MAX:
        most = format_duration(BUCKETS_MAX * UNITS_MS[unit])
        raise InvalidRequest(
            f"ahead: {format_duration(ahead_ms)} by the {unit}: brokers count {BUCKETS_MAX} of them ahead, {most}; "
            + ("use a larger unit" if unit != "hour" else "ask for a shorter time")
        )
    return count


def write_csv(path: Path, rows: Iterable[dict[str, object]], columns: Sequence[str]) -> None:
    """Write rows as CSV with a header line; None becomes an empty cell."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)
