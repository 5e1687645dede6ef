"""The figures as tables: on the terminal, and in bench.md next to bench.json and the charts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks import charts
from benchmarks.result import GROUPS, Result, as_json, short

COLUMNS = (
    "row",
    "measured",
    "goal",
    "reached",
    "node CPU us/msg",
    "client CPU us/msg",
    "p50 ms",
    "p99 ms",
    "max ms",
    "latency",
    "fdatasyncs",
    "msg/fdatasync",
    "stolen",
    "details",
)
_TEXTS = ("row", "latency", "details")
CONDITIONS = """\
One node process (three in the rows of a cluster), which syncs its write-ahead log with fdatasync before each response.
Each row has the number of fdatasyncs while the load ran. The load comes over loopback from another process: raw
sockets and prepared frames, or the Python client where a row says so. Values have 100 bytes unless a row says
otherwise. CPU is user and system time of all threads of all nodes, and of the load's process. Where a row sends at a
rate, latency counts from the planned send. Otherwise it counts from giving the request to the socket: a slow response
then delays the next request, and the figure says little about a load that does not wait. Lateness is signed: below 0
means early. "stolen" is the share of the machine's CPU time that its host gave to other machines during the row: work
had to wait then, and times and rates are worse than on a dedicated machine.
"""


def grouped(results: Sequence[Result]) -> Iterator[tuple[str, list[Result]]]:
    """Titles and their rows."""
    for group, title in GROUPS.items():
        if rows := [result for result in results if result.row.group == group]:
            yield title, rows


def cells(result: Result) -> list[str]:
    """Return the values of `COLUMNS` without the row's name."""
    measured, latency = result.measured, result.measured.latency
    shares = [latency.at(share) for share in (0.5, 0.99, 1.0)] if latency is not None else [None] * 3
    details = [f"{name} {short(value)}" for name, value in measured.details.items()]
    if measured.errors:
        details.insert(0, f"ERRORS {measured.errors}")
    if len(result.values) > 1:
        details.append(f"rounds {short(min(result.values))} to {short(max(result.values))}")
    return [
        f"{short(measured.value)} {result.row.unit}",
        "; ".join(map(str, result.row.goals)),
        "; ".join(f"{ratio:.2f}" for ratio in result.ratios),
        short(measured.cpu_us),
        short(measured.client_cpu_us),
        *map(short, shares),
        latency.clock if latency is not None else "",
        "" if measured.fsyncs is None else f"{measured.fsyncs:,}",
        short(measured.messages_per_fsync),
        "" if measured.stolen is None else f"{measured.stolen:.0%}",
        "; ".join(details),
    ]


def print_tables(console: Console, machine: dict[str, Any], results: Sequence[Result]) -> None:
    """Print the result with a description of the row."""
    console.print(", ".join(f"{name} {value}" for name, value in machine.items()), highlight=False)
    for title, rows in grouped(results):
        table = Table(title=title, title_justify="left")
        for name in COLUMNS:
            table.add_column(name, justify="left" if name in _TEXTS else "right")
        for result in rows:
            row = [escape(cell) for cell in cells(result)]
            if result.ratios:
                row[2] = f"[{'green' if min(result.ratios) >= 1 else 'red'}]{row[2]}[/]"
            what = f"{result.row.name}\n[dim]{escape(result.row.what)} ({result.row.driver})[/dim]"
            table.add_row(what, *row[:-1], row[-1].replace("; ", "\n"))
        console.print(table)


def markdown(machine: dict[str, Any], results: Sequence[Result], pictures: Sequence[str]) -> str:
    """Return the tables with the conditions of the run."""
    lines = ["# Benchmark results of one node", "", "Written by `python -m benchmarks --results DIR`.", ""]
    lines += [f"- {name}: {value}" for name, value in machine.items()]
    lines += ["", CONDITIONS]
    for title, rows in grouped(results):
        lines += [f"## {title}", "", _line(COLUMNS), _line("---" if name in _TEXTS else "---:" for name in COLUMNS)]
        lines += [_line([f"`{result.row.name}`", *cells(result)]) for result in rows]
        lines += ["", *(f"- `{result.row.name}` ({result.row.driver}): {result.row.what}" for result in rows), ""]
    lines += [f"![{name.removesuffix('.png')}]({name})" for name in pictures]
    return "\n".join(lines).rstrip() + "\n"


def write(directory: Path, machine: dict[str, Any], results: Sequence[Result]) -> None:
    """Write bench.md, bench.json, and the charts that have figures."""
    (directory / "bench.json").write_text(as_json(machine, results) + "\n")
    pictures = charts.write(directory, results)
    (directory / "bench.md").write_text(markdown(machine, results, pictures))


def _line(found: Sequence[str] | Iterator[str]) -> str:
    return f"| {' | '.join(text.replace('|', '/') for text in found)} |"
