"""Batches with the data that only the broker knows about their messages, as they are read, sent and received."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from sandq.model.batch_format import count_of


class Piece(NamedTuple):
    """A batch and its envelope (docs/protocol/consuming.md). The fields and their order are those on the wire."""

    offsets: bytes
    """Offset of the first message of a run (16 bytes), or the offset of each message (16 bytes each)."""
    ids: bytes | None
    """Ids of the messages (16 bytes each); None if they equal the offsets."""
    created_ms: int | bytes
    """Time of creation of all messages, or of each message as little-endian int64."""
    live: Sequence[Sequence[int]] | None
    """Ranges [(first position, count), ...] of the messages that are included; None: all."""
    batch: bytes

    @property
    def count(self) -> int:  # type: ignore[override]  # hides tuple.count, which is not needed
        """Number of messages that are included."""
        return count_of(self.batch) if self.live is None else sum([count for _, count in self.live])


@dataclass(frozen=True, slots=True)
class LeasedPieces:
    """The messages of a lease, and the numbers by which their consumer refers to it."""

    group_number: int
    """Number of the partition's Raft group."""
    partition: int
    token: int
    attempt: int
    deadline_ms: int
    pieces: Sequence[Piece]
    begin_first: bool = field(default=False, kw_only=True)
    """True if earlier leases of these messages ended without being settled.

    The consumer must then report each message before it begins to process the message."""
