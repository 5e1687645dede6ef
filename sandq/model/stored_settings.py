"""Check a record of settings from outside the cluster, for example from a backup.

A record holds what replicas read: plain integers, rows of tenants, rows of group limits. `checked_record` converts it
to the form in which a user writes settings, so that a record is accepted only if it passes the checks of a topic's
creation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from sandq.model.dead_letter_settings import ON_EXPIRY
from sandq.model.errors import InvalidName, InvalidRequest, InvalidSetting
from sandq.model.group_limits import GROUP_LIMITS, MOST, USES_FIELDS, is_unit
from sandq.model.key_limits import MAX_IN_FLIGHT_PER_KEY, MOST_PER_KEY
from sandq.model.limits import FIXED
from sandq.model.names import AUTO_CREATED, COMPACTED, check_name
from sandq.model.outbox import DEAD_LETTER, DEAD_LETTER_TOPIC
from sandq.model.rates import as_mapping, rate_text
from sandq.model.settings import CLASSES, Backoff, parse_group_settings, parse_settings
from sandq.model.topic_limits import MAX_REQUEST_RATE_US

EPOCH_MAX: Final = 2**53
"""Greatest epoch of group limits in a record."""
PARTITIONS_MAX: Final = 4096
_FACTOR: Final = "factor_permille"
_INTERVAL_US: Final = (10, 86_400_000_000)
"""Least and greatest time between two messages of a rate, in microseconds."""
_TENANT_ROWS: Final = (3, 5)


def checked_record(record: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Return the record of a topic of this kind as this version writes it, without the dead letter topic.

    A key that is missing gets its default; an unknown key is left out. Raise InvalidSetting, which names every mistake
    that the creation of a topic with these settings would name.
    """
    checked = parse_settings(_as_written(record, kind), kind).record()
    limits = record.get(GROUP_LIMITS)
    if limits is not None:
        _check_group_limits(limits, kind)
        checked[GROUP_LIMITS] = limits
    auto_created = record.get(AUTO_CREATED, False)
    if type(auto_created) is not bool:
        raise _refused(AUTO_CREATED, f"true or false is expected, not {_shown(auto_created)}")
    if auto_created:
        checked[AUTO_CREATED] = True
    return {name: value for name, value in checked.items() if name not in (DEAD_LETTER, DEAD_LETTER_TOPIC)}


def check_group_record(record: Any) -> None:
    """Check the record of a group's own settings, as a row holds it. Raise InvalidSetting."""
    if type(record) is not dict:
        raise _refused("settings", f"a mapping is expected, not {_shown(record)}")
    written: dict[str, Any] = {}
    for name, value in record.items():
        if name == "backoff":
            written[name] = _backoff(name, value)
            if len(written[name]) < len(Backoff.model_fields):
                raise _refused(name, "all of its fields are expected")
        else:
            if value is not None and type(value) is not (str if name == ON_EXPIRY else int):
                raise _refused(str(name), f"{_shown(value)} is no value of it")
            written[name] = value
    most = {MAX_IN_FLIGHT_PER_KEY: MOST_PER_KEY} if MAX_IN_FLIGHT_PER_KEY in record else {}
    parse_group_settings(written, most)


def _as_written(record: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Return the settings of a record in the form in which a user writes them."""
    model = CLASSES[kind]
    written: dict[str, Any] = {}
    for field, about in model.model_fields.items():
        if field not in record or field == DEAD_LETTER_TOPIC:
            continue
        plain: Callable[[str, Any], Any] = _duration if field.endswith("_ms") else _plain
        convert = _CONVERSIONS.get(field, plain)
        written[about.alias or field] = convert(field, record[field])
    return written


def _plain(field: str, value: Any) -> Any:
    """Return a value of a record as a user writes it. Text is refused where the record has numbers, because text of
    digits would pass as a number.

    Users write null as 'none', and a record has nil. So the text 'none' is refused, except in `_CHOICES`, where it is a
    value.
    """
    is_text = field in _TEXTS
    if value is not None and type(value) not in ((str,) if is_text else (int, bool)):
        raise _refused(field, f"{_shown(value)} is no value of it")
    if is_text and value == "none" and field not in _CHOICES:
        raise _refused(field, "'none' is no value of it in a record; nil stands for none")
    return value


_TEXTS: Final = ("partition_delimiter", "ordering", ON_EXPIRY)
_CHOICES: Final = ("ordering",)


def _duration(field: str, value: Any) -> str | None:
    """Return a stored duration as text."""
    if value is None:
        return None
    if type(value) is not int or value < 0:
        raise _refused(field, f"a whole number of milliseconds is expected, not {_shown(value)}")
    return f"{value}ms"


def _rate(field: str, value: Any) -> str | None:
    """Return a stored interval as the text of a rate."""
    if value is None:
        return None
    _check_int(field, value, *_INTERVAL_US)
    return rate_text(value)


def _backoff(field: str, value: Any) -> dict[str, Any]:
    """Return a stored back-off as it is written in settings."""
    if type(value) is not dict:
        raise _refused(field, f"a mapping is expected, not {_shown(value)}")
    written: dict[str, Any] = {}
    for name, part in value.items():
        path = f"{field}.{name}"
        if name == "kind":
            written["kind"] = part
        elif name in ("first_ms", "cap_ms"):
            written[name.removesuffix("_ms")] = _duration(path, part)
        elif name == _FACTOR:
            _check_int(path, part, 1000, 100_000)
            written["factor"] = part / 1000
        elif name == "jitter_percent":
            written[name] = _plain(path, part)
    return written


def _tenants(field: str, value: Any) -> dict[str, Any]:
    """Return the stored rules of tenants as they are written in settings."""
    if type(value) is not list or len(value) > FIXED.tenant_patterns:
        raise _refused(field, f"an array of up to {FIXED.tenant_patterns} rows is expected, not {_shown(value)}")
    patterns = []
    for number, row in enumerate(value):
        path = f"{field}.{number}"
        if type(row) is not list or len(row) not in _TENANT_ROWS or type(row[0]) is not str:
            raise _refused(path, f"[pattern, weight, max_in_flight, interval_us, burst] is expected, not {_shown(row)}")
        _check_int(path, row[1], 1, 1000)
        if row[2] is not None:
            _check_int(path, row[2], 1, MOST)
        if len(row) > 3:
            _check_int(path, row[3], *_INTERVAL_US)
            _check_int(path, row[4], 1, MOST)
        patterns.append(row[0])
    if patterns != sorted(set(patterns)):
        raise _refused(field, "the patterns must be in order, and each of them once")
    return as_mapping(value)


_CONVERSIONS: Final[Mapping[str, Callable[[str, Any], Any]]] = {
    "backoff": _backoff,
    "tenants": _tenants,
    MAX_REQUEST_RATE_US: _rate,
}


def _check_group_limits(limits: Any, kind: str) -> None:
    """Raise InvalidSetting unless `limits` are valid group limits of a record."""
    if kind == COMPACTED:
        raise _refused(GROUP_LIMITS, "groups of a compacted topic have no limits")
    if type(limits) is not list or len(limits) != 2 or type(limits[1]) is not dict:
        raise _refused(GROUP_LIMITS, f"[next epoch, {{group: row}}] is expected, not {_shown(limits)}")
    next_epoch, groups = limits
    _check_int(GROUP_LIMITS, next_epoch, 1, EPOCH_MAX)
    are_named = any(type(row) is list and row[1:2] == [0] for row in groups.values())
    most = FIXED.named_limits if are_named else FIXED.limited_groups
    if len(groups) > most:
        raise _refused(GROUP_LIMITS, f"{len(groups)} groups; {most} is the limit")
    for group, row in groups.items():
        path = f"{GROUP_LIMITS}.{group!s:.80}"
        try:
            check_name("group", group)
        except (InvalidName, InvalidRequest) as error:
            raise _refused(path, error.message) from None
        if type(row) is list and len(row) == USES_FIELDS:
            _check_use(path, row, next_epoch)
            continue
        if type(row) is not list or len(row) != 6:
            raise _refused(
                path, f"[epoch, partitions, max_in_flight, interval_us, burst, unit] is expected, not {_shown(row)}"
            )
        epoch, partitions, in_flight, interval_us, burst, unit = row
        _check_int(path, epoch, 1, next_epoch - 1)
        _check_int(path, partitions, 0, PARTITIONS_MAX)
        if in_flight is not None:
            _check_int(path, in_flight, 1, MOST)
        if (interval_us is None) != (burst is None):
            raise _refused(path, "interval_us and burst are both given, or both nil")
        if interval_us is not None:
            _check_int(path, interval_us, *_INTERVAL_US)
            _check_int(path, burst, 1, MOST)
        if unit is not None and (interval_us is None or not is_unit(unit)):
            raise _refused(path, f"a unit goes with a rate, and {_shown(unit)} is not a valid name, or has no rate")
        if in_flight is None and interval_us is None:
            raise _refused(path, "a group with limits has at least one")


def _check_use(path: str, row: list[Any], next_epoch: int) -> None:
    """Raise InvalidSetting unless a row says which named limit a group uses."""
    epoch, partitions, name = row
    _check_int(path, epoch, 1, next_epoch - 1)
    _check_int(path, partitions, 1, PARTITIONS_MAX)
    try:
        check_name("limit", name)
    except (InvalidName, InvalidRequest) as error:
        raise _refused(path, error.message) from None


def _check_int(path: str, value: Any, least: int, greatest: int) -> None:
    """Raise InvalidSetting unless a value is an integer within these bounds."""
    if type(value) is not int or not least <= value <= greatest:
        raise _refused(path, f"a whole number within {least}..{greatest} is expected, not {_shown(value)}")


def _shown(value: Any) -> str:
    """Return a value for an error message."""
    return f"{value!r:.80}"


def _refused(path: str, what: str) -> InvalidSetting:
    """Return the error for a wrong setting."""
    mistake = f"{path}: {what}"
    return InvalidSetting(mistake, mistakes=[mistake])
