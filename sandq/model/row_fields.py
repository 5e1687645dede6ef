"""Checks of single fields of a partition's stored rows: types, ranges, columns of messages.

A check is a function that returns whether a decoded value is valid. `row_kinds` and `stored_rows` combine checks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from sandq.model.batch_format import TYPE_OF, Column
from sandq.model.errors import InvalidName, InvalidRequest
from sandq.model.limits import FIXED
from sandq.model.names import check_name, check_tenant
from sandq.model.offsets import OFFSET_BYTES, PLACE_BITS, PLACE_STEP, U48_MAX, U64_MAX
from sandq.model.retries import is_backoff, is_cost, is_max_attempts

LEASE_MESSAGES: Final = FIXED.grant_messages
WAITING_MESSAGES: Final = 1 << 24
"""Maximum number of messages of one waiting entry."""
TEXT_CHARS: Final = 4096
"""Maximum number of characters of a text in a row without a limit of its own."""
I63_MAX: Final = 2**63 - 1
U32_MAX: Final = 2**32 - 1
RANGE_BYTES: Final = OFFSET_BYTES + 4

Check = Callable[[Any], bool]
"""Function that returns whether a field of a row may have this value."""


def integer(least: int, greatest: int) -> Check:
    """Return a check for integers from `least` to `greatest`."""
    return lambda value: type(value) is int and least <= value <= greatest


def optional(check: Check) -> Check:
    """Return a check that also allows None."""
    return lambda value: value is None or check(value)


def text(most: int = TEXT_CHARS) -> Check:
    """Return a check for texts of at most `most` characters."""
    return lambda value: type(value) is str and len(value) <= most and is_utf8(value)


def is_utf8(value: str) -> bool:
    """Return whether a text can be encoded: it has no unpaired surrogates."""
    return value.isascii() or not any(["\ud800" <= character <= "\udfff" for character in value])


def bytes_up_to(most: int) -> Check:
    """Return a check for at most `most` bytes."""
    return lambda value: type(value) is bytes and len(value) <= most


def bytes_of(length: int) -> Check:
    """Return a check for exactly `length` bytes."""
    return lambda value: type(value) is bytes and len(value) == length


def list_of(check: Check, most: int) -> Check:
    """Return a check for lists of at most `most` items that pass `check`."""
    return lambda value: type(value) is list and len(value) <= most and all(map(check, value))


def array(*checks: Check, least: int | None = None) -> Check:
    """Return a check of an array with these fields; fields after the first `least` may be missing."""
    fewest = len(checks) if least is None else least

    def check(value: Any) -> bool:
        """Return whether a list has the right number of fields, and each passes its check."""
        if type(value) is not list or not fewest <= len(value) <= len(checks):
            return False
        return all([one(cell) for one, cell in zip(checks, value, strict=False)])

    return check


def one_of(*values: Any) -> Check:
    """Return a check for these values. Their types matter: True is not 1."""
    return lambda value: type(value) in {type(one) for one in values} and value in values


def is_name(value: Any) -> bool:
    """Return whether a value is the name of a group or a topic."""
    try:
        check_name("group", value)
    except (InvalidName, InvalidRequest):
        return False
    return True


def is_tenant(value: Any) -> bool:
    """Return whether a value is the name of a tenant."""
    try:
        check_tenant(value)
    except InvalidRequest:
        return False
    return True


def is_bool(value: Any) -> bool:
    """Return whether a value is True or False."""
    return type(value) is bool


def is_bytes(value: Any) -> bool:
    """Return whether a value is bytes."""
    return type(value) is bytes


TOKEN: Final = bytes_up_to(64)

COUNT: Final = integer(0, 2**62)
"""A count, or a rising number. Its maximum leaves space for later increments."""
SIGNED: Final = integer(-(2**63), I63_MAX)
CHANGE: Final = integer(-(2**48), 2**48)
"""A change of a number of messages; may be negative."""
U32: Final = integer(0, U32_MAX)
U64: Final = integer(0, U64_MAX)
TIME: Final = integer(0, U48_MAX)
DEADLINE: Final = integer(0, 2 * U48_MAX)
"""A time plus a duration."""
OFFSET: Final = bytes_of(OFFSET_BYTES)
RISING: Final[Check] = lambda value: OFFSET(value) and value < b"\xff\xff"  # noqa: E731
"""An offset that can be incremented."""
ERROR: Final = optional(text(FIXED.error_chars))
PRIORITY: Final = integer(FIXED.priority_least, FIXED.priority_most)
_ATTEMPT: Final = array(COUNT, text(), TIME, TIME, text(), ERROR)
HISTORY: Final = list_of(_ATTEMPT, 10)
_LIFE: Final = array(COUNT, COUNT, text(), ERROR, TIME, TIME, HISTORY)
LIVES: Final = list_of(_LIFE, 8)
RETRY: Final = optional(array(optional(is_max_attempts), optional(is_backoff)))
"""A message's own retry rules."""

COLUMNS: Final[Mapping[int, Check]] = {
    Column.DELIVER_MS: TIME,
    Column.TTL_MS: integer(1, U48_MAX),
    Column.PRIORITY: PRIORITY,
    Column.TENANT: lambda value: is_bytes(value) and is_tenant(value.decode("ascii", "backslashreplace")),
    Column.UNIQUE_KEY: lambda value: is_bytes(value) and 1 <= len(value) <= FIXED.unique_key_bytes,
    Column.EXPECTED_VERSION: lambda value: is_bytes(value) and len(value) in (0, OFFSET_BYTES),
    Column.ORDERING_HASH: U64,
    Column.KEY_DIGEST: lambda value: is_bytes(value) and len(value) == 16,
    Column.MAX_ATTEMPTS: is_max_attempts,
    Column.BACKOFF: is_backoff,
    Column.COST: is_cost,
}
"""Checks of the columns of a message, in addition to their types."""


def _is_cell(column: Any, value: Any) -> bool:
    """Return whether a column is known, and a value is one of this column."""
    if type(column) is not int or column not in TYPE_OF:
        return False
    if column == Column.VALUE and value is None:
        return True
    return COLUMNS.get(column, is_bytes)(value)


def are_fields(value: Any) -> bool:
    """Return whether this is `{column id: value}` of a message."""
    return type(value) is dict and all([_is_cell(column, cell) for column, cell in value.items()])


def are_whole_fields(value: Any) -> bool:
    """Return whether a value is the fields of a message, including its value."""
    return are_fields(value) and Column.VALUE in value


def is_queue(value: Any) -> bool:
    """Return whether this is the name of a ready queue: a tenant or nothing, a zero byte, and a priority."""
    if type(value) is not bytes or len(value) < 5 or value[-5] != 0:
        return False
    return len(value) == 5 or is_tenant(value[:-5].decode("ascii", "backslashreplace"))


def is_range_list(most: int, *, in_order: bool) -> Check:
    """Return a check of packed ranges of up to `most` messages. `in_order`: they rise and do not overlap."""

    def check(value: Any) -> bool:
        """Return whether packed ranges are valid: not empty, each within one entry, and at most `most` messages."""
        if type(value) is not bytes or not value or len(value) % RANGE_BYTES:
            return False
        total, behind = 0, 0
        for at in range(0, len(value), RANGE_BYTES):
            base = int.from_bytes(value[at : at + OFFSET_BYTES], "big")
            length = int.from_bytes(value[at + OFFSET_BYTES : at + RANGE_BYTES], "big")
            if not length or (base & PLACE_BITS) + (length - 1) * PLACE_STEP > PLACE_BITS:
                return False
            if in_order and base < behind:
                return False
            behind = base + (length - 1) * PLACE_STEP + 1
            total += length
        return total <= most

    return check
