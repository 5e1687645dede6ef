"""Provide the Raft group of a partition, as its leader sees it, over a partition in memory."""

from __future__ import annotations

from typing import Any

from sandq.model.errors import SandqError
from tests.support.partition.bench import Bench


class BenchHost:
    """Replaces `RaftGroup` for a `PartitionLeader`. It applies proposals to the partition of a bench."""

    def __init__(self) -> None:
        self.bench = Bench()
        self.works = True
        self.proposed: list[tuple[Any, Any]] = []
        self.refusal: SandqError | None = None
        self._on_status: Any = None

    @property
    def status(self) -> Any:
        return self.bench.status()

    def listen(self, *, on_status: Any) -> None:
        self._on_status = on_status

    def submit(self, command: Any, done: Any, *, messages: int = 0, work: int = 0, line: Any = None) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.proposed.append((command, done))

    def apply(self, at: int = 0) -> None:
        """Apply all proposed commands in an entry with the time T + `at`."""
        proposed, self.proposed = self.proposed, []
        for command, done in proposed:
            done(self.bench.apply(at, command)[0])
        self._on_status()
