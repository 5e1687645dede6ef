"""The rules of a single message: its own `max_attempts` and `backoff`, which override those of group and topic, and its
`cost`, which counts for rates with a unit.

In batches and rows, the column MAX_ATTEMPTS is a number, or `UNLIMITED`. The column BACKOFF is a MessagePack array:
`[kind, first_ms, factor_permille, cap_ms, jitter_percent]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple, TypedDict

import msgpack

from sandq.model.batch_format import Column
from sandq.model.errors import InvalidRequest, InvalidTime
from sandq.model.times import DAY_MS, Duration, duration_ms, format_duration

BACKOFF_KINDS: Final = ("exponential", "fixed", "linear", "none")
MOST_ATTEMPTS: Final = 1000
"""Maximum of `max_attempts`, unless it is none."""
MOST_BACKOFF_MS: Final = 7 * DAY_MS
"""Maximum of the times of a back-off, in ms."""
MOST_COST: Final = 1_000_000_000
"""Maximum of `cost`."""
UNLIMITED: Final = 0
"""Value of the column MAX_ATTEMPTS that stands for none: the message never dies of failed attempts."""
BACKOFF_BYTES: Final = 64
"""Maximum size of the column BACKOFF of a message, in bytes."""
_FACTOR_MOST: Final = 100
_DEFAULTS: Final = {"kind": "exponential", "first": 1000, "factor": 2.0, "cap": 600_000, "jitter_percent": 20}
"""Default of each part of a back-off, as in the setting of topics. Times are in ms."""
_KEPT_RECORDS: Final = 1024

MaxAttempts = int | Literal["none"]
"""A number of attempts, as a user writes it."""


class Backoff(TypedDict, total=False):
    """How long a message waits before its next attempt, as a user writes it."""

    kind: Literal["exponential", "fixed", "linear", "none"]
    first: Duration
    factor: float
    cap: Duration
    jitter_percent: int


class RetryRules(NamedTuple):
    """A message's own rules. A field of None: the settings of the group and the topic apply."""

    max_attempts: int | None = None
    """Number of attempts, or `UNLIMITED`."""
    backoff: bytes | None = None
    """The column BACKOFF."""


def rules_of(fields: Mapping[int, Any]) -> RetryRules | None:
    """Return the rules in the fields of a message. None if it has none."""
    if Column.MAX_ATTEMPTS not in fields and Column.BACKOFF not in fields:
        return None
    return RetryRules(fields.get(Column.MAX_ATTEMPTS), fields.get(Column.BACKOFF))


def cost_of(fields: Mapping[int, Any]) -> int:
    """Return the cost in the fields of a message, which is valid also if the cell is not."""
    cost: int = fields.get(Column.COST, 1)
    return min(max(cost, 1), MOST_COST)


class MessageRules(NamedTuple):
    """All rules of a message, as columns of a batch have them. None: the message has no such rule."""

    max_attempts: int | None = None
    """Number of attempts, or `UNLIMITED`."""
    backoff: bytes | None = None
    """The column BACKOFF."""
    cost: int | None = None
    """Number of units that a delivery takes from a rate with a unit. None stands for 1."""

    @classmethod
    def of(cls, fields: Mapping[int, Any]) -> MessageRules:
        """Return the rules in the fields of a message."""
        return cls(*map(fields.get, RULE_COLUMNS))


RULE_COLUMNS: Final = (Column.MAX_ATTEMPTS, Column.BACKOFF, Column.COST)
"""Columns of the rules, in the order of `MessageRules`."""
NO_RULES: Final = MessageRules()


def parse_rules(max_attempts: object = None, backoff: object = None, cost: object = None) -> MessageRules:
    """Return the rules that a user wrote; None stands for a rule that was not given. Raise InvalidRequest."""
    most = None if cost is None else _whole("cost", cost, 1, MOST_COST)
    return MessageRules(
        None if max_attempts is None else _parsed_attempts(max_attempts),
        None if backoff is None else _parsed_backoff(backoff),
        None if most == 1 else most,
    )


def written_rules(max_attempts: int | None, backoff: bytes | None, cost: int | None) -> dict[str, Any]:
    """Return rules, which were checked, as a user writes them: `max_attempts`, `backoff` and `cost`. Leave out those
    that are None."""
    written: dict[str, Any] = {} if cost is None else {"cost": cost}
    if max_attempts is not None:
        written["max_attempts"] = "none" if max_attempts == UNLIMITED else max_attempts
    if backoff is not None:
        written["backoff"] = _written_backoff(backoff)
    return written


def _written_backoff(packed: bytes) -> dict[str, Any]:
    """Return the column BACKOFF as a user writes it."""
    record = backoff_record(packed)
    factor = record["factor_permille"] / 1000
    return {
        "kind": record["kind"],
        "first": format_duration(record["first_ms"]),
        "factor": int(factor) if factor.is_integer() else factor,
        "cap": format_duration(record["cap_ms"]),
        "jitter_percent": record["jitter_percent"],
    }


def pack_backoff(record: Mapping[str, Any]) -> bytes:
    """Return the column BACKOFF of a record of settings."""
    parts = record["kind"], record["first_ms"], record["factor_permille"], record["cap_ms"], record["jitter_percent"]
    packed: bytes = msgpack.packb(parts)
    return packed


@lru_cache(_KEPT_RECORDS)
def backoff_record(packed: bytes) -> Mapping[str, Any]:
    """Return the record of a column BACKOFF, which was checked. Do not change the result: it is cached."""
    kind, first_ms, factor_permille, cap_ms, jitter_percent = msgpack.unpackb(packed)
    return {
        "kind": kind,
        "first_ms": first_ms,
        "factor_permille": factor_permille,
        "cap_ms": cap_ms,
        "jitter_percent": jitter_percent,
    }


def is_max_attempts(value: object) -> bool:
    """Return whether this is a valid cell of the column MAX_ATTEMPTS."""
    return type(value) is int and UNLIMITED <= value <= MOST_ATTEMPTS


def is_cost(value: object) -> bool:
    """Return whether this is a valid cell of the column COST."""
    return type(value) is int and 1 <= value <= MOST_COST


def is_backoff(value: object) -> bool:
    """Return whether this is a valid cell of the column BACKOFF: the bytes that `pack_backoff` returns."""
    if type(value) is not bytes or not 0 < len(value) <= BACKOFF_BYTES:
        return False
    try:
        parts = msgpack.unpackb(value)
    except (ValueError, TypeError, msgpack.UnpackException):
        return False
    if type(parts) is not list or [type(part) for part in parts] != [str, int, int, int, int]:
        return False
    kind, first_ms, factor_permille, cap_ms, jitter_percent = parts
    return (
        kind in BACKOFF_KINDS
        and 0 <= first_ms <= MOST_BACKOFF_MS
        and 1000 <= factor_permille <= 1000 * _FACTOR_MOST
        and 0 <= cap_ms <= MOST_BACKOFF_MS
        and 0 <= jitter_percent <= 100
        and (kind == "none" or first_ms <= cap_ms)
        and bool(msgpack.packb(parts) == value)
    )


def _parsed_attempts(value: object) -> int:
    """Return the column MAX_ATTEMPTS for a number of attempts that a user wrote."""
    return UNLIMITED if value == "none" else _whole("max_attempts", value, 1, MOST_ATTEMPTS)


def _parsed_backoff(value: object) -> bytes:
    """Return the column BACKOFF for a back-off that a user wrote."""
    if not isinstance(value, Mapping):
        raise InvalidRequest(f"backoff: a mapping of keys is expected, not {_shown(value)}")
    unknown = next((key for key in value if key not in _DEFAULTS), None)
    if unknown is not None:
        raise InvalidRequest(f"backoff.{unknown!s:.60}: unknown key; known are {', '.join(sorted(_DEFAULTS))}")
    parts = {**_DEFAULTS, **value}
    if type(parts["kind"]) is not str or parts["kind"] not in BACKOFF_KINDS:
        *names, last = [repr(kind) for kind in BACKOFF_KINDS]
        raise InvalidRequest(f"backoff.kind: {', '.join(names)} or {last} is expected, not {_shown(parts['kind'])}")
    first_ms, cap_ms = [_time(key, value[key]) if key in value else int(_DEFAULTS[key]) for key in ("first", "cap")]  # type: ignore[call-overload]
    if parts["kind"] != "none" and first_ms > cap_ms:
        first, cap = format_duration(first_ms), format_duration(cap_ms)
        raise InvalidRequest(
            f"backoff.first: {first} is longer than backoff.cap ({cap}), and no message waits longer: raise the cap"
        )
    return pack_backoff(
        {
            "kind": parts["kind"],
            "first_ms": first_ms,
            "factor_permille": round(_factor(parts["factor"]) * 1000),
            "cap_ms": cap_ms,
            "jitter_percent": _whole("backoff.jitter_percent", parts["jitter_percent"], 0, 100),
        }
    )


def _whole(name: str, value: object, least: int, greatest: int) -> int:
    """Return a whole number, given as an int or as digits."""
    if isinstance(value, str) and value.isascii() and value.removeprefix("-").isdigit() and len(value) <= 20:
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidRequest(f"{name}: {_shown(value)} is not a whole number")
    if not least <= value <= greatest:
        raise InvalidRequest(f"{name}: {value} is not within {least} to {greatest}")
    return value


def _factor(value: object) -> float:
    """Return the factor of a back-off."""
    try:
        factor = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else None
    except (ValueError, OverflowError):
        factor = None
    if factor is None:
        raise InvalidRequest(f"backoff.factor: {_shown(value)} is not a number")
    if not 1 <= factor <= _FACTOR_MOST:
        raise InvalidRequest(f"backoff.factor: {_shown(value)} is not within 1 to {_FACTOR_MOST}")
    return factor


def _time(key: str, value: Any) -> int:
    """Return a time of a back-off, in ms."""
    try:
        ms = duration_ms(value)
    except InvalidTime as error:
        raise InvalidRequest(f"backoff.{key}: {error.message}") from None
    if ms > MOST_BACKOFF_MS:
        most = format_duration(MOST_BACKOFF_MS)
        raise InvalidRequest(f"backoff.{key}: {format_duration(ms)} is not within {format_duration(0)} to {most}")
    return ms


def _shown(value: object) -> str:
    """Return a value for an error message."""
    return f"{value!r:.60}"
