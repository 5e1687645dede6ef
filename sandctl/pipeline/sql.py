"""`sandctl pipeline sql`: query live and archived messages."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from sandctl.options.common import common_options
from sandctl.options.times import INSTANT
from sandctl.output.results import show_rows
from sandctl.pipeline.running import Servers, Tell, pairs, run_spark, spark_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Found = tuple[list[str], list[dict[str, Any]]]


@click.command(short_help="Query archived, due and pending messages in Spark's SQL.")
@click.argument("query", metavar="QUERY")
@click.option(
    "--topic",
    "topics",
    metavar="TOPIC",
    multiple=True,
    required=True,
    help="Topic to query; may be given several times.",
)
@click.option("--archive", metavar="DIR", help="An archive that `sandctl pipeline archive` has written.")
@click.option(
    "--view",
    "views",
    metavar="NAME=QUERY",
    multiple=True,
    callback=pairs,
    help="A further view; may be given several times.",
)
@click.option("--since", type=INSTANT, metavar="INSTANT", help="Only messages due at this instant or later.")
@click.option("--until", type=INSTANT, metavar="INSTANT", help="Only messages due before this instant.")
@click.option(
    "--limit", type=click.IntRange(1, 1_000_000), default=1000, show_default=True, help="Largest number of rows."
)
@click.option("--ignore-data-loss", is_flag=True, help="Skip messages that were trimmed before they were archived.")
@spark_options
@common_options
def sql(
    query: str,
    topics: tuple[str, ...],
    views: Mapping[str, str],
    limit: int,
    ignore_data_loss: bool,
    master: str | None,
    conf: Mapping[str, str],
    **options: Any,
) -> None:
    """Query archived, due and pending messages, each exactly once, in Spark's SQL.

    The view `messages` has topic, partition, offset, message_id, key, value, headers (a map), timestamp, deliver_at and
    archived; keys, values and headers are text.

    \b
      sandctl pipeline sql "select date(deliver_at) as day, count(*) from messages group by 1" \\
          --topic reminders
      sandctl pipeline sql "select * from tasks where queue = 'welcome_emails'
          and deliver_at between '2030-01-31' and '2030-02-01'
          and get_json_object(headers['meta'], '$.lang') = 'de'" \\
          --topic welcome_emails --archive /data/archive \\
          --view "tasks=select topic as queue, * from messages"

    Times in a query are UTC. --since and --until limit what is read.
    """

    def work(spark: SparkSession, servers: Servers, tell: Tell) -> Found:
        from sandq.spark import jobs

        frame = jobs.sql(
            spark, query, topics, views=views, servers=servers, fail_on_data_loss=not ignore_data_loss, **options
        )
        tell("reading")
        return frame.columns, [row.asDict(recursive=True) for row in frame.limit(limit + 1).collect()]

    columns, rows = run_spark(work, master=master, conf=conf)
    shown = [{name: _plain(cell) for name, cell in row.items()} for row in rows]
    show_rows(shown, {name: name.upper() for name in columns}, limit)


def _plain(cell: Any) -> Any:
    """Return a value that JSON can hold. Spark returns time stamps in this machine's time zone, without naming it."""
    if isinstance(cell, datetime.datetime):
        utc = cell.astimezone(datetime.UTC)
        return utc.isoformat(timespec="milliseconds" if utc.microsecond % 1000 == 0 else "microseconds")[:-6] + "Z"
    if isinstance(cell, dict):
        return {str(key): _plain(value) for key, value in cell.items()}
    if isinstance(cell, list):
        return [_plain(value) for value in cell]
    if isinstance(cell, bytearray):
        return bytes(cell)
    return cell if cell is None or isinstance(cell, (bool, int, float, str, bytes)) else str(cell)
