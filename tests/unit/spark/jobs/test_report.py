"""Tests of the jobs forecast and report without a broker: spans, days, pages of dead letters, chart and output."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest

from sandq.model.errors import InvalidRequest
from sandq.model.times import instant_ms
from sandq.protocol.replies_messages import DeadRecord
from sandq.spark.jobs.chart import TOPICS_MAX, layers, write_png
from sandq.spark.jobs.forecast import count_of, unit_of, write_csv
from sandq.spark.jobs.report import Dead, DeadLetters, due_days
from sandq.spark.jobs.summary import (
    FORECAST_COLUMNS,
    DeadDay,
    ForecastSummary,
    GroupBacklog,
    Reason,
    ReportSummary,
    ScheduleSummary,
    TopicForecast,
)

NOW_MS = instant_ms("2030-03-17T17:46:40Z")
DAY_MS = 86_400_000


def forecast(*topics: TopicForecast, unit_ms: int = 60_000, count: int = 60) -> ForecastSummary:
    return ForecastSummary(NOW_MS, "minute", unit_ms, count, topics)


def test_units_and_spans() -> None:
    spans = {"5m": "second", "10m": "second", "11m": "minute", "2d": "minute", "49h": "hour"}
    for text, unit in spans.items():
        ms = {"m": 60_000, "h": 3_600_000, "d": DAY_MS}[text[-1]] * int(text[:-1])
        assert unit_of(ms, None) == unit, text
        assert unit_of(ms, "hour") == "hour"
    assert count_of(1, "second") == 1 and count_of(60_001, "minute") == 2 and count_of(3600 * 1000, "second") == 3600
    for ahead_ms, unit in ((3_600_001, "second"), (0, "minute"), (151 * DAY_MS, "hour")):
        with pytest.raises(InvalidRequest, match="brokers count 3600"):
            count_of(ahead_ms, unit)
    with pytest.raises(InvalidRequest, match="unit"):
        unit_of(1, "day")


def test_topics_are_added_up() -> None:
    start = NOW_MS - NOW_MS % 60_000
    found = forecast(TopicForecast("a", [(start, 2), (start + 60_000, 5)], 7), TopicForecast("b", [(start, 3)], 0))
    assert found.total() == [(start, 5), (start + 60_000, 5)] and found.start_ms == start
    assert list(found.rows()) == [
        {"start": "2030-03-17T17:46:00.000Z", "topic": "a", "messages": 2},
        {"start": "2030-03-17T17:46:00.000Z", "topic": "b", "messages": 3},
        {"start": "2030-03-17T17:47:00.000Z", "topic": "a", "messages": 5},
    ]
    assert found.topic_rows()[0] == {
        "topic": "a", "messages": 7, "scheduled": 0, "later": 7, "peak": 5, "peak_start": "2030-03-17T17:47:00.000Z",
        "complete": True,
    }  # fmt: skip
    assert found.record()["buckets"][2]["messages"] == 5


def test_csv(tmp_path: Path) -> None:
    write_csv(tmp_path / "x.csv", [{"start": "1", "topic": 'a"b,c', "messages": None}], FORECAST_COLUMNS)
    rows = list(csv.reader(io.StringIO((tmp_path / "x.csv").read_text())))
    assert rows == [["start", "topic", "messages"], ["1", 'a"b,c', ""]]


def test_a_chart_has_the_largest_topics_and_the_rest(tmp_path: Path) -> None:
    start = NOW_MS - NOW_MS % 60_000
    topics = [TopicForecast(f"t-{n}", [(start + 60_000 * n, n)], 0) for n in range(1, TOPICS_MAX + 3)]
    found = forecast(*topics, TopicForecast("empty", [], 5))
    stacked = layers(found)
    assert [*stacked][:1] == [f"t-{TOPICS_MAX + 2}"] and [*stacked][-1] == "others (2)" and "empty" not in stacked
    assert sum(map(sum, stacked.values())) == sum(topic.messages for topic in topics)
    assert stacked["others (2)"][1:3] == [1, 2] and all(len(counts) == 60 for counts in stacked.values())
    write_png(tmp_path / "x.png", found)
    write_png(tmp_path / "none.png", forecast())
    for name in ("x.png", "none.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG\r\n")


def test_hours_become_days() -> None:
    midnight = NOW_MS - NOW_MS % DAY_MS
    buckets = [
        (midnight + 17 * 3_600_000, 1),
        (midnight + 23 * 3_600_000, 2),
        (midnight + DAY_MS, 4),
        (midnight + 2 * DAY_MS - 3_600_000, 8),
        (midnight + 2 * DAY_MS, 16),
    ]
    rows = due_days("t", NOW_MS, buckets, 32, 2)
    assert [(row.day, row.messages) for row in rows] == [("2030-03-17", 3), ("2030-03-18", 12), ("later", 48)]


def letter(dead_ms: int, **more: Any) -> DeadRecord:
    fields: dict[str, Any] = {
        **{"id": b"i" * 16, "offset": b"o" * 16, "attempts": 3, "reason": "nacked", "error": None, "dead_ms": dead_ms},
        **{"created_ms": 0, "deliver_ms": 0, "key": None, "headers": None, "value": None, "unique_key": None},
        **{"size": 0, "history": []},
    }
    return DeadRecord(**(fields | more))


async def test_dead_letters_are_counted_page_by_page() -> None:
    """At most one page is in memory, and a page may be empty before the end."""
    pages = [
        [letter(NOW_MS), letter(NOW_MS, attempts=1, reason="expired")],
        [],
        [letter(NOW_MS - DAY_MS), letter(NOW_MS - DAY_MS), letter(NOW_MS - 9 * DAY_MS)],
    ]
    asked: list[bytes | None] = []
    reported: list[tuple[int, int]] = []

    async def get(source: DeadLetters, after: bytes | None) -> tuple[list[DeadRecord], bytes | None]:
        asked.append(after)
        number = len(asked)
        return pages[number - 1], (b"%d" % number if number < len(pages) else None)

    dead = Dead(NOW_MS - 2 * DAY_MS, 4, lambda done, total: reported.append((done, total)))
    await dead.read(DeadLetters("t", "g", 0), get)
    assert asked == [None, b"1", b"2"] and reported == [(2, 4), (2, 4), (5, 5)]
    assert dead.rows() == [
        DeadDay("t", "g", "2030-03-16", "nacked", 3, 2),
        DeadDay("t", "g", "2030-03-17", "expired", 1, 1),
        DeadDay("t", "g", "2030-03-17", "nacked", 3, 1),
    ]
    assert dead.count == 5


def test_a_report_as_plain_rows() -> None:
    group = GroupBacklog(
        topic="t", group="g", ready=1, leased=2, waiting=3, dead=4, consumers=5, oldest_ms=NOW_MS, late_ms=1500
    )
    found = ReportSummary(NOW_MS, 1, [group], [], [DeadDay("t", "g", "2030-03-17", "nacked", 3, 1)], 9, 0.25)
    tables = found.tables()
    assert tables["groups"] == [
        {
            **{"topic": "t", "group": "g", "ready": 1, "leased": 2, "waiting": 3, "dead": 4, "consumers": 5},
            **{"oldest": "2030-03-17T17:46:40.000Z", "late_ms": 1500},
        }
    ]
    for name, rows in tables.items():
        assert all(tuple(row) == found.columns()[name] for row in rows)
    assert found.record()["dead_read"] == 9


def test_schedule_output() -> None:
    found = ScheduleSummary(
        topic="t",
        write_id="id",
        files=2,
        rows=1000,
        sent=990,
        rejected=10,
        reasons=[Reason("value: missing", 10)],
        rejected_path="bad/id",
        already_due=3,
        first_ms=NOW_MS,
        last_ms=NOW_MS + 1,
        check_s=1,
        send_s=2,
    )
    assert list(found.lines()) == [
        "t: 1,000 rows of 2 files, 990 sent, 10 rejected",
        "  due       2030-03-17T17:46:40.000Z to 2030-03-17T17:46:40.001Z",
        "  past      3 are already due, and are delivered at once",
        "  rejected  10: value: missing",
        "  rejected  rows are in bad/id",
        "  took      checked in 1.0 s, sent in 2.0 s, 495 messages/s",
        "  write id  id",
    ]
    record = found.record()
    assert (record["rate"], record["reasons"]) == (495.0, {"value: missing": 10})
    dry = ScheduleSummary(topic="t", write_id="id", files=1, rows=1, sent=0, rejected=0, dry_run=True)
    assert next(dry.lines()) == "t: 1 row of 1 file, 1 would be sent, 0 rejected" and dry.record()["rate"] is None
