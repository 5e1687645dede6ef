"""One job of a partition, and its row."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from sandq.model import offsets
from sandq.partition.base import rows

RUNNING, DONE, STOPPED = "running", "done", "stopped"


@dataclass(slots=True, kw_only=True)
class Job:
    job_id: bytes
    kind: str
    arguments: dict[str, Any]
    index: int
    """Raft index of the entry that started the job."""
    seq: int
    """Number that orders jobs by their start."""
    started_ms: int
    state: str = RUNNING
    position: bytes = offsets.FIRST
    """Offset up to which the job is done."""
    matched: int = 0
    done: int = 0
    too_late: int = 0
    finished_ms: int | None = None
    next_ms: int = 0
    """Time at which its next step is due, in ms."""

    def row(self) -> bytes:
        """Return the row of the job: its fields in their order."""
        return rows.pack(*[getattr(self, field.name) for field in fields(self)])

    @classmethod
    def load(cls, row: bytes) -> Job:
        """Read a job from its row."""
        return cls(**dict(zip([each.name for each in fields(cls)], rows.unpack(row), strict=True)))

    def shown(self) -> dict[str, Any]:
        """Return the fields that clients see."""
        names = ("job_id", "kind", "state", "matched", "done", "too_late", "started_ms", "finished_ms")
        return {name: getattr(self, name) for name in names}
