"""`python -m demo`: see `--help`. Exit codes: 0 all kept, 1 something lost or early, 2 bad input, 130 interrupted."""

from __future__ import annotations

import logging
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import anyio
import click
from rich.console import Console

from demo.node import Node, NodeFailed
from demo.reminders import BadInput, plan, read_reminders
from demo.report import Ledger, verdict
from demo.scenario import Scene, play
from demo.view import Notes, Output, print_verdict, show
from sandq.errors import SandqError

REMINDERS = Path(__file__).with_name("reminders.jsonl")
EXIT_FAILED = 1
EXIT_INTERRUPTED = 130


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--input",
    "source",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    default=REMINDERS,
    help='Your reminders, a JSON object a line: {"id": "r-1", "customer": "Ada", "text": "...", "in": "4.2s"}.',
)
@click.option(
    "--seconds",
    type=click.FloatRange(1, 3600),
    help="Fit all reminders into this time. Default: delays as they are, or shortened to fit into 40 seconds.",
)
@click.option("--no-kill", is_flag=True, help="Let the node live.")
@click.option("--keep", is_flag=True, help="Keep the node's data and log, and say where.")
def main(source: Path, seconds: float | None, no_kill: bool, keep: bool) -> None:
    """A node, thousands of reminders, two workers; kill -9 half way; and a verdict.

    The node is a process of its own with its data in a temporary directory. What the broker confirmed, delivered and
    got acked is recorded here, outside of it. Exit code 1 when anything was lost or early.
    """
    try:
        reminders = read_reminders(source)
    except BadInput as error:
        raise click.UsageError(str(error)) from None
    console = Output()
    directory = Path(tempfile.mkdtemp(prefix="sandq-demo-"))
    code = EXIT_FAILED
    try:
        node = Node(directory)
        scene = Scene(node, reminders, plan(reminders, seconds), not no_kill, Ledger(len(reminders)))
        try:
            code = anyio.run(run, scene, console, backend="trio")
        except KeyboardInterrupt:
            code = EXIT_INTERRUPTED
        finally:
            node.stop()
    finally:
        if keep or code == EXIT_FAILED:
            console.print(f"The node's data and log: {directory}", highlight=False, soft_wrap=True)
        else:
            shutil.rmtree(directory, ignore_errors=True)
    sys.exit(code)


async def run(scene: Scene, console: Console) -> int:
    """Play and show the scene; the exit code."""
    log = logging.getLogger("sandq.client")
    log.addHandler(Notes(scene))
    log.propagate = False
    if scene.plan.scale != 1:
        scene.note(f"delays are multiplied by {scene.plan.scale:.3g}, to fit into {scene.plan.total_s:.0f} s")
    failure: str | None = None
    interrupted = False
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(show, scene, console)
        with anyio.CancelScope() as playing:
            tasks.start_soon(interrupt, playing)
            try:
                await play(scene)
            except* (NodeFailed, SandqError) as group:
                failure = "; ".join(dict.fromkeys(_texts(group)))
        interrupted = playing.cancel_called
        scene.done = True
        tasks.cancel_scope.cancel()
    found = verdict(scene.ledger)
    if failure is not None:
        console.print(f"FAILED: {failure}", style="bold red", markup=False, highlight=False, soft_wrap=True)
        return EXIT_FAILED
    if interrupted:
        console.print(
            f"Interrupted: {found.produced:,} produced, {found.delivered:,} delivered, {found.acked:,} acked so far.",
            highlight=False,
        )
        return EXIT_INTERRUPTED
    print_verdict(found, scene, console)
    return found.exit_code


async def interrupt(playing: anyio.CancelScope) -> None:
    """Ctrl-C and the like end the scene, and with it everything that it started."""
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
