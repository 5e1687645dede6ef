"""The jobs: complete programs with sandq and Spark as functions. `sandctl pipeline` has a command for each of them.

    from sandq.spark import jobs

    with jobs.session() as spark:
        summary = jobs.schedule(spark, "reminders", ["users.parquet"], {"value": "body", "deliver_at": "send_at"})
        print(*summary.lines(), sep="\\n")

All jobs block, and return a summary with counts and durations (docs/spark.md). Spark is imported only by the jobs that
need it.
"""

from __future__ import annotations

from sandq.spark.jobs.archive import ArchiveSummary, archive
from sandq.spark.jobs.compaction import CompactionSummary, compact_archive
from sandq.spark.jobs.forecast import forecast
from sandq.spark.jobs.replay import ReplaySummary, replay
from sandq.spark.jobs.report import report
from sandq.spark.jobs.schedule import TooManyRejected, schedule
from sandq.spark.jobs.session import session
from sandq.spark.jobs.sql import sql
from sandq.spark.jobs.summary import ForecastSummary, ReportSummary, ScheduleSummary

__all__ = [
    "ArchiveSummary",
    "CompactionSummary",
    "ForecastSummary",
    "ReplaySummary",
    "ReportSummary",
    "ScheduleSummary",
    "TooManyRejected",
    "archive",
    "compact_archive",
    "forecast",
    "replay",
    "report",
    "schedule",
    "session",
    "sql",
]
