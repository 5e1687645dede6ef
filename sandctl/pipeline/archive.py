"""`sandctl pipeline archive`: what came due goes to Parquet files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from sandctl.output import say, show_one
from sandctl.pipeline.running import Tell, run_spark, spark_options
from sandctl.settings import common_options, servers, settings
from sandctl.times import DURATION

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sandq.spark.jobs import ArchiveSummary


@click.command()
@click.argument("topics", metavar="[TOPIC]...", nargs=-1)
@click.option("--pattern", metavar="REGEX", help="Instead of names: topics whose whole name matches.")
@click.option(
    "--to", "path", metavar="DIR", required=True, help="The archive; Spark's file systems (s3a://...) will do."
)
@click.option(
    "--batch",
    "batch_messages",
    type=click.IntRange(1),
    default=1_000_000,
    show_default=True,
    metavar="N",
    help="Messages that are written at a time.",
)
@click.option("--hold", metavar="NAME", help="Under which the brokers keep what is not archived.  [default: of DIR]")
@click.option(
    "--hold-ttl",
    type=DURATION,
    metavar="DURATION",
    default="7d",
    show_default=True,
    help="For how long after the last run.",
)
@click.option("--ignore-data-loss", is_flag=True, help="Go on behind what was trimmed before it was archived.")
@spark_options
@common_options
def archive(
    topics: tuple[str, ...],
    path: str,
    ignore_data_loss: bool,
    master: str | None,
    conf: tuple[str, ...],
    **options: Any,
) -> None:
    """Archive what is due of topics, and was not archived before, as Parquet files by topic and day. Each message is
    there once, also when a run is cut off; the next one goes on. Nothing is acknowledged, no group notices.

    \b
      sandctl pipeline archive orders payments --to /data/archive
      sandctl pipeline archive --pattern 'shop-.*' --to s3a://bucket/archive
    """
    from sandq.model.errors import SandqError
    from sandq.spark.jobs.mapping import parse_pairs
    from sandq.spark.jobs.session import check_extra

    if bool(topics) is (options["pattern"] is not None):
        raise click.UsageError("name topics, or a pattern with --pattern")
    try:
        settled = parse_pairs(conf, "--conf")
    except SandqError as error:
        raise click.UsageError(error.message) from None
    check_extra()
    asked = servers()  # the job's thread knows nothing of this command

    def work(spark: SparkSession, tell: Tell) -> ArchiveSummary:
        from sandq.spark import jobs

        def progress(messages: int, batches: int) -> None:
            tell(f"{messages:,} messages archived")

        return jobs.archive(
            spark, topics, path, servers=asked, fail_on_data_loss=not ignore_data_loss, progress=progress, **options
        )

    try:
        found = run_spark(work, master=master, conf=settled)
    except KeyboardInterrupt:
        say("stopped; the same command goes on", err=True)
        raise
    if settings().output == "table":
        say("\n".join(found.lines()))
    else:
        show_one(found.record())
