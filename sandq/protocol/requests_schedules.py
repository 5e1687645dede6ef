"""Requests about schedules (recurring messages), and the client's side of the replies.

SCHEDULE_PUT      [results array]               one per item
SCHEDULE_CHANGE   [results array]               one per name
SCHEDULE_GET      [schedules array]             one per name, nil if there is none
SCHEDULE_LIST     [schedules array, next str | nil]
SCHEDULE_PREVIEW  [times array, zone data str]  [occurrence ms, when it fires ms] items

result   = {outcome "created" | "changed" | "unchanged" | "triggered" | "exists" | "conflict" | "not_found",
            version, next_ms | nil, fire_ms | nil, id bin16 | nil}
schedule = {name, version, settings, value, key, headers, priority, tenant, ttl_ms, paused, next_ms | nil,
            fire_ms | nil, next_id bin16 | nil, fired, missed, created_ms, changed_ms, history [[occurrence ms,
            fired ms, "sent" | "skipped" | "missed" | "triggered", id bin16 | nil]...]}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, NamedTuple, Self

from sandq.model.errors import InvalidRequest, ProtocolError
from sandq.model.names import check_tenant, of_schedule
from sandq.model.retries import is_backoff, is_cost, is_max_attempts
from sandq.protocol.fields import U48_MAX
from sandq.protocol.frames import Frame, Type
from sandq.protocol.request import U48, Bounds, Partition, Request, characters, choice, each, length

NAME_BYTES: Final = 255
ITEMS_MOST: Final = 1000
"""Maximum number of items in one request or one page."""
TIMES_MOST: Final = 1000
"""Maximum number of times in one preview."""
TOKEN_BYTES: Final = 16

PAUSE, RESUME, DELETE, TRIGGER = "pause", "resume", "delete", "trigger"
ACTIONS: Final = (PAUSE, RESUME, DELETE, TRIGGER)
_NIL: Final = type(None)
NEW: Final = 0
"""Version in an item which requires that no schedule of this name exists."""


def check_schedule_name(name: Any) -> str | None:
    """Return what is wrong with the name of a schedule. None if it is valid."""
    if type(name) is not str:
        return f"the name of a schedule is text, not {type(name).__name__}"
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return "the name of a schedule is text in Unicode"
    if not 1 <= size <= NAME_BYTES:
        return f"the name of a schedule has 1..{NAME_BYTES} bytes, not {size}"
    if not name.isprintable():
        return f"the name of a schedule has printable characters only: {name[:40]!r}"
    return None


def check_schedule_id(schedule: Any) -> str | None:
    """Return what is wrong with the id of a schedule (`of_schedule`). None if it is valid."""
    if type(schedule) is not str or "\0" not in schedule:
        return check_schedule_name(schedule)
    name, tenant = of_schedule(schedule)
    try:
        check_tenant(tenant)
    except InvalidRequest as error:
        return error.message
    return check_schedule_name(name)


def _check_item(item: Any) -> str | None:
    if type(item) is not list or len(item) != 5:
        return "expected [name, version, settings, batch, paused]"
    name, version, settings, batch, paused = item
    if (problem := check_schedule_id(name)) is not None:
        return problem
    if version is not None and (type(version) is not int or version < 0):
        return "the version is a whole number, or nil"
    if type(settings) is not dict or type(batch) is not bytes or type(paused) not in (bool, _NIL):
        return "expected [name, version, settings, batch, paused]"
    return None


ScheduleName = Annotated[str, check_schedule_id]
"""A name. In a fair topic, it is followed by a zero character and the tenant, unless that is the default tenant."""


class SchedulePut(Request, type=Type.SCHEDULE_PUT):
    """Create schedules, or change their settings. Items: `[name, version, settings, batch, paused]`. version: the
    version that the schedule must have (0: it must not exist; nil: any). batch: one message. paused: nil: unchanged; a
    new schedule is then not paused."""

    topic: str
    partition: Partition
    items: Annotated[Sequence[Sequence[Any]], each(_check_item, ITEMS_MOST)]


class ScheduleChange(Request, type=Type.SCHEDULE_CHANGE):
    """Pause, resume, delete or trigger schedules. `token`: identifies repetitions of a trigger."""

    topic: str
    partition: Partition
    action: Annotated[str, choice(*ACTIONS)]
    names: Annotated[Sequence[str], each(check_schedule_id, ITEMS_MOST)]
    token: Annotated[bytes, length(TOKEN_BYTES)]


class ScheduleGet(Request, type=Type.SCHEDULE_GET):
    """Return schedules by their names."""

    topic: str
    partition: Partition
    names: Annotated[Sequence[str], each(check_schedule_id, ITEMS_MOST)]


class ScheduleList(Request, type=Type.SCHEDULE_LIST):
    """Return a page of schedules, ordered by the bytes of their names. `after`: None, or the next name of the previous
    page."""

    topic: str
    partition: Partition
    prefix: Annotated[str, characters(0, NAME_BYTES)]
    limit: Annotated[int, Bounds(1, ITEMS_MOST)]
    after: ScheduleName | None


class SchedulePreview(Request, type=Type.SCHEDULE_PREVIEW):
    """Return the times at which a schedule with this name and these settings would fire after an instant; None: now."""

    name: ScheduleName
    settings: Mapping[str, Any]
    after_ms: U48 | None
    count: Annotated[int, Bounds(1, TIMES_MOST)]  # type: ignore[assignment]  # hides tuple.count


class ScheduleResult(NamedTuple):
    """The result for one schedule."""

    outcome: str
    version: int
    next_ms: int | None
    fire_ms: int | None
    id: bytes | None

    @classmethod
    def of(cls, row: object) -> Self:
        """Read a result. Raise ProtocolError if it is malformed."""
        return cls._make(_read("result of a schedule", row, _RESULT))


class ScheduleRecord(NamedTuple):
    """A schedule. `headers` is packed; times are in ms."""

    name: str
    version: int
    settings: Mapping[str, Any]
    value: bytes
    key: bytes | None
    headers: bytes | None
    priority: int
    tenant: str | None
    ttl_ms: int | None
    paused: bool
    next_ms: int | None
    fire_ms: int | None
    next_id: bytes | None
    fired: int
    missed: int
    created_ms: int
    changed_ms: int
    history: Sequence[Sequence[Any]]
    max_attempts: int | None = None
    backoff: bytes | None = None
    cost: int | None = None

    @classmethod
    def of(cls, row: object) -> Self:
        """Read a schedule. Raise ProtocolError if it is malformed."""
        record = cls(*_read("schedule", row, _SCHEDULE))
        rules = {name: row[name] for name in _RULES if name in row} if isinstance(row, dict) else {}
        for name, cell in rules.items():
            if not _RULES[name](cell):
                raise ProtocolError(f"a schedule whose {name} is wrong: {str(cell)[:60]}")
        return record._replace(**rules)


_RULES: Final = {"max_attempts": is_max_attempts, "backoff": is_backoff, "cost": is_cost}
"""Keys of a schedule that are missing unless its messages have their own rules, with their checks."""
_RESULT: Final[Mapping[str, tuple[type, ...]]] = {
    **{"outcome": (str,), "version": (int,), "next_ms": (int, _NIL), "fire_ms": (int, _NIL), "id": (bytes, _NIL)}
}
_SCHEDULE: Final[Mapping[str, tuple[type, ...]]] = {
    **{"name": (str,), "version": (int,), "settings": (dict,), "value": (bytes,), "key": (bytes, _NIL)},
    **{"headers": (bytes, _NIL), "priority": (int,), "tenant": (str, _NIL), "ttl_ms": (int, _NIL), "paused": (bool,)},
    **{"next_ms": (int, _NIL), "fire_ms": (int, _NIL), "next_id": (bytes, _NIL), "fired": (int,), "missed": (int,)},
    **{"created_ms": (int,), "changed_ms": (int,), "history": (list,)},
}


def _read(what: str, row: object, spec: Mapping[str, tuple[type, ...]]) -> list[Any]:
    if type(row) is not dict:
        raise ProtocolError(f"not a {what}: {str(row)[:200]}")
    for name, kinds in spec.items():
        if name not in row or type(row[name]) not in kinds:
            raise ProtocolError(f"a {what} whose {name} is missing or wrong: {str(row.get(name))[:60]}")
    return [row[name] for name in spec]


def schedule_results(frame: Frame, count: int) -> list[ScheduleResult]:
    """Return the result of each item or name of a request."""
    rows = frame[2] if len(frame) > 2 else None
    if type(rows) is not list or len(rows) != count:
        raise ProtocolError(f"expected an array of {count} results, got {str(rows)[:100]}")
    return [ScheduleResult.of(row) for row in rows]


def schedules_got(frame: Frame, count: int) -> list[ScheduleRecord | None]:
    """Return the schedules in the reply to a SCHEDULE_GET."""
    rows = frame[2] if len(frame) > 2 else None
    if type(rows) is not list or len(rows) != count:
        raise ProtocolError(f"expected an array of {count} schedules, got {str(rows)[:100]}")
    return [None if row is None else ScheduleRecord.of(row) for row in rows]


def schedule_page(frame: Frame) -> tuple[list[ScheduleRecord], str | None]:
    """Return the schedules in the reply to a SCHEDULE_LIST, and the next page's `after`."""
    if len(frame) < 4 or type(frame[2]) is not list or not isinstance(frame[3], (str, _NIL)):
        raise ProtocolError(f"not a page of schedules: {str(frame)[:200]}")
    return [ScheduleRecord.of(row) for row in frame[2]], frame[3]


def schedule_times(frame: Frame) -> tuple[list[tuple[int, int]], str]:
    """Return the times and the zone data in the reply to a SCHEDULE_PREVIEW."""
    if len(frame) < 4 or type(frame[2]) is not list or type(frame[3]) is not str:
        raise ProtocolError(f"not a preview of a schedule: {str(frame)[:200]}")
    times = []
    for row in frame[2]:
        if (
            type(row) is not list
            or [*map(type, row[:2])] != [int, int]
            or not all(0 <= ms <= U48_MAX for ms in row[:2])
        ):
            raise ProtocolError(f"not a time of a schedule: {str(row)[:60]}")
        times.append((row[0], row[1]))
    return times, frame[3]
