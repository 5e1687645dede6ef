"""What one DELIVER frame brought, and what has become of each of its messages.

    HELD --ack--> ACKING --ok--> ACKED
      |  --nack--> NACKING --ok--> NACKED         a lost lease: any of HELD, ACKING, NACKING --> LOST
      +--deadline passed, as far as we know--> LAPSED --ack--> ACKING (the broker has the last word)

One byte a message is its state, so that what happens to many at once costs no work for each of them: a *span* is
`(first position, stop)`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import anyio

from sandq.client.consumer.ack_ranges import PLACE, Run, ranges_of
from sandq.client.messages.log_page import BYTES, LogPiece, each_offset
from sandq.model.errors import ProtocolError, SandqError
from sandq.protocol.replies import Deliver

if TYPE_CHECKING:
    from sandq.client.consumer.lease import Lease
    from sandq.client.consumer.node_session import Session

Span = tuple[int, int]

ABSENT: Final = 0  # not live, or pushed before
HELD: Final = 1
ACKING: Final = 2
ACKED: Final = 3
NACKING: Final = 4
NACKED: Final = 5
LOST: Final = 6
LAPSED: Final = 7

SETTLING: Final = frozenset((ACKING, NACKING))
SETTLED: Final = frozenset((ACKING, ACKED, NACKING, NACKED))

OF_HELD: Final = re.compile(b"\x01+")
OF_OPEN: Final = re.compile(b"[\x01\x07]+")  # held or lapsed: may be settled
OF_SETTLING: Final = re.compile(b"[\x02\x04]+")


class Chunk(LogPiece):
    """The messages of one DELIVER frame."""

    __slots__ = (
        "_places",
        "answered",
        "errors",
        "events",
        "held",
        "lease",
        "queued",
        "session",
        "state",
        "unsettled",
    )

    def __init__(self, lease: Lease, session: Session, deliver: Deliver) -> None:
        super().__init__(deliver.offsets, deliver.ids, deliver.created_ms, deliver.batch)
        self.lease = lease
        self.session = session
        self.state = _live(deliver.live, self.count)
        self.held = self.unsettled = 0  # counted by the partition consumer, once duplicates are out
        self.queued: list[Span] = []  # whose ack is to be sent
        self.events: dict[int, anyio.Event] = {}  # of those who await the settlement of one message
        self.answered: anyio.Event | None = None  # of those who await all of them
        self.errors: dict[int, SandqError] = {}
        self._places: dict[bytes, int] | None = None

    def spans(self, states: re.Pattern[bytes], start: int = 0) -> list[Span]:
        """Where the messages from `start` on are in these states."""
        return [match.span() for match in states.finditer(self.state, start)]

    def fill(self, spans: Iterable[Span], state: int) -> None:
        """Put all of these into one state."""
        for first, stop in spans:
            self.state[first:stop] = bytes((state,)) * (stop - first)

    def is_awaited(self, position: int) -> bool:
        """Whether somebody will be told what becomes of a message."""
        return self.answered is not None or position in self.events

    def tell(self, spans: Iterable[Span]) -> None:
        """These were settled, or cannot be: wake whoever awaits them."""
        if self.events:
            for position in positions_of(spans):
                event = self.events.pop(position, None)
                if event is not None:
                    event.set()
        if self.answered is not None:
            self.answered.set()
            self.answered = None

    def within(self, ranges: Iterable[tuple[bytes, int]]) -> set[int]:
        """The positions that offset ranges `(base, count)` name."""
        if self._places is None:
            self._places = {offset: place for place, offset in enumerate(each_offset(self.offsets, self.count))}
        found = set()
        for base, count in ranges:
            number = int.from_bytes(base, "big")
            for place in range(count):
                position = self._places.get((number + place * PLACE).to_bytes(BYTES, "big"))
                if position is not None:
                    found.add(position)
        return found

    def ranges(self, spans: Iterable[Span]) -> list[list[Any]]:
        """`[base, count | bitmap]` rows of an ACK or NACK for these (none of them twice)."""
        if self.is_run:
            base = int.from_bytes(self.offsets, "big")
            return ranges_of((base + first * PLACE, stop - first) for first, stop in spans)
        return ranges_of(self._numbers(spans))

    def _numbers(self, spans: Iterable[Span]) -> Iterable[Run]:
        for position in positions_of(spans):
            yield int.from_bytes(self.offset(position), "big"), 1


Part = tuple[Chunk, list[Span]]
"""Messages of a chunk that are settled together."""


def positions_of(spans: Iterable[Span]) -> list[int]:
    """The positions that spans cover."""
    return [position for first, stop in spans for position in range(first, stop)]


def count_of(parts: Iterable[Part]) -> int:
    """Messages in these parts."""
    return sum(stop - first for _, spans in parts for first, stop in spans)


def _live(live: Sequence[Sequence[int]] | None, count: int) -> bytearray:
    """One state a position: HELD where the frame names it."""
    if live is None:
        return bytearray((HELD,)) * count
    states = bytearray(count)
    for first, length in live:
        if first + length > count:
            raise ProtocolError(f"live names positions {first}..{first + length - 1} of {count}")
        states[first : first + length] = bytes((HELD,)) * length
    return states
