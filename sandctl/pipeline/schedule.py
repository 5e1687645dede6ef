"""`sandctl pipeline schedule`: send rows of files as messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from sandctl.options.common import common_options
from sandctl.options.names import topic_argument
from sandctl.pipeline.running import Servers, Tell, check_topic, pairs, run_job, spark_options, usage_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sandq.spark.jobs import ScheduleSummary


@click.command(short_help="Send the rows of files, each at the time of its row.")
@topic_argument()
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@click.option(
    "--format", type=click.Choice(["parquet", "csv", "json"]), help="Format of the files.  [default: by their names]"
)
@click.option(
    "--map",
    "mapping",
    metavar="PART=COLUMN",
    multiple=True,
    help="Column for a part of the message; see below.",
)
@click.option("--value-json", metavar="COLUMN,...", help="The value is a JSON object of these columns; *: of all.")
@click.option("--unique-key", metavar="COLUMN", help="Short for --map unique_key=COLUMN.")
@click.option("--priority", metavar="COLUMN", help="Short for --map priority=COLUMN.")
@click.option("--tenant", metavar="COLUMN", help="Short for --map tenant=COLUMN.")
@click.option(
    "--on-conflict",
    type=click.Choice(["ignore", "replace", "reject"]),
    help="If a unique key is taken: keep the other message (the default), replace it, or fail.",
)
@click.option("--default-delay", metavar="DURATION", help="Delay for rows without a time; 0s: now.")
@click.option("--time-zone", metavar="NAME", help="Time zone for times without one, such as Europe/Vienna.")
@click.option("--rejected", metavar="DIR", help="Where to write rows that cannot be sent, with all reasons.")
@click.option(
    "--max-rejected",
    metavar="N|N%",
    default="0",
    show_default=True,
    help="If more rows than this cannot be sent, send none.",
)
@click.option("--write-id", metavar="NAME", help="Name of this job; rows already sent under it are not sent again.")
@click.option(
    "--read-option",
    "read_options",
    metavar="NAME=VALUE",
    multiple=True,
    callback=pairs,
    help="An option of Spark's reader.",
)
@click.option("--dry-run", is_flag=True, help="Only check the rows.")
@spark_options
@common_options
def schedule(
    topic: str,
    paths: tuple[str, ...],
    format: str | None,
    mapping: tuple[str, ...],
    value_json: str | None,
    unique_key: str | None,
    priority: str | None,
    tenant: str | None,
    read_options: Mapping[str, str],
    master: str | None,
    conf: Mapping[str, str],
    **options: Any,
) -> None:
    """Send the rows of files to TOPIC, each at the time in its row.

    PATH is a file, a directory, or a pattern in quotes. Formats are Parquet, CSV with a line of headings, or one JSON
    object per line.

    \b
      sandctl pipeline schedule reminders users.parquet --map value=body --map deliver_at=send_at
      sandctl pipeline schedule reminders in/ --format csv --value-json id,text --map deliver_at=at \\
          --time-zone Europe/Vienna --rejected bad --max-rejected 1%

    PART is value, key, deliver_at (a time stamp, RFC 3339, or epoch milliseconds), delay_ms, ttl_ms, unique_key,
    headers (a column of all of them), or header.NAME. A priority or fair TOPIC also has priority (a whole number, lower
    first), a fair one also has tenant. A column can be part of another column: user.id.

    All rows are checked before the first is sent. A second run with the same files and options sends only rows that are
    not stored yet; the brokers remember for a week.
    """
    from sandq.spark.jobs.mapping import parse_pairs, row_mapping
    from sandq.spark.jobs.schedule import Allowed

    shape: dict[str, Any] = {name: options.pop(name) for name in ("default_delay", "time_zone", "on_conflict")}
    shape["value_json"] = [name.strip() for name in value_json.split(",")] if value_json else []
    with usage_errors():
        named = {"unique_key": unique_key, "priority": priority, "tenant": tenant}
        parts = parse_pairs([*mapping, *(f"{name}={column}" for name, column in named.items() if column)], "--map")
        row_mapping(parts, **shape)
        Allowed.parse(options["max_rejected"])
    check_topic(topic)

    def work(spark: SparkSession, servers: Servers, tell: Tell) -> ScheduleSummary:
        from sandq.spark import jobs

        return jobs.schedule(
            spark,
            topic,
            paths,
            parts,
            format=format,
            read_options=read_options,
            servers=servers,
            stage=tell,
            **shape,
            **options,
        )

    run_job(work, master=master, conf=conf, stopped="the rows sent so far stay; run the same command to send the rest")
