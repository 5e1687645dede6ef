"""`sandctl pipeline archive`: write due messages to Parquet files."""

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
@click.option("--pattern", metavar="REGEX", help="Instead of names: all topics whose whole name matches.")
@click.option(
    "--to",
    "path",
    metavar="DIR",
    required=True,
    help="Directory of the archive; may be on a file system that Spark knows (s3a://...).",
)
@click.option(
    "--batch",
    "batch_messages",
    type=click.IntRange(1),
    default=1_000_000,
    show_default=True,
    metavar="N",
    help="Messages per write.",
)
@click.option(
    "--hold",
    metavar="NAME",
    help="Name under which brokers retain messages that are not archived.  [default: drawn for DIR]",
)
@click.option(
    "--hold-ttl",
    type=DURATION,
    metavar="DURATION",
    default="7d",
    show_default=True,
    help="How long after the last run they retain them.",
)
@click.option(
    "--ignore-data-loss", is_flag=True, help="Continue after messages that were trimmed before they were archived."
)
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
    """Archive the due messages of topics that are not archived yet, as Parquet files by topic and day. Each message is
    archived exactly once, even if a run is interrupted; the next run continues. Nothing is acked, and groups are not
    affected.

    \b
      sandctl pipeline archive orders payments --to /data/archive
      sandctl pipeline archive --pattern 'shop-.*' --to s3a://bucket/archive
    """
    if bool(topics) is (options["pattern"] is not None):
        raise click.UsageError("name topics, or give a pattern with --pattern")

    if master is None and not conf and _is_local(path) and _is_done(topics, path, ignore_data_loss, options):
        return

    def work(spark: SparkSession, asked: Servers, tell: Tell) -> ArchiveSummary:
        from sandq.spark import jobs

        def progress(messages: int, batches: int) -> None:
            tell(f"{messages:,} messages archived")

        return jobs.archive(
            spark, topics, path, servers=asked, fail_on_data_loss=not ignore_data_loss, progress=progress, **options
        )

    run_job(work, master=master, conf=conf, stopped="run the same command to continue")


def _is_local(path: str) -> bool:
    """Return whether Spark uses this machine's file system: no other one is configured."""
    return path.startswith("file:") or ("://" not in path and "HADOOP_CONF_DIR" not in os.environ)


def _is_done(topics: tuple[str, ...], path: str, ignore_data_loss: bool, options: Mapping[str, Any]) -> bool:
    """Return whether there is nothing to archive, and say so. This avoids the start of Spark, which takes seconds."""
    from sandq.spark.jobs.archive import without_news
    from sandq.spark.jobs.session import check_extra

    check_extra()
    with credentials_in_environment():
        found = without_news(topics, path, servers=servers(), fail_on_data_loss=not ignore_data_loss, **options)
    if found is not None:
        done("\n".join(found.lines()), found.record())
    return found is not None
