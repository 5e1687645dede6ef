"""What a group holds: leases, with what became of their messages, and what waits for another attempt."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any, Final, NamedTuple

from sandq.model import offsets
from sandq.model.limits import FIXED
from sandq.partition.base import rows
from sandq.partition.base.rows import Range
from sandq.partition.commands import What
from sandq.partition.records.packed_ranges import PackedRanges

_ANY_LENGTH = 1 << 32
MANY = 8
"""Parts that are looked up together."""
HISTORY_ATTEMPTS = 5
HISTORY_ERROR_CHARS = 200


class Attempt(NamedTuple):
    """An attempt that failed."""

    number: int
    consumer: str
    leased_ms: int
    ended_ms: int
    end: str
    """How it ended: what a message may die of, or `settlement.SNOOZED`."""
    error: str | None


History = tuple[Attempt, ...]
"""The last `HISTORY_ATTEMPTS` of them."""


@dataclass(slots=True, eq=False)
class Lease:
    """Messages held by one consumer. Bit i of a mask stands for the i-th message of `ranges`, in order."""

    token: int
    group_id: int
    consumer: str
    attempt: int
    deadline_ms: int
    due_ms: int
    """When the last of it is due: at most the lease-ahead after the grant."""
    ranges: list[Range]
    leased_ms: int
    since_ms: int
    """When the first of it was first leased."""
    kept: bool = False
    """Its messages are in rows of the group's own: the log need not keep them for it."""
    past: list[tuple[list[Range], History]] = field(default_factory=list)
    """Earlier attempts of messages of the lease."""
    queues: list[tuple[bytes, int]] = field(default_factory=list)
    """Where messages are ranked: (ready queue, how many of its messages), in the order of `ranges`, which is then that
    in which they are delivered."""
    acked: int = 0
    left: int = 0
    """Nacked, expired, revoked or dead: no longer of this lease."""
    sent: int = 0
    """Messages acked by acks that sent messages: a mask."""
    revoked: bool = False
    """It ended by its deadline or with its consumer, not by acks and nacks."""
    ended: int = 0
    """0 while it lives; then the sequence number of its end (kept a while to answer repeated acks)."""
    counted: int = 0
    """How many of its live messages the group's metrics have counted."""
    snoozes: int = 0
    """How often each of its messages was snoozed."""
    flying: int = 0
    """Those of its messages that are counted as in flight of their tenants, where messages are ranked."""
    epoch: int = 0
    """Of its consumer; 0: it has none."""
    reclaims: int = 0
    """How often its consumer was started again and got it anew."""
    handlers: int = 0
    """Messages that its consumer works on at the same time at most; 0: the consumer did not say, and may have begun all
    of them."""
    crashes: int = 0
    """How many leases of each of its messages ended unsettled in succession before this one; see `note_last`."""
    begun: int = 0
    """Those of its messages that its consumer reported as begun: a mask."""
    plain: list[bytes] | None = field(init=False, default=None, repr=False)
    """The row of each of its ranges, until it is delivered, where these are single messages of plain rows that were at
    hand."""
    starts: list[int] = field(init=False)
    total: int = field(init=False)
    _past: list[tuple[bytes, int, History]] | None = field(init=False, default=None)
    """`past`, in order; made when it is wanted."""
    _packed: tuple[bytes, bytes] | None = field(init=False, default=None)
    """`ranges` and `past` as its row has them, ..."""
    _places: dict[bytes, int] | None = field(init=False, default=None)
    """... and the position of each message, where every range has one; likewise."""
    _queue_ends: list[int] | None = field(init=False, default=None)
    """Behind which position the messages of each of `queues` end; made when it is wanted."""
    _in_order: tuple[list[Range], list[int]] = field(init=False)
    """Ranges in the order of the log, and where they start in the lease."""

    def __post_init__(self) -> None:
        self.reindex()

    def reindex(self) -> None:
        """Its ranges have changed (before it was granted)."""
        counts = [r.length for r in self.ranges]
        self.total = sum(counts)
        self.starts = list(accumulate(counts, initial=0))[:-1]
        self._past = self._packed = self._places = self._queue_ends = None
        if self.queues and any([one.base > other.base for one, other in pairwise(self.ranges)]):
            places = sorted(range(len(self.ranges)), key=self.ranges.__getitem__)
            self._in_order = [self.ranges[at] for at in places], [self.starts[at] for at in places]
        else:
            self._in_order = self.ranges, self.starts

    @property
    def _is_in_order(self) -> bool:
        return self._in_order[0] is self.ranges

    def end(self, number: int) -> None:
        """None of it is live any more: forget what was made for speed alone. `number`: see `ended`."""
        self.ended = number
        self._past = self._packed = self._places = self._queue_ends = None

    @property
    def alike(self) -> Alike:
        """What all messages of a lease have in common."""
        return Alike(self.attempt, self.kept, self.snoozes, self.crashes)

    def adopt(self, alike: Alike) -> None:
        """Take over what the first messages of the lease have in common."""
        self.attempt, self.kept, self.snoozes, self.crashes = alike

    def note_last(self, max_attempts: int | None) -> None:
        """Have a consumer that says how many messages it works on report each of them before it begins it, if this is
        their last attempt: no message dies that was not begun, and none is begun again."""
        if self.handlers and max_attempts is not None and self.attempt >= max_attempts:
            self.crashes = max(self.crashes, 1)

    @property
    def live(self) -> int:
        return ((1 << self.total) - 1) & ~(self.acked | self.left)

    @property
    def charged(self) -> int:
        """The live messages that use an attempt if the lease ends now, unsettled: a mask.

        Its consumer works through the lease in order, so at most the first `handlers` live messages were begun. From
        the second crash of a message on a consumer reports each message before it begins it, so only what was reported
        counts. A consumer that reports nothing is believed `FIXED.lease_reclaims` times in succession.
        """
        live = self.live
        if not self.handlers or self.crashes >= FIXED.lease_reclaims:
            return live
        return live & (self.begun if self.crashes else self.begun | _lowest(live, self.handlers))

    def mask_of(self, what: What) -> tuple[int, list[list[object]]]:
        """The mask that `what` names, and those of its parts that lie outside this lease.

        A part is a run of places; it may cross ranges whose places follow one another.
        """
        if what is None:
            return (1 << self.total) - 1, []
        if len(what) == self.total == len(self.ranges) and [*map(tuple, what)] == self.ranges:
            return (1 << self.total) - 1, []  # each of them named, in order
        left = 2 * self.total + 64
        mask = 0
        if len(what) >= MANY and self.total == len(self.ranges) and _count(what) <= left:
            mask, what = self._named_each(what)  # so few that none of them is beyond `left`
        foreign = []
        for base, named in what:
            bits = (1 << named) - 1 if isinstance(named, int) else int.from_bytes(named, "little")
            left -= bits.bit_count()
            if left < 0:
                # Far more than the lease holds, or the same again and again: the search would take long.
                foreign.append([base, bits.bit_length()])
                continue
            first = self._position(base)
            if first is not None and self._goes_on(first, base, bits.bit_length()):
                mask |= bits << first
                continue
            found, outside = self._find(base, bits)
            mask |= found
            foreign += [[offsets.shift(base, first), length] for first, length in _runs(outside)]
        return mask, foreign

    def _named_each(self, what: list[list[Any]]) -> tuple[int, list[list[Any]]]:
        """The mask of single messages that are ranges by themselves, as all of the lease are, and the others of
        `what`."""
        if self._places is None:
            self._places = {base: place for place, (base, _) in enumerate(self.ranges)}
        places = self._places
        named = [places.get(base) if length == 1 else None for base, length in what]
        mask = _mask([place for place in named if place is not None])
        return mask, [part for part, place in zip(what, named, strict=True) if place is None]

    def _position(self, offset: bytes) -> int | None:
        """The position of a message in the lease; None when it is not of it."""
        ranges, starts = self._in_order
        at = bisect_right(ranges, (offset, _ANY_LENGTH)) - 1
        behind = offsets.distance(ranges[at].base, offset) if at >= 0 else None
        return None if behind is None or behind >= ranges[at].length else starts[at] + behind

    def _goes_on(self, first: int, base: bytes, places: int) -> bool:
        """Whether all of so many places from `base`, at position `first`, on are of this lease. Positions rise with
        places: as many of these as of those between two messages means that none is left out."""
        if places <= 1 or not self._is_in_order or offsets.unpack(base).place + places - 1 > offsets.PLACE_MAX:
            return places == 1
        return self._position(offsets.shift(base, places - 1)) == first + places - 1

    def _find(self, base: bytes, bits: int) -> tuple[int, int]:
        """The mask of places `base` + i for every bit i of `bits`, and the bits that are not of this lease."""
        mask = 0
        ranges, starts = self._in_order
        for at in range(max(bisect_right(ranges, (base, _ANY_LENGTH)) - 1, 0), len(ranges)):
            first, length = ranges[at]
            ahead = offsets.distance(base, first)
            if ahead is None or ahead >= bits.bit_length():
                if first > base:
                    break
                continue
            held = (1 << length) - 1
            # Bit i of `bits` is bit i - ahead of the range.
            here = (bits >> ahead if ahead >= 0 else bits << -ahead) & held
            mask |= here << starts[at]
            bits &= ~(here << ahead if ahead >= 0 else here >> -ahead)
            if not bits:
                break
        return mask, bits

    def select(self, mask: int) -> list[Range]:
        """The messages of `mask` as ranges."""
        if mask == (1 << self.total) - 1:
            return self.ranges
        chosen: list[Range] = []
        for place, left in _runs(mask):
            at = bisect_right(self.starts, place) - 1
            while left > 0:
                base, count = self.ranges[at]
                behind = place - self.starts[at]
                length = min(left, count - behind)
                chosen.append(Range(offsets.shift(base, behind), length))
                place, left, at = place + length, left - length, at + 1
        return chosen

    def count_by_queue(self, mask: int) -> Iterator[tuple[bytes, int]]:
        """Yield the ready queues that the messages of `mask` came from, and how many of them: one may come again."""
        ends = self._queue_ends
        if ends is None:
            ends = self._queue_ends = list(accumulate([length for _, length in self.queues]))
        for first, length in _runs(mask):
            place, stop = first, first + length
            at = bisect_right(ends, place)
            while place < stop:
                end = min(ends[at], stop)
                yield self.queues[at][0], end - place
                place, at = end, at + 1

    def by_queue(self, mask: int) -> list[tuple[bytes | None, list[Range]]]:
        """The messages of `mask` by the ready queues that they came from, in the order of the log; where there are no
        queues, all together."""
        if not self.queues:
            return [(None, self.select(mask))]
        found: dict[bytes, list[Range]] = {}
        start = 0
        for queue, length in self.queues:
            part = mask & (((1 << length) - 1) << start)
            if part:
                found.setdefault(queue, []).extend(self.select(part))
            start += length
        return [(queue, sorted(ranges)) for queue, ranges in found.items()]

    @property
    def first(self) -> bytes | None:
        """The first of its live messages; None: it has ended."""
        live = self.live
        return self.first_of(live) if live else None

    def first_of(self, mask: int) -> bytes:
        """The first message, in the order of the log, of a mask that is not empty."""
        if not self._is_in_order:
            return min([base for base, _ in self.select(mask)])
        at = (mask & -mask).bit_length() - 1
        index = bisect_right(self.starts, at) - 1
        behind = at - self.starts[index]
        base = self.ranges[index].base
        return offsets.shift(base, behind) if behind else base

    def holds(self, offset: bytes) -> bool:
        """Whether a message is of this lease and still live in it."""
        return self._has(self.live, offset)

    def has_acked(self, offset: bytes) -> bool:
        """Whether a message was acked under this lease."""
        return self._has(self.acked, offset)

    def _has(self, mask: int, offset: bytes) -> bool:
        position = self._position(offset)
        return position is not None and bool(mask >> position & 1)

    def past_of(self, offset: bytes) -> History:
        """Earlier attempts of a message of the lease."""
        if self._past is None:
            self._past = sorted([(base, n, history) for ranges, history in self.past for base, n in ranges], key=_base)
        at = bisect_right(self._past, offset, key=_base) - 1
        if at < 0:
            return ()
        base, length, history = self._past[at]
        behind = offsets.distance(base, offset)
        return history if behind is not None and behind < length else ()

    def row(self) -> bytes:
        if self._packed is None:
            past = [(rows.pack_ranges(ranges), history) for ranges, history in self.past]
            self._packed = rows.pack_ranges(self.ranges), rows.pack_field(past)
        ranges, past_field = self._packed
        fields = (
            self.group_id,
            self.consumer,
            self.attempt,
            self.deadline_ms,
            self.due_ms,
            ranges,
            self.leased_ms,
            self.since_ms,
            self.kept,
        )
        later: list[Any] = [
            self.queues,
            self.snoozes,
            self.epoch,
            self.reclaims,
            self.handlers,
            self.crashes,
        ]  # nobody meets those that it does not know
        while later and not later[-1]:
            later.pop()
        if later:
            return rows.pack_with(fields, past_field, *map(rows.pack_field, later))
        return rows.pack_with(fields, past_field)

    def progress_row(self) -> bytes:
        size = (self.total + 7) // 8
        acked, left = self.acked.to_bytes(size, "little"), self.left.to_bytes(size, "little")
        later = [mask.to_bytes(size, "little") for mask in (self.sent, self.begun)]
        if not self.begun:
            later = later[: 1 if self.sent else 0]
        return rows.pack(acked, left, self.ended, self.revoked, *later)

    @classmethod
    def load(cls, token: int, row: bytes, progress: bytes | None) -> Lease:
        group_id, consumer, attempt, deadline_ms, due_ms, ranges, leased_ms, since_ms, kept, past, *more = rows.unpack(
            row
        )
        queues, snoozes, epoch, reclaims, handlers, crashes = rows.with_defaults(more, (), 0, 0, 0, 0, 0)
        lease = cls(
            token,
            group_id,
            consumer,
            attempt,
            deadline_ms,
            due_ms,
            rows.unpack_ranges(ranges),
            leased_ms,
            since_ms,
            kept,
            [(rows.unpack_ranges(packed), load_history(history)) for packed, history in past],
            [(queue, length) for queue, length in queues],
        )
        lease.snoozes, lease.epoch, lease.reclaims = snoozes, epoch, reclaims
        lease.handlers, lease.crashes = handlers, crashes
        if progress is not None:
            acked, left, lease.ended, lease.revoked, *more = rows.unpack(progress)
            sent, begun = rows.with_defaults(more, b"", b"")
            lease.sent, lease.begun = int.from_bytes(sent, "little"), int.from_bytes(begun, "little")
            lease.acked, lease.left = int.from_bytes(acked, "little"), int.from_bytes(left, "little")
        return lease


class Alike(NamedTuple):
    """What all messages of a lease, or of an entry that waits, have in common."""

    attempt: int
    """The attempt that a lease of them is."""
    kept: bool
    snoozes: int
    crashes: int


FRESH: Final = Alike(1, False, 0, 0)
"""Messages that come from the log for the first time."""


class Made(NamedTuple):
    """What made messages wait, for a `ClockReset`."""

    stamp_ms: int
    """Of the entry; 0 where an instant was chosen."""
    delay_ms: int
    """How long from there on."""
    by_move: bool = False
    """Their producer chose it: that counts even before their own instant."""


@dataclass(slots=True, eq=False)
class Waiting:
    """Messages that come back at `due_ms`; `attempt` is the number of attempts they have had."""

    due_ms: int
    seq: int
    attempt: int
    error: str | None
    ranges: PackedRanges
    since_ms: int
    kept: bool = False
    expires_ms: int | None = None
    """When the ttl of the first of them has passed."""
    history: History = ()
    made: Made | None = None
    """None until it is stored."""
    queue: bytes | None = None
    """The ready queue that they stand in again when they are due, where messages are ranked."""
    snoozes: int = 0
    """How often each of them was snoozed."""
    crashes: int = 0
    """How many leases of each of them ended unsettled in succession."""
    counted: int = 0
    """How many of its messages the group's metrics have counted, ..."""
    ripe: bool = False
    """... and whether their time has come."""
    expiries: Any = None
    """When each of them expires, as far as that was wanted: `waiting_table`."""

    @property
    def alike(self) -> Alike:
        """What a lease says of them all: see `Lease.alike`."""
        return Alike(self.attempt + 1, self.kept, self.snoozes, self.crashes)

    @property
    def dies_waiting(self) -> bool:
        """Whether the ttl of the first of them passes before they come back."""
        return self.expires_ms is not None and self.expires_ms <= self.due_ms

    @property
    def first(self) -> bytes | None:
        """The first of its messages; None: it has none any more."""
        return self.ranges.first

    def holds(self, offset: bytes) -> bool:
        """Whether a message waits here."""
        return self.ranges.find(offset) is not None

    def apart(self, ranges: list[Range]) -> Waiting:
        """Some of its messages, which were taken out, as an entry of their own that is yet to be stored."""
        again = Waiting(self.due_ms, 0, self.attempt, self.error, PackedRanges(ranges), self.since_ms, self.kept)
        again.history, again.made, again.queue = self.history, self.made, self.queue
        again.snoozes, again.crashes = self.snoozes, self.crashes
        return again

    def row(self) -> bytes:
        ranges = self.ranges.packed()
        fields = self.attempt, self.error, ranges, self.since_ms, self.kept, self.expires_ms, self.history
        later: list[Any] = [self.made, self.queue, self.snoozes, self.crashes]
        while later and later[-1] in (None, 0):
            later.pop()
        return rows.pack(*fields, *later)

    @classmethod
    def load(cls, key: bytes, row: bytes) -> Waiting:
        attempt, error, packed, since_ms, kept, expires_ms, history, *more = rows.unpack(row)
        due_ms, seq = int.from_bytes(key[5:11], "big"), int.from_bytes(key[11:], "big")
        ranges = PackedRanges(rows.unpack_ranges(packed))
        entry = cls(due_ms, seq, attempt, error, ranges, since_ms, kept, expires_ms, load_history(history))
        made, entry.queue, entry.snoozes, entry.crashes = rows.with_defaults(more, None, None, 0, 0)
        entry.made = Made(*made) if made is not None else None
        return entry


def _count(what: list[list[Any]]) -> float:
    """How many messages are named; infinite where bitmaps name some."""
    return sum([length if isinstance(length, int) else math.inf for _, length in what])


def _mask(places: list[int]) -> int:
    """The bits of these positions."""
    bits = bytearray((max(places, default=-1) >> 3) + 1)
    for place in places:
        bits[place >> 3] |= 1 << (place & 7)
    return int.from_bytes(bits, "little")


def _runs(bits: int) -> Iterator[tuple[int, int]]:
    """Runs of ones, from the lowest on: (first, length)."""
    at = 0
    while bits:
        zeros = (bits & -bits).bit_length() - 1
        bits >>= zeros
        ones = (~bits & (bits + 1)).bit_length() - 1
        yield at + zeros, ones
        bits >>= ones
        at += zeros + ones


def _lowest(bits: int, count: int) -> int:
    """The lowest `count` ones of `bits`."""
    found = 0
    for first, length in _runs(bits):
        taken = min(length, count)
        found |= ((1 << taken) - 1) << first
        count -= taken
        if not count:
            break
    return found


def merged(messages: Iterable[bytes]) -> list[Range]:
    """Messages (rising offsets) as few ranges. Only for those that a group keeps: a range of the log lies within one
    of its rows."""
    found: list[Range] = []
    for offset in messages:
        if found and offsets.distance(found[-1].base, offset) == found[-1].length:
            found[-1] = Range(found[-1].base, found[-1].length + 1)
        else:
            found.append(Range(offset, 1))
    return found


def _base(known: tuple[bytes, int, History]) -> bytes:
    return known[0]


def load_history(history: list[list[Any]]) -> History:
    return tuple([Attempt(*attempt) for attempt in history])
