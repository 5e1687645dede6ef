"""Leases of one partition, and the messages that were delivered under them.

A `Chunk` holds the messages of one DELIVER frame and their states:

    HELD --ack--> ACKING --ok--> ACKED
      |  --nack--> NACKING --ok--> NACKED         a lost lease: HELD, ACKING, NACKING, REJECTING --> LOST
      |  --dead--> REJECTING --ok--> REJECTED
      +--deadline passed, by our clock--> LAPSED --ack--> ACKING (the broker decides)

Each message has one byte for its state, so that one operation handles many messages. A *span* is `(first position,
stop)`. The classes of this module are data: `HeldMessages` changes the states, `PartitionConsumer` decides when.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, Final, TypeVar

import anyio

from sandq.client.consumer.ack_ranges import OFFSET_STEP, Run, ranges_of
from sandq.client.messages.log_page import BYTES, LogPiece, Span, each_offset, positions_of
from sandq.model import offsets as offset_model
from sandq.model.errors import ProtocolError, SandqError
from sandq.protocol.replies import Deliver

T = TypeVar("T")

FRAME_RANGES: Final = 16_384
"""Approximate maximum number of ranges in one ACK or NACK frame. Further ranges go into the next frame."""

ABSENT: Final = 0  # not live, or pushed before
HELD: Final = 1
ACKING: Final = 2
ACKED: Final = 3
NACKING: Final = 4
NACKED: Final = 5
LOST: Final = 6
LAPSED: Final = 7
REJECTING: Final = 8
REJECTED: Final = 9

SETTLED_BY: Final = {ACKING: ACKED, NACKING: NACKED, REJECTING: REJECTED}
"""Final state of messages that are being settled."""
SETTLING: Final = frozenset(SETTLED_BY)
SETTLED: Final = frozenset((*SETTLED_BY, *SETTLED_BY.values()))

OF_HELD: Final = re.compile(b"\x01+")
OF_OPEN: Final = re.compile(b"[\x01\x07]+")  # held or lapsed: may be settled
OF_SETTLING: Final = re.compile(b"[\x02\x04\x08]+")


class Lease:
    """The lease of one token of one partition: its deadline and its chunks."""

    __slots__ = (
        "abandoned",
        "asked_until",
        "attempt",
        "begin_first",
        "blocked",
        "chunks",
        "complete",
        "expires_at",
        "extending",
        "extents",
        "group_number",
        "held",
        "lapsed",
        "lost",
        "partition",
        "recheck",
        "seen",
        "superseded",
        "token",
        "unsettled",
    )

    def __init__(self, group_number: int, partition: int, token: int, attempt: int, expires_at: float) -> None:
        self.group_number = group_number
        self.partition = partition
        self.token = token
        self.attempt = attempt
        self.expires_at = expires_at  # on anyio's clock
        self.chunks: dict[Chunk, None] = {}  # chunks with messages that are held or being settled
        # (offsets, count) of each frame: all messages that were ever pushed
        self.extents: list[tuple[bytes, int]] = []
        self.seen: set[bytes] | None = None
        self.held = 0
        self.unsettled = 0  # number of messages that are held or being settled
        self.complete = False  # the broker has sent all messages of the lease
        self.superseded = False  # a later lease of the partition came on the same connection
        self.abandoned = False  # the broker considers messages held that this client neither holds nor settles
        self.lapsed = False
        self.blocked = False  # the lease lapsed before an extension was requested, because the event loop was blocked
        self.lost = False
        self.recheck = False  # the connection was lost: frames may be pushed again
        self.extending = False
        self.asked_until = -math.inf  # end of the lease that the last extension requested, on anyio's clock
        self.begin_first = False  # report each message as begun before it is begun

    @property
    def key(self) -> tuple[int, int, int]:
        return self.group_number, self.partition, self.token

    @property
    def text(self) -> str:
        """The lease as text: its form in HTTP, JSON and logs."""
        return offset_model.lease_text(*self.key)

    def filter_seen(self, chunk: Chunk) -> None:
        """Mark messages that were pushed before as absent: after a reconnect, a broker may push them again."""
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


class Chunk(LogPiece):
    """The messages of one DELIVER frame."""

    __slots__ = (
        "_positions",
        "answered",
        "begun",
        "errors",
        "events",
        "held",
        "lease",
        "on_free",
        "queued",
        "state",
        "taken",
        "unsettled",
    )

    def __init__(self, lease: Lease, deliver: Deliver, on_free: Callable[[int], None]) -> None:
        """`on_free(count)` is called when messages are no longer held. A negative count: messages are held again."""
        super().__init__(deliver.offsets, deliver.ids, deliver.created_ms, deliver.batch)
        self.lease = lease
        self.on_free = on_free
        self.state = _live(deliver.live, self.count)
        self.held = self.unsettled = 0  # set by HeldMessages once duplicates are removed
        self.queued: list[Span] = []  # spans whose ack is not sent yet
        self.events: dict[int, anyio.Event] = {}  # events of tasks that await one message
        self.answered: anyio.Event | None = None  # event of tasks that await all messages
        self.errors: dict[int, SandqError] = {}
        self.taken = 0  # messages before this position were begun, or will be begun next
        self.begun = 0  # messages before this position were reported to the broker as begun
        self._positions: dict[bytes, int] | None = None

    def spans(self, states: re.Pattern[bytes], start: int = 0) -> list[Span]:
        """Return the spans of messages in these states, from `start` on."""
        return [match.span() for match in states.finditer(self.state, start)]

    def fill(self, spans: Iterable[Span], state: int) -> None:
        """Set the state of all messages in the spans."""
        for first, stop in spans:
            self.state[first:stop] = bytes((state,)) * (stop - first)

    def ranges_begun(self) -> list[list[Any]]:
        """Return the ranges of messages that were begun and are still held, in the form of an EXTEND."""
        begun = [match.span() for match in OF_HELD.finditer(self.state, 0, self.taken)]
        return self.ranges(begun) if begun else []

    def was_refused(self, position: int) -> bool:
        """Return whether the broker refused to settle a message, so that it can be settled in a different way."""
        return position in self.errors and self.state[position] in (HELD, LAPSED)

    def is_awaited(self, position: int) -> bool:
        """Return whether a task waits for the outcome of a message."""
        return self.answered is not None or position in self.events

    def notify(self, spans: Iterable[Span]) -> None:
        """Wake the tasks that await these messages, because the messages were settled, or cannot be."""
        if self.events:
            for position in positions_of(spans):
                event = self.events.pop(position, None)
                if event is not None:
                    event.set()
        if self.answered is not None:
            self.answered.set()
            self.answered = None

    def within(self, ranges: Iterable[tuple[bytes, int]]) -> set[int]:
        """Return the positions of the messages in offset ranges `(base, count)`."""
        if self._positions is None:
            self._positions = {
                offset: position for position, offset in enumerate(each_offset(self.offsets, self.count))
            }
        found = set()
        for base, count in ranges:
            number = int.from_bytes(base, "big")
            for index in range(count):
                position = self._positions.get((number + index * OFFSET_STEP).to_bytes(BYTES, "big"))
                if position is not None:
                    found.add(position)
        return found

    def ranges(self, spans: Iterable[Span]) -> list[list[Any]]:
        """Return the rows `[base, count | bitmap]` of an ACK or NACK for these spans, which must not overlap."""
        if self.is_run:
            base = int.from_bytes(self.offsets, "big")
            return ranges_of((base + first * OFFSET_STEP, stop - first) for first, stop in spans)
        return ranges_of(self._numbers(spans))

    def _numbers(self, spans: Iterable[Span]) -> Iterable[Run]:
        for position in positions_of(spans):
            yield int.from_bytes(self.offset(position), "big"), 1


class Extension:
    """The result of `extend`: `await` it for the new deadline in epoch milliseconds. Raises LeaseLost."""

    __slots__ = ("_event", "awaited", "deadline_ms", "error", "lease_ms")

    def __init__(self, lease_ms: int) -> None:
        self.lease_ms = lease_ms
        self.deadline_ms: int | None = None
        self.error: SandqError | None = None
        self.awaited = False
        self._event: anyio.Event | None = None

    def finish(self, deadline_ms: int | None, error: SandqError | None) -> None:
        """Set the deadline or the error. Called by the client."""
        self.deadline_ms, self.error = deadline_ms, error
        if self._event is not None:
            self._event.set()

    def __await__(self) -> Generator[Any, Any, int]:
        return self._wait().__await__()

    async def _wait(self) -> int:
        self.awaited = True
        if self.deadline_ms is None and self.error is None:
            if self._event is None:
                self._event = anyio.Event()
            await self._event.wait()
        if self.error is not None:
            raise self.error
        assert self.deadline_ms is not None
        return self.deadline_ms


Part = tuple[Chunk, list[Span]]
"""Messages of a chunk that are settled together."""


def count_of(parts: Iterable[Part]) -> int:
    """Return the number of messages in these parts."""
    return sum(stop - first for _, spans in parts for first, stop in spans)


def ranges_or_all(lease: Lease, parts: list[Part]) -> list[list[Any]] | None:
    """Return the ranges of an item. None if the item certainly covers the whole lease."""
    if lease.complete and not (lease.lapsed or lease.abandoned) and count_of(parts) == lease.unsettled:
        return None
    return [row for chunk, spans in parts for row in chunk.ranges(spans)]


def frames_of(rows: list[tuple[list[Any], T]], *, at: int = 1) -> list[tuple[list[list[Any]], list[T]]]:
    """Split items into frames of about FRAME_RANGES ranges. `rows`: (item, accompanying value).

    `at`: index of the field with the ranges in an item.
    """
    frames: list[tuple[list[list[Any]], list[T]]] = []
    ranges = FRAME_RANGES
    for item, along in rows:
        if ranges >= FRAME_RANGES:
            frames.append(([], []))
            ranges = 0
        ranges += len((item[at] if len(item) > at else None) or (None,))
        frames[-1][0].append(item)
        frames[-1][1].append(along)
    return frames


def _live(live: Sequence[Sequence[int]] | None, count: int) -> bytearray:
    """Return one state per position: HELD if the frame lists the position as live."""
    if live is None:
        return bytearray((HELD,)) * count
    states = bytearray(count)
    for first, length in live:
        if first + length > count:
            raise ProtocolError(f"live names positions {first}..{first + length - 1} of {count}")
        states[first : first + length] = bytes((HELD,)) * length
    return states
