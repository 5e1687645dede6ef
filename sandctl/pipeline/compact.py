"""`sandctl pipeline compact`: merge many small files of an archive into few."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING

import click

from sandctl.options.common import common_options
from sandctl.options.times import DURATION
from sandctl.pipeline.running import Servers, Tell, run_job, spark_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sandq.spark.jobs import CompactionSummary

MIB = 1 << 20


@click.command(short_help="Merge small files of an archive.")
@click.argument("path", metavar="DIR")
@click.option(
    "--target",
    "target_mib",
    type=click.IntRange(1, 1024),
    default=128,
    show_default=True,
    metavar="MIB",
    help="Size of the merged files, in MiB; a file of half this size or more stays as it is.",
)
@click.option(
    "--keep",
    type=DURATION,
    metavar="DURATION",
    default="1d",
    show_default=True,
    help="How long replaced files stay for readers that still use them; 10m at least.",
)
@spark_options
@common_options
def compact(path: str, target_mib: int, keep: timedelta, master: str | None, conf: Mapping[str, str]) -> None:
    """Merge small files of the archive DIR, by topic and day. Readers are not affected, and an interrupted run changes
    nothing. Files of the last few micro-batches are left for later.

    \b
      sandctl pipeline compact /data/archive
      sandctl pipeline compact s3a://bucket/archive --target 512
    """

    def work(spark: SparkSession, servers: Servers, tell: Tell) -> CompactionSummary:
        from sandq.spark import jobs

        tell("copying small files")
        return jobs.compact_archive(spark, path, target_bytes=target_mib * MIB, keep=keep)

    run_job(work, master=master, conf=conf, stopped="nothing has changed; run it again")
