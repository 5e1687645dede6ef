"""`sandctl pipeline compact`: many small files of an archive become few."""

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


@click.command(short_help="Put small files of an archive together.")
@click.argument("path", metavar="DIR")
@click.option(
    "--target",
    "target_mib",
    type=click.IntRange(1, 1024),
    default=128,
    show_default=True,
    metavar="MIB",
    help="How large a file may become, in MiB; what has half of that is left as it is.",
)
@click.option(
    "--keep",
    type=DURATION,
    metavar="DURATION",
    default="1d",
    show_default=True,
    help="For how long files that do not count any more stay, for those who read them yet; 10m at least.",
)
@spark_options
@common_options
def compact(path: str, target_mib: int, keep: timedelta, master: str | None, conf: Mapping[str, str]) -> None:
    """Put small files of the archive DIR together, by topic and day. Who reads it meanwhile notices nothing, and a run
    that is cut off has changed nothing. Files of the last few micro-batches are left for later.

    \b
      sandctl pipeline compact /data/archive
      sandctl pipeline compact s3a://bucket/archive --target 512
    """

    def work(spark: SparkSession, servers: Servers, tell: Tell) -> CompactionSummary:
        from sandq.spark import jobs

        tell("copying small files")
        return jobs.compact_archive(spark, path, target_bytes=target_mib * MIB, keep=keep)

    run_job(work, master=master, conf=conf, stopped="nothing has changed; run it again")
