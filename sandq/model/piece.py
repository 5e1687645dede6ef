"""Batches with what only the broker knows of their messages, as they are read, sent and received."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from sandq.model.batch_format import count_of


class Piece(NamedTuple):
    """A batch and its envelope (docs/protocol.md, DELIVER); the fields are those on the wire, in their order."""

    offsets: bytes
    """16 bytes: base of a run; else 16 bytes a message."""
    ids: bytes | None
    """16 bytes a message where they differ from the offsets."""
    created_ms: int | bytes
    """One for all, or little-endian int64 a message."""
    live: Sequence[Sequence[int]] | None
    """[(first position, count), ...] of the messages that are meant; None: all."""
    batch: bytes

    @property
    def count(self) -> int:  # type: ignore[override]  # hides tuple.count, which nobody wants here
        """Messages that are meant."""
        return count_of(self.batch) if self.live is None else sum([count for _, count in self.live])


@dataclass(frozen=True, slots=True)
class LeasedPieces:
    """The messages of a lease, and what their consumer names it by."""

    group_number: int
    """Of the Raft group of the partition."""
    partition: int
    token: int
    attempt: int
    deadline_ms: int
    pieces: Sequence[Piece]
    begin_first: bool = field(default=False, kw_only=True)
    """Whether earlier leases of its messages ended unsettled, so that its consumer is to report each message before it
    begins it."""
