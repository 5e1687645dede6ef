"""List the paused tenants and keys of a consumer group, over all partitions that this node leads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sandq.model.pauses import FOREVER, PAUSES_MAX
from sandq.partition.groups.part_pauses import Part, PausedPart, part_order


class PauseTable:
    """The paused parts of one group. A part is a tenant or a key."""

    def __init__(self) -> None:
        self.keys: dict[Part, bytes] = {}
        """Keys by their hashes. Long keys are missing."""
        self._ends: dict[Part, int] = {}
        """Latest end of the pause in ms, by part."""
        self._partitions: dict[Part, int] = {}
        """Number of partitions in which the part is paused."""
        self._least = 0
        """Minimum number of paused parts of the group, including those that are not listed."""

    def add(self, parts: Iterable[PausedPart], left_out: int) -> None:
        """Add the first paused parts of one partition. `left_out`: number of its further paused parts."""
        number = left_out
        for part, until_ms, key in parts:
            number += 1
            self._ends[part] = max(until_ms, self._ends.get(part, 0))
            self._partitions[part] = self._partitions.get(part, 0) + 1
            if key is not None:
                self.keys[part] = key
        self._least = max(self._least, number, len(self._ends))
        for part in sorted(self._ends, key=part_order)[PAUSES_MAX:]:  # keeps each call short
            del self._ends[part], self._partitions[part]
            self.keys.pop(part, None)

    def rows(self) -> tuple[list[dict[str, Any]], int]:
        """Return up to `PAUSES_MAX` rows, one per paused part, and the minimum number of omitted parts.

        The rows are exact. A part of the first `PAUSES_MAX` of all is among the first ones of each partition, because
        all partitions have the same order."""
        parts = sorted(self._ends, key=part_order)
        return [self._row(part) for part in parts], self._least - len(parts)

    def _row(self, part: Part) -> dict[str, Any]:
        until_ms = self._ends[part]
        return {
            "tenant": part if isinstance(part, str) else None,
            "key": self.keys.get(part),
            "key_hash": part if isinstance(part, int) else None,
            "until_ms": None if until_ms == FOREVER else until_ms,
            "partitions": self._partitions[part],
        }
