"""A chart for each load: rate (or lateness) and the server's CPU time, a bar for each peer. Needs matplotlib."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.peers.figures import Row, Spread, rows
from benchmarks.peers.peer import Peer
from benchmarks.peers.registry import OURS
from benchmarks.peers.report import Run, number
from benchmarks.peers.workloads import Kind
from sandq.model.errors import InvalidRequest

OURS_COLOUR: Final = "#1b6ca8"
SYNCED_COLOUR: Final = "#6b7280"
UNSYNCED_COLOUR: Final = "#e5e7eb"
_EDGE = "#4b5563"
_WIDTH_INCHES = 12.0
_BAR_INCHES = 0.42
_MARGIN_INCHES = 1.9
_DPI = 110
_ROOM = 1.22
"""Space to the right of the longest bar, for its figure."""
_TITLE_CHARS = 120


def write_charts(directory: Path, run: Run) -> dict[str, str]:
    """Draw the charts; return file names by load. Raises InvalidRequest without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InvalidRequest("charts need matplotlib: pip install 'sandq[spark]'") from None
    peers = {peer.name: peer for peer in run.peers}
    written = {}
    for workload in run.workloads:
        # barh counts from the bottom, but the first peer belongs at the top.
        found = [row for name in reversed(peers) for row in rows(run.outcomes, workload.name) if row.peer == name]
        if not found:
            continue
        # Use `Figure` directly: pyplot looks for a window system and keeps every figure.
        size = (_WIDTH_INCHES, _MARGIN_INCHES + _BAR_INCHES * len(found))
        figure = Figure(figsize=size, dpi=_DPI, layout="constrained")
        left, right = figure.subplots(1, 2, sharey=True)
        if workload.kind is Kind.LATENESS:
            _bars(left, found, peers, [row.p99_ms or Spread(0, 0, 0) for row in found], "lateness p99, ms")
        else:
            _bars(left, found, peers, [row.rate for row in found], "messages a second (more is better)")
        _bars(right, found, peers, [row.server_us for row in found], "server CPU, us a message (less is better)")
        figure.suptitle(textwrap.fill(f"{workload.name}: {workload.what}", _TITLE_CHARS), fontsize="medium")
        figure.legend(handles=_legend(), loc="outside lower center", ncols=3, fontsize="small", frameon=False)
        name = f"peers-{workload.name}.png"
        figure.savefig(directory / name, format="png")
        written[workload.name] = name
    return written


def style(peer: Peer) -> dict[str, str]:
    """Style of a peer's bars: peers that respond before they sync are light and hatched."""
    if peer.name == OURS:
        return {"color": OURS_COLOUR}
    if peer.syncs_first:
        return {"color": SYNCED_COLOUR}
    return {"color": UNSYNCED_COLOUR, "hatch": "////", "edgecolor": _EDGE}


def _bars(axes: Any, found: Sequence[Row], peers: dict[str, Peer], values: Sequence[Spread], title: str) -> None:
    most = max(value.most for value in values)
    for place, (row, value) in enumerate(zip(found, values, strict=True)):
        spread = [[value.median - value.least], [value.most - value.median]]
        axes.barh(place, value.median, height=0.7, xerr=spread, ecolor="black", capsize=2, **style(peers[row.peer]))
        axes.text(value.most + most * 0.015, place, number(value.median), va="center", fontsize="small")
    axes.set_yticks(range(len(found)), [row.peer for row in found])
    axes.set_xlim(0, most * _ROOM or 1)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.6g}")
    axes.set_title(title, fontsize="medium")
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    axes.tick_params(axis="x", labelsize="small")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _legend() -> list[Any]:
    from matplotlib.patches import Patch

    return [
        Patch(facecolor=OURS_COLOUR, label="sandq: synced before it responds"),
        Patch(facecolor=SYNCED_COLOUR, label="synced before it responds"),
        Patch(facecolor=UNSYNCED_COLOUR, hatch="////", edgecolor=_EDGE, label="responds first, syncs later"),
    ]
