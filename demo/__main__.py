"""`python -m demo`: see `--help`. Exit codes: 0 all checks hold, 1 not all, 2 bad input, 130 interrupted."""

from __future__ import annotations

import logging
import shutil
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import anyio
import click
from rich.console import Console

from demo import line_scene, line_view
from demo.cluster import Cluster
from demo.line_report import LineLedger
from demo.lines import BadInput, Survey, survey
from demo.node import Node
from demo.reminders import Reminder, plan, read_reminders
from demo.report import Ledger, verdict
from demo.scenario import NodeFailed, Scene, now_ms, play
from demo.view import Notes, Output, print_verdict, show
from sandq.errors import SandqError

REMINDERS = Path(__file__).with_name("reminders.jsonl")
EXIT_FAILED = 1
EXIT_INTERRUPTED = 130
_LARGE_BYTES = 50_000_000

S = TypeVar("S", Scene, line_scene.LineScene)
Run = Callable[[Path, Console], Awaitable[int]]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--input",
    "source",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Send the lines of this file instead, whatever they contain.",
)
@click.option(
    "--reminders",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    default=REMINDERS,
    help='Other reminders, one JSON object per line: {"id": "r-1", "customer": "Ada", "text": "...", "in": "4.2s"}.',
)
@click.option(
    "--seconds",
    type=click.FloatRange(1, 3600),
    help=(
        "Fit the demo into this time. Default: times as they are, or shortened to fit into 40 seconds"
        " (a file: 30; lines without a time are delivered within 5)."
    ),
)
@click.option("--no-kill", is_flag=True, help="Do not kill a node. With a file, no node is killed anyway.")
@click.option("--keep", is_flag=True, help="Keep the nodes' data and logs, and print their directory.")
def main(source: Path | None, reminders: Path, seconds: float | None, no_kill: bool, keep: bool) -> None:
    """Three nodes, thousands of reminders, two workers; kill -9 of a leader; a fourth node; and a verdict.

    Each node is a process with its own data in a temporary directory; nodes find each other by gossip. The demo records
    which messages the broker confirmed, delivered and acked, outside of the broker. The exit code is 1 if a message was
    lost, stored twice or delivered early, or if the fourth node does not get its share.

    With --input FILE, each line of that file is a message, unchanged, sent to a single node. Empty lines are skipped. A
    line that is a JSON object may have "text" (or "value"), "key", and "deliver_at" or "delay". The verdict then says
    whether each line was delivered exactly as often as it occurs in the file, and none early.
    """
    console = Output()
    try:
        run = (
            _with_reminders(reminders, seconds, not no_kill) if source is None else _with_file(source, seconds, console)
        )
    except BadInput as error:
        raise click.UsageError(str(error)) from None
    directory = Path(tempfile.mkdtemp(prefix="sandq-demo-"))
    code = EXIT_FAILED
    try:
        try:
            code = anyio.run(run, directory, console, backend="trio")
        except KeyboardInterrupt:
            code = EXIT_INTERRUPTED
    finally:
        if keep or code == EXIT_FAILED:
            console.print(f"Data and logs of the nodes: {directory}", highlight=False, soft_wrap=True)
        else:
            shutil.rmtree(directory, ignore_errors=True)
    sys.exit(code)


# Without --input: the scene with reminders, in which a leader is killed.


def _with_reminders(path: Path, seconds: float | None, kill: bool) -> Run:
    found: list[Reminder] = read_reminders(path)
    planned = plan(found, seconds)

    async def run(directory: Path, console: Console) -> int:
        cluster = Cluster(directory)
        scene = Scene(cluster, found, planned, kill, Ledger(len(found)))
        if planned.scale != 1:
            scene.note(f"delays are multiplied by {planned.scale:.3g}, to fit into {planned.total_s:.0f} s")
        try:
            code = await _perform(scene, console, play, show)
        finally:
            cluster.stop()
        total = verdict(scene.ledger)
        if code == EXIT_INTERRUPTED:
            console.print(
                f"Interrupted: {total.produced:,} produced, {total.delivered:,} delivered, {total.acked:,} acked "
                "so far.",
                highlight=False,
            )
        elif not code:
            print_verdict(total, scene, console)
            return total.exit_code
        return code

    return run


# Any file.


def _with_file(path: Path, seconds: float | None, console: Console) -> Run:
    found: Survey
    if path.is_file() and path.stat().st_size > _LARGE_BYTES:
        console.print(f"reading {path} ({path.stat().st_size:,} bytes)", highlight=False, soft_wrap=True)
    found = survey(path, int(now_ms()))

    async def run(directory: Path, console: Console) -> int:
        node = Node(directory)
        scene = line_scene.LineScene(node, found, seconds, LineLedger(found.lines))
        line_view.print_input(scene, console)
        try:
            code = await _perform(scene, console, line_scene.play, line_view.show)
        finally:
            node.stop()
        ledger = scene.ledger
        if code == EXIT_INTERRUPTED:
            console.print(
                f"Interrupted: {ledger.confirmed:,} produced, {ledger.delivered:,} delivered so far.", highlight=False
            )
        return code or line_view.print_verdict(scene, console)

    return run


# Both.


async def _perform(
    scene: S,
    console: Console,
    play: Callable[[S], Awaitable[None]],
    show: Callable[[S, Console], Coroutine[Any, Any, None]],
) -> int:
    """Run and show a scene; return 0 if it reached its end."""
    log = logging.getLogger("sandq.client")
    log.addHandler(Notes(scene.note))
    log.propagate = False
    failure: str | None = None
    interrupted = False
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(show, scene, console)
        with anyio.CancelScope() as playing:
            tasks.start_soon(_interrupt, playing)
            try:
                await play(scene)
            except* (NodeFailed, SandqError, BadInput) as group:
                failure = "; ".join(dict.fromkeys(_texts(group)))
        interrupted = playing.cancel_called
        scene.done = True
        tasks.cancel_scope.cancel()
    if interrupted:  # errors of tasks that are being cancelled mean nothing
        return EXIT_INTERRUPTED
    if failure is not None:
        console.print(f"FAILED: {failure}", style="bold red", markup=False, highlight=False, soft_wrap=True)
        return EXIT_FAILED
    return 0


async def _interrupt(playing: anyio.CancelScope) -> None:
    """End the scene, with everything that it started, on Ctrl-C and similar signals."""
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
        async for _ in signals:
            playing.cancel()
            return


def _texts(group: BaseExceptionGroup[BaseException]) -> list[str]:
    found: list[str] = []
    for error in group.exceptions:
        found += _texts(error) if isinstance(error, BaseExceptionGroup) else [str(error)]
    return found


if __name__ == "__main__":
    main()
