"""Charts of results that a picture shows better than a table. Needs matplotlib, which the Spark extra installs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from benchmarks import pending, shape
from benchmarks.produce import WINDOWS
from benchmarks.result import SHARES, Result

_INCHES = (9.0, 5.0)
_DPI = 120
_NAMES = {(1000, "pipe", 16): "produce_1000", (100, "pipe", 16): "produce_100", (10, "pipe", 16): "produce_10"}
_NAMES[1, "lock", 16] = "produce_lock_step"

Found = dict[str, Result]
Draw = Callable[[Any, Found], bool]
"""Draws into a figure; returns whether there was anything to draw."""


def write(directory: Path, results: Sequence[Result]) -> list[str]:
    """Draw the charts that have figures; return their file names."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise click.ClickException("charts need matplotlib: pip install 'sandq[spark]'") from None
    found = {result.row.name: result for result in results}
    names = []
    for name, draw in CHARTS.items():
        # Use `Figure` directly: pyplot looks for a window system and keeps every figure.
        figure = Figure(figsize=_INCHES, dpi=_DPI, layout="constrained")
        if draw(figure, found):
            names.append(f"bench-{name}.png")
            figure.savefig(directory / names[-1], format="png")
    return names


def _produce(figure: Any, found: Found) -> bool:
    """Draw rates by the number of messages per batch."""
    axes, sizes = figure.subplots(), sorted(WINDOWS)
    for mode, what in (("pipe", "pipelined"), ("lock", "lock-step")):
        for connections in (16, 1):
            names = [_NAMES.get((size, mode, connections), f"produce_{size}_{mode}_{connections}") for size in sizes]
            points = [
                (size, found[name].measured.value) for size, name in zip(sizes, names, strict=True) if name in found
            ]
            style = {"marker": "o", "linestyle": "-" if mode == "pipe" else "--"}
            if points:
                plural = "s" if connections > 1 else ""
                axes.plot(*zip(*points, strict=True), label=f"{what}, {connections} connection{plural}", **style)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    return _finish(axes, "Producing 100 B values, fdatasync before each answer", "messages of a batch", "msg/s")


def _lateness(figure: Any, found: Found) -> bool:
    """Draw percentiles of lateness."""
    axes = figure.subplots()
    for name in ("idle", "loaded", "dense", "burst", "failover"):
        result = found.get(f"lateness_{name}")
        if result is not None and result.measured.latency is not None:
            axes.plot(range(len(SHARES)), result.measured.latency.shares_ms, marker="o", label=name)
    axes.set_yscale("symlog", linthresh=1.0)  # early messages would be below 0
    axes.set_xticks(
        range(len(SHARES)), ["least", *(f"{share:.1%}".replace(".0%", "%") for share in SHARES[1:-1]), "max"]
    )
    return _finish(axes, "Lateness: receipt less the time it was due", "share of the messages", "ms late")


def _pending(figure: Any, found: Found) -> bool:
    """Draw memory and restart time by the number of pending messages."""
    rows = [result for name in pending.COUNTS if (result := found.get(f"pending_{name}")) is not None]
    left, right = figure.subplots(1, 2)
    if not rows:
        return False
    counts = [result.measured.messages for result in rows]
    for key, label in (("MB over empty", "resident"), ("of it anonymous", "of it anonymous")):
        left.plot(counts, [_of(result, key) for result in rows], marker="o", label=label)
    for key, label in (("restart, serves s", "takes connections"), ("restart s", "answers")):
        right.plot(counts, [_of(result, key) for result in rows], marker="o", label=label)
    left.set_xscale("log")
    right.set_xscale("log")
    _finish(left, "Memory over an empty node", "messages that wait", "MB")
    return _finish(right, "SIGKILL and a start", "messages that wait", "s")


def _sizes(figure: Any, found: Found) -> bool:
    """Draw messages and bytes a second by the size of values."""
    rows = [(size, found[f"size_{name}"].measured) for name, size in shape.SIZES.items() if f"size_{name}" in found]
    left, right = figure.subplots(1, 2)
    if not rows:
        return False
    sizes = [size for size, _ in rows]
    left.plot(sizes, [measured.value for _, measured in rows], marker="o", label="msg/s")
    right.plot(sizes, [measured.details["MB/s"] for _, measured in rows], marker="o", label="MB/s")
    left.set_xscale("log")
    left.set_yscale("log")
    right.set_xscale("log")
    _finish(left, "Messages by size", "bytes of a value", "msg/s")
    return _finish(right, "Bytes by size", "bytes of a value", "MB/s")


def _partitions(figure: Any, found: Found) -> bool:
    """Draw rates by the number of partitions."""
    rows = [(count, found[f"partitions_{count}"]) for count in shape.PARTITIONS if f"partitions_{count}" in found]
    axes = figure.subplots()
    if rows:
        axes.bar([str(count) for count, _ in rows], [result.measured.value for _, result in rows], label="msg/s")
    return _finish(axes, "Batches of 100 over 16 connections", "partitions", "msg/s")


def _of(result: Result, name: str) -> float:
    """Return a figure that is the row's value or one of its details."""
    return result.measured.details.get(name, result.measured.value)


def _finish(axes: Any, title: str, x: str, y: str) -> bool:
    """Return whether anything was drawn."""
    handles, _ = axes.get_legend_handles_labels()
    axes.set_title(title)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    if axes.get_yscale() == "linear":
        axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    if handles:
        axes.legend(fontsize="small")
    return bool(handles)


CHARTS: dict[str, Draw] = {
    "produce": _produce,
    "lateness": _lateness,
    "pending": _pending,
    "sizes": _sizes,
    "partitions": _partitions,
}
