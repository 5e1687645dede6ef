"""`sandctl pipeline`: process more messages than one machine can, with Spark, and report. Each command is also a
function of `sandq.spark.jobs`."""

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
        "Merge small files of an archive.",
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
        "Show how many messages are due in each hour.",
    ),
    "report": Later(
        "sandctl.pipeline.report",
        "report",
        "Show lag, due messages and dead letters by day.",
    ),
}


class _Pipeline(LazyGroup):
    """Return the commands. If only the client is installed, each command says which package it needs."""

    def invoke(self, ctx: click.Context) -> Any:
        """Raise StartupError if the jobs are not installed."""
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            if error.name != "sandq.spark":
                raise
        from sandq.errors import StartupError  # `--help` does not import the jobs

        raise StartupError("sandq-client comes without the pipeline: pip install 'sandq[spark]', and Java 17 or later")


@click.command(
    "pipeline", cls=_Pipeline, later=JOBS, short_help="Archive, replay, query and forecast messages with Spark."
)
def pipeline() -> None:
    """Archive, load, replay and query messages with Spark. Report due, pending and dead messages."""
