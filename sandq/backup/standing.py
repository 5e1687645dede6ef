"""How backups go, and the file that says it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from sandq.backup.work import in_thread
from sandq.model.errors import SandqError

PROMETHEUS: Final = ".prom"
"""A status file of this name is for the textfile collector of Prometheus' node exporter."""

Tell = Callable[[str, dict[str, object]], None]
"""Told of what was done: `event` and its fields."""


@dataclass(slots=True, kw_only=True)
class Standing:
    """How it goes. Times in epoch milliseconds."""

    backups: int = 0
    """Good ones that there are."""
    last_backup: str | None = None
    last_success_ms: int | None = None
    last_bytes: int = 0
    last_seconds: float = 0.0
    failures: int = 0
    """In a row."""
    error: str | None = None
    """Of the last one, if it failed."""
    next_ms: int = 0
    chain: str | None = None
    """The backup that is followed; None: none is."""
    reach_ms: int | None = None
    """Up to when all of it can be had, by its increments; by the cluster's clock."""
    increments: int = 0
    """Made by this process, and what follows as well."""
    increment_bytes: int = 0
    gone: int = 0
    """How often a partition got new rows, as nodes had not kept enough of its log."""
    partitions_behind: int = 0
    """That could not be asked by the last increment."""
    increment_failures: int = 0
    """In a row."""
    increment_error: str | None = None
    """Of the last one, if it failed."""


class StatusFile:
    """Says how it goes, for programs: as JSON, or as metrics."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def write(self, standing: Standing, tell: Tell) -> None:
        """Replace it. Where that fails it is told: backups are made all the same, and who looks at the file sees that
        it is old."""
        text = status_text(standing, self._path.suffix == PROMETHEUS)
        try:
            await in_thread(lambda: _replace(self._path, text), str(self._path))
        except (SandqError, OSError) as error:
            tell("status file not written", {"error": str(error)})


def status_text(standing: Standing, for_prometheus: bool) -> str:
    """Return what stands in the status file."""
    if not for_prometheus:
        return json.dumps(asdict(standing), indent=2) + "\n"
    success_s = (standing.last_success_ms or 0) / 1000
    rows: tuple[tuple[str, str, float], ...] = (
        ("sandq_backup_last_success_timestamp_seconds", "When the last good backup was made; 0: never.", success_s),
        ("sandq_backup_last_bytes", "Bytes of its files.", standing.last_bytes),
        ("sandq_backup_last_duration_seconds", "How long it took.", standing.last_seconds),
        ("sandq_backup_kept", "Good backups that there are.", standing.backups),
        ("sandq_backup_failures", "Backups that failed since the last good one.", standing.failures),
    )
    if standing.chain is not None:
        rows += (
            (
                "sandq_backup_reach_timestamp_seconds",
                "Up to when all that is followed can be restored; 0: nothing can.",
                (standing.reach_ms or 0) / 1000,
            ),
            ("sandq_backup_increments", "Increments that were made since the start.", standing.increments),
            ("sandq_backup_increment_bytes", "Bytes of their files.", standing.increment_bytes),
            (
                "sandq_backup_gone_pins",
                "How often a partition was read anew, as nodes had not kept enough of its log.",
                standing.gone,
            ),
            (
                "sandq_backup_partitions_behind",
                "Partitions that the last increment could not ask.",
                standing.partitions_behind,
            ),
            (
                "sandq_backup_increment_failures",
                "Increments that failed since the last good one.",
                standing.increment_failures,
            ),
        )
    return "".join([f"# HELP {name} {what}\n# TYPE {name} gauge\n{name} {value}\n" for name, what, value in rows])


def _replace(path: Path, text: str) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)
