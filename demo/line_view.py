"""The view of the demo with a file: a line that overwrites itself on a terminal, elsewhere a line per second; and the
verdict at the end."""

from __future__ import annotations

import anyio
from rich.console import Console
from rich.live import Live
from rich.text import Text

from demo.line_report import faults, rows
from demo.line_scene import LineScene
from demo.view import CLOCK_MOVED_MS, LIVE_S, PLAIN_S, print_notes


async def show(scene: LineScene, console: Console) -> None:
    """Show the scene until it is done, or until this task is cancelled."""
    try:
        if console.is_terminal and not console.is_dumb_terminal:
            with Live(console=console, auto_refresh=False, transient=True) as live:
                while not scene.done:
                    print_notes(scene.notes, console)
                    live.update(Text(_line(scene), no_wrap=True, overflow="ellipsis"), refresh=True)
                    await anyio.sleep(LIVE_S)
        while not scene.done:
            for _ in range(int(PLAIN_S / LIVE_S)):
                print_notes(scene.notes, console)
                await anyio.sleep(LIVE_S)
            console.print(_line(scene), highlight=False, soft_wrap=True)
    finally:
        print_notes(scene.notes, console)


def _line(scene: LineScene) -> str:
    ledger = scene.ledger
    late = f", lateness {ledger.last_lateness_ms:.1f} ms" if ledger.delivered else ""
    return (
        f"{scene.elapsed_s:5.1f} s  {scene.phase}: sent {ledger.sent:,} of {ledger.planned:,} lines, "
        f"stored {ledger.confirmed:,}, delivered {ledger.delivered:,}{late}"
    )


def print_input(scene: LineScene, console: Console) -> None:
    """Print the contents of the file, and when its lines will be delivered."""
    found = scene.survey
    plain = found.lines - found.timed
    parts = []
    if plain:
        odd = f" ({found.odd_times:,} of them name a time that cannot be parsed)" if found.odd_times else ""
        parts.append(f"{plain:,} spread over {scene.spread_s:g} s{odd}")
    if found.timed:
        shortened = f" (multiplied by {scene.scale:.3g}, to fit in here)" if scene.scale != 1 else ""
        parts.append(f"{found.timed:,} at their own times{shortened}")
    for name, text in (
        ("input", f"{found.path}: {found.lines:,} lines, {found.size_bytes:,} bytes; empty lines: {found.empty:,}"),
        ("times", ", ".join(parts)),
    ):
        console.print(f"{name:<12}{text}", highlight=False, markup=False, soft_wrap=True)


def print_verdict(scene: LineScene, console: Console) -> int:
    """Print the figures, and whether the broker kept its promises; return the exit code."""
    console.print()
    skipped = ("skipped", f"{scene.survey.empty:,} empty lines")
    for name, text in (skipped, *rows(scene.ledger)):
        console.print(f"{name:<12}{text}", highlight=False, markup=False, soft_wrap=True)
    if abs(scene.clock_moved_ms) > CLOCK_MOVED_MS:
        console.print(
            f"{'note':<12}the machine's wall clock moved by {scene.clock_moved_ms:.0f} ms during the demo, "
            "and lateness is measured by it",
            soft_wrap=True,
        )
    console.print()
    found = faults(scene.ledger)
    if found:
        console.print(f"FAILED: {'; '.join(found)}", style="bold red", highlight=False, markup=False, soft_wrap=True)
        return 1
    console.print(
        "PASSED: each line was delivered exactly as often as it stands in the file, and none early",
        style="bold green",
        highlight=False,
        soft_wrap=True,
    )
    return 0
