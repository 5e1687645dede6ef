"""The live view on a terminal, plain lines elsewhere, and the verdict."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable

import anyio
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from demo.placement import FAILED, NEW, UP, named
from demo.report import EARLY_TOLERANCE_MS, Failover, Join, Lateness, Verdict
from demo.scenario import WORKERS, Scene

LIVE_S = 0.1
PLAIN_S = 1.0
_NOTES = 8
_BAR = 40
_STYLES = {UP: "green", FAILED: "bold red", NEW: "bold cyan"}
CLOCK_MOVED_MS = 5.0


class Output(Console):
    """If the reader of the output has gone, the demo continues silently; its exit code shows the result."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())


async def show(scene: Scene, console: Console) -> None:
    """Show the scene until it is done, or until this task is cancelled."""
    if console.is_terminal and not console.is_dumb_terminal:
        await _live(scene, console)
    else:
        await _plain(scene, console)


async def _live(scene: Scene, console: Console) -> None:
    notes: deque[str] = deque(maxlen=_NOTES)
    with Live(console=console, auto_refresh=False, transient=False) as live:
        try:
            while not scene.done:
                live.update(_picture(scene, notes), refresh=True)
                await anyio.sleep(LIVE_S)
        finally:
            live.update(_picture(scene, notes), refresh=True)


async def _plain(scene: Scene, console: Console) -> None:
    """Print one line per second, each event, and the placement after each change."""
    placed = ""
    try:
        while not scene.done:
            for _ in range(int(PLAIN_S / LIVE_S)):
                print_notes(scene.notes, console)
                await anyio.sleep(LIVE_S)
                if scene.done:
                    return
            print_notes(scene.notes, console)
            console.print(_line(scene), highlight=False, soft_wrap=True)
            before, placed = placed, scene.placement.describe(list(scene.cluster.nodes))
            if placed != before and scene.placement.held:
                console.print(f"{scene.elapsed_s:5.1f} s  nodes: {placed}", highlight=False, soft_wrap=True)
    finally:
        print_notes(scene.notes, console)


def print_notes(notes: deque[str], console: Console) -> None:
    """Print and remove all notes that were not printed yet."""
    while notes:
        console.print(notes.popleft(), highlight=False, markup=False, soft_wrap=True)


def _line(scene: Scene) -> str:
    ledger = scene.ledger
    recent = _recent(scene)
    late = f"lateness p50 {recent.p50_ms:.1f} ms p99 {recent.p99_ms:.1f} ms" if recent.count else "nothing due yet"
    return (
        f"{scene.elapsed_s:5.1f} s  {scene.phase}: scheduled {len(ledger.receipts):,}/{ledger.planned:,}, "
        f"delivered {len(ledger.delivered):,}, acked {len(ledger.acked):,}, {late}"
    )


def _recent(scene: Scene) -> Lateness:
    return Lateness.of(lateness for _, lateness in scene.ledger.recent)


def _picture(scene: Scene, notes: deque[str]) -> RenderableType:
    while scene.notes:
        notes.append(scene.notes.popleft())
    ledger, placement = scene.ledger, scene.placement
    held = placement.replicas()
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", min_width=9)
    table.add_column(min_width=_BAR)
    table.add_column()
    for name, node in scene.cluster.nodes.items():
        state = placement.state(name)
        process = f"process {node.pid}" if node.runs else "killed"
        holds = f"holds {held[name]} of {len(placement.held)} partitions" if placement.held else ""
        shown = Text.assemble((f"{state:<8}", _STYLES[state]), f"{process:<16}", holds)
        table.add_row(name, shown, f"leads {named(placement.led_by(name))}")
    table.add_row("moves", Text(placement.moves() or "none", style="bold cyan" if placement.moving else ""), "")
    for name, count, style in (
        ("scheduled", len(ledger.receipts), "cyan"),
        ("delivered", len(ledger.delivered), "yellow"),
        ("acked", len(ledger.acked), "green"),
    ):
        bar = ProgressBar(ledger.planned, min(count, ledger.planned), width=_BAR, complete_style=style)
        table.add_row(name, bar, f"{count:,} of {ledger.planned:,}")
    shares = "   ".join(f"{worker} {ledger.by_worker[worker]:,}" for worker in WORKERS)
    table.add_row("workers", shares, f"{ledger.in_flight} being handled, {ledger.redelivered} redelivered")
    recent = _recent(scene)
    table.add_row(
        "lateness",
        f"p50 {recent.p50_ms:.1f} ms   p99 {recent.p99_ms:.1f} ms   least {recent.least_ms:.1f} ms",
        f"the last {recent.count:,}, within 5 s",
    )
    title = f"sandq demo   {scene.elapsed_s:.0f} s of about {scene.plan.total_s + 4:.0f} s"
    log = Text("\n".join(notes), style="dim", no_wrap=True, overflow="ellipsis")
    return Panel(Group(table, Text(), log), title=title, title_align="left", expand=False)


class Notes(logging.Handler):
    """Turn the client's log lines into notes of the scene; otherwise they would disturb the live view."""

    def __init__(self, note: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._note = note

    def emit(self, record: logging.LogRecord) -> None:
        self._note(f"client: {record.getMessage()}")


def print_verdict(found: Verdict, scene: Scene, console: Console) -> None:
    """Print the figures, and whether the broker kept its promises."""
    console.print()
    for name, text in verdict_rows(found):
        console.print(f"{name:<12}{text}", highlight=False, markup=False, soft_wrap=True)
    if abs(scene.clock_moved_ms) > CLOCK_MOVED_MS:
        console.print(
            f"{'note':<12}the machine's wall clock moved by {scene.clock_moved_ms:.0f} ms during the demo, "
            "and lateness is measured by it",
            soft_wrap=True,
        )
    console.print()
    if found.faults:
        console.print(f"FAILED: {'; '.join(found.faults)}", style="bold red", highlight=False, soft_wrap=True)
    else:
        killed = " across a kill -9 of a leader" if found.failovers else ""
        joined = f"; {found.join.node} holds its share" if found.join is not None else ""
        text = f"PASSED: nothing lost, nothing early{killed}{joined}"
        console.print(text, style="bold green", highlight=False, soft_wrap=True)


def verdict_rows(found: Verdict) -> list[tuple[str, str]]:
    """Return name and text of each line of the verdict."""
    twice = "delivered twice: the first lease ended before its ack got through"
    rows = [
        ("produced", f"{found.produced:,} of {found.planned:,} (confirmed by the broker)"),
        ("delivered", f"{found.delivered:,}, acked {found.acked:,}"),
        ("lost", f"{found.lost:,}"),
        ("doubled", f"{found.stored_twice:,}"),
        ("redelivered", f"{found.redelivered:,}" + (f" ({twice})" if found.redelivered else "")),
        (
            "early",
            f"{found.early:,} (by more than {EARLY_TOLERANCE_MS:g} ms; least lateness {found.all.least_ms:.1f} ms)",
        ),
        ("lateness", _lateness(found.all)),
    ]
    for failover in found.failovers:
        rows.append(("  failover", f"{_lateness(found.in_failover)}: {named(failover.partitions)} had no leader"))
    if found.join is not None:
        rows.append(("  the moves", f"{_lateness(found.in_move)}: partitions were moving to {found.join.node}"))
    if found.failovers or found.join is not None:
        rows.append(("  the rest", _lateness(found.undisturbed)))
    for failover in found.failovers:
        rows.append(("failover", f"from the kill of {failover.node} to {_moments(failover)}"))
    return rows + (_join_rows(found.join) if found.join is not None else [])


def _moments(failover: Failover) -> str:
    moments = (
        ("new leaders", failover.led_ms),
        ("the first delivery", failover.delivered_ms),
        ("the first receipt", failover.confirmed_ms),
    )
    return ", ".join(f"{name} {at_ms - failover.killed_ms:.0f} ms" for name, at_ms in moments if at_ms is not None)


def _join_rows(join: Join) -> list[tuple[str, str]]:
    if join.started_ms is None:
        return [(join.node, "was never started")]
    if join.joined_ms is None:
        return [(join.node, "was started, and did not join the cluster")]
    settled = "has not settled"
    if join.settled_ms is not None:
        settled = f"had settled after {(join.settled_ms - join.started_ms) / 1000:.1f} s"
    joined_s = (join.joined_ms - join.started_ms) / 1000
    return [
        (join.node, f"joined the cluster {joined_s:.1f} s after its start; its share {settled}"),
        ("replicas", f"before: {_counts(join.before)}; after: {_counts(join.after)} (it leads {named(join.led)})"),
    ]


def _counts(replicas: dict[str, int]) -> str:
    return ", ".join(f"{node} {count}" for node, count in sorted(replicas.items()))


def _lateness(found: Lateness) -> str:
    if not found.count:
        return "none"
    return f"p50 {found.p50_ms:.1f} ms, p99 {found.p99_ms:.1f} ms, most {found.most_ms:.1f} ms (of {found.count:,})"
