"""`sandctl pipeline replay`: messages of an archive are sent again."""

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
@click.option("--from", "topics", metavar="TOPIC", multiple=True, help="Of these topics only; may be given again.")
@click.option("--since", type=INSTANT, metavar="INSTANT", help="What was due then or later.")
@click.option("--until", type=INSTANT, metavar="INSTANT", help="What was due before.")
@click.option("--where", metavar="SQL", help="A condition on the archive's columns.")
@click.option(
    "--shift",
    type=SHIFT,
    metavar="DURATION",
    help="Due so much after the old time, -1h: before it.  [default: at once]",
)
@click.option("--start", type=INSTANT, metavar="INSTANT", help="Nothing is due before.")
@click.option("--rate", type=RATE, metavar="R", help="At most so many are due in a second.")
@click.option("--write-id", metavar="NAME", help="The name of this job; what was sent under it is not sent again.")
@click.option("--dry-run", is_flag=True, help="Only count.")
@spark_options
@common_options
def replay(
    path: str, topic: str, topics: tuple[str, ...], master: str | None, conf: Mapping[str, str], **options: Any
) -> None:
    """Send messages of ARCHIVE (see `sandctl pipeline archive`) to TOPIC: keys, values, headers and times to live as
    they were, and priorities and tenants where TOPIC takes them.

    \b
      sandctl pipeline replay /data/archive orders-test --from orders --since 2030-01-31T00:00:00Z \\
          --until 2030-02-01T00:00:00Z --shift 7d
      sandctl pipeline replay /data/archive orders --where "cast(key as string) like 'eu-%'" \\
          --start 2030-02-10T02:00:00Z --rate 500

    Run again with the same options over the same files, it sends only what is not stored yet; the brokers know that for
    a week. A --start like +5m is another one each time.
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

    run_job(work, master=master, conf=conf, stopped="what is sent by now stays, and the same command sends the rest")
