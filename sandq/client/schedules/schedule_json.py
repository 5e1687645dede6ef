"""Schedules as JSON, for HTTP and the commands.

Settings have the names and units of `Schedules.create`, so that the JSON of a schedule can be used to create it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from sandq.client.arguments import did_you_mean
from sandq.client.json_format import (
    content_fields,
    rank_fields,
    read_headers,
    read_key,
    read_value,
    value_fields,
    when,
)
from sandq.client.schedules.schedule import Schedule
from sandq.client.schedules.schedules import Fire
from sandq.model.errors import InvalidRequest
from sandq.model.times import format_duration

VALUES: Final = ("text", "value", "json")
SETTINGS: Final = (
    *("cron", "every", "zone", "start", "end", "count", "jitter"),
    *("misfire", "misfire_most", "overlap_group", "ttl", "priority", "max_attempts", "backoff", "cost"),
)
"""Fields whose JSON value `Schedules.create` accepts unchanged."""
FROM_BROKERS: Final = frozenset(
    (
        *("topic", "partition", "version", "state", "next_at", "fire_at", "next_id", "next_local"),
        *("fired", "missed", "created_at", "changed_at", "history"),
    )
)
"""Fields that only a broker sets."""
_MAKING: Final = frozenset((*SETTINGS, *VALUES, "name", "key", "key_base64", "headers", "tenant", "paused"))
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def schedule_json(schedule: Schedule, *, value: bool = True, as_text: bool = False) -> dict[str, Any]:
    """Return a schedule with its settings, message, state and latest occurrences. `value`: include the message's value.

    `as_text`: never return the value as `json`.
    """
    settings: dict[str, Any] = {
        "cron": schedule.cron,
        "every": _length(schedule.every_ms),
        "zone": schedule.zone if schedule.cron is not None else None,
        "start": when(schedule.start_ms),
        "end": when(schedule.end_ms),
        "count": schedule.count,
        "jitter": _length(schedule.jitter_ms or None),
        "misfire": schedule.misfire,
        "misfire_most": schedule.misfire_most,
        "overlap_group": schedule.overlap_group,
        "ttl": _length(schedule.ttl_ms),
        "max_attempts": schedule.max_attempts,
        "backoff": schedule.backoff,
        "cost": schedule.cost,
        "paused": schedule.paused,
    }
    return {
        "name": schedule.name,
        **{name: setting for name, setting in settings.items() if setting is not None},
        **(value_fields(schedule.value, None if as_text else schedule.headers_bytes) if value else {}),
        **content_fields(schedule.key, schedule.headers_bytes),
        **rank_fields(schedule.priority, schedule.tenant),
        "topic": schedule.topic,
        "partition": schedule.partition,
        "version": schedule.version,
        "state": schedule.state,
        "next_at": when(schedule.next_ms),
        "next_local": None if schedule.next_ms is None else local(schedule.next_ms, schedule.zone),
        "fire_at": when(schedule.fire_ms),
        "next_id": schedule.next_id,
        "fired": schedule.fired,
        "missed": schedule.missed,
        "created_at": when(schedule.created_ms),
        "changed_at": when(schedule.changed_ms),
        "history": [
            {"occurrence_at": when(one.occurrence_ms), "fired_at": when(one.fired_ms), "outcome": one.outcome}
            | {"id": one.id}
            for one in schedule.history
        ],
    }


def fire_json(fire: Fire, zone: str) -> dict[str, Any]:
    """Return a future occurrence: its instant, its local time in the schedule's zone, and its delivery time."""
    return {
        "occurrence_at": when(fire.occurrence_ms),
        "local": local(fire.occurrence_ms, zone),
        "fire_at": when(fire.fire_ms),
    }


def local(ms: int, zone: str) -> str | None:
    """Return an instant as local time with its offset: "2030-01-31T09:00:00+01:00".

    None if this client does not know the zone, or if the calendar does not have the year.
    """
    from sandq.schedules.zones import zone as zone_of

    try:
        moment = (_EPOCH + timedelta(milliseconds=ms)).astimezone(zone_of(zone))
    except (InvalidRequest, OverflowError):
        return None
    return moment.isoformat(timespec="milliseconds" if ms % 1000 else "seconds")


def read_schedule(found: object) -> dict[str, Any]:
    """Return the arguments of `Schedules.create` for a JSON object. Raises InvalidRequest with the wrong field.

    Fields that only a broker sets are ignored, so that the JSON of a schedule can be used to create it again.
    """
    if not isinstance(found, Mapping):
        raise InvalidRequest("a schedule: a JSON object is expected")
    unknown = sorted(found.keys() - _MAKING - FROM_BROKERS)
    if unknown:
        meant = did_you_mean(unknown[0], _MAKING) or f" ({', '.join(sorted(_MAKING))} are)"
        raise InvalidRequest(f"{unknown[0]}: no such field of a schedule{meant}")
    if found.get("name") is None:
        raise InvalidRequest("name: a schedule has one")
    arguments: dict[str, Any] = {"name": found["name"], **_content(found)}
    if (key := read_key(found, "key")) is not None:
        arguments["key"] = key
    if found.get("headers") is not None:
        arguments["headers"] = read_headers(found["headers"])
    return arguments | {name: found[name] for name in (*SETTINGS, "tenant", "paused") if found.get(name) is not None}


def read_changes(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `Schedules.update` for a JSON object. Raises InvalidRequest with the wrong field.

    A missing field stays unchanged; null restores the default of `create`.
    """
    changes = {name: found[name] for name in SETTINGS if name in found}
    if any([name in found for name in VALUES]):
        changes |= _content(found)
    if "key" in found or "key_base64" in found:
        changes["key"] = read_key(found, "key")
    if "headers" in found:
        changes["headers"] = None if found["headers"] is None else read_headers(found["headers"])
    return changes


def _content(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the value of a schedule's messages as an argument of the client: as `json` or as `value`."""
    value = read_value(found)
    if value is None:
        raise InvalidRequest("value: null is not allowed, because each occurrence sends a message")
    return {"json": found["json"]} if "json" in found else {"value": value}


def _length(ms: int | None) -> str | None:
    return None if ms is None else format_duration(ms)
