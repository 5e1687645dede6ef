"""Convert a record of the log to plain values, which `sandq wal dump` prints as text or JSON.

Commands have their names from docs/storage-format.md, in lower case. Only the size of a batch is shown. The values in a
batch, and all other bytes that users chose, are shown only on request.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgpack

from sandq.metadata import commands as metadata_commands
from sandq.model import offsets
from sandq.model.batch import Batch, peek
from sandq.model.errors import Corruption, InvalidRequest
from sandq.model.push import shown
from sandq.model.times import format_instant
from sandq.partition import commands as partition_commands
from sandq.raft.skip import Skip
from sandq.raft.wire import MEMBERSHIP, NO_OP, REGULAR, SKIP
from sandq.storage.wal_format import Kind

METADATA_GROUP = 0
_WORDS = re.compile(r"(?<=[a-z])(?=[A-Z])")


def payload_record(kind: int, group: int, payload: bytes, *, values: bool) -> dict[str, Any]:
    """Return the fields of a record's payload.

    Raises Corruption if the payload is unreadable although its checksum is correct. Raises StartupError if a newer
    version has written the payload.
    """
    if kind in (Kind.ENTRY, Kind.COPY):
        return _entry(group, payload, values)
    try:
        if kind == Kind.HARD_STATE:
            return {"voted_for": msgpack.unpackb(payload)}
        if kind == Kind.BASE:
            voters, learners = msgpack.unpackb(payload)
            return {"voters": voters, "learners": learners}
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise Corruption(f"a record of kind {kind} cannot be read: {error!r}") from error
    return {}


def _entry(group: int, payload: bytes, values: bool) -> dict[str, Any]:
    if not payload:
        raise Corruption("an entry has no first byte")
    tag, body = payload[0], payload[1:]
    if tag == NO_OP:
        return {"entry": "no-op"}
    if tag == MEMBERSHIP:
        return {"entry": "membership", "bytes": len(body)}
    if tag == SKIP:
        skip = Skip.decode(body)
        instead = _entry(group, bytes([REGULAR]) + skip.replacement, values)
        return {"entry": "skip", "of_index": skip.index, "of_term": skip.term, "skip_id": skip.skip_id.hex(), **instead}
    if tag != REGULAR:
        raise Corruption(f"an entry begins with byte {tag}, which this version does not know")
    module: Any = metadata_commands if group == METADATA_GROUP else partition_commands
    entry = module.Entry.decode(body)
    return {
        "now": format_instant(entry.now_ms),
        "commands": [command_record(command, values=values) for command in entry.commands],
    }


def command_record(command: Any, *, values: bool) -> dict[str, Any]:
    """Return a command's name and fields."""
    name = _WORDS.sub("_", type(command).__name__).lower()
    record: dict[str, Any] = {"command": name}
    for field in type(command).__match_args__:
        value = getattr(command, field)
        if name == "append" and field == "batch":
            record.update(_batch(value, values))
        elif name == "set_push" and field == "push":
            record[field] = None if value is None else shown(value)
        elif name == "put_identity" and field == "secret_hash":
            record[field] = None if value is None else "<hidden>"
        elif field == "job_id":
            record[field] = bytes(value).hex()
        else:
            record[field] = _plain(value, values)
    return record


def _batch(data: bytes, values: bool) -> dict[str, Any]:
    try:
        record: dict[str, Any] = {"messages": peek(data).count, "bytes": len(data)}
        if values:
            record["values"] = [None if value is None else _text(value) for value in Batch.parse(data).values()]
    except InvalidRequest as error:
        return {"bytes": len(data), "error": error.message}
    return record


def _plain(value: Any, values: bool) -> Any:
    if isinstance(value, bytes):
        if len(value) == offsets.OFFSET_BYTES:
            return offsets.to_text(value)
        return _text(value) if values else f"<{len(value)} bytes>"
    if isinstance(value, Mapping):
        return {str(key): _plain(part, values) for key, part in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        named = getattr(value, "_asdict", None)
        return _plain(named(), values) if named is not None else [_plain(part, values) for part in value]
    return value


def _text(data: bytes) -> str:
    """Return the text if it is UTF-8, otherwise `base64:` and the bytes in base64."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return f"base64:{base64.b64encode(data).decode()}"


def payload_text(record: Mapping[str, Any]) -> str:
    """Return the fields from `payload_record` as one line of text."""
    if "commands" in record:
        text = "; ".join(map(_command_text, record["commands"])) + f"  ({record['now']})"
        if record.get("entry") == "skip":
            return f"skip of entry {record['of_index']} of term {record['of_term']}, applied instead: {text}"
        return text
    return " ".join(f"{name}={_value_text(value)}" for name, value in record.items())


def _command_text(record: Mapping[str, Any]) -> str:
    fields = " ".join(f"{name}={_value_text(value)}" for name, value in record.items() if name != "command")
    return f"{record['command']} {fields}".rstrip()


def _value_text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return "{" + " ".join(f"{name}={_value_text(part)}" for name, part in value.items()) + "}"
    if isinstance(value, list):
        return "[" + " ".join(map(_value_text, value)) + "]"
    return str(value)
