"""Stored messages and dead letters as objects for JSON, and as cells of a table.

The objects are those of HTTP (`sandq/client/json_format.py`): with its value, one is a line that
`produce --jsonl` takes.
The client is imported when something is shown: `--help` does without.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sandctl.output.results import shortened

if TYPE_CHECKING:
    from sandq.client import Change, DeadLetter, Entry, GroupConsumer, StoredMessage

CELL_CHARS = 60
_VALUE_CHARS = 2000


def consumer_record(row: GroupConsumer) -> dict[str, Any]:
    """A consumer of a group."""
    from sandq.client.json_format import consumer_json

    return consumer_json(row)


def stored_record(message: StoredMessage, *, value: bool) -> dict[str, Any]:
    """A stored message, wherever it is in its life."""
    from sandq.client.json_format import stored_json

    return stored_json(message, value=value)


def dead_record(letter: DeadLetter, *, value: bool) -> dict[str, Any]:
    """A dead letter."""
    from sandq.client.json_format import dead_json

    return dead_json(letter, value=value)


def entry_record(entry: Entry, *, value: bool = True) -> dict[str, Any]:
    """A key of a compacted topic, and what it has; without its value and headers unless they are wanted."""
    from sandq.client.json_format import entry_json

    return entry_json(entry, value=value)


def change_record(change: Change) -> dict[str, Any]:
    """A change of a key."""
    from sandq.client.json_format import change_json

    return change_json(change)


def biography_record(found: Mapping[str, Any]) -> dict[str, Any]:
    """What `why` found, with instants that people and programs can read."""
    from sandq.client.json_format import why_json

    return why_json(found)


def key_record(name: str, key: bytes) -> dict[str, Any]:
    """A key as text, or in base64 when it is no UTF-8."""
    from sandq.client.json_format import key_fields

    return key_fields(name, key)


def without_long_value(record: dict[str, Any]) -> dict[str, Any]:
    """A record for people: of a value that is long, the beginning."""
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
    """RFC 3339; None stays None."""
    from sandq.model.times import format_instant

    return None if ms is None else format_instant(ms)


def key_name(key: bytes) -> str:
    """A key in a sentence."""
    return repr(key.decode("utf-8", "backslashreplace"))


def key_cell(key: bytes | None) -> str | None:
    """A key in a table."""
    if key is None:
        return None
    try:
        text = key.decode()
    except UnicodeDecodeError:
        text = key.hex()
    return shortened(text, CELL_CHARS)


def value_cell(value: bytes | None) -> str | None:
    """The beginning of a value in a table."""
    return None if value is None else shortened(value[: CELL_CHARS * 4].decode("utf-8", "replace"), CELL_CHARS)
