"""Offsets, lease tokens, and their texts. PERSISTED, and part of the protocol: never change these formats.

    offset  = deliver_ms u48 | raft index u48 | place u20 | partition u12     16 bytes, big-endian
    text    = 26 characters of Crockford's base32 (0-9 A-Z without I L O U), uppercase; both order by time
    token   = raft index of the grant u48 << 16 | place u16                   a u64, rises within a partition
    lease   = "group number.partition.token", decimal

`place` counts messages across the whole Raft entry. So the messages of one batch with the same delivery time are a
*run*: base, base + 1 place, base + 2 places. Every malformed value raises InvalidRequest, because an offset may come
from a client.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from sandq.model.errors import InvalidRequest

OFFSET_BYTES = 16
TEXT_CHARS = 26

U48_MAX = 2**48 - 1
PLACE_MAX = 2**20 - 1
PARTITION_MAX = 2**12 - 1
TOKEN_PLACE_MAX = 2**16 - 1
U64_MAX = 2**64 - 1

FIRST = bytes(OFFSET_BYTES)
LAST = b"\xff" * OFFSET_BYTES

PLACE_STEP = 1 << 12
"""Difference between two offsets at neighbouring places, as integers."""
PLACE_BITS = PLACE_MAX << 12
"""Mask of the place within the integer of an offset."""
_PREFIX_BYTES = 12  # deliver_ms and index; the last four bytes are place and partition

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = [high + low for high in _ALPHABET for low in _ALPHABET]
_PAIR_SHIFTS = range(120, -1, -10)
# Maps each letter, in either case, to the digit that int(text, 32) reads.
_DIGITS = str.maketrans(
    _ALPHABET + _ALPHABET.lower() + "ILOilo",
    "0123456789abcdefghijklmnopqrstuv" * 2 + "110110",
)
_TEXT = re.compile(r"[0-9A-TV-Za-tv-z]{26}")  # every letter but U: I and L mean 1, O means 0

_DECIMAL = r"(0|[1-9][0-9]{0,19})"
_LEASE = re.compile(rf"{_DECIMAL}\.{_DECIMAL}\.{_DECIMAL}")
_SHOWN_CHARS = 60


class Parts(NamedTuple):
    """The parts of an offset."""

    deliver_ms: int
    index: int  # type: ignore[assignment]  # hides tuple.index, which is not needed
    place: int
    partition: int


class Lease(NamedTuple):
    """The parts of a lease's text."""

    group_number: int
    partition: int
    token: int


def _check(what: str, value: int, maximum: int) -> None:
    """Raise InvalidRequest if a part of an offset is out of range."""
    if not 0 <= value <= maximum:
        raise InvalidRequest(f"offset: {what} {value} is not within 0..{maximum}")


def _checked(offset: bytes) -> bytes:
    """Return `offset` if it has the right length. Otherwise raise InvalidRequest. The most frequent functions check the
    length themselves, and call this function only for the error."""
    if len(offset) != OFFSET_BYTES:
        raise InvalidRequest(f"an offset has {OFFSET_BYTES} bytes, not {len(offset)}")
    return offset


def pack(deliver_ms: int, index: int, place: int, partition: int) -> bytes:
    """Return the 16 bytes of an offset. Raise InvalidRequest if a part does not fit."""
    if not (
        0 <= deliver_ms <= U48_MAX
        and 0 <= index <= U48_MAX
        and 0 <= place <= PLACE_MAX
        and 0 <= partition <= PARTITION_MAX
    ):
        _check("deliver_ms", deliver_ms, U48_MAX)
        _check("index", index, U48_MAX)
        _check("place", place, PLACE_MAX)
        _check("partition", partition, PARTITION_MAX)
    return (deliver_ms << 80 | index << 32 | place << 12 | partition).to_bytes(OFFSET_BYTES, "big")


def unpack(offset: bytes) -> Parts:
    """Return the parts of an offset."""
    number = int.from_bytes(_checked(offset), "big")
    return Parts(number >> 80, number >> 32 & U48_MAX, number >> 12 & PLACE_MAX, number & PARTITION_MAX)


def pack_run(times_ms: Sequence[int], index: int, place: int, partition: int) -> list[bytes]:
    """Return the offsets of messages at consecutive places. `place`: place of the first message. `times_ms`: times of
    the messages (u48)."""
    if not times_ms:
        return []
    pack(times_ms[0], index, place, partition)
    pack(times_ms[-1], index, place + len(times_ms) - 1, partition)
    tail = index << 32 | place << 12 | partition
    step = PLACE_STEP
    return [(ms << 80 | tail + at * step).to_bytes(OFFSET_BYTES, "big") for at, ms in enumerate(times_ms)]


def deliver_ms(offset: bytes) -> int:
    """Return the delivery time in an offset, in epoch milliseconds."""
    if len(offset) != OFFSET_BYTES:
        _checked(offset)
    return int.from_bytes(offset[:6], "big")


def at_time(offset: bytes, deliver_ms: int) -> bytes:
    """Return the offset with another delivery time (u48)."""
    return deliver_ms.to_bytes(6, "big") + _checked(offset)[6:]


def shift(offset: bytes, n: int) -> bytes:
    """Return the offset `n` places later (earlier if negative). Raise InvalidRequest if the place does not fit 20
    bits."""
    if len(offset) != OFFSET_BYTES:
        _checked(offset)
    number = int.from_bytes(offset, "big")
    place = (number >> 12 & PLACE_MAX) + n
    if not 0 <= place <= PLACE_MAX:
        _check("place", place, PLACE_MAX)
    return (number + n * PLACE_STEP).to_bytes(OFFSET_BYTES, "big")


def behind(offset: bytes) -> bytes:
    """Return the next possible offset of the same partition, even if it belongs to the next entry or millisecond. Raise
    InvalidRequest if there is none."""
    number = int.from_bytes(_checked(offset), "big") + PLACE_STEP
    if number >> 8 * OFFSET_BYTES:
        raise InvalidRequest("offset: no place lies behind the last one of its partition")
    return number.to_bytes(OFFSET_BYTES, "big")


def distance(base: bytes, offset: bytes) -> int | None:
    """Return how many positions `offset` is after `base` (negative: before). None if they differ in more than the
    position."""
    if not len(base) == len(offset) == OFFSET_BYTES:
        _checked(base)
        _checked(offset)
    if base[:_PREFIX_BYTES] != offset[:_PREFIX_BYTES]:
        return None
    places, rest = divmod(int.from_bytes(offset[12:], "big") - int.from_bytes(base[12:], "big"), PLACE_STEP)
    return None if rest else places


def of_partition(offset: bytes, partition: int) -> bytes:
    """Return the lowest offset of a partition that is not below `offset`, which may be of any partition. Return
    `offset` itself if there is none."""
    number = int.from_bytes(_checked(offset), "big")
    found = (number & ~PARTITION_MAX) | partition
    if found < number:
        found += PLACE_STEP
    return offset if found >> 8 * OFFSET_BYTES else found.to_bytes(OFFSET_BYTES, "big")


def run(base: bytes, count: int) -> list[bytes]:
    """Return `count` offsets: `base`, and each following place. Raise InvalidRequest if the last offset does not
    fit."""
    if count <= 0:
        return []
    shift(base, count - 1)  # checks both ends
    prefix, tail = base[:_PREFIX_BYTES], int.from_bytes(base[_PREFIX_BYTES:], "big")
    return [prefix + low.to_bytes(4, "big") for low in range(tail, tail + count * PLACE_STEP, PLACE_STEP)]


def ceiling(deliver_ms: int, index: int) -> bytes:
    """Return the greatest offset with this delivery time and index."""
    return pack(deliver_ms, index, PLACE_MAX, PARTITION_MAX)


def to_text(offset: bytes) -> str:
    """Return the 26 characters of Crockford's base32."""
    number = int.from_bytes(_checked(offset), "big")
    return "".join([_PAIRS[number >> bits & 1023] for bits in _PAIR_SHIFTS])


def partition_of_text(text: str) -> int:
    """Return the partition in the text of an offset. The text must be valid."""
    return int(text[-3:].translate(_DIGITS), 32) & PARTITION_MAX


def from_text(text: str) -> bytes:
    """Return the offset of a text in either case; I and L are read as 1, O as 0. Raise InvalidRequest on anything
    else."""
    if not isinstance(text, str) or not _TEXT.fullmatch(text):
        raise InvalidRequest(
            f"{_shown(text)} is not an offset: {TEXT_CHARS} characters of Crockford's base32 are expected"
        )
    number = int(text.translate(_DIGITS), 32)
    if number >> 128:
        raise InvalidRequest(f"{_shown(text)} is not an offset: its first character must be 0 to 7")
    return number.to_bytes(OFFSET_BYTES, "big")


def token(index: int, place: int) -> int:
    """Return the lease token of the `place`-th grant of the Raft entry at `index`."""
    if not (0 <= index <= U48_MAX and 0 <= place <= TOKEN_PLACE_MAX):
        raise InvalidRequest(f"lease token: index {index} and place {place} must be within u48 and u16")
    return index << 16 | place


def lease_text(group_number: int, partition: int, token: int) -> str:
    """Return the text of a lease as HTTP, JSON and logs write it."""
    return f"{group_number}.{partition}.{token}"


def parse_lease(text: str) -> Lease:
    """Return the parts of a lease's text. Raise InvalidRequest unless it is three decimal numbers that fit."""
    match = _LEASE.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise InvalidRequest(f"{_shown(text)} is not a lease: GROUP.PARTITION.TOKEN in decimal is expected")
    lease = Lease(int(match[1]), int(match[2]), int(match[3]))
    if lease.group_number > U64_MAX or lease.partition > PARTITION_MAX or lease.token > U64_MAX:
        raise InvalidRequest(f"{_shown(text)} is not a lease: a number in it is too large")
    return lease


def _shown(text: object) -> str:
    """Return a value for an error message, cut to `_SHOWN_CHARS`."""
    shown = repr(text)
    return shown if len(shown) <= _SHOWN_CHARS else shown[:_SHOWN_CHARS] + "..."
