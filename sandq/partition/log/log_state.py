"""What the log keeps of itself beside its rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sandq.model import offsets


@dataclass(slots=True)
class LogState:
    """In this order in the partition's state row."""

    messages: int = 0
    trimmed: bytes = offsets.FIRST
    """Nothing is left in the log at or below this offset."""
    bytes: int = 0
    gone: tuple[int, int] = (0, 0)
    """The second in which `trimmed` stands, and how many of its messages were trimmed."""

    def fields(self) -> tuple[Any, ...]:
        return self.messages, self.trimmed, self.bytes, self.gone

    def load(self, fields: Sequence[Any]) -> None:
        self.messages, self.trimmed, self.bytes, gone = fields
        self.gone = (gone[0], gone[1])
