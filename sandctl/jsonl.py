"""A message as a line of JSON: what `consume -o jsonl` writes is what `produce --jsonl` reads.

    {"text": "hello"}                     the value: UTF-8 text,
    {"value": "aGVsbG8="}                 or base64,
    {"json": {"order": 7}}                or JSON, sent as its compact text
    "key": "k" | "key_base64": "aw=="     optional
    "headers": {"a": "text", "n": 1, "b": {"base64": "aw=="}}
    "deliver_at": "2030-01-31T08:00:00Z" | epoch milliseconds, or "delay": "90s" | seconds

`consume` adds what it knows (offset, id, topic, partition, attempt, created_at, lease_token); `produce` passes over
that and refuses every other name.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sandq.client import Message

FROM_CONSUME = frozenset(("offset", "id", "topic", "partition", "attempt", "created_at", "lease_token"))
_VALUES = ("text", "value", "json")
_KNOWN = frozenset((*_VALUES, "key", "key_base64", "headers", "deliver_at", "delay"))


class BadLine(Exception):
    """A line that is no message; the text says why."""


def parse_line(line: bytes) -> dict[str, Any]:
    """A line's message as arguments of `Producer.send`; BadLine when it is none."""
    try:
        found = json.loads(line)
    except ValueError as error:  # JSONDecodeError, and UnicodeDecodeError
        raise BadLine(f"not JSON: {error}") from None
    except RecursionError:
        raise BadLine("not JSON: nested too deep") from None
    if not isinstance(found, dict):
        raise BadLine("a JSON object is expected")
    unknown = sorted(found.keys() - _KNOWN - FROM_CONSUME)
    if unknown:
        raise BadLine(f"{unknown[0]}: no such field of a message (this version knows {', '.join(sorted(_KNOWN))})")
    arguments: dict[str, Any] = {"value": _value(found)}
    if found.get("key") is not None or found.get("key_base64") is not None:
        arguments["key"] = _key(found)
    if found.get("headers") is not None:
        arguments["headers"] = _headers(found["headers"])
    for name in ("deliver_at", "delay"):
        if found.get(name) is not None:
            arguments[name] = found[name]
    return arguments


def _value(found: Mapping[str, Any]) -> bytes:
    given = [name for name in _VALUES if name in found]
    if len(given) != 1:
        raise BadLine(f"one of text, value and json is expected, not {' and '.join(given) or 'none'}")
    name = given[0]
    if name == "json":
        return json.dumps(found["json"], ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
    if not isinstance(found[name], str):
        raise BadLine(f"{name}: text is expected")
    return _base64("value", found["value"]) if name == "value" else _utf8("text", found["text"])


def _key(found: Mapping[str, Any]) -> bytes:
    if found.get("key") is None:
        return _base64("key_base64", found["key_base64"])
    if found.get("key_base64") is not None:
        raise BadLine("key and key_base64: one of them, not both")
    if not isinstance(found["key"], str):
        raise BadLine("key: text is expected")
    return _utf8("key", found["key"])


def _headers(found: object) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise BadLine("headers: an object is expected")
    headers = {}
    for name, value in found.items():
        if isinstance(value, dict) and value.keys() == {"base64"}:
            value = _base64(f"headers.{name}", value["base64"])
        headers[name] = value
    return headers


def _utf8(name: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise BadLine(f"{name}: it holds half a surrogate pair, which UTF-8 cannot") from None


def _base64(name: str, text: object) -> bytes:
    if not isinstance(text, str):
        raise BadLine(f"{name}: base64 text is expected")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadLine(f"{name}: not base64: {error}") from None


def message_record(message: Message) -> dict[str, Any]:
    """A delivered message as an object for JSON."""
    from sandq.model.times import format_instant

    record: dict[str, Any] = {}
    text = _text(message.value)
    record.update({"value": _encoded(message.value)} if text is None else {"text": text})
    if message.key is not None:
        key = _text(message.key)
        record.update({"key_base64": _encoded(message.key)} if key is None else {"key": key})
    headers = message.headers
    if headers:
        record["headers"] = {
            name: {"base64": _encoded(value)} if isinstance(value, bytes) else value for name, value in headers.items()
        }
    record["deliver_at"] = format_instant(message.deliver_at_ms)
    record["offset"] = message.offset
    record["id"] = message.id
    record["topic"] = message.topic
    record["partition"] = message.partition
    record["attempt"] = message.attempt
    record["created_at"] = format_instant(message.created_ms)
    record["lease_token"] = message.lease_token
    return record


def _text(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()
