"""`python -m benchmarks.budget ROW ...`: where the CPU time of a message goes, by thread, layer and function.

A row runs twice under a profiler that counts CPU time, with few messages and with many, and once without a profiler.
The report shows the difference of the first two, which excludes the start of the node, scaled to the CPU time of the
third. Profiling makes calls of small functions more expensive: a layer with many calls appears larger than it is.
"""

from __future__ import annotations

import marshal
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import click

from benchmarks.process import Where
from benchmarks.result import Setting, short
from benchmarks.rows import MEASURES

Function = tuple[str, int, str]
"""File, line and name, as profiles have them; `~` is the file of functions that are not Python."""
Cost = tuple[int, float]
"""Number of calls, and seconds in the function itself."""

LAYERS: Final = (
    ("sandq/server", "connections, requests, answers"),
    ("sandq/protocol", "frames"),
    ("sandq/model", "batches, offsets, checks"),
    ("sandq/broker/delivery", "delivery"),
    ("sandq/broker/leader", "delivery"),
    ("sandq/broker/replication", "passes, apply"),
    ("sandq/broker", "the rest of the broker"),
    ("sandq/raft", "Raft"),
    ("/pysyncobj/", "Raft"),
    ("sandq/partition", "partition"),
    ("sandq/storage", "write-ahead log and rows"),
    ("/trio/", "event loop"),
    ("/outcome/", "event loop"),
)
OTHER, SYSTEM = "others", "the system: sockets, files, wake-ups"
_SYSTEM = ("posix.", "_socket.", "select.epoll", "_queue.SimpleQueue", "_thread.lock")
TOP: Final = 3
LEAST_US: Final = 0.05


@dataclass(slots=True)
class Layer:
    """Cost of one layer of one thread per message."""

    thread: str
    name: str
    us: float = 0.0
    calls: float = 0.0
    functions: dict[str, float] = field(default_factory=dict)
    """Microseconds per message of each function."""

    def row(self) -> str:
        top = sorted(self.functions.items(), key=lambda one: -one[1])[:TOP]
        names = ", ".join(f"`{name}` {short(us)}" for name, us in top if us >= LEAST_US)
        return f"| {self.thread} | {self.name} | {short(self.us)} | {short(self.calls)} | {names} |"


def layer_of(function: Function) -> str:
    """Return the layer of a function of Python, or of the system."""
    file, _, name = function
    if file == "~":
        return SYSTEM if any(part in name for part in _SYSTEM) else OTHER
    return next((layer for part, layer in LAYERS if part in file), OTHER)


def own_costs(stats: Mapping[Function, Any]) -> dict[tuple[str, str], Cost]:
    """Return calls and seconds by (layer, function). Time in C functions counts for their caller; the system is a
    layer."""
    found: dict[tuple[str, str], Cost] = {}

    def add(layer: str, name: str, calls: int, seconds: float) -> None:
        before = found.get((layer, name), (0, 0.0))
        found[layer, name] = before[0] + calls, before[1] + seconds

    for function, (_, calls, own_s, _, callers) in stats.items():
        layer = layer_of(function)
        if function[0] != "~" or layer == SYSTEM:
            add(layer, named(function), calls, own_s)
            continue
        for caller, (_, _, part_s, _) in callers.items():
            add(layer_of(caller), named(caller), 0, part_s)
    return found


def named(function: Function) -> str:
    """Return the name to show: `module.name` for Python functions, the bare name for C functions."""
    file, _, name = function
    if file == "~":
        return name.removeprefix("<built-in method ").removeprefix("<method ").rstrip(">").replace("' of '", " of ")
    return f"{Path(file).stem}.{name}"


def difference(
    few: Mapping[str, Mapping[tuple[str, str], Cost]], many: Mapping[str, Mapping[tuple[str, str], Cost]], messages: int
) -> list[Layer]:
    """Return the cost of one of `messages` additional messages, by thread; the most expensive layer of each thread
    first."""
    layers: dict[tuple[str, str], Layer] = {}
    for thread, costs in many.items():
        for (name, function), (calls, seconds) in costs.items():
            calls_before, seconds_before = few.get(thread, {}).get((name, function), (0, 0.0))
            us = (seconds - seconds_before) * 1e6 / messages
            layer = layers.setdefault((thread, name), Layer(thread, name))
            layer.us += us
            layer.calls += (calls - calls_before) / messages
            layer.functions[function] = us
    return sorted(layers.values(), key=lambda layer: (layer.thread, -layer.us))


def scaled(layers: list[Layer], total_us: float) -> list[Layer]:
    """Return the costs scaled to a total that was measured without a profiler."""
    factor = total_us / (sum(layer.us for layer in layers) or 1.0)
    for layer in layers:
        layer.us *= factor
        layer.functions = {name: us * factor for name, us in layer.functions.items()}
    return layers


def profile(row: str, quick: bool) -> tuple[int, dict[str, dict[tuple[str, str], Cost]]]:
    """Run a row under a profiler; return its messages, and costs by thread."""
    with tempfile.TemporaryDirectory(prefix="sandq-budget-") as directory:
        where = Where(None, Path(directory))
        measured = MEASURES[row].measure(Setting(where, row, quick))
        found = {
            path.name.removeprefix(f"{row}."): own_costs(marshal.loads(path.read_bytes()))
            for path in sorted(Path(directory).glob(f"{row}.*"))
        }
    return measured.messages, found


def table(layers: Iterable[Layer]) -> str:
    """Return the costs as a table for people and documents."""
    head = "| thread | layer | us a message | calls | of it |\n| --- | --- | ---: | ---: | --- |"
    kept = [layer for layer in layers if layer.us >= LEAST_US]
    total = sum(layer.us for layer in kept)
    return "\n".join([head, *[layer.row() for layer in kept], f"| all | | {short(total)} | | |"])


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("rows", type=click.Choice(list(MEASURES)), nargs=-1, required=True)
def main(rows: tuple[str, ...]) -> None:
    """Show where a node's CPU time goes for one message of ROWS (see `python -m benchmarks --list`)."""
    for row in rows:
        few, costs_of_few = profile(row, quick=True)
        many, costs_of_many = profile(row, quick=False)
        if many <= few:
            raise click.ClickException(f"{row} has as many messages when it is quick: there is nothing to compare")
        layers = difference(costs_of_few, costs_of_many, many - few)
        plain = MEASURES[row].measure(Setting(Where(None), row))
        if plain.cpu_us is not None:
            layers = scaled(layers, plain.cpu_us)
        click.echo(f"{row}: {many - few} messages\n\n{table(layers)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
