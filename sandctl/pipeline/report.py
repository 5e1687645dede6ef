"""`sandctl pipeline report`: backlog, what is due by day, and dead letters, as three tables."""

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


@click.command(short_help="Show lag, what comes due, and what died, by day.")
@click.argument("topics", metavar="[TOPIC]...", nargs=-1)
@click.option(
    "--days", type=click.IntRange(1, 149), default=7, show_default=True, help="Days ahead, today included, in UTC."
)
@click.option("--dead-since", type=INSTANT, metavar="INSTANT", help="Count what died at this moment or later.")
@click.option(
    "--csv",
    "csv_path",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write groups.csv, due.csv and dead.csv there, too.",
)
@common_options
def report(topics: tuple[str, ...], days: int, dead_since: int | None, csv_path: Path | None) -> None:
    """Show of these topics, or of all: what groups have before them and since when, how many messages come due on the
    next days, and how many died on which day, of what, at which attempt.

    \b
      sandctl pipeline report
      sandctl pipeline report orders --days 30 --dead-since -7d
      sandctl pipeline report --csv today -o json

    Dead letters are read, without their values, and counted: a million takes a minute or so. It needs no Spark.
    """
    from sandq.spark.jobs.forecast import write_csv
    from sandq.spark.jobs.report import collect_report

    async def work(client: Client) -> ReportSummary:
        with Progress("dead letters read:") as progress:
            return await collect_report(client, topics, days=days, dead_since=dead_since, told=progress.at)

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
