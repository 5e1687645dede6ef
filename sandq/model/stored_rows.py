"""Check rows of a partition that come from outside the cluster, for example from a backup.

A restore writes rows into a partition's log, and every replica reads them later. `problem_of_row` returns what is wrong
with one row: the length of its key, the types and ranges of its fields, the checksum and the columns of a batch. It
does not compare rows; `TimerPartition` makes the checks that need all rows at the end of a restore.

Row formats: docs/storage-format.md. Tags are literals here. `partition.rows` has constants for them, and a test checks
that both have the same tags.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final

import msgpack

from sandq.model.batch import Batch
from sandq.model.batch_format import TYPE_BYTES, TYPE_OF, Column
from sandq.model.errors import InvalidRequest, SandqError
from sandq.model.names import COMPACTED, FAIR
from sandq.model.offsets import OFFSET_BYTES, PLACE_BITS, U48_MAX
from sandq.model.row_fields import (
    CHANGE,
    COLUMNS,
    COUNT,
    DEADLINE,
    OFFSET,
    SIGNED,
    TIME,
    U32,
    U32_MAX,
    are_fields,
    array,
    integer,
    is_bool,
    is_bytes,
    list_of,
    one_of,
    optional,
    text,
)
from sandq.model.row_kinds import (
    COMMON,
    COMPACTED_TAGS,
    COMPACTION,
    KEYS_STATE,
    LOG_TAG,
    NOTHING,
    STATE_TAG,
    is_offset_of,
)
from sandq.model.stored_settings import checked_record

CHUNK_ROWS: Final = 8192
CHUNK_BYTES: Final = 20 << 20
"""Maximum size of a chunk: a single row may be a batch of 16 MiB."""
ROW_ITEMS: Final = 1 << 18
"""Maximum number of items in a row; the largest state row has about a third of it."""
SMALL_BYTES: Final = 32 << 10
"""Rows up to this size are decoded without counting their items first."""
KEY_BYTES_MOST: Final = 64 << 10
BATCH_BYTES: Final = 64 << 20
"""Maximum size of a decompressed batch: no configuration allows larger batches."""

_LOG_HEADER: Final = struct.Struct("<BB2xIq")
_VALUE_HEADER: Final = struct.Struct("<B3xIq16s")


class _Wrong(Exception):
    """The row is invalid; the message says why."""


# -- chunks -----------------------------------------------------------------------------------------------------------


def decode_chunk(data: bytes) -> list[bytes]:
    """Return the alternating keys and values of a chunk. Raise InvalidRequest if it is malformed or too large.

    The items are read one by one, so that the first item that is not bytes raises the error. If a chunk of nested
    arrays were decoded at once, it would take eighty times its size in memory.
    """
    if len(data) > CHUNK_BYTES:
        raise InvalidRequest(f"a chunk of {len(data)} bytes; {CHUNK_BYTES} are the limit")
    try:
        reader = msgpack.Unpacker(
            max_buffer_size=CHUNK_BYTES + 1,
            max_str_len=0,
            max_bin_len=CHUNK_BYTES,
            max_array_len=2 * CHUNK_ROWS,
            max_map_len=0,
            max_ext_len=0,
        )
        reader.feed(data)
        count = reader.read_array_header()
        if count > 2 * CHUNK_ROWS:
            raise ValueError(f"{count} keys and values; {2 * CHUNK_ROWS} is the limit")
        found: list[bytes] = []
        for _ in range(count):
            if not _is_bytes_next(data, reader.tell()):
                raise ValueError(f"item {len(found) + 1} is not bytes")
            found.append(reader.unpack())
        if reader.tell() != len(data):
            raise ValueError("bytes behind its end")
    except (ValueError, msgpack.UnpackException) as error:
        raise InvalidRequest(f"a chunk of rows cannot be read: {error!r:.100}") from None
    if len(found) % 2 or not all(found[::2]):
        raise InvalidRequest("a chunk of rows is an array of keys and values, in turns, all of them bytes")
    return found


def _is_bytes_next(data: bytes, at: int) -> bool:
    """Return whether a msgpack bin begins at this position."""
    return data[at : at + 1] in (b"\xc4", b"\xc5", b"\xc6")


def check_rows(data: bytes, partition: int, kind: str) -> None:
    """Check each row of a chunk before it enters the log of this partition, in a topic of this kind. Raise
    InvalidRequest, which names the row.

    A chunk of the largest size takes up to a second.
    """
    flat = decode_chunk(data)
    for number, (key, value) in enumerate(zip(flat[::2], flat[1::2], strict=True), 1):
        problem = problem_of_row(key, value, partition, kind)
        if problem is not None:
            raise InvalidRequest(f"row {number} of the chunk is damaged, and nothing of it was taken: {problem}")


# -- the state --------------------------------------------------------------------------------------------------------

_LOG_STATE: Final = array(integer(0, 2**48), OFFSET, integer(-(2**60), 2**60), array(COUNT, integer(0, 2**48)))
_COUNTS_STATE: Final = array(integer(0, U48_MAX // 1000), CHANGE, integer(0, U32_MAX), COUNT)
_EXPIRING_STATE: Final = array(optional(TIME), TIME)
_DONE: Final = list_of(array(DEADLINE, OFFSET), 1 << 16)


def _is_sweeper(value: Any) -> bool:
    """Return whether a value is the state of a sweep."""
    return type(value) is list and all([is_bytes(one) or SIGNED(one) or one is None for one in value])


_TRIM_STATE: Final = array(optional(DEADLINE), _DONE, _is_sweeper, least=2)
_NUMBERS: Final = array(integer(1, 2**31), COUNT, is_bool)
_SCHEDULES_STATE: Final = array(COUNT, optional(TIME), optional(text()))
_OUTBOX_STATE: Final = array(COUNT, COUNT, COUNT, COUNT, COUNT)
_STATE: Final = array(
    *(one_of(1), TIME, TIME, TIME, U32),
    *(_LOG_STATE, _COUNTS_STATE, _EXPIRING_STATE, _TRIM_STATE, _NUMBERS),
    lambda value: type(value) is dict,
    integer(1, 10_000),
    lambda value: value is None or type(value) is list,
    *(_SCHEDULES_STATE, _OUTBOX_STATE, TIME),
    lambda value: value is None or type(value) is list,
    lambda value: type(value) is list,
)
_SETTINGS_FIELD: Final = 10
_NO_SETTINGS: Final = ("dead_letter", "restoring")


def _check_state(value: Any, kind: str) -> None:
    """Raise _Wrong unless a value is the state row of a partition of this kind of topic."""
    if not _STATE(value):
        names = (
            "version, index, times, log, counts, forgotten rows, trimming, numbers, settings, level, reset, schedules, "
            "outbox, index base, restore, skips"
        )
        raise _Wrong(f"its fields are not those of a partition's state ({names})")
    settings = {name: one for name, one in value[_SETTINGS_FIELD].items() if name not in _NO_SETTINGS}
    try:
        checked_record(settings, kind)
    except SandqError as error:
        raise _Wrong(f"its settings are wrong: {error.message}") from None


# -- log rows ---------------------------------------------------------------------------------------------------------

_KIND_BATCH, _KIND_MESSAGE = 1, 2
_FLAGS: Final = 3
_ID: Final = optional(OFFSET)
_INLINE: Final = array(_ID, are_fields)
_APART: Final = array(_ID, one_of(None), COUNT, are_fields)


def _check_log_row(key: bytes, value: bytes, partition: int, kind: str) -> None:
    """Raise _Wrong unless a row is one of the log: a batch, or a single message."""
    if not is_offset_of(key, partition):
        raise _Wrong(_key_problem(partition))
    if len(value) < _LOG_HEADER.size:
        raise _Wrong(f"a log row has at least {_LOG_HEADER.size} bytes, this one {len(value)}")
    row_kind, flags, count, _ = _LOG_HEADER.unpack_from(value)
    body = value[_LOG_HEADER.size :]
    if row_kind == _KIND_BATCH and not flags:
        _check_batch(key, body, count, kind)
    elif row_kind == _KIND_MESSAGE and not flags & ~_FLAGS and count == 1:
        fields = decode_row(body)
        if not (_INLINE(fields) or _APART(fields)):
            raise _Wrong("its fields are not those of a message")
        needed = Column.KEY if kind == COMPACTED else Column.VALUE
        if fields[1] is not None and needed not in fields[1]:
            raise _Wrong(f"a message of a {kind} topic has a {needed.name.lower()}")
    else:
        raise _Wrong(f"there is no log row of kind {row_kind} with flags {flags} and {count} messages")


def _check_batch(key: bytes, body: bytes, count: int, kind: str) -> None:
    """Raise _Wrong unless a batch is valid, has `count` messages, and fits the kind of topic."""
    try:
        batch = Batch.parse(body, max_bytes=BATCH_BYTES)
    except InvalidRequest as error:
        raise _Wrong(error.message) from None
    if batch.count != count:
        raise _Wrong(f"its header names {count} messages, and its batch has {batch.count}")
    place = int.from_bytes(key[12:], "big") >> 12
    if place + count - 1 > PLACE_BITS >> 12:
        raise _Wrong(f"a batch of {count} messages at place {place} ends after the last place there is")
    for column in batch.columns:
        if column not in TYPE_OF:
            raise _Wrong(f"this version has no column {column}")
        is_text = TYPE_OF[column] == TYPE_BYTES
        cells: Sequence[Any] = (batch.bytes_column(column) if is_text else batch.int_column(column)) or ()
        check = COLUMNS.get(column)
        if check is not None and not all([cell is None or check(cell) for cell in set(cells)]):
            raise _Wrong(f"a value of {Column(column).name} is not one of a message")
        if column == Column.VALUE and kind != COMPACTED and None in cells:
            raise _Wrong("a message of the batch has no value")
    if kind == COMPACTED:
        keys = batch.bytes_column(Column.KEY)
        if keys is None or not all(keys):
            raise _Wrong("a message of a compacted topic has a key")


# -- rows of keys -----------------------------------------------------------------------------------------------------


def _check_of_keys(tag: bytes, key: bytes, value: bytes) -> None:
    """Check a row that only a compacted topic has."""
    if tag == b"v":
        is_right = bool(key) and len(value) >= _VALUE_HEADER.size and _is_value(value)
    elif tag == b"x":
        is_right = len(key) > 6 and not value
    elif tag == b"y":
        is_right = bool(key) and len(value) == OFFSET_BYTES
    else:
        is_right = not key and (KEYS_STATE if tag == b"o" else COMPACTION)(decode_row(value))
    if not is_right:
        raise _Wrong("its key or its fields are not those of such a row")


def _is_value(value: bytes) -> bool:
    """Return whether bytes are the value of a key in a compacted topic, with its header."""
    flags, length, expires_ms, _ = _VALUE_HEADER.unpack_from(value)
    if flags not in (0, 1) or not 0 <= expires_ms <= U48_MAX:
        return False
    return length <= len(value) - _VALUE_HEADER.size if flags else not length


# -- all together -----------------------------------------------------------------------------------------------------


def problem_of_row(key: bytes, value: bytes, partition: int, kind: str) -> str | None:
    """Return what is wrong with a row of a partition in a topic of this kind; None if nothing is."""
    try:
        _check(key, value, partition, kind)
    except _Wrong as problem:
        return f"row {key[:40].hex()} ({_shown_tag(key)}): {problem}"
    return None


def _check(key: bytes, value: bytes, partition: int, kind: str) -> None:
    """Raise _Wrong if a row cannot be one of this partition."""
    tag, rest = key[:1], key[1:]
    if len(key) > KEY_BYTES_MOST:
        raise _Wrong(f"a key of {len(key)} bytes; {KEY_BYTES_MOST} is the limit")
    if tag == LOG_TAG:
        _check_log_row(rest, value, partition, kind)
        return
    if key == STATE_TAG:
        _check_state(decode_row(value), kind)
        return
    if kind == COMPACTED and tag in COMPACTED_TAGS:
        _check_of_keys(tag, rest, value)
        return
    if key == b"q":
        if not array(TIME)(decode_row(value)):
            raise _Wrong("its field is no time")
        return
    known = COMMON.get(tag)
    if known is None or (tag in _RANKED_TAGS and kind not in _RANKED_KINDS):
        raise _Wrong(f"a {kind} topic has no rows with this tag")
    if not known.key(rest, partition):
        raise _Wrong(_key_problem(partition))
    if not known.fields(decode_row(value) if value else NOTHING):
        raise _Wrong("its fields are not those of such a row")


_RANKED_TAGS: Final = (b"Q", b"R", b"T", b"P")
_RANKED_KINDS: Final = ("priority", FAIR)


def _key_problem(partition: int) -> str:
    """Return the text of the mistake for a wrong key."""
    return f"its key is not one of such a row of partition {partition}"


def _shown_tag(key: bytes) -> str:
    """Return the tag of a row for a mistake."""
    return f"tag {key[:1].decode('ascii', 'replace')!r}"


def decode_row(value: bytes) -> Any:
    """Decode a row of bounded size. Raise _Wrong."""
    if len(value) > SMALL_BYTES:
        _check_items(value)
    try:
        return msgpack.unpackb(value, raw=False, strict_map_key=False)
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise _Wrong(f"it cannot be decoded: {error!r:.100}") from None


def _check_items(data: bytes) -> None:
    """Raise _Wrong for a row with too many items: an item of one byte costs far more memory once it is decoded.

    Skips the content of bytes and texts, so that the time depends on the number of items only.
    """
    # A minimal msgpack walker without recursion: `left` counts the items that are still expected, including those of
    # arrays and maps that have begun.
    at, left, items, end = 0, 1, 0, len(data)
    while left:
        if at >= end:
            raise _Wrong("it ends in the middle")
        items += 1
        if items > ROW_ITEMS:
            raise _Wrong(f"more than {ROW_ITEMS} items")
        left -= 1
        head = data[at]
        at += 1
        if head < 0x80 or head >= 0xE0 or head in (0xC0, 0xC2, 0xC3):
            continue
        if head < 0x90:
            left += 2 * (head & 15)
        elif head < 0xA0:
            left += head & 15
        elif head < 0xC0:
            at += head & 31
        elif head in _FIXED_SIZES:
            at += _FIXED_SIZES[head]
        elif head in _COUNTED_SIZES:
            width, per_item, extra = _COUNTED_SIZES[head]
            count = int.from_bytes(data[at : at + width], "big")
            at += width + extra
            if per_item:
                left += per_item * count
            else:
                at += count
        else:
            raise _Wrong("it is no MessagePack")


_FIXED_SIZES: Final = {
    **{0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8},
    **{0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17},
}
"""Bytes after the head of a value of this type."""
_COUNTED_SIZES: Final = {
    **{0xC4: (1, 0, 0), 0xC5: (2, 0, 0), 0xC6: (4, 0, 0), 0xC7: (1, 0, 1), 0xC8: (2, 0, 1), 0xC9: (4, 0, 1)},
    **{0xD9: (1, 0, 0), 0xDA: (2, 0, 0), 0xDB: (4, 0, 0)},
    **{0xDC: (2, 1, 0), 0xDD: (4, 1, 0), 0xDE: (2, 2, 0), 0xDF: (4, 2, 0)},
}
"""By type: size of the count after the head, items per count (0: the count is in bytes), and additional bytes."""
