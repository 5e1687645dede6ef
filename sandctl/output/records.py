"""Stored messages and dead letters as objects for JSON, and as cells of a table.

The objects are those of HTTP (`sandq/client/json_format.py`): with its value, an object is a line for `produce
--jsonl`. The client is imported only when something is shown, because `--help` does not need the client.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sandctl.output.results import shortened

if TYPE_CHECKING:
    from sandq.client import Change, DeadLetter, Entry, GroupConsumer, PausedPart, StoredMessage

CELL_CHARS = 60
_VALUE_CHARS = 2000


def consumer_record(row: GroupConsumer) -> dict[str, Any]:
    """Return a consumer of a group."""
    from sandq.client.json_format import consumer_json

    return consumer_json(row)


def limit_record(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of a named limit."""
    from sandq.client.json_format import named_limit_json

    return named_limit_json(row)


def pause_record(row: PausedPart) -> dict[str, Any]:
    """Return a paused tenant or key of a group."""
    from sandq.client.json_format import pause_json

    return pause_json(row)


def stored_record(message: StoredMessage, *, value: bool) -> dict[str, Any]:
    """Return a stored message in any state."""
    from sandq.client.json_format import stored_json

    return stored_json(message, value=value)


def dead_record(letter: DeadLetter, *, value: bool) -> dict[str, Any]:
    """Return a dead letter."""
    from sandq.client.json_format import dead_json

    return dead_json(letter, value=value)


def entry_record(entry: Entry, *, value: bool = True) -> dict[str, Any]:
    """Return a key of a compacted topic. With `values`, include its value and headers."""
    from sandq.client.json_format import entry_json

    return entry_json(entry, value=value)


def change_record(change: Change) -> dict[str, Any]:
    """Return a change of a key."""
    from sandq.client.json_format import change_json

    return change_json(change)


def biography_record(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of `why`, with instants as text."""
    from sandq.client.json_format import why_json

    return why_json(found)


def key_record(name: str, key: bytes) -> dict[str, Any]:
    """Return a key as text, or in base64 if it is not UTF-8."""
    from sandq.client.json_format import key_fields

    return key_fields(name, key)


def without_long_value(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record for people, with a long value cut short."""
    if "json" in record:
        from sandctl.output.results import to_json

        text = to_json(record["json"])
        record = {name: text if name == "json" else part for name, part in record.items()}
    cut = {
        name: f"{text[:_VALUE_CHARS]}… ({len(text):,} characters; -o json has them all)"
        for name, text in record.items()
        if name in ("json", "text", "value") and len(text or "") > _VALUE_CHARS
    }
    return {**record, **cut}


def when(ms: int | None) -> str | None:
    """Return an instant in RFC 3339; None stays None."""
    from sandq.model.times import format_instant

    return None if ms is None else format_instant(ms)


def key_name(key: bytes) -> str:
    """Return a key for use in a sentence."""
    return repr(key.decode("utf-8", "backslashreplace"))


def key_cell(key: bytes | None) -> str | None:
    """Return a key as a table cell."""
    if key is None:
        return None
    try:
        text = key.decode()
    except UnicodeDecodeError:
        text = key.hex()
    return shortened(text, CELL_CHARS)


def value_cell(value: bytes | None) -> str | None:
    """Return the beginning of a value for a table."""
    return None if value is None else shortened(value[: CELL_CHARS * 4].decode("utf-8", "replace"), CELL_CHARS)
