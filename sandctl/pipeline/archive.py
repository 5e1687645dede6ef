"""`sandctl pipeline archive`: what came due goes to Parquet files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from sandctl.options.common import common_options, servers
from sandctl.options.times import DURATION
from sandctl.output.results import done
from sandctl.pipeline.running import Servers, Tell, credentials_in_environment, run_job, spark_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sandq.spark.jobs import ArchiveSummary


@click.command(short_help="Archive due messages as Parquet files.")
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
@click.option("--hold", metavar="NAME", help="Under which brokers keep what is not archived.  [default: drawn for DIR]")
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
    conf: Mapping[str, str],
    **options: Any,
) -> None:
    """Archive what is due of topics, and was not archived before, as Parquet files by topic and day. Each message is
    there once, also when a run is cut off; the next one goes on. Nothing is acknowledged, no group notices.

    \b
      sandctl pipeline archive orders payments --to /data/archive
      sandctl pipeline archive --pattern 'shop-.*' --to s3a://bucket/archive
    """
    if bool(topics) is (options["pattern"] is not None):
        raise click.UsageError("name topics, or a pattern with --pattern")

    if master is None and not conf and _is_local(path) and _is_done(topics, path, ignore_data_loss, options):
        return

    def work(spark: SparkSession, asked: Servers, tell: Tell) -> ArchiveSummary:
        from sandq.spark import jobs

        def progress(messages: int, batches: int) -> None:
            tell(f"{messages:,} messages archived")

        return jobs.archive(
            spark, topics, path, servers=asked, fail_on_data_loss=not ignore_data_loss, progress=progress, **options
        )

    run_job(work, master=master, conf=conf, stopped="the same command goes on")


def _is_local(path: str) -> bool:
    """Whether Spark would look on this machine: it has not been told of another file system."""
    return path.startswith("file:") or ("://" not in path and "HADOOP_CONF_DIR" not in os.environ)


def _is_done(topics: tuple[str, ...], path: str, ignore_data_loss: bool, options: Mapping[str, Any]) -> bool:
    """Whether there is nothing to archive, which is told then. Spark takes seconds to start, and has nothing to do."""
    from sandq.spark.jobs.archive import without_news
    from sandq.spark.jobs.session import check_extra

    check_extra()
    with credentials_in_environment():
        found = without_news(topics, path, servers=servers(), fail_on_data_loss=not ignore_data_loss, **options)
    if found is not None:
        done("\n".join(found.lines()), found.record())
    return found is not None
