"""`python -m benchmarks.peers`: see `--help`."""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any, Final

import click
from rich.console import Console

from benchmarks.disk import check_disk, filesystem_of_directory
from benchmarks.machine import stolen
from benchmarks.peers.charts import write_charts
from benchmarks.peers.driver import Sample, Task
from benchmarks.peers.figures import Outcome
from benchmarks.peers.peer import Peer, PeerError
from benchmarks.peers.registry import PEERS
from benchmarks.peers.report import Run, as_json, markdown, number, print_tables
from benchmarks.peers.workloads import BY_NAME, Workload
from benchmarks.process import sync_ms
from demo.node import ROOT, NodeFailed
from sandq.model.errors import SandqError

ROUNDS: Final = 3
QUICK_ROUNDS: Final = 1
DRIVER_S: Final = 180.0
RESULTS: Final = ROOT / "benchmarks" / "results"
_ERROR_CHARS = 600


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--only", type=click.Choice(list(PEERS)), multiple=True, metavar="PEER", help="May be given several times."
)
@click.option(
    "--workload",
    "names",
    type=click.Choice(list(BY_NAME)),
    multiple=True,
    metavar="NAME",
    help="May be given several times.",
)
@click.option("--rounds", type=click.IntRange(1, 100), help=f"Default: {ROUNDS}, with --quick {QUICK_ROUNDS}.")
@click.option(
    "--quick",
    is_flag=True,
    help="Few messages: checks that it works, not how fast it is. Writes no results unless --results is given.",
)
@click.option(
    "--dir",
    "directory",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Directory of all data, on the disk to measure. Default: the temporary directory.",
)
@click.option(
    "--results",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory for peers.md, peers.json and charts. Default: benchmarks/results.",
)
@click.option("--list", "list_names", is_flag=True, help="List the names of peers and loads.")
def main(
    only: tuple[str, ...],
    names: tuple[str, ...],
    rounds: int | None,
    quick: bool,
    directory: Path | None,
    results: Path | None,
    list_names: bool,
) -> None:
    """Compare sandq with other brokers, which this command starts on the loopback interface."""
    signal.signal(signal.SIGTERM, _end)
    if list_names:
        click.echo("\n".join([f"peer      {name}" for name in PEERS] + [f"workload  {name}" for name in BY_NAME]))
        return
    if results is None and not quick:
        results = RESULTS
    place = directory or Path(tempfile.gettempdir())
    try:
        check_disk(place)
        peers = [PEERS[name] for name in PEERS if not only or name in only]
        workloads = [BY_NAME[name] for name in BY_NAME if not names or name in names]
        run = measure_all(peers, workloads, rounds or (QUICK_ROUNDS if quick else ROUNDS), place, quick)
        print_tables(Console(width=None if sys.stdout.isatty() else 200), run)
        if results is not None:
            write(results, run)
    except SandqError as error:
        raise click.ClickException(str(error)) from None
    if any(outcome.error for outcome in run.outcomes):
        sys.exit(1)


def _end(number_: int, _: FrameType | None) -> None:
    """Exit as after Ctrl-C: end the servers and remove their data."""
    sys.exit(128 + number_)


def measure_all(peers: Sequence[Peer], workloads: Sequence[Workload], rounds: int, place: Path, quick: bool) -> Run:
    """Run every round, load and peer; record failures and continue."""
    log = Console(stderr=True, highlight=False)
    base = Path(tempfile.mkdtemp(prefix="sandq-peers-", dir=place))
    about = about_run(base, rounds, quick)
    left_out: dict[str, str] = {}
    try:
        # A peer may run as another user, who needs access to its own directory.
        base.chmod(0o711)
        for peer in peers:
            why = _unusable(peer, base)
            if why is not None:
                left_out[peer.name] = why
                log.print(f"{peer.name}: left out: {why}", markup=False, soft_wrap=True)
        usable = [peer for peer in peers if peer.name not in left_out]
        outcomes = []
        for number_, peer, workload in schedule(usable, workloads, rounds):
            outcomes.append(measure(number_, peer, workload, base, quick))
            log.print(_told(outcomes[-1]), markup=False, soft_wrap=True)
    finally:
        shutil.rmtree(base, ignore_errors=True)
    return Run(about, {peer.name: peer.version() for peer in usable}, left_out, peers, outcomes)


def schedule(peers: Sequence[Peer], workloads: Sequence[Workload], rounds: int) -> Iterator[tuple[int, Peer, Workload]]:
    """Yield loads and peers of each round. The order of peers rotates, so that none is always the first."""
    turn = 0
    for round_ in range(1, rounds + 1):
        for workload in workloads:
            able = [peer for peer in peers if workload.name not in peer.cannot]
            for at in range(len(able)):
                yield round_, able[(at + turn) % len(able)], workload
            turn += 1


def _unusable(peer: Peer, base: Path) -> str | None:
    """Prepare a peer, or return the reason why it cannot run."""
    if peer.executable() is None:
        return f"{peer.program} is not installed: apt-get install {peer.package}"
    own = base / peer.name
    own.mkdir(mode=0o711)
    try:
        peer.prepare(own)
    except (PeerError, OSError) as error:
        return _short(error)
    return None


def measure(round_: int, peer: Peer, workload: Workload, base: Path, quick: bool) -> Outcome:
    """Run one load on a new server of a peer."""
    directory = base / "server"
    directory.mkdir(mode=0o711)
    share_stolen = stolen()
    try:
        with peer.serving(directory) as (pid, port):
            sample = drive(Task(peer.name, workload.name, port, pid, quick))
        return Outcome(round_, peer.name, workload.name, sample, stolen=share_stolen())
    except (PeerError, NodeFailed, OSError, subprocess.TimeoutExpired) as error:
        return Outcome(round_, peer.name, workload.name, None, _short(error))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        # The next peer must not pay for writes that this one left.
        os.sync()


def drive(task: Task) -> Sample:
    """Run the load in a process of its own. PeerError says why it failed."""
    command = [sys.executable, "-m", "benchmarks.peers.driver", json.dumps(asdict(task))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=DRIVER_S)
    if done.returncode:
        raise PeerError(done.stderr.strip()[-_ERROR_CHARS:] or f"the driver ended with {done.returncode}")
    return Sample(**json.loads(done.stdout))


def about_run(place: Path, rounds: int, quick: bool) -> dict[str, Any]:
    """Return the conditions on which the figures depend."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "rounds": f"{rounds}{', quick: checks that it works, not how fast it is' if quick else ''}",
        "cores": len(os.sched_getaffinity(0)),
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "Python": platform.python_version(),
        "file system": filesystem_of_directory(place),
        "4 KB written and synced (fdatasync), median ms": round(sync_ms(place), 3),
        "load before": round(os.getloadavg()[0], 2),
    }


def _told(outcome: Outcome) -> str:
    what = f"round {outcome.round}  {outcome.workload:18} {outcome.peer:15}"
    if outcome.sample is None:
        return f"{what} failed: {outcome.error}"
    sample = outcome.sample
    p99 = f", p99 {number(sample.times_ms[1])} ms" if sample.times_ms else ""
    cpu_us = sample.server_s * 1e6 / sample.messages
    return f"{what} {sample.messages / sample.seconds:10,.0f} msg/s, server {number(cpu_us)} us/msg{p99}"


def _short(error: BaseException) -> str:
    """Remove paths of this machine from a result."""
    return str(error).replace(str(ROOT), ".").replace(tempfile.gettempdir(), "").strip()[:_ERROR_CHARS]


def write(results: Path, run: Run) -> None:
    results.mkdir(parents=True, exist_ok=True)
    (results / "peers.json").write_text(as_json(run), encoding="utf-8")
    (results / "peers.md").write_text(markdown(run, write_charts(results, run)), encoding="utf-8")
    click.echo(f"written: peers.md, peers.json and {len(run.workloads)} charts in {results.name}/")


if __name__ == "__main__":
    main()
