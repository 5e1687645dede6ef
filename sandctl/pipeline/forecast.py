"""`sandctl pipeline forecast`: how many messages of several topics are due when, also as files for other programs."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sandctl.commands.forecast import UNITS_MS, forecast_lines, print_scheduled
from sandctl.options.common import common_options, run
from sandctl.options.times import DURATION, limit_option
from sandctl.output.results import show_one, show_rows
from sandctl.pipeline.running import usage_errors
from sandctl.settings import settings

if TYPE_CHECKING:
    from sandq.spark.jobs import ForecastSummary

_COLUMNS = {
    "topic": "TOPIC",
    "messages": "MESSAGES",
    "scheduled": "BY SCHEDULES",
    "later": "LATER",
    "peak": "MOST",
    "peak_start": "AT",
}
_FILE = click.Path(dir_okay=False, writable=True, path_type=Path)


@click.command(short_help="Show how many messages are due in each hour.")
@click.argument("topics", metavar="[TOPIC]...", nargs=-1)
@click.option("--ahead", type=DURATION, default="24h", show_default=True, help="How far to look ahead.")
@click.option(
    "--unit",
    type=click.Choice(list(UNITS_MS)),
    help="Unit of time.  [default: second up to 10m, minute up to 2d, else hour]",
)
@click.option("--csv", "csv_path", type=_FILE, help="Also write a line for each topic and unit that has messages.")
@click.option("--png", "png_path", type=_FILE, help="Also draw a chart.")
@limit_option
@common_options
def forecast(
    topics: tuple[str, ...],
    ahead: timedelta,
    unit: str | None,
    csv_path: Path | None,
    png_path: Path | None,
    limit: int | None,
) -> None:
    """Show how many messages are due in each second, minute or hour, for the named topics together, or for all topics.

    \b
      sandctl pipeline forecast
      sandctl pipeline forecast reminders orders --ahead 7d --png week.png
      sandctl pipeline forecast reminders --ahead 24h --csv day.csv -o json

    Brokers count 3600 units ahead: an hour by the second, 60 hours by the minute, 150 days by the hour. This needs no
    Spark; a chart needs matplotlib. --limit applies to the lines shown; files hold all.
    """
    from sandq.spark.jobs.forecast import collect_forecast, count_of, unit_of, write_csv
    from sandq.spark.jobs.summary import FORECAST_COLUMNS

    with usage_errors():
        ahead_ms = ahead // timedelta(milliseconds=1)
        count_of(ahead_ms, unit_of(ahead_ms, unit))
    found = run(lambda client: collect_forecast(client, topics, ahead=ahead, unit=unit))
    if csv_path is not None:
        write_csv(csv_path, found.rows(), FORECAST_COLUMNS)
    if png_path is not None:
        from sandq.spark.jobs.chart import write_png

        write_png(png_path, found)
    if settings().output == "table":
        _show(found, limit)
    else:
        show_one(found.record())


def _show(found: ForecastSummary, limit: int | None) -> None:
    total = found.total()
    later = sum(topic.later for topic in found.topics)
    shown = total[:limit]
    left = sum(messages for _, messages in total[len(shown) :])
    for line in forecast_lines(shown, found.unit_ms, found.now_ms, later + left):
        click.echo(line)
    if left:
        click.echo(f"sandctl: only the first {len(shown):,} are shown; --limit changes that", err=True)
    print_scheduled(sum(topic.scheduled for topic in found.topics), all(topic.is_complete for topic in found.topics))
    click.echo()
    show_rows(found.topic_rows(), _COLUMNS)
