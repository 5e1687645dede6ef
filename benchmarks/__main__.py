"""`python -m benchmarks`: see `--help`."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.console import Console

import sandq
from benchmarks import cluster, cluster_moves, keys, spark
from benchmarks.consume import consume, consume_client
from benchmarks.lateness import KINDS, lateness
from benchmarks.memory import memory
from benchmarks.process import Where, sync_ms
from benchmarks.produce import LOADS, produce, produce_client
from benchmarks.result import Result, as_json, print_table
from benchmarks.trimming import trimming

Measure = Callable[[Where, bool], Result]

MEASURES: dict[str, Measure] = {
    **{load.name: partial(produce, load) for load in LOADS},
    "produce_client": produce_client,
    "consume": partial(consume, each=False),
    "consume_each": partial(consume, each=True),
    "consume_client": consume_client,
    "consume_client_batches": partial(consume_client, batches=True),
    "trimming": trimming,
    **{kind.name: partial(lateness, kind) for kind in KINDS},
    "memory": memory,
    "kv_put_100": partial(keys.put, 100, 16),
    "kv_put_1": partial(keys.put, 1, 1000),
    "kv_get_100": partial(keys.get, 100, 16),
    "kv_get_1": partial(keys.get, 1, 250),
    "kv_scan": keys.scan,
    **{f"kv_client_{kind}": partial(keys.client, kind) for kind in ("put", "get", "scan")},
    "kv_watch": partial(keys.watch, 1),
    "kv_watch_3": partial(keys.watch, 3),
    "kv_disk": keys.disk,
    "cluster_1000": cluster.batched,
    "cluster_entries": cluster.entries,
    "raft_entries": cluster.raft,
    "cluster_100KB": cluster.large,
    "cluster_commit": cluster.commit,
    "cluster_idle": cluster.idle,
    "cluster_failover": cluster.failover,
    "cluster_moves": cluster_moves.join,
    "cluster_rolling": cluster_moves.rolling,
    "spark_read": spark.read,
    "spark_archive": spark.archive,
    "spark_schedule": spark.schedule,
}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--only", type=click.Choice(list(MEASURES)), multiple=True, metavar="NAME", help="May be given again.")
@click.option("--quick", is_flag=True, help="Few messages: whether it works, not how fast.")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
@click.option(
    "--dir",
    "directory",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Where nodes have their data: on the disk that is to be measured. Default: the temporary directory.",
)
@click.option(
    "--profile",
    "profiles",
    type=click.Path(file_okay=False, path_type=Path),
    help="Run the nodes under cProfile, and put a profile for each thread into this directory.",
)
@click.option("--list", "list_names", is_flag=True, help="List the names of the measurements.")
def main(
    only: tuple[str, ...], quick: bool, output: str, directory: Path | None, profiles: Path | None, list_names: bool
) -> None:
    """Measure a node of this machine, and print the figures beside the goals of the design."""
    if list_names:
        click.echo("\n".join(MEASURES))
        return
    if profiles is not None:
        profiles.mkdir(parents=True, exist_ok=True)
    where = Where(directory, profiles)
    machine = about(directory)
    log = Console(stderr=True)
    results: list[Result] = []
    for name in only or MEASURES:
        with log.status(f"{name} ...") if log.is_terminal else log:
            results.append(MEASURES[name](where, quick))
        log.print(f"{name}: {results[-1].value:,.1f} {results[-1].unit}", highlight=False)
    if output == "json":
        click.echo(as_json(machine, results))
    else:
        console = Console(width=None if sys.stdout.isatty() else 160)
        print_table(console, machine, results)


def about(directory: Path | None) -> dict[str, Any]:
    """What the figures depend on."""
    return {
        "sandq": sandq.__version__,
        "Python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 2),
        "4 KB synced in ms": round(sync_ms(directory), 3),
    }


if __name__ == "__main__":
    main()
