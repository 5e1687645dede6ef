"""Stored messages and dead letters as objects for JSON, and as cells of a table.

The names are those of `sandctl.jsonl`: with its value, such an object is a line that `produce --jsonl` takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sandctl.jsonl import content_fields, key_fields, text_or_none, value_fields
from sandctl.output import shortened

if TYPE_CHECKING:
    from sandq.client import DeadLetter, StoredMessage

CELL_CHARS = 60


def stored_record(message: StoredMessage, *, value: bool) -> dict[str, Any]:
    """A stored message, wherever it is in its life."""
    from sandq.model.times import format_duration

    return {
        **(value_fields(message.value) if value else {}),
        **content_fields(message.key, message.headers),
        **key_fields("unique_key", message.unique_key),
        **({} if message.ttl_ms is None else {"ttl": format_duration(message.ttl_ms)}),
        "deliver_at": when(message.deliver_at_ms),
        "id": message.id,
        "offset": message.offset,
        "topic": message.topic,
        "partition": message.partition,
        "state": message.state,
        "created_at": when(message.created_ms),
        "due_at": when(message.due_ms),
        "moves": message.moves,
        "moved_at": when(message.moved_ms),
        "size": message.size,
    }


def dead_record(letter: DeadLetter, *, value: bool) -> dict[str, Any]:
    """A dead letter."""
    return {
        **(value_fields(letter.value) if value else {}),
        **content_fields(letter.key, letter.headers),
        **key_fields("unique_key", letter.unique_key),
        "deliver_at": when(letter.deliver_at_ms),
        "id": letter.id,
        "offset": letter.offset,
        "topic": letter.topic,
        "partition": letter.partition,
        "reason": letter.reason,
        "attempts": letter.attempts,
        "error": letter.error,
        "dead_at": when(letter.dead_ms),
        "created_at": when(letter.created_ms),
        "size": letter.size,
        "history": [history_record(row) for row in letter.history],
    }


def biography_record(found: Mapping[str, Any]) -> dict[str, Any]:
    """What `why` found, with instants that people and programs can read."""
    message = {name: value for name, value in found.items() if name != "groups"}
    return {**_readable(message), "groups": [_group_record(row) for row in found["groups"]]}


def _group_record(row: Mapping[str, Any]) -> dict[str, Any]:
    history = [history_record(part) for part in row.get("history") or ()]
    return {**_readable({name: value for name, value in row.items() if name != "history"}), "history": history}


def history_record(row: Any) -> dict[str, Any]:
    """One attempt: who had it, when, and how it ended."""
    attempt, consumer, leased_ms, ended_ms, outcome, error = row
    return {
        "attempt": attempt,
        "consumer": consumer,
        "leased_at": when(leased_ms),
        "ended_at": when(ended_ms),
        "outcome": outcome,
        "error": error,
    }


def _readable(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Moments (`..._ms`) become instants (`..._at`), the ttl a duration, keys text; ids are text already."""
    from sandq.model.times import format_duration

    record: dict[str, Any] = {}
    for name, value in fields.items():
        if name in ("key", "unique_key"):
            record.update(key_fields(name, value))
        elif name == "ttl_ms":
            record["ttl"] = None if value is None else format_duration(value)
        elif name.endswith("_ms"):
            record[name.removesuffix("_ms").removesuffix("_at") + "_at"] = when(value)
        elif name == "headers":
            record.update(content_fields(None, value))
        elif name != "value":
            record[name] = value
    return record


def when(ms: int | None) -> str | None:
    """RFC 3339; None stays None."""
    from sandq.model.times import format_instant

    return None if ms is None else format_instant(ms)


def key_cell(key: bytes | None) -> str | None:
    """A key in a table."""
    if key is None:
        return None
    text = text_or_none(key)
    return shortened(key.hex() if text is None else text, CELL_CHARS)


def value_cell(value: bytes | None) -> str | None:
    """The beginning of a value in a table."""
    return None if value is None else shortened(value[: CELL_CHARS * 4].decode("utf-8", "replace"), CELL_CHARS)
