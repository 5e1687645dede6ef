"""Messages that a group holds: `Lease` (held by a consumer) and `Waiting` (waiting for their next attempt)."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any, Final, NamedTuple

from sandq.model import offsets
from sandq.model.limits import FIXED
from sandq.model.retries import RetryRules
from sandq.partition.base import rows
from sandq.partition.base.rows import Range
from sandq.partition.commands import What
from sandq.partition.records.packed_ranges import PackedRanges

_ANY_LENGTH = 1 << 32
MANY = 8
"""For at least this many parts, `Lease.mask_of` looks up single messages in a dict of positions."""
HISTORY_ATTEMPTS = 5
HISTORY_ERROR_CHARS = 200


class Attempt(NamedTuple):
    """An attempt that failed, or was snoozed."""

    number: int
    consumer: str
    leased_ms: int
    ended_ms: int
    end: str
    """How the attempt ended: a reason for which a message may die, or `settlement.SNOOZED`."""
    error: str | None


History = tuple[Attempt, ...]
"""The last `HISTORY_ATTEMPTS` attempts, the oldest first."""


@dataclass(slots=True, eq=False)
class Lease:
    """Messages held by one consumer. In a mask, bit i stands for the i-th message of `ranges`, in their order."""

    token: int
    group_id: int
    consumer: str
    attempt: int
    deadline_ms: int
    due_ms: int
    """Time at which the last message of the lease is due, in ms. Messages may be leased a short time ahead."""
    ranges: list[Range]
    leased_ms: int
    since_ms: int
    """Time at which the first of its messages was first leased, in ms."""
    kept: bool = False
    """Whether its messages are in rows of the group (`KEPT`), so that the log need not keep them for this lease."""
    past: list[tuple[list[Range], History]] = field(default_factory=list)
    """Earlier attempts of messages of the lease."""
    queues: list[tuple[bytes, int]] = field(default_factory=list)
    """If the topic ranks messages: (ready queue, number of messages from it), in the order of `ranges`, which is then
    the order of delivery."""
    acked: int = 0
    left: int = 0
    """Mask of the messages that left the lease without an ack: nacked, expired, revoked or dead."""
    sent: int = 0
    """Mask of the messages whose acks sent messages."""
    revoked: bool = False
    """Whether the deadline or the end of the consumer ended the lease, and not acks and nacks."""
    ended: int = 0
    """0 while the lease is live, then the sequence number of its end. Ended leases are kept for a while, to reply to
    repeated acks."""
    counted: int = 0
    """Number of live messages of the lease that the group's metrics have counted."""
    snoozes: int = 0
    """Number of times that each message of the lease was snoozed."""
    flying: int = 0
    """Mask of the messages that count as in flight for their tenants, if the topic ranks messages."""
    epoch: int = 0
    """Epoch of the consumer. 0 if the consumer has no epoch."""
    reclaims: int = 0
    """Number of times that its consumer restarted and got the messages again, with a new token."""
    handlers: int = 0
    """Maximum number of messages that the consumer processes at the same time. 0 if the consumer gave no number: it may
    then have begun all messages."""
    crashes: int = 0
    """Number of consecutive earlier leases of each message that ended unsettled. See `note_last`."""
    begun: int = 0
    """Mask of the messages that its consumer reported as begun."""
    retry: RetryRules | None = None
    """Retry rules of its messages. None if they have none of their own."""
    plain: list[bytes] | None = field(init=False, default=None, repr=False)
    """The plain row of each range, until the lease is delivered. None unless each range is a single message whose plain
    row was in memory."""
    starts: list[int] = field(init=False)
    total: int = field(init=False)
    _past: list[tuple[bytes, int, History]] | None = field(init=False, default=None)
    """`past`, flattened and sorted by offset. Built when first needed."""
    _packed: tuple[bytes, bytes] | None = field(init=False, default=None)
    """Packed `ranges` and `past` for `row`. Built when first needed."""
    _positions: dict[bytes, int] | None = field(init=False, default=None)
    """Position of each message, used if each range is a single message. Built when first needed."""
    _queue_ends: list[int] | None = field(init=False, default=None)
    """Position at which the messages of each of `queues` end. Built when first needed."""
    _in_order: tuple[list[Range], list[int]] = field(init=False)
    """`ranges` and `starts`, sorted by offset."""

    def __post_init__(self) -> None:
        self.reindex()

    def reindex(self) -> None:
        """Recompute everything that depends on `ranges`, which may change until the lease is granted."""
        counts = [r.length for r in self.ranges]
        self.total = sum(counts)
        self.starts = list(accumulate(counts, initial=0))[:-1]
        self._past = self._packed = self._positions = self._queue_ends = None
        if self.queues and any([one.base > other.base for one, other in pairwise(self.ranges)]):
            order = sorted(range(len(self.ranges)), key=self.ranges.__getitem__)
            self._in_order = [self.ranges[at] for at in order], [self.starts[at] for at in order]
        else:
            self._in_order = self.ranges, self.starts

    @property
    def _is_in_order(self) -> bool:
        """Whether the messages of the lease are in log order."""
        return self._in_order[0] is self.ranges

    def end(self, number: int) -> None:
        """Mark the lease as ended and drop its caches, because no message is live any longer. `number`: see `ended`."""
        self.ended = number
        self._past = self._packed = self._positions = self._queue_ends = None

    @property
    def alike(self) -> Alike:
        """The values that all messages of the lease have in common."""
        return Alike(self.attempt, self.kept, self.snoozes, self.crashes, self.retry)

    def adopt(self, alike: Alike) -> None:
        """Adopt the values of the first messages of the lease."""
        self.attempt, self.kept, self.snoozes, self.crashes, self.retry = alike

    def note_last(self, max_attempts: int | None) -> None:
        """If this is the last attempt, require a consumer with `handlers` to report each message before it begins the
        message.

        Then only reported messages use up their attempt if the lease ends unsettled (`charged`). So every message that
        dies was begun, and no message is begun again after its last attempt.
        """
        if self.handlers and max_attempts is not None and self.attempt >= max_attempts:
            self.crashes = max(self.crashes, 1)

    @property
    def live(self) -> int:
        """Mask of the messages that are still leased."""
        return ((1 << self.total) - 1) & ~(self.acked | self.left)

    @property
    def charged(self) -> int:
        """Mask of the live messages that would use up an attempt if the lease ended unsettled now.

        The consumer processes the lease in order, so at most the first `handlers` live messages were begun. After the
        first crash, the consumer reports each message before it begins the message, so only reported messages count.
        After `FIXED.lease_reclaims` consecutive crashes, all live messages count, because a consumer might crash
        without a report.
        """
        live = self.live
        if not self.handlers or self.crashes >= FIXED.lease_reclaims:
            return live
        return live & (self.begun if self.crashes else self.begun | _lowest(live, self.handlers))

    def mask_of(self, what: What) -> tuple[int, list[list[object]]]:
        """Return (mask of the messages that `what` names, parts of `what` that are not in this lease).

        A part is a run of consecutive offsets. It may span several ranges whose offsets are consecutive.
        """
        if what is None:
            return (1 << self.total) - 1, []
        if len(what) == self.total == len(self.ranges) and [*map(tuple, what)] == self.ranges:
            return (1 << self.total) - 1, []  # all messages are named, in order
        left = 2 * self.total + 64  # bounds the work, because `what` comes from a client
        mask = 0
        if len(what) >= MANY and self.total == len(self.ranges) and _count(what) <= left:
            mask, what = self._named_each(what)  # the total is within `left`, so no part exceeds it
        foreign = []
        for base, named in what:
            bits = (1 << named) - 1 if isinstance(named, int) else int.from_bytes(named, "little")
            left -= bits.bit_count()
            if left < 0:
                # `what` names much more than the lease holds, or the same messages repeatedly. The client controls
                # `what`, and searching for all of it would take too long for one command.
                foreign.append([base, bits.bit_length()])
                continue
            first = self._position(base)
            if first is not None and self._is_contiguous(first, base, bits.bit_length()):
                mask |= bits << first
                continue
            found, outside = self._find(base, bits)
            mask |= found
            foreign += [[offsets.shift(base, first), length] for first, length in _runs(outside)]
        return mask, foreign

    def _named_each(self, what: list[list[Any]]) -> tuple[int, list[list[Any]]]:
        """Return (mask of the messages of this lease that `what` names one by one, all other parts of `what`). Each
        range of the lease must be a single message."""
        if self._positions is None:
            self._positions = {base: place for place, (base, _) in enumerate(self.ranges)}
        positions = self._positions
        named = [positions.get(base) if length == 1 else None for base, length in what]
        mask = _mask([place for place in named if place is not None])
        return mask, [part for part, place in zip(what, named, strict=True) if place is None]

    def _position(self, offset: bytes) -> int | None:
        """Return the position of a message in the lease. None if the lease does not contain it."""
        ranges, starts = self._in_order
        at = bisect_right(ranges, (offset, _ANY_LENGTH)) - 1
        behind = offsets.distance(ranges[at].base, offset) if at >= 0 else None
        return None if behind is None or behind >= ranges[at].length else starts[at] + behind

    def _is_contiguous(self, first: int, base: bytes, count: int) -> bool:
        """Return whether the `count` messages from `base` on are all in this lease, at consecutive positions from
        `first`.

        In a lease in log order, positions rise with offsets. So checking the last message is enough: if its position is
        as far from `first` as its offset is from `base`, the lease has all messages in between.
        """
        if count <= 1 or not self._is_in_order or offsets.unpack(base).place + count - 1 > offsets.PLACE_MAX:
            return count == 1
        return self._position(offsets.shift(base, count - 1)) == first + count - 1

    def _find(self, base: bytes, bits: int) -> tuple[int, int]:
        """Return (mask of the messages `base` + i for each bit i of `bits`, bits of messages that are not in this
        lease)."""
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
            # Bit i of `bits` corresponds to bit `i - ahead` of the range.
            here = (bits >> ahead if ahead >= 0 else bits << -ahead) & held
            mask |= here << starts[at]
            bits &= ~(here << ahead if ahead >= 0 else here >> -ahead)
            if not bits:
                break
        return mask, bits

    def select(self, mask: int) -> list[Range]:
        """Return the messages of `mask` as ranges."""
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
        """Yield (ready queue, number of messages) for the messages of `mask`. A queue may be yielded more than once."""
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
        """Return the messages of `mask` by the ready queue that they came from, in log order. If the lease has no
        queues, return all messages under None."""
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
    def is_empty(self) -> bool:
        """Whether no message of the lease is live."""
        return not self.live

    @property
    def first(self) -> bytes | None:
        """The first live message of the lease, in log order. None if the lease has ended."""
        live = self.live
        return self.first_of(live) if live else None

    def first_of(self, mask: int) -> bytes:
        """Return the first message of a mask, in log order. The mask must not be empty."""
        if not self._is_in_order:
            return min([base for base, _ in self.select(mask)])
        at = (mask & -mask).bit_length() - 1
        index = bisect_right(self.starts, at) - 1
        behind = at - self.starts[index]
        base = self.ranges[index].base
        return offsets.shift(base, behind) if behind else base

    def holds(self, offset: bytes) -> bool:
        """Return whether a message is live in this lease."""
        return self._has(self.live, offset)

    def has_acked(self, offset: bytes) -> bool:
        """Return whether a message was acked under this lease."""
        return self._has(self.acked, offset)

    def _has(self, mask: int, offset: bytes) -> bool:
        """Return whether a message of the lease is in `mask`."""
        position = self._position(offset)
        return position is not None and bool(mask >> position & 1)

    def past_of(self, offset: bytes) -> History:
        """Return the earlier attempts of a message of the lease."""
        if self._past is None:
            self._past = sorted([(base, n, history) for ranges, history in self.past for base, n in ranges], key=_base)
        at = bisect_right(self._past, offset, key=_base) - 1
        if at < 0:
            return ()
        base, length, history = self._past[at]
        behind = offsets.distance(base, offset)
        return history if behind is not None and behind < length else ()

    def row(self) -> bytes:
        """Return the row of the lease, without its progress."""
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
            self.retry,
        ]  # leave out trailing defaults, so that an older node meets no field that it does not know
        while later and not later[-1]:
            later.pop()
        if later:
            return rows.pack_with(fields, past_field, *map(rows.pack_field, later))
        return rows.pack_with(fields, past_field)

    def progress_row(self) -> bytes:
        """Return the row of the lease's progress, which acks and nacks change."""
        size = (self.total + 7) // 8
        acked, left = self.acked.to_bytes(size, "little"), self.left.to_bytes(size, "little")
        later = [mask.to_bytes(size, "little") for mask in (self.sent, self.begun)]
        if not self.begun:
            later = later[: 1 if self.sent else 0]
        return rows.pack(acked, left, self.ended, self.revoked, *later)

    @classmethod
    def load(cls, token: int, row: bytes, progress: bytes | None) -> Lease:
        """Return the lease in its row. `progress`: its progress row; None if it has none."""
        group_id, consumer, attempt, deadline_ms, due_ms, ranges, leased_ms, since_ms, kept, past, *more = rows.unpack(
            row
        )
        queues, snoozes, epoch, reclaims, handlers, crashes, retry = rows.with_defaults(more, (), 0, 0, 0, 0, 0, None)
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
        lease.handlers, lease.crashes, lease.retry = handlers, crashes, _load_retry(retry)
        if progress is not None:
            acked, left, lease.ended, lease.revoked, *more = rows.unpack(progress)
            sent, begun = rows.with_defaults(more, b"", b"")
            lease.sent, lease.begun = int.from_bytes(sent, "little"), int.from_bytes(begun, "little")
            lease.acked, lease.left = int.from_bytes(acked, "little"), int.from_bytes(left, "little")
        return lease


class Alike(NamedTuple):
    """The values that all messages of a lease, or of a waiting entry, have in common."""

    attempt: int
    """Attempt number, from 1. For a waiting entry: that of its next lease."""
    kept: bool
    snoozes: int
    crashes: int
    retry: RetryRules | None = None


FRESH: Final = Alike(1, False, 0, 0)
"""The values of messages that are leased from the log for the first time."""


class Made(NamedTuple):
    """How the time of a waiting entry was chosen. A clock reset computes the new time from these fields."""

    stamp_ms: int
    """Time stamp of the log entry that chose a delay, in ms. 0 if an absolute time was chosen."""
    delay_ms: int
    """Delay in ms, counted from `stamp_ms`."""
    by_move: bool = False
    """Whether the producer chose the time by a move. If so, a clock reset keeps this time, even if it is before the
    messages' own time."""


@dataclass(slots=True, eq=False)
class Waiting:
    """Messages that wait until `due_ms` for their next attempt. `attempt` is the number of attempts so far."""

    due_ms: int
    seq: int
    attempt: int
    error: str | None
    ranges: PackedRanges
    since_ms: int
    kept: bool = False
    expires_ms: int | None = None
    """Time at which the ttl of the first message ends, in ms."""
    history: History = ()
    made: Made | None = None
    """None until the entry is stored."""
    queue: bytes | None = None
    """Ready queue that the messages return to when they are due, if the topic ranks messages."""
    snoozes: int = 0
    """Number of times that each message was snoozed."""
    crashes: int = 0
    """Number of consecutive leases of each message that ended unsettled."""
    retry: RetryRules | None = None
    """Retry rules of the messages. None if they have none of their own."""
    counted: int = 0
    """Number of messages of the entry that the group's metrics have counted."""
    ripe: bool = False
    """Whether the group's metrics count the messages as ready, because their time has come."""
    expiries: Any = None
    """Cache of `groups.waiting_table`: when messages of the entry expire."""

    @property
    def alike(self) -> Alike:
        """The values with which a lease takes over the messages: see `Lease.alike`."""
        return Alike(self.attempt + 1, self.kept, self.snoozes, self.crashes, self.retry)

    @property
    def dies_waiting(self) -> bool:
        """Whether the ttl of the first message ends before the messages are due."""
        return self.expires_ms is not None and self.expires_ms <= self.due_ms

    @property
    def is_empty(self) -> bool:
        """Whether no messages are left."""
        return not self.ranges.messages

    @property
    def first(self) -> bytes | None:
        """The first message. None if no messages are left."""
        return self.ranges.first

    def holds(self, offset: bytes) -> bool:
        """Return whether a message waits in this entry."""
        return self.ranges.find(offset) is not None

    def apart(self, ranges: list[Range]) -> Waiting:
        """Return a new entry with some messages that were taken out of this entry. The caller stores it."""
        again = Waiting(self.due_ms, 0, self.attempt, self.error, PackedRanges(ranges), self.since_ms, self.kept)
        again.history, again.made, again.queue = self.history, self.made, self.queue
        again.snoozes, again.crashes, again.retry = self.snoozes, self.crashes, self.retry
        return again

    def row(self) -> bytes:
        """Return the row of the entry. `due_ms` and `seq` are in its key."""
        return rows.pack(*self.fields())

    def fields(self) -> list[Any]:
        """Return the fields of the row of the entry."""
        ranges = self.ranges.packed()
        fields = [self.attempt, self.error, ranges, self.since_ms, self.kept, self.expires_ms, self.history]
        later: list[Any] = [self.made, self.queue, self.snoozes, self.crashes, self.retry]
        while later and later[-1] in (None, 0):
            later.pop()
        return fields + later

    @classmethod
    def load(cls, key: bytes, row: bytes) -> Waiting:
        """Return the entry in a row."""
        return cls.of_fields(int.from_bytes(key[5:11], "big"), int.from_bytes(key[11:], "big"), rows.unpack(row))

    @classmethod
    def of_fields(cls, due_ms: int, seq: int, fields: list[Any]) -> Waiting:
        """Return the entry with this due time, this number and the fields of a row."""
        attempt, error, packed, since_ms, kept, expires_ms, history, *more = fields
        ranges = PackedRanges(rows.unpack_ranges(packed))
        entry = cls(due_ms, seq, attempt, error, ranges, since_ms, kept, expires_ms, load_history(history))
        made, entry.queue, entry.snoozes, entry.crashes, retry = rows.with_defaults(more, None, None, 0, 0, None)
        entry.retry = _load_retry(retry)
        entry.made = Made(*made) if made is not None else None
        return entry


def _count(what: list[list[Any]]) -> float:
    """Return the number of messages that `what` names. Infinite if it contains bitmaps."""
    return sum([length if isinstance(length, int) else math.inf for _, length in what])


def _mask(positions: list[int]) -> int:
    """Return a mask with the bits at these positions."""
    bits = bytearray((max(positions, default=-1) >> 3) + 1)
    for place in positions:
        bits[place >> 3] |= 1 << (place & 7)
    return int.from_bytes(bits, "little")


def _runs(bits: int) -> Iterator[tuple[int, int]]:
    """Yield the runs of ones as (first, length), the lowest first."""
    at = 0
    while bits:
        # `x & -x` isolates the lowest bit of x that is 1. Adding 1 to a run of ones carries to the zero above the run.
        zeros = (bits & -bits).bit_length() - 1
        bits >>= zeros
        ones = (~bits & (bits + 1)).bit_length() - 1
        yield at + zeros, ones
        bits >>= ones
        at += zeros + ones


def _lowest(bits: int, count: int) -> int:
    """Return a mask with the lowest `count` ones of `bits`."""
    found = 0
    for first, length in _runs(bits):
        taken = min(length, count)
        found |= ((1 << taken) - 1) << first
        count -= taken
        if not count:
            break
    return found


def merged(messages: Iterable[bytes]) -> list[Range]:
    """Merge messages, in ascending order, into as few ranges as possible. Use it only for messages that a group keeps:
    a range of the log must lie within one of its rows."""
    found: list[Range] = []
    for offset in messages:
        if found and offsets.distance(found[-1].base, offset) == found[-1].length:
            found[-1] = Range(found[-1].base, found[-1].length + 1)
        else:
            found.append(Range(offset, 1))
    return found


def _base(known: tuple[bytes, int, History]) -> bytes:
    """Return the first message of an item of `Lease._past`: its sort key."""
    return known[0]


def _load_retry(retry: list[Any] | None) -> RetryRules | None:
    """Return the retry rules in a row, unpacked."""
    return None if retry is None else RetryRules(*retry)


def load_history(history: list[list[Any]]) -> History:
    """Return the attempts of a row, unpacked."""
    return tuple([Attempt(*attempt) for attempt in history])
