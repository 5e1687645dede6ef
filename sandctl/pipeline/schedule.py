"""`sandctl pipeline schedule`: rows of files as messages."""

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
    "--format", type=click.Choice(["parquet", "csv", "json"]), help="What the files are.  [default: by their names]"
)
@click.option(
    "--map",
    "mapping",
    metavar="PART=COLUMN",
    multiple=True,
    help="Which column becomes which part of a message; see below.",
)
@click.option("--value-json", metavar="COLUMN,...", help="The value is a JSON object of these columns; *: of all.")
@click.option("--unique-key", metavar="COLUMN", help="As --map unique_key=COLUMN.")
@click.option("--priority", metavar="COLUMN", help="As --map priority=COLUMN.")
@click.option("--tenant", metavar="COLUMN", help="As --map tenant=COLUMN.")
@click.option(
    "--on-conflict",
    type=click.Choice(["ignore", "replace", "reject"]),
    help="When a unique key is taken: keep the other message (the default), replace it, or fail.",
)
@click.option("--default-delay", metavar="DURATION", help="For rows that do not say when; 0s: at once.")
@click.option("--time-zone", metavar="NAME", help="Of times without one, like Europe/Vienna.")
@click.option("--rejected", metavar="DIR", help="Where rows that cannot be sent are written, with all reasons.")
@click.option(
    "--max-rejected",
    metavar="N|N%",
    default="0",
    show_default=True,
    help="When more rows cannot be sent, none is.",
)
@click.option("--write-id", metavar="NAME", help="The name of this job; what was sent under it is not sent again.")
@click.option(
    "--read-option",
    "read_options",
    metavar="NAME=VALUE",
    multiple=True,
    callback=pairs,
    help="For Spark's reader.",
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
    """Send the rows of files to TOPIC, each at the time that its row says.

    PATH is a file, a directory, or a pattern in quotes; of Parquet, CSV with a line of headings, or a JSON object a
    line.

    \b
      sandctl pipeline schedule reminders users.parquet --map value=body --map deliver_at=send_at
      sandctl pipeline schedule reminders in/ --format csv --value-json id,text --map deliver_at=at \\
          --time-zone Europe/Vienna --rejected bad --max-rejected 1%

    PART is value, key, deliver_at (a time stamp, RFC 3339, or epoch milliseconds), delay_ms, ttl_ms, unique_key,
    headers (a column of all of them), or header.NAME; where TOPIC is of the kind priority or fair, priority (a whole
    number, lower first), and of the kind fair, tenant. A column can be a part of another one: user.id.

    All rows are checked before the first is sent. Run again with the same files and options, it sends only what is not
    stored yet; the brokers know that for a week.
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

    run_job(work, master=master, conf=conf, stopped="what is sent by now stays, and the same command sends the rest")
