"""`python -m benchmarks`: see `--help`."""

from __future__ import annotations

import os
import platform
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from rich.console import Console

import sandq
from benchmarks import report
from benchmarks.disk import check_disk, filesystem_of_directory
from benchmarks.machine import stolen
from benchmarks.process import Where, sync_ms
from benchmarks.profiles import write_texts
from benchmarks.result import GROUPS, Measured, Result, Row, Setting, as_json
from benchmarks.rows import ALIASES, MEASURES


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--only",
    type=click.Choice([*MEASURES, *ALIASES]),
    multiple=True,
    metavar="NAME",
    help="May be given several times.",
)
@click.option("--group", "groups", type=click.Choice(list(GROUPS)), multiple=True, help="May be given several times.")
@click.option("--quick", is_flag=True, help="Few messages: checks that it works, not how fast it is.")
@click.option(
    "--rounds",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Run all rows this many times; the round with the median value counts.",
)
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
@click.option(
    "--results",
    type=click.Path(file_okay=False, path_type=Path),
    help="Also write bench.md, bench.json and charts into this directory.",
)
@click.option(
    "--dir",
    "directory",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Directory of the nodes' data, on the disk to measure. Default: the temporary directory.",
)
@click.option(
    "--profile",
    "profiles",
    type=click.Path(file_okay=False, path_type=Path),
    help="Run the nodes under cProfile. Write a profile for each thread into this directory, and its top as text.",
)
@click.option("--list", "list_rows", is_flag=True, help="List the measurements.")
def main(
    only: tuple[str, ...],
    groups: tuple[str, ...],
    quick: bool,
    rounds: int,
    output: str,
    results: Path | None,
    directory: Path | None,
    profiles: Path | None,
    list_rows: bool,
) -> None:
    """Measure nodes on this machine, and print the figures with the goals of the design."""
    rows = chosen(only, groups)
    if list_rows:
        width = max(len(row.name) for row in rows)
        for row in rows:
            click.echo(f"{row.name:{width}}  {row.group:8}  {row.what}")
        return
    check_disk(directory or Path(tempfile.gettempdir()))
    for path in (results, profiles):
        if path is not None:
            path.mkdir(parents=True, exist_ok=True)
    machine, began_s = about(directory, rounds, quick), time.monotonic()
    measured, failures = run(rows, Where(directory, profiles), quick, rounds)
    machine["minutes"] = round((time.monotonic() - began_s) / 60, 1)
    found = [Result.of(row, measured[row.name]) for row in rows if measured[row.name]]
    if output == "json":
        click.echo(as_json(machine, found))
    else:
        report.print_tables(Console(width=None if sys.stdout.isatty() else 200), machine, found)
    if results is not None:
        report.write(results, machine, found)
    wrong = [f"{result.row.name}: {result.measured.errors} errors" for result in found if result.measured.errors]
    if wrong or failures:
        raise click.ClickException("; ".join([*failures, *wrong]))


def chosen(only: Sequence[str], groups: Sequence[str]) -> list[Row]:
    """Return the rows of these names and groups, in the order of the table; all rows if none is named."""
    names = {ALIASES.get(name, name) for name in only}
    return [row for row in MEASURES.values() if not (only or groups) or row.name in names or row.group in groups]


def run(rows: Sequence[Row], where: Where, quick: bool, rounds: int) -> tuple[dict[str, list[Measured]], list[str]]:
    """Run all rows, round by round, so that a disturbance of the machine affects all rows alike. Returns results and
    failures."""
    log = Console(stderr=True)
    measured: dict[str, list[Measured]] = {row.name: [] for row in rows}
    failures: list[str] = []
    for number in range(rounds):
        for row in rows:
            began_s, share_stolen = time.monotonic(), stolen()
            try:
                with log.status(f"{row.name} ...") if log.is_terminal else log:
                    found = row.measure(Setting(where, row.name, quick))
            except Exception as error:
                # otherwise a row that fails would lose the figures of the others
                log.print(traceback.format_exc(), highlight=False, markup=False)
                failures.append(f"{row.name} failed: {str(error).splitlines()[0] if str(error) else repr(error)}")
                continue
            found.stolen = share_stolen()
            measured[row.name].append(found)
            if where.profiles is not None:
                write_texts(where.profiles, row.name)
            took_s = time.monotonic() - began_s
            turn = f" ({number + 1}/{rounds})" if rounds > 1 else ""
            what = f"{row.name}{turn}: {found.value:,.1f} {row.unit}, {took_s:.1f} s, stolen {found.stolen:.0%}"
            log.print(what, highlight=False)
    return measured, failures


def about(directory: Path | None, rounds: int, quick: bool) -> dict[str, Any]:
    """Return the conditions on which the figures depend."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "sandq": sandq.__version__,
        "Python": platform.python_version(),
        "Linux": platform.release(),
        "cores": len(os.sched_getaffinity(0)),
        "GB of memory": round(pages / 1e9),
        "file system": filesystem_of_directory(directory or Path(tempfile.gettempdir())),
        "4 KB synced in ms": round(sync_ms(directory), 3),
        "load before": round(os.getloadavg()[0], 2),
        "rounds": rounds,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        **({"quick": "yes: few messages, figures say nothing"} if quick else {}),
    }


if __name__ == "__main__":
    main()
