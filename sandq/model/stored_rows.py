"""Check rows of a partition that come from outside the cluster, as a backup has them.

A restore writes rows into a partition's log, and every replica reads them later. `problem_of_row` says what is wrong
with one row: the length of its key, the types and ranges of its fields, the checksum and the columns of a batch. It
knows no other row; `TimerPartition` checks at the end of a restore what only all rows together show.

Row formats: docs/storage-format.md. Tags that exist in `partition.rows` are named there; a test compares both.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgpack

from sandq.model.batch import Batch
from sandq.model.batch_format import TYPE_BYTES, TYPE_OF, Column
from sandq.model.errors import InvalidName, InvalidRequest, SandqError
from sandq.model.limits import FIXED
from sandq.model.names import COMPACTED, FAIR, check_name, check_tenant, of_schedule
from sandq.model.offsets import OFFSET_BYTES, PARTITION_MAX, PLACE_BITS, PLACE_STEP, U48_MAX, U64_MAX
from sandq.model.stored_settings import check_group_record, checked_record

CHUNK_ROWS: Final = 8192
CHUNK_BYTES: Final = 20 << 20
"""Of a chunk, at most: a row may be a batch of 16 MiB."""
ROW_ITEMS: Final = 1 << 18
"""Most items that one row may have: the largest state row has about a third of that."""
SMALL_BYTES: Final = 32 << 10
"""A row up to this size is decoded without counting its items first."""
KEY_BYTES_MOST: Final = 64 << 10
LEASE_MESSAGES: Final = FIXED.grant_messages
WAITING_MESSAGES: Final = 1 << 24
"""Most messages of one waiting entry."""
BATCH_BYTES: Final = 64 << 20
"""Most bytes of a stored batch once decompressed: no configuration takes larger ones."""
TEXT_CHARS: Final = 4096
"""Most characters of a text in a row that has no limit of its own."""

I63_MAX: Final = 2**63 - 1
U32_MAX: Final = 2**32 - 1
_RANGE_BYTES: Final = OFFSET_BYTES + 4
_LOG_HEADER: Final = struct.Struct("<BB2xIq")
_VALUE_HEADER: Final = struct.Struct("<B3xIq16s")
_ANSWER_BYTES: Final = struct.calcsize(">BQIQQI")

Check = Callable[[Any], bool]
"""Whether a field of a row may have this value."""


class _Wrong(Exception):
    """Says what is wrong with a row."""


# -- chunks ---------------------------------------------------------------------------------------------------------


def decode_chunk(data: bytes) -> list[bytes]:
    """Return keys and values of a chunk, in turns. Raises InvalidRequest: it is none, or too large.

    Reads item by item and stops at the first that is not bytes: a chunk of arrays within arrays would take eighty times
    its size in memory.
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
    """Return whether a bin begins at this position."""
    return data[at : at + 1] in (b"\xc4", b"\xc5", b"\xc6")


def check_rows(data: bytes, partition: int, kind: str) -> None:
    """Check each row of a chunk before it enters the log of this partition, in a topic of this kind. Takes time: up to
    a second for a chunk of the largest size. Raises InvalidRequest, which names the row."""
    flat = decode_chunk(data)
    for number, (key, value) in enumerate(zip(flat[::2], flat[1::2], strict=True), 1):
        problem = problem_of_row(key, value, partition, kind)
        if problem is not None:
            raise InvalidRequest(f"row {number} of the chunk is damaged, and nothing of it was taken: {problem}")


# -- fields ---------------------------------------------------------------------------------------------------------


def _int(least: int, greatest: int) -> Check:
    return lambda value: type(value) is int and least <= value <= greatest


def _optional(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _text(most: int = TEXT_CHARS) -> Check:
    return lambda value: type(value) is str and len(value) <= most and _is_utf8(value)


def _is_utf8(value: str) -> bool:
    return value.isascii() or not any(["\ud800" <= character <= "\udfff" for character in value])


def _bytes(most: int) -> Check:
    return lambda value: type(value) is bytes and len(value) <= most


def _size(length: int) -> Check:
    return lambda value: type(value) is bytes and len(value) == length


def _list(check: Check, most: int) -> Check:
    return lambda value: type(value) is list and len(value) <= most and all(map(check, value))


def _row(*checks: Check, least: int | None = None) -> Check:
    """An array of these fields, of which those behind the first `least` may be missing."""
    fewest = len(checks) if least is None else least

    def check(value: Any) -> bool:
        if type(value) is not list or not fewest <= len(value) <= len(checks):
            return False
        return all([one(cell) for one, cell in zip(checks, value, strict=False)])

    return check


def _one_of(*values: Any) -> Check:
    return lambda value: type(value) in {type(one) for one in values} and value in values


def _is_name(value: Any) -> bool:
    try:
        check_name("group", value)
    except (InvalidName, InvalidRequest):
        return False
    return True


def _is_tenant(value: Any) -> bool:
    try:
        check_tenant(value)
    except InvalidRequest:
        return False
    return True


def _is_bool(value: Any) -> bool:
    return type(value) is bool


def _is_bytes(value: Any) -> bool:
    return type(value) is bytes


_TOKEN: Final = _bytes(64)

_COUNT: Final = _int(0, 2**62)
"""Also of numbers that rise: there is room for those that come after."""
_SIGNED: Final = _int(-(2**63), I63_MAX)
_CHANGE: Final = _int(-(2**48), 2**48)
"""How many messages more or, negative, fewer there are."""
_U32: Final = _int(0, U32_MAX)
_U64: Final = _int(0, U64_MAX)
_TIME: Final = _int(0, U48_MAX)
_DEADLINE: Final = _int(0, 2 * U48_MAX)
"""A time, and a duration behind it."""
_OFFSET: Final = _size(OFFSET_BYTES)
_RISING: Final[Check] = lambda value: _OFFSET(value) and value < b"\xff\xff"  # noqa: E731
"""An offset that others come after: it is made greater by one."""
_ERROR: Final = _optional(_text(FIXED.error_chars))
_PRIORITY: Final = _int(FIXED.priority_least, FIXED.priority_most)
_ATTEMPT: Final = _row(_COUNT, _text(), _TIME, _TIME, _text(), _ERROR)
_HISTORY: Final = _list(_ATTEMPT, 10)
_LIFE: Final = _row(_COUNT, _COUNT, _text(), _ERROR, _TIME, _TIME, _HISTORY)
_LIVES: Final = _list(_LIFE, 8)

_COLUMNS: Final[Mapping[int, Check]] = {
    Column.DELIVER_MS: _TIME,
    Column.TTL_MS: _int(1, U48_MAX),
    Column.PRIORITY: _PRIORITY,
    Column.TENANT: lambda value: _is_bytes(value) and _is_tenant(value.decode("ascii", "backslashreplace")),
    Column.UNIQUE_KEY: lambda value: _is_bytes(value) and 1 <= len(value) <= FIXED.unique_key_bytes,
    Column.EXPECTED_VERSION: lambda value: _is_bytes(value) and len(value) in (0, OFFSET_BYTES),
    Column.ORDERING_HASH: _U64,
    Column.KEY_DIGEST: lambda value: _is_bytes(value) and len(value) == 16,
}
"""What columns of a message may have beyond their types."""


def _is_cell(column: Any, value: Any) -> bool:
    if type(column) is not int or column not in TYPE_OF:
        return False
    if column == Column.VALUE and value is None:
        return True
    return _COLUMNS.get(column, _is_bytes)(value)


def _are_fields(value: Any) -> bool:
    """Whether this is `{column id: value}` of a message."""
    return type(value) is dict and all([_is_cell(column, cell) for column, cell in value.items()])


def _are_whole_fields(value: Any) -> bool:
    return _are_fields(value) and Column.VALUE in value


def _is_queue(value: Any) -> bool:
    """Whether this names a ready queue: a tenant or nothing, a zero byte, and a priority."""
    if type(value) is not bytes or len(value) < 5 or value[-5] != 0:
        return False
    return len(value) == 5 or _is_tenant(value[:-5].decode("ascii", "backslashreplace"))


def _is_range_list(most: int, *, in_order: bool) -> Check:
    """Packed ranges of up to `most` messages. `in_order`: they rise, and none overlaps the next."""

    def check(value: Any) -> bool:
        if type(value) is not bytes or not value or len(value) % _RANGE_BYTES:
            return False
        total, behind = 0, 0
        for at in range(0, len(value), _RANGE_BYTES):
            base = int.from_bytes(value[at : at + OFFSET_BYTES], "big")
            length = int.from_bytes(value[at + OFFSET_BYTES : at + _RANGE_BYTES], "big")
            if not length or (base & PLACE_BITS) + (length - 1) * PLACE_STEP > PLACE_BITS:
                return False
            if in_order and base < behind:
                return False
            behind = base + (length - 1) * PLACE_STEP + 1
            total += length
        return total <= most

    return check


# -- rows of one msgpack array --------------------------------------------------------------------------------------


class _Kind(NamedTuple):
    """Rows of one tag."""

    key: Callable[[bytes, int], bool]
    """Whether a key without its tag may be one, in this partition."""
    fields: Check
    """Whether a decoded value may be one."""


def _length(size: int) -> Callable[[bytes, int], bool]:
    return lambda key, partition: len(key) == size


def _named(check: Check) -> Callable[[bytes, int], bool]:
    def is_key(key: bytes, partition: int) -> bool:
        try:
            return check(key.decode())
        except UnicodeDecodeError:
            return False

    return is_key


def _is_place(key: bytes, partition: int) -> bool:
    """Whether this is an offset of the partition."""
    return len(key) == OFFSET_BYTES and int.from_bytes(key[-2:], "big") & PARTITION_MAX == partition


def _group_and(rest: Callable[[bytes, int], bool]) -> Callable[[bytes, int], bool]:
    """A group's number, which is above 0, and this behind it."""
    return lambda key, partition: len(key) >= 4 and key[:4] != bytes(4) and rest(key[4:], partition)


def _is_share_key(key: bytes, partition: int) -> bool:
    return len(key) > 3 and key[-3] == 0 and _named(_is_name)(key[:-3], partition)


def _is_forget_key(key: bytes, partition: int) -> bool:
    return len(key) > 7 and key[6:7] in _FORGOTTEN


_FORGOTTEN: Final = (b"t", b"i", b"u", b"U", b"K")
"""Tags of rows that are forgotten after a while: the last field of each says when."""


def _is_scoped_key(key: bytes, partition: int) -> bool:
    tenant, _, unique_key = key.partition(b"\0")
    return _is_tenant(tenant.decode("ascii", "backslashreplace")) and 1 <= len(unique_key) <= FIXED.unique_key_bytes


def _is_schedule_text(value: Any) -> bool:
    if not isinstance(value, str) or not 1 <= len(value) <= TEXT_CHARS or not _is_utf8(value):
        return False
    name, tenant = of_schedule(value)
    return bool(name) and (tenant is None or _is_tenant(tenant))


_DEAD_COUNTS: Final = _list(_row(_text(), _COUNT), 64)


def _is_group_settings(value: Any) -> bool:
    try:
        check_group_record(value)
    except SandqError:
        return False
    return True


def _is_plain_map(value: Any) -> bool:
    """Whether this is a map of names to plain values, as settings of a schedule are."""
    return type(value) is dict and all(
        [type(name) is str and (type(one) in (int, bool, type(None)) or _text()(one)) for name, one in value.items()]
    )


_SCHEDULE_TIMES: Final = ("every_ms", "start_ms", "end_ms", "anchor_ms", "jitter_ms", "count", "misfire_most")


def _is_schedule_settings(value: Any) -> bool:
    if not _is_plain_map(value):
        return False
    numbers = all([_COUNT(value[name]) for name in _SCHEDULE_TIMES if name in value])
    texts = all([type(value[name]) is str for name in ("cron", "zone", "misfire", "overlap_group") if name in value])
    return numbers and texts


_JOB_ARGUMENTS: Final[Mapping[str, Check]] = {
    "from_ms": _TIME,
    "until_ms": _TIME,
    "dry_run": _is_bool,
    "key_prefix": _optional(_is_bytes),
    "unique_key_prefix": _optional(_is_bytes),
    "to_ms": _TIME,
    "shift_ms": _int(-U48_MAX, U48_MAX),
    "priority": _PRIORITY,
    "group": _text(),
    "group_id": _U32,
    "reason": _optional(_text()),
    "error": _optional(_text(FIXED.error_chars)),
    "rate": _optional(_int(1, U32_MAX)),
    "above": _OFFSET,
    "kept_of": _optional(_U32),
}
_JOB_NEEDS: Final[Mapping[str, tuple[str, ...]]] = {
    "cancel": ("from_ms", "until_ms", "dry_run", "key_prefix"),
    "move": ("from_ms", "until_ms", "dry_run", "key_prefix"),
    "redrive": ("from_ms", "until_ms", "dry_run", "group", "reason", "group_id"),
    "purge_dead": ("from_ms", "until_ms", "dry_run", "group", "reason", "group_id"),
    "seek": ("group_id", "above"),
    "drop": ("group_id",),
}
_JOB_FIELDS: Final = _row(
    _size(16),
    _one_of(*_JOB_NEEDS),
    lambda value: type(value) is dict,
    *(_COUNT, _COUNT, _TIME),
    _one_of("running", "done", "stopped"),
    _is_bytes,
    *(_COUNT, _COUNT, _COUNT),
    _optional(_TIME),
    _TIME,
)


def _is_job(value: Any) -> bool:
    if not _JOB_FIELDS(value):
        return False
    kind, arguments, position = value[1], value[2], value[7]
    # Where messages of the log are gone through, it is an offset; else a key of another row.
    if len(position) != OFFSET_BYTES and (kind != "drop" and "kept_of" not in arguments):
        return False
    if not all([name in _JOB_ARGUMENTS and _JOB_ARGUMENTS[name](one) for name, one in arguments.items()]):
        return False
    if any([name not in arguments for name in _JOB_NEEDS[kind]]):
        return False
    return kind != "move" or any([name in arguments for name in ("to_ms", "shift_ms", "priority")])


def _is_counts(value: Any) -> bool:
    if type(value) is not list or len(value) % 2 or len(value) > 2 * 3600:
        return False
    return all(map(_int(0, 3599), value[::2])) and all(map(_CHANGE, value[1::2]))


def _is_producer(value: Any) -> bool:
    if not _row(_U32_OR_MORE, _COUNT, _TIME, _is_bytes, _one_of(True), least=4)(value):
        return False
    answers = value[3]
    if not answers or len(answers) % _ANSWER_BYTES or len(answers) > FIXED.producer_answers * _ANSWER_BYTES:
        return False
    return all([_is_answer(answers[at : at + _ANSWER_BYTES]) for at in range(0, len(answers), _ANSWER_BYTES)])


_U32_OR_MORE: Final = _U64
"""Epoch of a producer: of a partition it is a time or more."""


def _is_answer(packed: bytes) -> bool:
    how, entry, place, now_ms, floor_ms, _ = struct.unpack(">BQIQQI", packed)
    return bool(how <= 4 and max(entry, now_ms, floor_ms) <= U48_MAX and place < 1 << 20)


_DEAD_FIELDS: Final = _row(
    *(_COUNT, _text(), _ERROR, _TIME, _OFFSET, _SIGNED, _are_fields, _HISTORY, _LIVES),
    lambda value: value is None or _text()(value) or _is_forward(value),
    least=8,
)


def _is_forward(value: Any) -> bool:
    """Whether this says where a dead letter is to go, or was refused."""
    return _row(_U32, _int(0, PARTITION_MAX), _COUNT, _one_of(0), least=3)(value)


_WAITING_FIELDS: Final = _row(
    *(_COUNT, _ERROR, _is_range_list(WAITING_MESSAGES, in_order=True), _TIME, _is_bool, _optional(_DEADLINE), _HISTORY),
    _optional(_row(_TIME, _TIME, _is_bool)),
    _optional(_is_queue),
    *(_COUNT, _COUNT),
    least=7,
)
_PAST: Final = _row(_is_range_list(LEASE_MESSAGES, in_order=False), _HISTORY)


def _is_lease(value: Any) -> bool:
    fields = _row(
        *(_int(1, U32_MAX), _text(), _COUNT, _DEADLINE, _TIME, _is_range_list(LEASE_MESSAGES, in_order=False)),
        *(_TIME, _TIME, _is_bool, _list(_PAST, LEASE_MESSAGES)),
        _list(_row(_is_queue, _int(1, LEASE_MESSAGES)), LEASE_MESSAGES),
        *(_COUNT, _int(0, I63_MAX), _COUNT, _int(0, FIXED.handlers), _COUNT),
        least=10,
    )
    if not fields(value):
        return False
    if len(value) < 11 or not value[10]:
        return True
    packed = value[5]
    lengths = [int.from_bytes(packed[at + 16 : at + 20], "big") for at in range(0, len(packed), _RANGE_BYTES)]
    return sum(lengths) == sum([int(length) for _, length in value[10]])


_BITMAP: Final = _bytes((LEASE_MESSAGES + 7) // 8)
_ANSWERED: Final = _row(
    *(_int(0, FIXED.grant_messages * 1000), _optional(_OFFSET), _optional(_text()), _text()),
    lambda value: _text()(value) or _OFFSET(value),
    least=3,
)
_SCHEDULE_FIELDS: Final = _row(
    *(_one_of(1), _COUNT, _is_schedule_settings, _are_whole_fields, _optional(_TIME), _optional(_TIME)),
    *(_optional(_OFFSET), _COUNT, _COUNT, _is_bool, _TIME, _TIME, _optional(_TIME)),
    _optional(_row(_SIGNED, _TIME)),
    _list(_row(_TIME, _TIME), 1024),
    _list(_row(_TIME, _TIME, _text(), _optional(_OFFSET)), 16),
    _list(_row(_TOKEN, _optional(_OFFSET)), 16),
)
_LETTER: Final = _row(_int(0, 1), _U32, _OFFSET, _TIME, _are_whole_fields, least=3)


def _is_letter(value: Any) -> bool:
    # A message that an ack sends has all of it; a dead letter has the rest once it is in a batch.
    return _LETTER(value) and (len(value) == 5 or (len(value) == 3 and value[0] == 0))


_READY: Final = _row(_int(1, 1 << 20), _int(1, I63_MAX), _COUNT)
_READY_EXTRA: Final = _row(
    *(_int(1, 1 << 20), _int(1, I63_MAX), _COUNT, _OFFSET, _optional(_int(1, U48_MAX)), _optional(_is_bytes)),
    _size(16),
    least=6,
)
_NOTHING: Final = object()
"""Stands for an empty value."""

_NAMED: Final = _row(_int(0, 3), _OFFSET, _optional(_row(_U64, _U64, _U64, _COUNT)), _optional(_TIME))
_OUTBOX_KEY: Final = _length(14)
_COMMON: Final[Mapping[bytes, _Kind]] = {
    b"a": _Kind(_length(8), _row(_BITMAP, _BITMAP, _COUNT, _is_bool, _BITMAP, _BITMAP, least=4)),
    b"b": _Kind(_group_and(_is_place), _row(_U64, _one_of(True), least=1)),
    b"d": _Kind(_group_and(_length(OFFSET_BYTES)), _DEAD_FIELDS),
    b"e": _Kind(_is_forget_key, lambda value: value is _NOTHING),
    b"f": _Kind(_OUTBOX_KEY, _is_letter),
    b"g": _Kind(
        _group_and(_length(0)),
        _row(_is_name, _OFFSET, _DEAD_COUNTS, _TIME, _is_group_settings, _row(_COUNT, _COUNT), _one_of(True), least=6),
    ),
    b"h": _Kind(_named(_is_name), _row(_OFFSET, _TIME)),
    b"i": _Kind(_is_place, _row(_OFFSET, _COUNT, _optional(_TIME), _optional(_TIME))),
    b"j": _Kind(_length(16), _is_job),
    b"k": _Kind(
        _group_and(_length(OFFSET_BYTES)),
        _row(_OFFSET, _SIGNED, _are_fields, _is_bool, _optional(_is_bool), _LIVES, least=4),
    ),
    b"l": _Kind(_length(8), _is_lease),
    b"n": _Kind(_length(12), _is_counts),
    b"p": _Kind(_is_place, _row(_are_fields)),
    b"q": _Kind(lambda key, partition: len(key) == 8, _is_producer),
    b"r": _Kind(_length(16), _list(_ANSWERED, FIXED.answer_ids)),
    b"B": _Kind(_length(6), _row(_U64, _COUNT, _COUNT, _text(), _text())),
    b"L": _Kind(_named(_is_name), _row(*[_COUNT] * 7)),
    b"t": _Kind(_is_place, _row(_one_of("cancelled", "moved"), _TIME, _optional(_TIME))),
    b"u": _Kind(lambda key, partition: 1 <= len(key) <= FIXED.unique_key_bytes, _NAMED),
    b"V": _Kind(_is_place, _row(_are_whole_fields)),
    b"U": _Kind(_is_scoped_key, _NAMED),
    b"K": _Kind(lambda key, partition: 1 <= len(key) - 16 <= FIXED.unique_key_bytes, _NAMED),
    b"w": _Kind(_group_and(_length(14)), _WAITING_FIELDS),
    b"F": _Kind(lambda key, partition: _named(_is_schedule_text)(key[6:], partition), lambda value: value is _NOTHING),
    b"O": _Kind(_is_share_key, _row(*[_COUNT] * 7, _is_bool)),
    b"P": _Kind(_group_and(_named(_is_tenant)), _row(_COUNT)),
    b"Q": _Kind(_group_and(lambda key, partition: _is_queue(key)), _row(_COUNT, _OFFSET)),
    b"R": _Kind(
        _group_and(lambda key, partition: _is_queue(key[:-OFFSET_BYTES]) and _is_place(key[-OFFSET_BYTES:], partition)),
        lambda value: _READY(value) or _READY_EXTRA(value),
    ),
    b"S": _Kind(_named(_is_schedule_text), _SCHEDULE_FIELDS),
    b"T": _Kind(_group_and(_named(_text(2 * FIXED.tenant_bytes))), _row(_COUNT, _COUNT)),
    b"z": _Kind(_group_and(_length(OFFSET_BYTES)), _row(_is_range_list(WAITING_MESSAGES, in_order=True))),
    b"y": _Kind(_is_place, _row(_optional(_PRIORITY), _int(1, I63_MAX), least=1)),
}
"""Tags of every kind of topic, but for log rows and the state."""

_KEYS_STATE: Final = _row(_COUNT, _COUNT, _optional(_TIME), _TIME, _COUNT)
_COMPACTION: Final = _row(
    *(_optional(_TIME), _RISING, _RISING, _TIME, _optional(_OFFSET), _COUNT, _COUNT, _is_bool),
    *(_optional(_COUNT), _COUNT, _TIME, _optional(_row(_COUNT, _TIME)), _COUNT, _optional(_TIME)),
)
COMPACTED_TAGS: Final = (b"v", b"x", b"y", b"o", b"c")
"""Tags that mean something else in a compacted topic, or are only there."""
STATE_TAG: Final = b"s"
LOG_TAG: Final = b"m"
TAGS: Final = frozenset({*_COMMON, *COMPACTED_TAGS, STATE_TAG, LOG_TAG})


# -- the state ------------------------------------------------------------------------------------------------------

_LOG_STATE: Final = _row(_int(0, 2**48), _OFFSET, _int(-(2**60), 2**60), _row(_COUNT, _int(0, 2**48)))
_COUNTS_STATE: Final = _row(_int(0, U48_MAX // 1000), _CHANGE, _int(0, U32_MAX), _COUNT)
_EXPIRING_STATE: Final = _row(_optional(_TIME), _TIME)
_DONE: Final = _list(_row(_DEADLINE, _OFFSET), 1 << 16)


def _is_sweeper(value: Any) -> bool:
    return type(value) is list and all([_is_bytes(one) or _SIGNED(one) or one is None for one in value])


_TRIM_STATE: Final = _row(_optional(_DEADLINE), _DONE, _is_sweeper, least=2)
_NUMBERS: Final = _row(_int(1, 2**31), _COUNT, _is_bool)
_SCHEDULES_STATE: Final = _row(_COUNT, _optional(_TIME), _optional(_text()))
_OUTBOX_STATE: Final = _row(_COUNT, _COUNT, _COUNT, _COUNT, _COUNT)
_STATE: Final = _row(
    *(_one_of(1), _TIME, _TIME, _TIME, _U32),
    *(_LOG_STATE, _COUNTS_STATE, _EXPIRING_STATE, _TRIM_STATE, _NUMBERS),
    lambda value: type(value) is dict,
    _int(1, 10_000),
    lambda value: value is None or type(value) is list,
    *(_SCHEDULES_STATE, _OUTBOX_STATE, _TIME),
    lambda value: value is None or type(value) is list,
    lambda value: type(value) is list,
)
_SETTINGS_FIELD: Final = 10
_NO_SETTINGS: Final = ("dead_letter", "restoring")


def _check_state(value: Any, kind: str) -> None:
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


# -- log rows -------------------------------------------------------------------------------------------------------

_KIND_BATCH, _KIND_MESSAGE = 1, 2
_FLAGS: Final = 3
_ID: Final = _optional(_OFFSET)
_INLINE: Final = _row(_ID, _are_fields)
_APART: Final = _row(_ID, _one_of(None), _COUNT, _are_fields)


def _check_log_row(key: bytes, value: bytes, partition: int, kind: str) -> None:
    if not _is_place(key, partition):
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
            raise _Wrong(f"this version knows no column {column}")
        is_text = TYPE_OF[column] == TYPE_BYTES
        cells: Sequence[Any] = (batch.bytes_column(column) if is_text else batch.int_column(column)) or ()
        check = _COLUMNS.get(column)
        if check is not None and not all([cell is None or check(cell) for cell in set(cells)]):
            raise _Wrong(f"a value of {Column(column).name} is not one of a message")
        if column == Column.VALUE and kind != COMPACTED and None in cells:
            raise _Wrong("a message of the batch has no value")
    if kind == COMPACTED:
        keys = batch.bytes_column(Column.KEY)
        if keys is None or not all(keys):
            raise _Wrong("a message of a compacted topic has a key")


# -- rows of keys ---------------------------------------------------------------------------------------------------


def _check_of_keys(tag: bytes, key: bytes, value: bytes) -> None:
    """Check a row that only a compacted topic has."""
    if tag == b"v":
        is_right = bool(key) and len(value) >= _VALUE_HEADER.size and _is_value(value)
    elif tag == b"x":
        is_right = len(key) > 6 and not value
    elif tag == b"y":
        is_right = bool(key) and len(value) == OFFSET_BYTES
    else:
        is_right = not key and (_KEYS_STATE if tag == b"o" else _COMPACTION)(decode_row(value))
    if not is_right:
        raise _Wrong("its key or its fields are not those of such a row")


def _is_value(value: bytes) -> bool:
    flags, length, expires_ms, _ = _VALUE_HEADER.unpack_from(value)
    if flags not in (0, 1) or not 0 <= expires_ms <= U48_MAX:
        return False
    return length <= len(value) - _VALUE_HEADER.size if flags else not length


# -- all together ---------------------------------------------------------------------------------------------------


def problem_of_row(key: bytes, value: bytes, partition: int, kind: str) -> str | None:
    """Return what is wrong with a row of a partition of a topic of this kind; None if nothing is."""
    try:
        _check(key, value, partition, kind)
    except _Wrong as problem:
        return f"row {key[:40].hex()} ({_shown_tag(key)}): {problem}"
    return None


def _check(key: bytes, value: bytes, partition: int, kind: str) -> None:
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
        if not _row(_TIME)(decode_row(value)):
            raise _Wrong("its field is no time")
        return
    known = _COMMON.get(tag)
    if known is None or (tag in _RANKED_TAGS and kind not in _RANKED_KINDS):
        raise _Wrong(f"a {kind} topic has no rows with this tag")
    if not known.key(rest, partition):
        raise _Wrong(_key_problem(partition))
    if not known.fields(decode_row(value) if value else _NOTHING):
        raise _Wrong("its fields are not those of such a row")


_RANKED_TAGS: Final = (b"Q", b"R", b"T", b"P")
_RANKED_KINDS: Final = ("priority", FAIR)


def _key_problem(partition: int) -> str:
    return f"its key is not one of such a row of partition {partition}"


def _shown_tag(key: bytes) -> str:
    return f"tag {key[:1].decode('ascii', 'replace')!r}"


def decode_row(value: bytes) -> Any:
    """Decode a row within bounds of its own. Raises _Wrong."""
    if len(value) > SMALL_BYTES:
        _check_items(value)
    try:
        return msgpack.unpackb(value, raw=False, strict_map_key=False)
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise _Wrong(f"it cannot be decoded: {error!r:.100}") from None


def _check_items(data: bytes) -> None:
    """Raise _Wrong for a row of too many items: each costs memory once it is decoded, and a byte before. Steps over
    bytes and texts, and so takes as long as there are items."""
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
"""Bytes behind the head of a value of this type."""
_COUNTED_SIZES: Final = {
    **{0xC4: (1, 0, 0), 0xC5: (2, 0, 0), 0xC6: (4, 0, 0), 0xC7: (1, 0, 1), 0xC8: (2, 0, 1), 0xC9: (4, 0, 1)},
    **{0xD9: (1, 0, 0), 0xDA: (2, 0, 0), 0xDB: (4, 0, 0)},
    **{0xDC: (2, 1, 0), 0xDD: (4, 1, 0), 0xDE: (2, 2, 0), 0xDF: (4, 2, 0)},
}
"""Bytes of the count behind the head, items of each counted one (0: bytes are counted), and bytes beside them."""
