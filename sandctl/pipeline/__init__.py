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
        "Write what came due of topics to Parquet files, each message once.",
    ),
    "compact": Later(
        "sandctl.pipeline.compact",
        "compact",
        "Put small files of an archive together; who reads it notices nothing.",
    ),
    "schedule": Later(
        "sandctl.pipeline.schedule",
        "schedule",
        "Send the rows of Parquet, CSV or JSON files to TOPIC, each at its time.",
    ),
    "replay": Later(
        "sandctl.pipeline.replay",
        "replay",
        "Send messages of an archive to TOPIC again, at once or at other times.",
    ),
    "sql": Later(
        "sandctl.pipeline.sql",
        "sql",
        "Ask about archived, due and pending messages in SQL.",
    ),
    "forecast": Later(
        "sandctl.pipeline.forecast",
        "forecast",
        "Show how many messages of topics are due when, as table, CSV or chart.",
    ),
    "report": Later(
        "sandctl.pipeline.report",
        "report",
        "Show what groups have before them, what is due by day, and what died of what.",
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


@click.command("pipeline", cls=_Pipeline, later=JOBS)
def pipeline() -> None:
    """Archive, load, replay and query messages with Spark; see what is due, what waits, what died."""
