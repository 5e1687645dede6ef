"""The status of scheduled backups, and the file that contains it."""

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
"""A status file with this suffix is written for the textfile collector of Prometheus' node exporter."""

Tell = Callable[[str, dict[str, object]], None]
"""Called with events: the event and its fields."""


@dataclass(slots=True, kw_only=True)
class Standing:
    """The status of scheduled backups. Times in epoch milliseconds."""

    backups: int = 0
    """Number of good backups."""
    last_backup: str | None = None
    last_success_ms: int | None = None
    last_bytes: int = 0
    last_seconds: float = 0.0
    failures: int = 0
    """Number of consecutive failures."""
    error: str | None = None
    """Error of the last backup, if it failed."""
    next_ms: int = 0
    chain: str | None = None
    """The backup that is followed; None if none is."""
    reach_ms: int | None = None
    """Time up to which the whole backup can be restored with its increments, by the cluster's clock."""
    increments: int = 0
    """Number of increments that this process made."""
    increment_bytes: int = 0
    """Size of these increments, in bytes."""
    gone: int = 0
    """How often in these increments a partition got new rows, because the nodes had not kept enough of its log."""
    partitions_behind: int = 0
    """Number of partitions that the last increment could not read."""
    increment_failures: int = 0
    """Number of consecutive failures."""
    increment_error: str | None = None
    """Error of the last increment, if it failed."""


class StatusFile:
    """Writes the status for programs: as JSON, or as metrics."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def write(self, standing: Standing, tell: Tell) -> None:
        """Replace the file. A failure is only reported: backups continue, and the age of the file reveals the
        problem."""
        text = status_text(standing, self._path.suffix == PROMETHEUS)
        try:
            await in_thread(lambda: _replace(self._path, text), str(self._path))
        except (SandqError, OSError) as error:
            tell("status file not written", {"error": str(error)})


def status_text(standing: Standing, for_prometheus: bool) -> str:
    """Return the content of the status file."""
    if not for_prometheus:
        return json.dumps(asdict(standing), indent=2) + "\n"
    success_s = (standing.last_success_ms or 0) / 1000
    rows: tuple[tuple[str, str, float], ...] = (
        ("sandq_backup_last_success_timestamp_seconds", "Time of the last good backup; 0 if there is none.", success_s),
        ("sandq_backup_last_bytes", "Size of the last good backup.", standing.last_bytes),
        ("sandq_backup_last_duration_seconds", "Duration of the last good backup.", standing.last_seconds),
        ("sandq_backup_kept", "Number of good backups.", standing.backups),
        ("sandq_backup_failures", "Backups that failed since the last good one.", standing.failures),
    )
    if standing.chain is not None:
        rows += (
            (
                "sandq_backup_reach_timestamp_seconds",
                "Time up to which everything that is followed can be restored; 0 if nothing can.",
                (standing.reach_ms or 0) / 1000,
            ),
            ("sandq_backup_increments", "Increments made since the start.", standing.increments),
            ("sandq_backup_increment_bytes", "Size of the increments made since the start.", standing.increment_bytes),
            (
                "sandq_backup_gone_pins",
                "How often a partition was read again because the nodes had not kept enough of its log.",
                standing.gone,
            ),
            (
                "sandq_backup_partitions_behind",
                "Partitions that the last increment could not read.",
                standing.partitions_behind,
            ),
            (
                "sandq_backup_increment_failures",
                "Increments that failed since the last good one.",
                standing.increment_failures,
            ),
        )
    return "".join([f"# HELP {name} {text}\n# TYPE {name} gauge\n{name} {value}\n" for name, text, value in rows])


def _replace(path: Path, text: str) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)
