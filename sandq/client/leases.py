"""Leases and what was delivered under them: which message is held, being settled, done or lost.

    HELD --ack--> ACKING --ok--> ACKED
      |  --nack--> NACKING --ok--> NACKED         a lost lease: any of HELD, ACKING, NACKING --> LOST
      +--deadline passed, as far as we know--> LAPSED --ack--> ACKING (the broker has the last word)

A *chunk* is one DELIVER frame. Its messages are known by their position in its batch; one byte a message
is its state. Credit goes back when a message leaves HELD, once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import anyio

from sandq.model import offsets as offset_model
from sandq.model.batch import Batch, Column
from sandq.model.errors import ProtocolError, SandqError
from sandq.protocol.replies import Deliver

if TYPE_CHECKING:
    from sandq.client.desk import Desk
    from sandq.client.session import Session

T = TypeVar("T")

ABSENT: Final = 0  # not live, or pushed before
HELD: Final = 1
ACKING: Final = 2
ACKED: Final = 3
NACKING: Final = 4
NACKED: Final = 5
LOST: Final = 6
LAPSED: Final = 7

SETTLING: Final = frozenset((ACKING, NACKING))

FRAME_RANGES: Final = 16_384
"""Ranges in one ACK or NACK frame, about; what is more goes into a further frame."""

_PLACE = 1 << 12  # one place further, in an offset's number
_BYTES = offset_model.OFFSET_BYTES


class Lease:
    """One token of one partition: its deadline and its chunks."""

    __slots__ = (
        "attempt",
        "chunks",
        "complete",
        "desk",
        "expires_at",
        "extending",
        "extents",
        "held",
        "lapsed",
        "lost",
        "recheck",
        "seen",
        "superseded",
        "token",
        "unsettled",
    )

    def __init__(self, desk: Desk, token: int, attempt: int, expires_at: float) -> None:
        self.desk = desk
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
        return self.desk.group_number, self.desk.partition, self.token

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
            for position in chunk.positions(HELD):
                offset = chunk.offset(position)
                if offset in self.seen:
                    chunk.state[position] = ABSENT
                self.seen.add(offset)
        self.extents.append((chunk.offsets, chunk.count))


class Chunk:
    """The messages of one DELIVER frame."""

    __slots__ = (
        "_batch",
        "_headers",
        "_keys",
        "_places",
        "count",
        "created",
        "errors",
        "events",
        "held",
        "ids",
        "lease",
        "offsets",
        "queued",
        "session",
        "state",
        "unsettled",
    )

    def __init__(self, lease: Lease, session: Session, deliver: Deliver) -> None:
        batch = Batch.parse(deliver.batch)
        count = batch.count
        for what, column, size in (
            ("offsets", deliver.offsets if len(deliver.offsets) > _BYTES else None, _BYTES),
            ("ids", deliver.ids, _BYTES),
            ("created_ms", deliver.created_ms if type(deliver.created_ms) is bytes else None, 8),
        ):
            if column is not None and len(column) != count * size:
                raise ProtocolError(f"DELIVER: {what} has {len(column) // size} entries for {count} messages")
        self.lease = lease
        self.session = session
        self.count = count
        self.offsets = deliver.offsets
        self.ids = deliver.ids
        self.created = deliver.created_ms
        self._batch = batch
        self._keys: Sequence[bytes | None] | None = None
        self._headers: Sequence[bytes | None] | None = None
        self._places: dict[bytes, int] | None = None
        self.state = bytearray(_live(deliver.live, count))
        self.held = self.unsettled = 0  # counted by the desk, once duplicates are out
        self.queued: list[int] = []  # positions whose ack is to be sent
        self.events: dict[int, anyio.Event] = {}  # of those who await a settlement
        self.errors: dict[int, SandqError] = {}

    @property
    def is_run(self) -> bool:
        """Whether position i is base + i places."""
        return len(self.offsets) == _BYTES

    def positions(self, state: int) -> list[int]:
        """Positions in this state, rising."""
        return [position for position, found in enumerate(self.state) if found == state]

    def values(self) -> Sequence[bytes | None]:
        return self._batch.values()

    def key(self, position: int) -> bytes | None:
        if self._keys is None:
            self._keys = self._batch.bytes_column(Column.KEY) or ()
        return self._keys[position] if self._keys else None

    def headers(self, position: int) -> bytes | None:
        if self._headers is None:
            self._headers = self._batch.bytes_column(Column.HEADERS) or ()
        return self._headers[position] if self._headers else None

    def offset(self, position: int) -> bytes:
        if self.is_run:
            return offset_model.shift(self.offsets, position)
        return self.offsets[position * _BYTES : (position + 1) * _BYTES]

    def id(self, position: int) -> bytes:
        if self.ids is None:
            return self.offset(position)
        return self.ids[position * _BYTES : (position + 1) * _BYTES]

    def created_ms(self, position: int) -> int:
        if isinstance(self.created, int):
            return self.created
        return int.from_bytes(self.created[position * 8 : position * 8 + 8], "little", signed=True)

    def within(self, ranges: Iterable[tuple[bytes, int]]) -> set[int]:
        """The positions that offset ranges `(base, count)` name."""
        if self._places is None:
            self._places = {offset: place for place, offset in enumerate(each_offset(self.offsets, self.count))}
        found = set()
        for base, count in ranges:
            number = int.from_bytes(base, "big")
            for place in range(count):
                position = self._places.get((number + place * _PLACE).to_bytes(_BYTES, "big"))
                if position is not None:
                    found.add(position)
        return found

    def ranges(self, positions: list[int]) -> list[list[Any]]:
        """`[base, count | bitmap]` items of an ACK or NACK for these positions (no two the same)."""
        if not self.is_run:
            return column_ranges(sorted(self.offset(position) for position in positions))
        positions.sort()
        first, span = positions[0], positions[-1] - positions[0] + 1
        base = offset_model.shift(self.offsets, first)
        if span == len(positions):
            return [[base, span]]
        runs = sum(1 for place, position in enumerate(positions) if not place or positions[place - 1] != position - 1)
        if runs * (_BYTES + 4) < span // 8:
            return column_ranges([offset_model.shift(self.offsets, position) for position in positions])
        bitmap = bytearray((span + 7) // 8)
        for position in positions:
            bitmap[position - first >> 3] |= 1 << (position - first & 7)
        return [[base, bytes(bitmap)]]


Part = tuple[Chunk, list[int]]
"""Positions of a chunk that are settled together."""


def each_offset(offsets: bytes, count: int) -> list[bytes]:
    """The offsets of a frame, by position."""
    if len(offsets) == _BYTES:
        return offset_model.run(offsets, count)
    return [offsets[start : start + _BYTES] for start in range(0, len(offsets), _BYTES)]


def column_ranges(offsets: list[bytes]) -> list[list[Any]]:
    """Sorted offsets as `[base, count]`: those that follow one another by one place are one range."""
    ranges: list[list[Any]] = []
    last = -1
    for offset in offsets:
        number = int.from_bytes(offset, "big")
        if number == last + _PLACE and ranges:
            ranges[-1][1] += 1
        else:
            ranges.append([offset, 1])
        last = number
    return ranges


def _live(live: Sequence[Sequence[int]] | None, count: int) -> bytes:
    """One state a position: HELD where the frame names it."""
    if live is None:
        return bytes([HELD]) * count
    states = bytearray(count)
    for first, length in live:
        if first + length > count:
            raise ProtocolError(f"DELIVER: live names positions {first}..{first + length - 1} of {count}")
        states[first : first + length] = bytes([HELD]) * length
    return bytes(states)


def what_of(lease: Lease, parts: list[Part]) -> list[list[Any]] | None:
    """Which messages of a lease an item is about; None, all of it, only when that is certainly so."""
    count = sum(len(positions) for _, positions in parts)
    if lease.complete and not lease.lapsed and count == lease.unsettled:
        return None
    return [row for chunk, positions in parts for row in chunk.ranges(positions)]


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
