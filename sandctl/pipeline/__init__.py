"""`sandctl pipeline`: what Spark does with messages beyond one machine's reach, and reports. Each command is a function
of `sandq.spark.jobs` as well."""

from __future__ import annotations

from typing import Any

import click

from sandctl.lazy import Later, LazyGroup

JOBS = {
    "archive": Later(
        "sandctl.pipeline.archive",
        "archive",
        "Archive due messages as Parquet files.",
    ),
    "compact": Later(
        "sandctl.pipeline.compact",
        "compact",
        "Put small files of an archive together.",
    ),
    "schedule": Later(
        "sandctl.pipeline.schedule",
        "schedule",
        "Send the rows of files, each at the time of its row.",
    ),
    "replay": Later(
        "sandctl.pipeline.replay",
        "replay",
        "Send messages of an archive to a topic.",
    ),
    "sql": Later(
        "sandctl.pipeline.sql",
        "sql",
        "Query archived, due and pending messages in Spark's SQL.",
    ),
    "forecast": Later(
        "sandctl.pipeline.forecast",
        "forecast",
        "Show how many messages come due in each hour.",
    ),
    "report": Later(
        "sandctl.pipeline.report",
        "report",
        "Show lag, what comes due, and what died, by day.",
    ),
}


class _Pipeline(LazyGroup):
    """The commands; where the client is installed alone, each says what it needs."""

    def invoke(self, ctx: click.Context) -> Any:
        """StartupError when the jobs are not installed."""
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            if error.name != "sandq.spark":
                raise
        from sandq.errors import StartupError  # --help does without

        raise StartupError("sandq-client comes without the pipeline: pip install 'sandq[spark]', and Java 17 or later")


@click.command(
    "pipeline", cls=_Pipeline, later=JOBS, short_help="Archive, replay, query and forecast messages with Spark."
)
def pipeline() -> None:
    """Archive, load, replay and query messages with Spark; see what is due, what waits, what died."""
