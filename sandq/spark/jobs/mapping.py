"""`RowMapping`: the columns from which the job schedule makes the value, the time, the key and the headers.

Only names are checked here, so that mistakes are reported before Spark is started.
"""

from __future__ import annotations

import difflib
import zoneinfo
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sandq.model.errors import InvalidRequest, InvalidSetting
from sandq.model.times import Duration, duration_ms

HEADER: Final = "header."
FIELDS: Final = ("value", "key", "deliver_at", "delay_ms", "ttl_ms", "unique_key", "headers", "priority", "tenant")
EVERY: Final = "*"
"""Stands for all columns in `value_json`."""
ON_CONFLICT: Final = ("reject", "replace", "ignore")
HEADERS_MAX: Final = 100
"""Maximum number of headers that are mapped to columns one by one."""


@dataclass(frozen=True, slots=True)
class RowMapping:
    """Columns by the field of a message (`columns`) and by the name of a header (`headers`).

    `value_json`: columns that become the value, as a JSON object.
    """

    columns: Mapping[str, str]
    headers: Mapping[str, str] = field(default_factory=dict)
    value_json: tuple[str, ...] = ()
    default_delay_ms: int | None = None
    time_zone: str | None = None
    on_conflict: str | None = None

    def record(self) -> dict[str, Any]:
        """Return all settings in a fixed order."""
        return {
            "columns": dict(sorted(self.columns.items())),
            "headers": dict(sorted(self.headers.items())),
            "value_json": list(self.value_json),
            "default_delay_ms": self.default_delay_ms,
            "time_zone": self.time_zone,
            "on_conflict": self.on_conflict,
        }


def row_mapping(
    mapping: Mapping[str, str],
    *,
    value_json: Sequence[str] = (),
    default_delay: Duration | None = None,
    time_zone: str | None = None,
    on_conflict: str | None = None,
) -> RowMapping:
    """Check and return a mapping. Raises InvalidSetting with all mistakes; InvalidTime for a wrong delay."""
    columns = {name: column for name, column in mapping.items() if not name.startswith(HEADER)}
    headers = {name[len(HEADER) :]: column for name, column in mapping.items() if name.startswith(HEADER)}
    found = RowMapping(
        columns,
        headers,
        tuple(value_json),
        None if default_delay is None else duration_ms(default_delay),
        time_zone,
        on_conflict,
    )
    mistakes = [*_names(found), *_combinations(found)]
    if mistakes:
        raise InvalidSetting("schedule: " + "; ".join(mistakes))
    return found


def parse_pairs(texts: Iterable[str], what: str) -> dict[str, str]:
    """Parse texts like "value=body" into a mapping; `what` is the prefix of errors.

    Raises InvalidRequest if a text has no name or no value, or if a name occurs twice.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, _, value = text.partition("=")
        if not name or not value:
            raise InvalidRequest(f"{what}: NAME=VALUE is expected, not {text!r}")
        if name in found:
            raise InvalidRequest(f"{what}: {name} is given twice, as {found[name]!r} and {value!r}")
        found[name] = value
    return found


def _names(found: RowMapping) -> Iterable[str]:
    for name in found.columns:
        if name not in FIELDS:
            close = difflib.get_close_matches(name, FIELDS, n=1)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(FIELDS)} and {HEADER}NAME"
            yield f"{name!r} is no part of a message; {hint}"
    for name, column in [*found.columns.items(), *found.headers.items()]:
        if not name or not column:
            yield f"{name!r} is mapped to {column!r}: neither may be empty"
    if len(found.headers) > HEADERS_MAX:
        yield f"{len(found.headers)} headers; {HEADERS_MAX} are allowed"
    if any(not name for name in found.value_json):
        yield "value_json: a column without a name"
    if found.time_zone is not None and not _is_zone(found.time_zone):
        yield f"time_zone: {found.time_zone!r} is not known; a name like Europe/Vienna or UTC is expected"
    if found.on_conflict is not None and found.on_conflict not in ON_CONFLICT:
        yield f"on_conflict: one of {', '.join(ON_CONFLICT)} is expected, not {found.on_conflict!r}"


def _combinations(found: RowMapping) -> Iterable[str]:
    if ("value" in found.columns) == bool(found.value_json):
        yield "value: either map value=COLUMN, or name the columns of its JSON (value_json)"
    if EVERY in found.value_json and len(found.value_json) > 1:
        yield f"value_json: {EVERY} stands for all columns; name no other column with it"
    if found.headers and "headers" in found.columns:
        yield f"headers: map either one column with all headers, or {HEADER}NAME for each"
    if found.default_delay_ms is None and not {"deliver_at", "delay_ms"} & set(found.columns):
        yield "time: map deliver_at=COLUMN or delay_ms=COLUMN, or give a default delay (0s: at once)"
    if found.on_conflict is not None and "unique_key" not in found.columns:
        yield "on_conflict: it needs a unique_key"


def _is_zone(name: str) -> bool:
    try:
        zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        return False
    return True
