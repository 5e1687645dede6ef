"""`sandctl pipeline replay`: send messages of an archive again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from sandctl.options.common import common_options
from sandctl.options.names import topic_argument
from sandctl.options.times import INSTANT, RATE, SHIFT
from sandctl.pipeline.running import Servers, Tell, check_topic, run_job, spark_options, usage_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sandq.spark.jobs import ReplaySummary


@click.command(short_help="Send messages of an archive to a topic.")
@click.argument("path", metavar="ARCHIVE")
@topic_argument()
@click.option(
    "--from",
    "topics",
    metavar="TOPIC",
    multiple=True,
    help="Only messages of these topics; may be given several times.",
)
@click.option("--since", type=INSTANT, metavar="INSTANT", help="Only messages due at this instant or later.")
@click.option("--until", type=INSTANT, metavar="INSTANT", help="Only messages due before this instant.")
@click.option("--where", metavar="SQL", help="SQL condition on the archive's columns.")
@click.option(
    "--shift",
    type=SHIFT,
    metavar="DURATION",
    help="Due this long after the old time; -1h: before it.  [default: now]",
)
@click.option("--start", type=INSTANT, metavar="INSTANT", help="No message is due before this.")
@click.option("--rate", type=RATE, metavar="R", help="At most this many are due in a second.")
@click.option("--write-id", metavar="NAME", help="Name of this job; messages already sent under it are not sent again.")
@click.option("--dry-run", is_flag=True, help="Only count.")
@spark_options
@common_options
def replay(
    path: str, topic: str, topics: tuple[str, ...], master: str | None, conf: Mapping[str, str], **options: Any
) -> None:
    """Send messages of ARCHIVE (see `sandctl pipeline archive`) to TOPIC. Keys, values, headers and TTLs stay, and
    priorities and tenants where TOPIC has them.

    \b
      sandctl pipeline replay /data/archive orders-test --from orders --since 2030-01-31T00:00:00Z \\
          --until 2030-02-01T00:00:00Z --shift 7d
      sandctl pipeline replay /data/archive orders --where "cast(key as string) like 'eu-%'" \\
          --start 2030-02-10T02:00:00Z --rate 500

    A second run with the same options and files sends only messages that are not stored yet; the brokers remember for a
    week. A --start like +5m is a different option each time.
    """
    from sandq.spark.jobs.replay import asked_for

    sending = {name: options.pop(name) for name in ("write_id", "dry_run")}
    with usage_errors():
        asked_for(topics=topics, **options)
    check_topic(topic)

    def work(spark: SparkSession, servers: Servers, tell: Tell) -> ReplaySummary:
        from sandq.spark import jobs

        tell("sending")
        return jobs.replay(spark, path, topic, topics=topics, servers=servers, **options, **sending)

    run_job(
        work, master=master, conf=conf, stopped="the messages sent so far stay; run the same command to send the rest"
    )
