"""Keys and fields of the stored rows of each tag, for rows that are one array of MessagePack.

Row formats: docs/storage-format.md. This module writes tags as literals. `partition.base.rows` has constants for the
same tags, and a test compares the two modules.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from sandq.model.errors import SandqError
from sandq.model.limits import FIXED
from sandq.model.names import of_schedule
from sandq.model.offsets import OFFSET_BYTES, PARTITION_MAX, U48_MAX
from sandq.model.pauses import STORED_KEY_BYTES
from sandq.model.retries import MOST_COST
from sandq.model.row_fields import (
    CHANGE,
    COUNT,
    DEADLINE,
    ERROR,
    HISTORY,
    I63_MAX,
    LEASE_MESSAGES,
    LIVES,
    OFFSET,
    PRIORITY,
    RANGE_BYTES,
    RETRY,
    RISING,
    SIGNED,
    TEXT_CHARS,
    TIME,
    TOKEN,
    U32,
    U32_MAX,
    U64,
    WAITING_MESSAGES,
    Check,
    are_fields,
    are_whole_fields,
    array,
    bytes_of,
    bytes_up_to,
    integer,
    is_bool,
    is_bytes,
    is_name,
    is_queue,
    is_range_list,
    is_tenant,
    is_utf8,
    list_of,
    one_of,
    optional,
    text,
)
from sandq.model.stored_settings import check_group_record

_ANSWER_BYTES: Final = struct.calcsize(">BQIQQI")


class _Kind(NamedTuple):
    """The rows of one tag."""

    key: Callable[[bytes, int], bool]
    """Check of a key without its tag, in this partition."""
    fields: Check
    """Check of a decoded value."""


def _length(size: int) -> Callable[[bytes, int], bool]:
    """Return a check for keys of `size` bytes."""
    return lambda key, partition: len(key) == size


def _named(check: Check) -> Callable[[bytes, int], bool]:
    """Return a check for keys that are text in UTF-8 and pass `check`."""

    def is_key(key: bytes, partition: int) -> bool:
        try:
            return check(key.decode())
        except UnicodeDecodeError:
            return False

    return is_key


def is_offset_of(key: bytes, partition: int) -> bool:
    """Return whether this is an offset of the partition."""
    return len(key) == OFFSET_BYTES and int.from_bytes(key[-2:], "big") & PARTITION_MAX == partition


def _group_and(rest: Callable[[bytes, int], bool]) -> Callable[[bytes, int], bool]:
    """Return a check of a key that begins with a group's number, which is above 0, followed by `rest`."""
    return lambda key, partition: len(key) >= 4 and key[:4] != bytes(4) and rest(key[4:], partition)


def _is_pause_key(key: bytes, partition: int) -> bool:
    """Return whether a key is "k" and an ordering hash, or "t" and a tenant."""
    if key[:1] == b"k":
        return len(key) == 9 and key[1] < 128
    return key[:1] == b"t" and _named(is_tenant)(key[1:], partition)


def _is_share_key(key: bytes, partition: int) -> bool:
    """Return whether a key is the name of a group or limit, a zero byte, and the number of a partition or member."""
    return len(key) > 9 and key[-9] == 0 and _named(is_name)(key[:-9], partition)


def _is_forget_key(key: bytes, partition: int) -> bool:
    """Return whether a key is a time, and the tag of a row to delete at this time."""
    return len(key) > 7 and key[6:7] in _FORGOTTEN


_FORGOTTEN: Final = (b"t", b"i", b"u", b"U", b"K")
"""Tags of rows that expire; the last field of each holds the time."""


def _is_scoped_key(key: bytes, partition: int) -> bool:
    """Return whether a key is a tenant, a zero byte, and a unique key."""
    tenant, _, unique_key = key.partition(b"\0")
    return is_tenant(tenant.decode("ascii", "backslashreplace")) and 1 <= len(unique_key) <= FIXED.unique_key_bytes


def _is_schedule_text(value: Any) -> bool:
    """Return whether a text is the id of a schedule: its name, and a tenant in fair topics."""
    if not isinstance(value, str) or not 1 <= len(value) <= TEXT_CHARS or not is_utf8(value):
        return False
    name, tenant = of_schedule(value)
    return bool(name) and (tenant is None or is_tenant(tenant))


_DEAD_COUNTS: Final = list_of(array(text(), COUNT), 64)


def _is_group_settings(value: Any) -> bool:
    """Return whether a value is the settings of a group."""
    try:
        check_group_record(value)
    except SandqError:
        return False
    return True


def _is_plain_map(value: Any) -> bool:
    """Return whether this is a map of names to plain values, as the settings of a schedule are."""
    return type(value) is dict and all(
        [type(name) is str and (type(one) in (int, bool, type(None)) or text()(one)) for name, one in value.items()]
    )


_SCHEDULE_TIMES: Final = ("every_ms", "start_ms", "end_ms", "anchor_ms", "jitter_ms", "count", "misfire_most")


def _is_schedule_settings(value: Any) -> bool:
    """Return whether a value is the settings of a schedule, with the right types."""
    if not _is_plain_map(value):
        return False
    numbers = all([COUNT(value[name]) for name in _SCHEDULE_TIMES if name in value])
    texts = all([type(value[name]) is str for name in ("cron", "zone", "misfire", "overlap_group") if name in value])
    return numbers and texts


_JOB_ARGUMENTS: Final[Mapping[str, Check]] = {
    "from_ms": TIME,
    "until_ms": TIME,
    "dry_run": is_bool,
    "key_prefix": optional(is_bytes),
    "unique_key_prefix": optional(is_bytes),
    "to_ms": TIME,
    "shift_ms": integer(-U48_MAX, U48_MAX),
    "priority": PRIORITY,
    "group": text(),
    "group_id": U32,
    "reason": optional(text()),
    "error": optional(text(FIXED.error_chars)),
    "rate": optional(integer(1, U32_MAX)),
    "above": OFFSET,
    "spilled_to": OFFSET,
    "kept_of": optional(U32),
}
_JOB_NEEDS: Final[Mapping[str, tuple[str, ...]]] = {
    "cancel": ("from_ms", "until_ms", "dry_run", "key_prefix"),
    "move": ("from_ms", "until_ms", "dry_run", "key_prefix"),
    "redrive": ("from_ms", "until_ms", "dry_run", "group", "reason", "group_id"),
    "purge_dead": ("from_ms", "until_ms", "dry_run", "group", "reason", "group_id"),
    "seek": ("group_id", "above"),
    "drop": ("group_id",),
}
_JOB_FIELDS: Final = array(
    bytes_of(16),
    one_of(*_JOB_NEEDS),
    lambda value: type(value) is dict,
    *(COUNT, COUNT, TIME),
    one_of("running", "done", "stopped"),
    is_bytes,
    *(COUNT, COUNT, COUNT),
    optional(TIME),
    TIME,
)


def _is_job(value: Any) -> bool:
    """Return whether fields are those of a job, with the arguments that its kind needs."""
    if not _JOB_FIELDS(value):
        return False
    kind, arguments, position = value[1], value[2], value[7]
    # The position of a job that reads messages of the log is an offset; otherwise it is the key of another row.
    if len(position) != OFFSET_BYTES and (kind != "drop" and "kept_of" not in arguments):
        return False
    if not all([name in _JOB_ARGUMENTS and _JOB_ARGUMENTS[name](one) for name, one in arguments.items()]):
        return False
    if any([name not in arguments for name in _JOB_NEEDS[kind]]):
        return False
    return kind != "move" or any([name in arguments for name in ("to_ms", "shift_ms", "priority")])


def _is_counts(value: Any) -> bool:
    """Return whether a value is a row of counts of one hour: a list that alternates seconds of the hour and changes."""
    if type(value) is not list or len(value) % 2 or len(value) > 2 * 3600:
        return False
    return all(map(integer(0, 3599), value[::2])) and all(map(CHANGE, value[1::2]))


def _is_producer(value: Any) -> bool:
    """Return whether fields are those of a producer, with its remembered results."""
    if not array(_U32_OR_MORE, COUNT, TIME, is_bytes, one_of(True), least=4)(value):
        return False
    answers = value[3]
    if not answers or len(answers) % _ANSWER_BYTES or len(answers) > FIXED.producer_answers * _ANSWER_BYTES:
        return False
    return all([_is_answer(answers[at : at + _ANSWER_BYTES]) for at in range(0, len(answers), _ANSWER_BYTES)])


_U32_OR_MORE: Final = U64
"""Epoch of a producer. If the producer is a partition, its epoch is at least a time in ms, which exceeds u32."""


def _is_answer(packed: bytes) -> bool:
    """Return whether bytes are a packed result of a producer."""
    how, entry, place, now_ms, floor_ms, _ = struct.unpack(">BQIQQI", packed)
    return bool(how <= 4 and max(entry, now_ms, floor_ms) <= U48_MAX and place < 1 << 20)


_DEAD_FIELDS: Final = array(
    *(COUNT, text(), ERROR, TIME, OFFSET, SIGNED, are_fields, HISTORY, LIVES),
    lambda value: value is None or text()(value) or _is_forward(value),
    least=8,
)


def _is_forward(value: Any) -> bool:
    """Return whether this is the destination of a dead letter, which may have refused it."""
    return array(U32, integer(0, PARTITION_MAX), COUNT, one_of(0), least=3)(value)


_WAITING_FIELDS: Final = array(
    *(COUNT, ERROR, is_range_list(WAITING_MESSAGES, in_order=True), TIME, is_bool, optional(DEADLINE), HISTORY),
    optional(array(TIME, TIME, is_bool)),
    optional(is_queue),
    *(COUNT, COUNT, RETRY),
    least=7,
)


def _is_spilled(value: Any) -> bool:
    """Return whether fields are those of a spilled message: its due time, and the fields of a waiting entry that has no
    messages."""
    if type(value) is not list or len(value) < 4 or value[3] != b"":
        return False
    due_ms, attempts, error, _, *others = value
    return TIME(due_ms) and _WAITING_FIELDS([attempts, error, _ANY_RANGE, *others])


_ANY_RANGE: Final = bytes(OFFSET_BYTES) + (1).to_bytes(4, "big")
_PAST: Final = array(is_range_list(LEASE_MESSAGES, in_order=False), HISTORY)


def _is_lease(value: Any) -> bool:
    """Return whether fields are those of a lease. If it has queues, they account for all of its messages."""
    fields = array(
        *(integer(1, U32_MAX), text(), COUNT, DEADLINE, TIME, is_range_list(LEASE_MESSAGES, in_order=False)),
        *(TIME, TIME, is_bool, list_of(_PAST, LEASE_MESSAGES)),
        list_of(array(is_queue, integer(1, LEASE_MESSAGES)), LEASE_MESSAGES),
        *(COUNT, integer(0, I63_MAX), COUNT, integer(0, FIXED.handlers), COUNT, RETRY),
        least=10,
    )
    if not fields(value):
        return False
    if len(value) < 11 or not value[10]:
        return True
    packed = value[5]
    lengths = [int.from_bytes(packed[at + 16 : at + 20], "big") for at in range(0, len(packed), RANGE_BYTES)]
    return sum(lengths) == sum([int(length) for _, length in value[10]])


_BITMAP: Final = bytes_up_to((LEASE_MESSAGES + 7) // 8)
_ANSWERED: Final = array(
    *(integer(0, FIXED.grant_messages * 1000), optional(OFFSET), optional(text()), text()),
    lambda value: text()(value) or OFFSET(value),
    least=3,
)
_SCHEDULE_FIELDS: Final = array(
    *(one_of(1), COUNT, _is_schedule_settings, are_whole_fields, optional(TIME), optional(TIME)),
    *(optional(OFFSET), COUNT, COUNT, is_bool, TIME, TIME, optional(TIME)),
    optional(array(SIGNED, TIME)),
    list_of(array(TIME, TIME), 1024),
    list_of(array(TIME, TIME, text(), optional(OFFSET)), 16),
    list_of(array(TOKEN, optional(OFFSET)), 16),
)
_DEFINITION: Final = array(*[optional(COUNT)] * 3, optional(text()))
_LIMIT_PAUSE: Final = array(COUNT, integer(0, U48_MAX), text())
_LETTER: Final = array(integer(0, 1), U32, OFFSET, TIME, are_whole_fields, least=3)


def _is_letter(value: Any) -> bool:
    """Return whether fields are those of a letter in the outbox."""
    # A message that an ack sends is stored completely. A dead letter gets its remaining fields once it is in a batch.
    return _LETTER(value) and (len(value) == 5 or (len(value) == 3 and value[0] == 0))


_READY: Final = array(integer(1, 1 << 20), integer(1, I63_MAX), COUNT)
_READY_EXTRA: Final = array(
    *(integer(1, 1 << 20), integer(1, I63_MAX), COUNT, OFFSET, optional(integer(1, U48_MAX)), optional(is_bytes)),
    *(optional(bytes_of(16)), RETRY, optional(integer(1, MOST_COST))),
    least=6,
)
NOTHING: Final = object()
"""Decoded value of a row whose value is empty."""

_SENDER: Final = optional(array(U64, U64, U64, COUNT))
_PLAIN_NAME: Final = array(integer(0, 3), OFFSET, _SENDER, optional(TIME))
_DEBOUNCED_NAME: Final = array(integer(0, 0), OFFSET, _SENDER, TIME, one_of(None))
_WINDOW_MS: Final = integer(1, FIXED.throttle_window_ms)
_THROTTLED_NAME: Final = array(one_of(0, 3), OFFSET, _SENDER, TIME, _WINDOW_MS, one_of(None))
_THROTTLED_DELIVERED: Final = array(one_of(1), OFFSET, _SENDER, TIME, _WINDOW_MS, TIME)
_NAME_ROWS: Final = (_PLAIN_NAME, _DEBOUNCED_NAME, _THROTTLED_NAME, _THROTTLED_DELIVERED)


def _is_name_row(value: Any) -> bool:
    """Return whether a value is the row of a unique key."""
    return any([is_row(value) for is_row in _NAME_ROWS])


_OUTBOX_KEY: Final = _length(14)
COMMON: Final[Mapping[bytes, _Kind]] = {
    b"a": _Kind(_length(8), array(_BITMAP, _BITMAP, COUNT, is_bool, _BITMAP, _BITMAP, least=4)),
    b"b": _Kind(_group_and(is_offset_of), array(U64, one_of(True), least=1)),
    b"d": _Kind(_group_and(_length(OFFSET_BYTES)), _DEAD_FIELDS),
    b"D": _Kind(_group_and(_length(6 + OFFSET_BYTES)), lambda value: value is NOTHING),
    b"e": _Kind(_is_forget_key, lambda value: value is NOTHING),
    b"f": _Kind(_OUTBOX_KEY, _is_letter),
    b"g": _Kind(
        _group_and(_length(0)),
        array(
            *(is_name, OFFSET, _DEAD_COUNTS, TIME, _is_group_settings, array(COUNT, COUNT)),
            *(is_bool, is_bool, COUNT, COUNT, TIME, TIME),
            least=6,
        ),
    ),
    b"h": _Kind(_named(is_name), array(OFFSET, TIME)),
    b"i": _Kind(is_offset_of, array(OFFSET, COUNT, optional(TIME), optional(TIME))),
    b"j": _Kind(_length(16), _is_job),
    b"k": _Kind(
        _group_and(_length(OFFSET_BYTES)),
        array(OFFSET, SIGNED, are_fields, is_bool, optional(is_bool), LIVES, least=4),
    ),
    b"l": _Kind(_length(8), _is_lease),
    b"n": _Kind(_length(12), _is_counts),
    b"p": _Kind(is_offset_of, array(are_fields)),
    b"q": _Kind(lambda key, partition: len(key) == 8, _is_producer),
    b"r": _Kind(_length(16), list_of(_ANSWERED, FIXED.answer_ids)),
    b"B": _Kind(_length(6), array(U64, COUNT, COUNT, text(), text())),
    b"L": _Kind(_named(is_name), array(*[COUNT] * 8, optional(_DEFINITION), optional(_LIMIT_PAUSE))),
    b"M": _Kind(_is_share_key, array(COUNT, COUNT, is_name)),
    b"t": _Kind(is_offset_of, array(one_of("cancelled", "moved"), TIME, optional(TIME))),
    b"u": _Kind(lambda key, partition: 1 <= len(key) <= FIXED.unique_key_bytes, _is_name_row),
    b"V": _Kind(is_offset_of, array(are_whole_fields)),
    b"U": _Kind(_is_scoped_key, _is_name_row),
    b"K": _Kind(lambda key, partition: 1 <= len(key) - 16 <= FIXED.unique_key_bytes, _is_name_row),
    b"w": _Kind(_group_and(_length(14)), _WAITING_FIELDS),
    b"N": _Kind(_group_and(lambda key, partition: not key or len(key) == OFFSET_BYTES), array(COUNT)),
    b"W": _Kind(_group_and(_length(6 + OFFSET_BYTES)), _is_spilled),
    b"F": _Kind(lambda key, partition: _named(_is_schedule_text)(key[6:], partition), lambda value: value is NOTHING),
    b"O": _Kind(_is_share_key, array(*[COUNT] * 7, is_bool)),
    b"P": _Kind(_group_and(_named(is_tenant)), array(COUNT)),
    b"Q": _Kind(_group_and(lambda key, partition: is_queue(key)), array(COUNT, OFFSET)),
    b"R": _Kind(
        _group_and(
            lambda key, partition: is_queue(key[:-OFFSET_BYTES]) and is_offset_of(key[-OFFSET_BYTES:], partition)
        ),
        lambda value: _READY(value) or _READY_EXTRA(value),
    ),
    b"S": _Kind(_named(_is_schedule_text), _SCHEDULE_FIELDS),
    b"T": _Kind(_group_and(_named(text(2 * FIXED.tenant_bytes))), array(COUNT, COUNT)),
    b"Z": _Kind(_group_and(_is_pause_key), array(TIME, bytes_up_to(STORED_KEY_BYTES), least=1)),
    b"z": _Kind(_group_and(_length(OFFSET_BYTES)), array(is_range_list(WAITING_MESSAGES, in_order=True))),
    b"y": _Kind(is_offset_of, array(optional(PRIORITY), integer(1, I63_MAX), least=1)),
}
"""Tags of topics of every kind, except for log rows and the state."""

KEYS_STATE: Final = array(COUNT, COUNT, optional(TIME), TIME, COUNT)
COMPACTION: Final = array(
    *(optional(TIME), RISING, RISING, TIME, optional(OFFSET), COUNT, COUNT, is_bool),
    *(optional(COUNT), COUNT, TIME, optional(array(COUNT, TIME)), COUNT, optional(TIME)),
)
COMPACTED_TAGS: Final = (b"v", b"x", b"y", b"o", b"c")
"""Tags that have another meaning in a compacted topic, or exist only there."""
STATE_TAG: Final = b"s"
LOG_TAG: Final = b"m"
TAGS: Final = frozenset({*COMMON, *COMPACTED_TAGS, STATE_TAG, LOG_TAG})
