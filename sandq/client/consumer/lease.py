"""Leases, and the frames that settle what was delivered under them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

from sandq.client.consumer.chunk import ABSENT, OF_HELD, Chunk, Part, count_of, positions_of
from sandq.client.messages.log_page import each_offset
from sandq.model import offsets as offset_model

if TYPE_CHECKING:
    from sandq.client.consumer.partition_consumer import PartitionConsumer

T = TypeVar("T")

FRAME_RANGES: Final = 16_384
"""Ranges in one ACK or NACK frame, about; what is more goes into a further frame."""


class Lease:
    """One token of one partition: its deadline and its chunks."""

    __slots__ = (
        "attempt",
        "chunks",
        "complete",
        "expires_at",
        "extending",
        "extents",
        "held",
        "lapsed",
        "lost",
        "partition_consumer",
        "recheck",
        "seen",
        "superseded",
        "token",
        "unsettled",
    )

    def __init__(self, partition_consumer: PartitionConsumer, token: int, attempt: int, expires_at: float) -> None:
        self.partition_consumer = partition_consumer
        self.token = token
        self.attempt = attempt
        self.expires_at = expires_at  # on anyio's clock
        self.chunks: dict[Chunk, None] = {}  # those with messages that are held or being settled
        self.extents: list[tuple[bytes, int]] = []  # offsets and count of every frame: what was ever pushed
        self.seen: set[bytes] | None = None
        self.held = 0
        self.unsettled = 0  # held or being settled
        self.complete = False  # the broker said that nothing more of it is to come
        self.superseded = False  # a later lease of the partition has come on the same connection
        self.lapsed = False
        self.lost = False
        self.recheck = False  # the connection was cut since: frames may come again
        self.extending = False

    @property
    def key(self) -> tuple[int, int, int]:
        return self.partition_consumer.group_number, self.partition_consumer.partition, self.token

    @property
    def text(self) -> str:
        """As HTTP, JSON and logs write it."""
        return offset_model.lease_text(*self.key)

    def filter_seen(self, chunk: Chunk) -> None:
        """After a reconnect a broker may push again what was pushed: make those positions absent."""
        if self.recheck:
            if self.seen is None:
                self.seen = set()
                for offsets, count in self.extents:
                    self.seen.update(each_offset(offsets, count))
            for position in positions_of(chunk.spans(OF_HELD)):
                offset = chunk.offset(position)
                if offset in self.seen:
                    chunk.state[position] = ABSENT
                self.seen.add(offset)
        self.extents.append((chunk.offsets, chunk.count))


def what_of(lease: Lease, parts: list[Part]) -> list[list[Any]] | None:
    """Which messages of a lease an item is about; None, all of it, only when that is certainly so."""
    if lease.complete and not lease.lapsed and count_of(parts) == lease.unsettled:
        return None
    return [row for chunk, spans in parts for row in chunk.ranges(spans)]


def frames_of(rows: list[tuple[list[Any], T]]) -> list[tuple[list[list[Any]], list[T]]]:
    """Items, each with what goes along, cut into frames of about FRAME_RANGES ranges."""
    frames: list[tuple[list[list[Any]], list[T]]] = []
    ranges = FRAME_RANGES
    for item, along in rows:
        if ranges >= FRAME_RANGES:
            frames.append(([], []))
            ranges = 0
        ranges += len(item[1] or (None,))
        frames[-1][0].append(item)
        frames[-1][1].append(along)
    return frames
