"""Rows of a timer partition. PERSISTED: tags, field orders and struct layouts never change their meaning.

Keys are relative to the store and begin with one tag byte. Integers are big-endian: keys sort in numeric order::

    "a" token u64                      progress of a lease: bitmaps of acked and left messages; when and how it ended
    "b" group u32, offset 16           message that the cursor passed, blocked by its key (ordering: key)
    "d" group u32, offset 16           dead message of a group
    "e" due_ms u48, key                index row: that row expires at due_ms, if its last field still says so
    "f" topic u32, partition u16, seq u64  message to send to another partition
    "g" group u32                      group
    "h" name                           hold
    "i" id 16                          current offset of a moved message
    "j" job id 16                      job
    "k" group u32, offset 16           copy of a message that a group keeps, so that the log need not keep it
    "l" token u64                      lease
    "m" offset 16                      log row: a batch row or a single-message row
    "n" hour u32, seq u64              numbers of messages per second of an hour, or changes of them
    "p" id 16                          payload of a message that is larger than `INLINE_BYTES`
    "q" producer id u64                idempotent producer; without an id: last use of the newest forgotten producer
    "r" producer id u64, number u64    ids in the reply to a producer's batch that do not follow from the batch
    "s"                                state of the partition
    "D" group u32, dead_ms u48, offset 16  index row: that dead message of a group died at dead_ms
    "B" topic u32, partition u16       end of the batch that is being sent to that partition
    "K" digest 16, unique key          like "u", for a message with a key (since feature level 18): digest of the key
    "L" group name                     limits of a group: this partition's allowance
    "N" group u32                      number of spilled messages of a group
    "N" group u32, offset 16           time of a spilled message, which is in the key of its row "W"
    "t" offset 16                      tombstone: the message at this offset was cancelled or moved
    "u" unique key                     message that has this unique key
    "X"                                state of the partition in a backup, while the backup is being restored
    "V" offset 16                      fields of a message of a batch row, after an update
    "U" tenant, 0, unique key          like "u", in a fair topic (since feature level 10)
    "y" offset 16                      later changes of a message of a batch row: its priority, its fields
    "w" group u32, due_ms u48, seq u64 messages that wait for their next attempt
    "W" group u32, time u48, offset 16 spilled message: its due time, then the fields of "w" without messages
    "F" fire_ms u48, name              schedule that fires at that time
    "M" limit name, 0, number u64      member of a named limit. Only in the topic `sandq.limits`
    "O" group name, 0, partition u64   limits of a group: another partition's share. Only in partition 0. For a named
                                       limit: its name, 0, and the number of the member
    "P" group u32, tenant              pace of a tenant
    "Q" group u32, queue               ready queue of a group: a tenant, a zero byte, a priority u32
    "R" group u32, queue, offset 16    messages in a ready queue
    "S" name                           schedule
    "Z" group u32, "k", ordering hash u64  pause of a key
    "Z" group u32, "t", tenant         pause of a tenant
    "T" group u32, path                fair-queueing state of the tenants whose names begin with this path
    "z" group u32, offset 16           messages above the cursor that the group had passed before a clock reset

A log row begins with the header `<B B 2x I q`: kind u8, flags u8, two zero bytes, count u32, created_ms i64. It is 16
bytes long, so that a batch after it keeps its 8-byte alignment.

Kind 1 is a batch row: after the header comes the batch as the producer sent it. Kind 2 is a single-message row: after
the header comes msgpack `[id | nil, {column id: value}]`. If the message has a payload row, it is msgpack `[id | nil,
nil, payload bytes, {column: value}]` instead. This map contains only the columns that the log needs: ttl, unique key,
ordering hash, digest of the key, max_attempts, backoff, cost, priority and tenant. The map's priority overrides the
priority in the payload.

Flag 1: the message has columns that the log needs. Flag 2: the delivery time was given as a delay, which counts from
the time when the message was stored, or moved last. If a message was stored at a far later time than requested, because
the floor was ahead, its map contains the requested time as `deliver_ms`, in the log and in the copy that a group keeps.

All other values are msgpack arrays. Ranges are packed as base offset (16 bytes) and count u32, one after the other.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any, Final, NamedTuple

import msgpack

from sandq.model import offsets
from sandq.model.batch import Column
from sandq.model.errors import Corruption
from sandq.model.partitioning import ordering_hash
from sandq.model.retries import RetryRules, cost_of, rules_of
from sandq.partition.base.view import Row, View

LOG, PAYLOAD, TOMBSTONE, MOVED, COUNTS, FORGET = b"m", b"p", b"t", b"i", b"n", b"e"
UNIQUE, SCOPED_UNIQUE, KEYED_UNIQUE = b"u", b"U", b"K"
GROUP, LEASE, PROGRESS, WAITING, DEAD, KEPT, BLOCKED, GAPS = b"g", b"l", b"a", b"w", b"d", b"k", b"b", b"z"
SPILLED, SPILLED_AT, DEATH = b"N", b"W", b"D"
QUEUE, READY, TURNS, PACE = b"Q", b"R", b"T", b"P"
PAUSE = b"Z"
PAUSED_KEY, PAUSED_TENANT = b"k", b"t"
JOB = b"j"
SCHEDULE, FIRE = b"S", b"F"
HOLD = b"h"
OVERLAY, UPDATED = b"y", b"V"
LIMIT, SHARE, LIMIT_MEMBER = b"L", b"O", b"M"
PRODUCER, ANSWER = b"q", b"r"
OUTBOX, OUTBOX_BATCH = b"f", b"B"
STATE_KEY = b"s"
KIND_BATCH, KIND_MESSAGE = 1, 2
FLAG_EXTRA, FLAG_DELAY = 1, 2
INLINE_BYTES = 4096
LOG_HEADER = struct.Struct("<BB2xIq")
CREATED = slice(8, 16)
"""Slice of a log row that holds its creation time, in ms, little-endian."""
PLAIN_FROM = LOG_HEADER.size + 2
"""Position in a plain row at which the message's fields begin."""
_NEEDED = (Column.TTL_MS, Column.UNIQUE_KEY, Column.MAX_ATTEMPTS, Column.BACKOFF, Column.COST)
"""Columns of a producer that the log needs if a message has them."""
_RANK = (Column.PRIORITY, Column.TENANT)
"""Columns that determine the ready queue of a message."""
_PLAIN_HEADS = {bytes([KIND_MESSAGE, 0]), bytes([KIND_MESSAGE, FLAG_DELAY])}
_PLAIN_FIELDS = b"\x92\xc0"
"""The msgpack header of a plain row: an array of two values, nil and the fields."""
RANGE_BYTES = 20
_ONE = (1).to_bytes(4, "big")
"""The packed length of a range of one message."""
SHARED_BYTES = 12
"""Length of the first part of an offset (delivery time and Raft index), which is the same for all messages of a log
row."""
_ALL = 1 << 40
DIGEST_BYTES: Final = 16
"""Length of the digest that replaces a key in the name of a message. Keys may be long, and look-aheads hold many names.
"""

Fields = dict[int, Any]
"""Column id -> value of one message. The delivery time is missing, because the offset contains it."""


class Range(NamedTuple):
    """`length` messages at consecutive offsets, beginning with `base`."""

    base: bytes
    length: int


class Extra(NamedTuple):
    """Values of a message that the log needs in addition to the offset. `order`: hash of the key, in a topic ordered by
    key. `tenant`: None stands for `default`."""

    id: bytes
    ttl_ms: int | None
    unique_key: bytes | None
    order: int | None
    tenant: bytes | None = None
    key_digest: bytes | None = None
    """Digest of the key within which the unique key is unique. None if there is no such key."""
    retry: RetryRules | None = None
    """The message's own retry rules. None if it has none."""
    cost: int = 1
    """Number of units that a delivery of the message takes from a rate with a unit."""


class LogEntry(NamedTuple):
    """The data of a log row, or of a part of a log row, that leasing needs. `first`: first offset; `length`: number of
    messages; `size`: bytes."""

    first: bytes
    length: int
    size: int
    extra: Extra | None = None
    unit: int = 0
    """Bytes of one message of a batch, averaged over the whole row. The size of a part is computed only from `unit`, so
    replicas agree on it even if they split the row differently."""
    row: bytes | None = None
    """The plain row itself, if it is in memory: the message can then be sent without reading the row again."""

    @property
    def cost(self) -> int:
        """Cost of each of its messages."""
        return 1 if self.extra is None else self.extra.cost

    def part(self, start: int, stop: int) -> LogEntry:
        """Return an entry with the messages from position `start` to `stop` (exclusive) of this entry."""
        return LogEntry(offsets.shift(self.first, start), stop - start, self.unit * (stop - start), None, self.unit)


def log_key(offset: bytes) -> bytes:
    """Return the key of the log row at an offset."""
    return LOG + offset


def token_key(tag: bytes, token: int) -> bytes:
    """Return the key of a lease's row with this tag."""
    return tag + token.to_bytes(8, "big")


def group_key(group_id: int) -> bytes:
    return GROUP + group_id.to_bytes(4, "big")


def waiting_key(group_id: int, due_ms: int, seq: int) -> bytes:
    """Return the key of a waiting entry's row."""
    return WAITING + group_id.to_bytes(4, "big") + due_ms.to_bytes(6, "big") + seq.to_bytes(8, "big")


def scoped_unique_key(tenant: bytes, unique_key: bytes) -> bytes:
    """Return the key of the row of a tenant's unique key. The name of a tenant contains no zero byte."""
    return SCOPED_UNIQUE + tenant + b"\0" + unique_key


def key_digest(key: bytes) -> bytes:
    """Return the digest that stands for a key in the name of a message."""
    return blake2b(key, digest_size=DIGEST_BYTES).digest()


def keyed_unique_key(digest: bytes, unique_key: bytes) -> bytes:
    """Return the key of the row of a unique key that is unique within a key. `digest`: digest of that key."""
    return KEYED_UNIQUE + digest + unique_key


def name_digest(fields: Fields) -> bytes | None:
    """Return the digest of a message's key if the message has a unique key as well."""
    if Column.UNIQUE_KEY not in fields or (key := fields.get(Column.KEY)) is None:
        return None
    return key_digest(key)


def hold_key(name: str) -> bytes:
    return HOLD + name.encode()


def producer_key(producer_id: int) -> bytes:
    return PRODUCER + producer_id.to_bytes(8, "big")


def answer_key(producer_id: int, number: int) -> bytes:
    return ANSWER + producer_id.to_bytes(8, "big") + number.to_bytes(8, "big")


def of_group(tag: bytes, group_id: int, offset: bytes = b"") -> bytes:
    """Return the key of a row that belongs to one group. `offset`: an offset (`DEAD`, `KEPT`, `BLOCKED`), or the fields
    that the module docstring lists for the tag."""
    return tag + group_id.to_bytes(4, "big") + offset


def group_bounds(tag: bytes, group_id: int) -> tuple[bytes, bytes]:
    """Return the range of keys of a group's rows with this tag."""
    return of_group(tag, group_id), of_group(tag, group_id + 1)


def death_key(group_id: int, dead_ms: int, offset: bytes) -> bytes:
    """Return the key of the index row of a dead message."""
    return of_group(DEATH, group_id, dead_ms.to_bytes(6, "big") + offset)


def after(key: bytes) -> bytes:
    """Return the smallest key above `key`."""
    return key + b"\x00"


def tag_bounds(tag: bytes) -> tuple[bytes, bytes]:
    """Return the range of keys with this tag."""
    return tag, bytes([tag[0] + 1])


def entry_start(offset: bytes) -> bytes:
    """Return the lowest key that a log row with `offset` can have. All messages of a row have the same Raft index and
    delivery time."""
    return LOG + offset[:SHARED_BYTES] + bytes(4)


def all_rows(view: View, tag: bytes) -> list[Row]:
    """Return all rows with this tag."""
    start, stop = tag_bounds(tag)
    return view.scan(start, stop, limit=_ALL, max_bytes=_ALL)


def all_of_group(view: View, tag: bytes, group_id: int) -> list[Row]:
    """Return all rows of a group with this tag."""
    start, stop = group_bounds(tag, group_id)
    return view.scan(start, stop, limit=_ALL, max_bytes=_ALL)


_pack = msgpack.Packer(use_bin_type=True).pack
"""Shared by all calls: creating a packer takes twice as long as packing a small row. It keeps no state, even when it
raises."""


def pack(*fields: object) -> bytes:
    """Return the fields as a MessagePack array."""
    packed: bytes = _pack(fields)
    return packed


def pack_field(field: object) -> bytes:
    """Pack one field for `pack_with`. A caller can cache the result if the other fields change more often."""
    packed: bytes = _pack(field)
    return packed


def pack_with(fields: Sequence[object], *last: bytes) -> bytes:
    """Pack up to 15 fields like `pack`, followed by fields that are packed already."""
    packed: bytes = _pack(fields)
    count = len(fields) + len(last)
    head = bytes([0x90 | count]) if count < 16 else b"\xdc" + count.to_bytes(2, "big")  # msgpack's array headers
    return head + packed[1:] + b"".join(last)


def unpack(value: bytes) -> list[Any]:
    """Return the fields of a row."""
    fields: list[Any] = msgpack.unpackb(value, raw=False, strict_map_key=False)
    return fields


def with_defaults(fields: Sequence[Any], *defaults: Any) -> tuple[Any, ...]:
    """Return the optional fields at the end of a row, with the default of each missing one. Ignore any further
    fields."""
    return (*fields[: len(defaults)], *defaults[len(fields) :])


def batch_row(count: int, created_ms: int, batch: bytes) -> bytes:
    """Return the log row of a batch."""
    return LOG_HEADER.pack(KIND_BATCH, 0, count, created_ms) + batch


def needed_of(
    fields: Fields, ordered: bool, wanted_ms: int | None = None, *, key_digest: bytes | None = None
) -> Fields:
    """Return the columns of a message that the log itself needs. `wanted_ms`: requested delivery time, if the message
    is stored at a far later time. `key_digest`: digest of the key within which the unique key is unique."""
    light: Fields = {column: fields[column] for column in _NEEDED if column in fields}
    if key_digest is not None:
        light[Column.KEY_DIGEST] = key_digest
    order = order_of(fields) if ordered else None
    if order is not None:
        light[Column.ORDERING_HASH] = order
    if wanted_ms is not None:
        light[Column.DELIVER_MS] = wanted_ms
    return light


def order_of(fields: Fields) -> int | None:
    """Return the ordering hash of a message. None if it has no key."""
    key = fields.get(Column.KEY)
    return None if key is None else ordering_hash(key)


def message_rows(
    offset: bytes,
    created_ms: int,
    fields: Fields,
    original_id: bytes | None,
    light: Fields,
    *,
    is_delay: bool = False,
) -> tuple[list[Row], LogEntry]:
    """Return the rows of one message, and its entry. If the message is too large for a log row, a payload row precedes
    the log row. `light`: the columns that the log needs (`needed_of`). `is_delay`: the delivery time was given as a
    delay."""
    flags = (FLAG_EXTRA if light else 0) | (FLAG_DELAY if is_delay else 0)
    header = LOG_HEADER.pack(KIND_MESSAGE, flags, 1, created_ms)
    extra = extra_of(original_id or offset, light, fields) if light else None
    whole = fields
    if Column.ORDERING_HASH in light:
        fields = whole = fields | {Column.ORDERING_HASH: light[Column.ORDERING_HASH]}
    if Column.KEY_DIGEST in light:
        fields = whole = fields | {Column.KEY_DIGEST: light[Column.KEY_DIGEST]}
    if Column.DELIVER_MS in light:
        whole = fields | {Column.DELIVER_MS: light[Column.DELIVER_MS]}
    inline = pack(original_id, whole)
    if len(inline) <= INLINE_BYTES:
        return [(LOG + offset, header + inline)], LogEntry(offset, 1, len(header) + len(inline), extra)
    payload = pack(fields)
    ranked = {column: fields[column] for column in _RANK if column in fields}
    if ranked:
        light = light | ranked
        header = LOG_HEADER.pack(KIND_MESSAGE, flags | FLAG_EXTRA, 1, created_ms)
        extra = extra_of(original_id or offset, light, fields)
    row = header + pack(original_id, None, len(payload), light)
    return [(PAYLOAD + (original_id or offset), payload), (LOG + offset, row)], LogEntry(offset, 1, len(payload), extra)


def plain_rows(
    column: Sequence[bytes], created_ms: int, messages: Sequence[Fields], *, is_delay: bool = False
) -> list[Row] | None:
    """Return the log rows of messages for which the log needs no columns, like `message_rows`. `column`: offsets of the
    messages. Return None if a payload is too large for a log row."""
    header = LOG_HEADER.pack(KIND_MESSAGE, FLAG_DELAY if is_delay else 0, 1, created_ms)
    packed = [_pack((None, fields)) for fields in messages]
    if max(map(len, packed)) > INLINE_BYTES:
        return None
    return [(LOG + offset, header + inline) for offset, inline in zip(column, packed, strict=True)]


def value_rows(
    column: Sequence[bytes], created_ms: int, values: Sequence[bytes], *, is_delay: bool = False
) -> list[Row] | None:
    """Return `plain_rows` of messages that have only a value. Faster: values of the same length share one header."""
    lengths = set(map(len, values))
    header = LOG_HEADER.pack(KIND_MESSAGE, FLAG_DELAY if is_delay else 0, 1, created_ms)
    if max(lengths) > INLINE_BYTES:
        return None
    heads = {length: header + _pack((None, {Column.VALUE: bytes(length)}))[: -length or None] for length in lengths}
    if max([len(head) + length for length, head in heads.items()]) > INLINE_BYTES + len(header):
        return None
    return [(LOG + offset, heads[len(value)] + value) for offset, value in zip(column, values, strict=True)]


class Moved(NamedTuple):
    """The fields of a `MOVED` row: the current offset of a message that was moved."""

    offset: bytes
    moves: int = 0
    """Number of moves by its producer."""
    moved_ms: int | None = None
    """Time of the last move by its producer, in ms. None if only a clock reset moved it."""
    forgotten_ms: int | None = None


def load_moved(row: bytes) -> Moved:
    """Read a `MOVED` row."""
    return Moved(*unpack(row))


class Tombstone(NamedTuple):
    """The fields of a `TOMBSTONE` row."""

    why: str
    at_ms: int
    forgotten_ms: int | None


def load_tombstone(row: bytes) -> Tombstone:
    """Read a `TOMBSTONE` row."""
    return Tombstone(*unpack(row))


class KeptRow(NamedTuple):
    """The fields of a `KEPT` row: a message that a group keeps."""

    id: bytes
    created_ms: int
    fields: Fields
    is_immortal: bool
    """Whether the ttl no longer applies."""
    is_delay: bool | None = None
    """Whether the delivery time was given as a delay. None if that is not known."""
    lives: Sequence[Any] = ()


def load_kept(row: bytes) -> KeptRow:
    """Read a `KEPT` row."""
    return KeptRow(*unpack(row))


def id_of(key: bytes, value: bytes) -> bytes:
    """Return the id of the message in a single-message row."""
    message_id: bytes | None = unpack(value[LOG_HEADER.size :])[0]
    return message_id or key[1:]


def moved_row(value: bytes, message_id: bytes, wanted_ms: int | None = None, *, is_delay: bool = False) -> bytes:
    """Return the log row of a message for another offset. Its payload row, if any, does not change. `wanted_ms`: as in
    `needed_of`. `is_delay`: as in `message_rows`."""
    kind, flags, count, created_ms = LOG_HEADER.unpack_from(value)
    _, *rest = unpack(value[LOG_HEADER.size :])
    rest[-1].pop(Column.DELIVER_MS, None)
    if wanted_ms is not None:
        rest[-1][Column.DELIVER_MS] = wanted_ms
        flags |= FLAG_EXTRA
    flags = flags | FLAG_DELAY if is_delay else flags & ~FLAG_DELAY
    return LOG_HEADER.pack(kind, flags, count, created_ms) + pack(message_id, *rest)


def ranked_row(value: bytes, priority: int) -> bytes:
    """Return the log row of a message that has a payload row, with a new priority, which overrides the priority in the
    payload."""
    kind, flags, count, created_ms = LOG_HEADER.unpack_from(value)
    *fields, light = unpack(value[LOG_HEADER.size :])
    header = LOG_HEADER.pack(kind, flags | FLAG_EXTRA, count, created_ms)
    return header + pack(*fields, light | {Column.PRIORITY: priority})


def is_apart(value: bytes) -> bool:
    """Return whether a single-message row has its payload in a row of its own."""
    return unpack(value[LOG_HEADER.size :])[1] is None


def extra_of(message_id: bytes, light: Fields, fields: Fields | None = None) -> Extra:
    """Return the `Extra` of a message.

    `light`: the fields that the log needs (`needed_of`). `fields`: all fields of the message, if `light` may lack the
    tenant.
    """
    tenant = (light if fields is None else fields).get(Column.TENANT)
    ttl_ms, unique_key = light.get(Column.TTL_MS), light.get(Column.UNIQUE_KEY)
    order, digest = light.get(Column.ORDERING_HASH), light.get(Column.KEY_DIGEST)
    return Extra(message_id, ttl_ms, unique_key, order, tenant, digest, rules_of(light), cost_of(light))


def kept_extra(message_id: bytes, fields: Fields) -> Extra:
    """Return `extra_of` a message that a group keeps. The kept row has no digest of the key, so compute the digest."""
    return extra_of(message_id, fields)._replace(key_digest=name_digest(fields))


def kept_row(
    message_id: bytes,
    created_ms: int,
    fields: Fields,
    *,
    immortal: bool = False,
    wanted_ms: int | None = None,
    is_delay: bool | None = None,
    lives: Sequence[Any] = (),
) -> bytes:
    """Return the row of a message that a group keeps. `immortal`: the ttl no longer applies. `wanted_ms`: as in
    `needed_of`. `is_delay`: as in `message_rows`; None if that is not known. `lives`: the lives before the message was
    redriven, as packed by `records.lives`."""
    if wanted_ms is not None:
        fields = fields | {Column.DELIVER_MS: wanted_ms}
    row = message_id, created_ms, fields, immortal
    if lives:
        return pack(*row, is_delay, lives)
    return pack(*row) if is_delay is None else pack(*row, is_delay)


def is_immortal(kept: bytes) -> bool:
    """Return whether the ttl of a message that a group keeps no longer applies."""
    return load_kept(kept).is_immortal


def kept_entry(offset: bytes, row: bytes) -> LogEntry:
    """Return the entry of a message that a group keeps."""
    kept = load_kept(row)
    return LogEntry(offset, 1, len(row), kept_extra(kept.id, kept.fields)._replace(order=order_of(kept.fields)))


def log_entry(key: bytes, value: bytes) -> LogEntry:
    """Return the entry of a log row."""
    kind, flags, count, _ = LOG_HEADER.unpack_from(value)
    if kind == KIND_BATCH:
        return batch_entry(key[1:], count, len(value))
    if not flags & FLAG_EXTRA and len(value) >= 64:
        return LogEntry(key[1:], 1, len(value))
    # A log row without its payload is shorter than 64 bytes. It contains the size of the
    # payload, because limits in bytes include the payload.
    fields = unpack(value[LOG_HEADER.size :])
    apart = fields[1] is None
    extra = extra_of(fields[0] or key[1:], fields[3] if apart else fields[1]) if flags & FLAG_EXTRA else None
    return LogEntry(key[1:], 1, fields[2] if apart else len(value), extra)


def is_plain(value: bytes) -> bool:
    """Return whether a log row is plain: a single-message row with its payload, at the message's first offset, without
    columns for the log. Many plain rows can be processed together."""
    return value[:2] in _PLAIN_HEADS and value[PLAIN_FROM - 2 : PLAIN_FROM] == _PLAIN_FIELDS


def is_batch_of_one(value: bytes) -> bool:
    """Return whether a log row is a batch row with a single message."""
    return bool(value) and value[0] == KIND_BATCH and LOG_HEADER.unpack_from(value)[2] == 1


def are_plain(values: Sequence[bytes]) -> bool:
    """Return whether all of these log rows are plain."""
    heads = {value[:2] for value in values}
    return heads <= _PLAIN_HEADS and {value[PLAIN_FROM - 2 : PLAIN_FROM] for value in values} <= {_PLAIN_FIELDS}


def plain_fields(values: Sequence[bytes]) -> list[Fields]:
    """Return the fields of plain rows. Unpack all rows as one array, which is faster than one by one."""
    body = b"\xdd" + len(values).to_bytes(4, "big") + b"".join([value[PLAIN_FROM:] for value in values])
    return unpack(body)


def batch_entry(first: bytes, count: int, size: int) -> LogEntry:
    """Return the entry of a batch row; `size`: bytes of the row."""
    return LogEntry(first, count, size, None, max(1, size // count))


def pack_ranges(ranges: Sequence[Range]) -> bytes:
    """Return the ranges packed as base offset and length."""
    if ranges and [length for _, length in ranges].count(1) == len(ranges):
        return _ONE.join([base for base, _ in ranges]) + _ONE
    return b"".join([base + length.to_bytes(4, "big") for base, length in ranges])


def unpack_ranges(data: bytes) -> list[Range]:
    """Read packed ranges. Raise Corruption."""
    if len(data) % RANGE_BYTES:
        raise Corruption(f"a row holds {len(data)} bytes of ranges, not a multiple of {RANGE_BYTES}")
    return [
        Range(data[at : at + 16], int.from_bytes(data[at + 16 : at + 20], "big"))
        for at in range(0, len(data), RANGE_BYTES)
    ]


def plain_entries(found: Iterable[Row], most_bytes: int) -> list[LogEntry]:
    """Return the entries of plain rows. Entries of rows up to `most_bytes` long contain the row."""
    new = tuple.__new__  # takes half as long as calling the class, which matters for very many rows
    return [
        new(LogEntry, (key[1:], 1, size, None, 0, value if size <= most_bytes else None))
        for key, value in found
        for size in (len(value),)
    ]


def single_ranges(bases: Iterable[bytes]) -> list[Range]:
    """Return ranges of one message each."""
    new = tuple.__new__
    return [new(Range, (base, 1)) for base in bases]


def first_of(ranges: Sequence[Range], count: int) -> list[Range]:
    """Return the first `count` messages of ranges."""
    found: list[Range] = []
    for base, length in ranges:
        if count <= 0:
            break
        found.append(Range(base, min(length, count)))
        count -= length
    return found


def behind(ranges: Sequence[Range], count: int) -> list[Range]:
    """Return the messages of ranges without the first `count`."""
    found: list[Range] = []
    for base, length in ranges:
        if count < length:
            found.append(Range(offsets.shift(base, count), length - count) if count > 0 else Range(base, length))
        count -= min(count, length)
    return found


def last_of(entry: LogEntry) -> bytes:
    """Return the offset of the last message of an entry."""
    return offsets.shift(entry.first, entry.length - 1) if entry.length > 1 else entry.first
