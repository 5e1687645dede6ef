"""`sandctl pipeline report`: three tables with backlog, due messages by day, and dead letters."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sandctl.options.common import common_options, run
from sandctl.options.times import INSTANT
from sandctl.output.progress import Progress
from sandctl.output.results import show_one, text_of
from sandctl.output.tables import print_table
from sandctl.settings import settings

if TYPE_CHECKING:
    from sandq.client import Client
    from sandq.spark.jobs import ReportSummary

_HEADINGS = {
    "groups": {
        **{"topic": "TOPIC", "group": "GROUP", "ready": "READY", "leased": "LEASED", "waiting": "WAITING"},
        **{"dead": "DEAD", "consumers": "CONSUMERS", "oldest": "OLDEST IN LOG", "late": "LATE"},
    },
    "due": {"topic": "TOPIC", "day": "DUE ON", "messages": "MESSAGES"},
    "dead": {
        **{"topic": "TOPIC", "group": "GROUP", "day": "DIED ON", "reason": "OF", "attempts": "ATTEMPTS"},
        "messages": "MESSAGES",
    },
}
_NONE = {"groups": "no groups", "due": "nothing is due", "dead": "no dead letters"}


@click.command(short_help="Show lag, due messages and dead letters by day.")
@click.argument("topics", metavar="[TOPIC]...", nargs=-1)
@click.option(
    "--days",
    type=click.IntRange(1, 149),
    default=7,
    show_default=True,
    help="Number of days ahead, including today, in UTC.",
)
@click.option("--dead-since", type=INSTANT, metavar="INSTANT", help="Count dead letters from this instant on.")
@click.option(
    "--csv",
    "csv_path",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Also write groups.csv, due.csv and dead.csv there.",
)
@common_options
def report(topics: tuple[str, ...], days: int, dead_since: int | None, csv_path: Path | None) -> None:
    """Report on the named topics, or on all: the lag of each group and the age of its oldest message; how many messages
    are due on each of the next days; how many died per day, with reason and attempt.

    \b
      sandctl pipeline report
      sandctl pipeline report orders --days 30 --dead-since -7d
      sandctl pipeline report --csv today -o json

    The command reads all dead letters, without values, to count them: a million takes about a minute. It needs no
    Spark.
    """
    from sandq.spark.jobs.forecast import write_csv
    from sandq.spark.jobs.report import collect_report

    async def work(client: Client) -> ReportSummary:
        with Progress("dead letters read:") as progress:
            return await collect_report(client, topics, days=days, dead_since=dead_since, progress=progress.at)

    found = run(work)
    if csv_path is not None:
        csv_path.mkdir(parents=True, exist_ok=True)
        for name, columns in found.columns().items():
            write_csv(csv_path / f"{name}.csv", found.tables()[name], columns)
    if settings().output == "table":
        for number, (name, rows) in enumerate(found.tables().items()):
            if number:
                click.echo()
            _show(name, rows)
    else:
        show_one(found.record())


def _show(name: str, rows: list[dict[str, Any]]) -> None:
    from sandq.model.times import format_duration

    if name == "due":  # a line for each empty day of each topic would hide the others
        rows = [row for row in rows if row["messages"]]
    if not rows:
        click.echo(_NONE[name])
        return
    for row in rows:
        if row.get("late_ms") is not None:
            row["late"] = format_duration(row["late_ms"] - row["late_ms"] % 1000)
    headings = _HEADINGS[name]
    print_table([[text_of(row.get(key)) for key in headings] for row in rows], list(headings.values()))
