"""Check the fields of commands about limits: types and ranges.

Leaders take these fields from frames of other nodes. So a leader checks them before it proposes a command, and `apply`
checks them again: a number that does not fit into a row would stop every replica of the partition.
"""

from __future__ import annotations

from typing import Any, Final

from sandq.model.errors import InvalidRequest
from sandq.model.group_limits import is_unit
from sandq.model.offsets import U64_MAX
from sandq.model.pauses import BY_CHARS, FOREVER
from sandq.model.row_fields import COUNT, Check, integer, is_bool, is_name, optional, text
from sandq.partition import commands as c
from sandq.partition.limits.buckets import MOST_OWED_US

_NUMBER: Final = optional(integer(1, 86_400_000_000))
"""A number in a definition of a named limit."""
DEBT_US: Final = integer(0, MOST_OWED_US)
"""Check of a debt of units of a rate, in µs."""
_BY: Final = text(BY_CHARS)
_UNTIL_MS: Final = integer(0, FOREVER)
RISING_MOST: Final = 2**62
"""Maximum of a number that rises, such as a version: it leaves space for later increments."""
_PARTITION: Final = integer(0, U64_MAX)
"""A number of a partition or member."""


def row_of(*checks: Check) -> Check:
    """Return a check of a list or tuple with these fields."""

    def check(row: Any) -> bool:
        """Return whether each field of a row passes its check."""
        if type(row) not in (list, tuple) or len(row) != len(checks):
            return False
        return all([is_valid(field) for is_valid, field in zip(checks, row, strict=True)])

    return check


def _rows_of(check: Check) -> Check:
    """Return a check of a list or tuple whose items pass `check`."""
    return lambda rows: type(rows) in (list, tuple) and all(map(check, rows))


_ARE_DEFINED: Final = row_of(_NUMBER, _NUMBER, _NUMBER, optional(is_unit))


def _is_definition(row: Any) -> bool:
    """Return whether this is the definition of a named limit: its rate has a burst, and its unit a rate."""
    return _ARE_DEFINED(row) and (row[1] is None) == (row[2] is None) and (row[3] is None or row[1] is not None)


_is_pause: Final = row_of(integer(1, RISING_MOST), _UNTIL_MS, _BY)
"""Check of the fields of a `LimitPause`."""
is_allowance: Final = row_of(
    *(is_name, COUNT, COUNT, COUNT, COUNT, COUNT, DEBT_US), optional(_is_definition), optional(_is_pause)
)
"""Check of an item of `AllowLimit`."""
_are_allowances: Final = _rows_of(is_allowance)
_is_share: Final = row_of(
    *(is_name, COUNT),
    _rows_of(row_of(_PARTITION, COUNT, COUNT, DEBT_US)),
    _rows_of(row_of(_PARTITION, COUNT, COUNT)),
    _rows_of(row_of(COUNT, COUNT, is_name, optional(COUNT))),
    _rows_of(_PARTITION),
)
_is_limit_pause: Final = row_of(is_name, _UNTIL_MS, _BY, is_bool)


def check_command(command: c.AllowLimit | c.ShareLimit | c.PauseLimit) -> None:
    """Raise InvalidRequest unless all fields of a command have the right types and ranges."""
    match command:
        case c.AllowLimit():
            is_valid = _are_allowances(command.items)
        case c.ShareLimit():
            is_valid = _is_share(command.fields())
        case c.PauseLimit():
            is_valid = _is_limit_pause(command.fields())
    if not is_valid:
        raise InvalidRequest(f"{type(command).__name__} has a field with a wrong type or a number out of range")
